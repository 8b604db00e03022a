// Object code: an ELF object, loaded into this process.
#ifndef ADAPTIVE_EAGER_NRT_OBJECT_CODE_H
#define ADAPTIVE_EAGER_NRT_OBJECT_CODE_H

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "debugger.h"

namespace neuroncore {

// Memory of its own, never writable and executable at once.
class Mapping {
 public:
  explicit Mapping(size_t size);  // readable and writable; throws LoadError
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  void protect(size_t offset, size_t size, int protection);  // throws LoadError

 private:
  uint8_t* data_;
  const size_t size_;
};

// Gives its memory back when it dies. Knows nothing of artefacts: bytes in, functions out.
class ObjectCode {
 public:
  // The address of a function that the object does not define itself; null if there is none.
  using Resolve = std::function<void*(const char* name)>;

  // Borrows the bytes for the call. Trusts their lengths, offsets and types as little as those of a stranger, though
  // not the instructions in them. Throws LoadError: damaged, for another machine, or it needs what is not there.
  ObjectCode(const uint8_t* bytes, size_t size, const Resolve& resolve);

  // The address of a function that the object defines for others; null if there is none.
  void* function(const std::string& name) const;

 private:
  std::vector<std::pair<std::string, void*>> functions_;
  std::unique_ptr<Mapping> mapping_;
  std::unique_ptr<DebuggerNote> note_;  // dies before what it tells of
};

}  // namespace neuroncore
#endif
