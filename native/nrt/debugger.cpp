// The interface that gdb and lldb publish for code made at run time: they look for the two symbols by name, read the
// list, and put a breakpoint on the function to hear of changes.
#include "debugger.h"

#include "core.h"

namespace neuroncore {

struct DebuggerEntry {
  DebuggerEntry* next;
  DebuggerEntry* previous;
  const char* object;
  uint64_t size;
};

namespace {

enum Action : uint32_t { kNothing, kRegistered, kUnregistered };

struct DebuggerList {
  uint32_t version;
  uint32_t action;
  DebuggerEntry* changed;
  DebuggerEntry* first;
};

}  // namespace
}  // namespace neuroncore

// Protected: other libraries of a process (LLVM's) have such symbols of their own.
extern "C" {
__attribute__((visibility("protected"), used)) neuroncore::DebuggerList __jit_debug_descriptor = {1, 0, nullptr,
                                                                                                  nullptr};
__attribute__((visibility("protected"), noinline, used)) void __jit_debug_register_code(void) {
  asm volatile("" ::: "memory");  // a call that is not optimised away
}
}

namespace neuroncore {
namespace {

void tell(Action action, DebuggerEntry* changed) {
  __jit_debug_descriptor.action = action;
  __jit_debug_descriptor.changed = changed;
  __jit_debug_register_code();
  __jit_debug_descriptor.action = kNothing;
  __jit_debug_descriptor.changed = nullptr;
}

}  // namespace

DebuggerNote::DebuggerNote(std::vector<uint8_t> object)
    : object_(std::move(object)),
      entry_(new DebuggerEntry{nullptr, nullptr, reinterpret_cast<const char*>(object_.data()), object_.size()}) {
  const std::lock_guard lock(core().mutex);
  entry_->next = __jit_debug_descriptor.first;
  if (entry_->next != nullptr) entry_->next->previous = entry_.get();
  __jit_debug_descriptor.first = entry_.get();
  tell(kRegistered, entry_.get());
}

DebuggerNote::~DebuggerNote() {
  const std::lock_guard lock(core().mutex);
  if (entry_->next != nullptr) entry_->next->previous = entry_->previous;
  (entry_->previous != nullptr ? entry_->previous->next : __jit_debug_descriptor.first) = entry_->next;
  tell(kUnregistered, entry_.get());
}

}  // namespace neuroncore
