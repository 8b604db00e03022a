// What makes, fills and copies tensors, for the kernels of single ops.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Scalar.h>

#include <bitset>

#include "op_table.h"
#include "window.h"

namespace neuron {

// A compiled op that is recorded by a kernel of its own, not through the op table.
OpRow map_row(const char* name);

// Whether kernels are compiled for this tensor.
bool mapped(const at::Tensor& t);

// Writes host values into a device tensor of the same sizes, at once.
void upload(const at::Tensor& dst, const at::Tensor& src);

// Records `self[...] = source`: two mapped tensors of one device and of equal sizes that share no memory.
void copy_part(const at::Tensor& self, const at::Tensor& source, Part part);

// The same of a whole tensor, with the source walked backwards along `dims`. The source has elements.
void copy_reversed(const at::Tensor& self, const at::Tensor& source, std::bitset<64> dims);

// `fill_`, and the same of a part.
at::Tensor& fill(at::Tensor& self, const at::Scalar& value);
void fill_part(at::Tensor& self, const at::Scalar& value, Part part);

}  // namespace neuron
