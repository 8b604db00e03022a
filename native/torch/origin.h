// Origins: the user's source line of a recorded op.
#pragma once

#include <string>
#include <vector>

namespace neuron {

struct Origin {
  std::string file;
  int line;
  std::string function;
};

// The innermost Python line of this thread outside torch and this package, or null. A call site seen before costs a
// walk over the frames and a look-up, and needs no GIL. The result lives for the rest of the process.
const Origin* current_origin();

// "file.py:12, in f" with the source text when the file can be read; empty for null.
std::string describe(const Origin* origin);

// A Python warning that points at the user's line. Throws if the program turns warnings into errors.
void warn_at(const Origin* origin, const std::string& message);

// Folders whose frames are never the user's.
void set_library_folders(std::vector<std::string> folders);

}  // namespace neuron
