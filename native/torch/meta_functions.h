// torch's structured meta functions in C++, by op name.
//
// The dispatcher's Meta key is not used for them: since torch registers Python references there, it costs 40 to 300 us
// a call and words its errors differently.
#pragma once

#include <ATen/core/boxing/KernelFunction.h>

#include <string>

namespace neuron {

// The meta function of "name.overload", or null.
const c10::KernelFunction* meta_function(const std::string& name);

}  // namespace neuron
