// Debugger: tells gdb and lldb of code that was loaded without the dynamic linker.
#ifndef ADAPTIVE_EAGER_NRT_DEBUGGER_H
#define ADAPTIVE_EAGER_NRT_DEBUGGER_H

#include <cstdint>
#include <memory>
#include <vector>

namespace neuroncore {

struct DebuggerEntry;

// Known to debuggers while it lives.
class DebuggerNote {
 public:
  // `object` is a whole ELF object whose section headers say where its sections are in memory.
  explicit DebuggerNote(std::vector<uint8_t> object);
  ~DebuggerNote();
  DebuggerNote(const DebuggerNote&) = delete;
  DebuggerNote& operator=(const DebuggerNote&) = delete;

 private:
  const std::vector<uint8_t> object_;
  const std::unique_ptr<DebuggerEntry> entry_;
};

}  // namespace neuroncore
#endif
