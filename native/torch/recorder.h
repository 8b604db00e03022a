// The recorder: one pending window a device; when to run it, and running it.
#pragma once

#include <array>
#include <atomic>
#include <mutex>
#include <string>

#include "data_error.h"
#include "device.h"
#include "params.h"
#include "signature.h"
#include "stats.h"
#include "trace_cache.h"
#include "window.h"

namespace neuron {

// Locks a mutex without ever waiting for it while holding the GIL: whoever holds our locks may need the GIL to compile.
void lock_without_gil(std::mutex& mutex);

class GilFreeLock {
 public:
  explicit GilFreeLock(std::mutex& mutex) : mutex_(mutex) { lock_without_gil(mutex_); }
  ~GilFreeLock() { mutex_.unlock(); }
  GilFreeLock(const GilFreeLock&) = delete;

 private:
  std::mutex& mutex_;
};

class Recorder {
 public:
  explicit Recorder(int device) : device_(device) {}

  // Runs everything recorded so far, and waits for what another thread is running.
  void flush(FlushCause cause);
  bool idle();
  // Whether a recorded op reads or writes this storage.
  bool pending(const c10::StorageImpl* storage);
  // Runs ops until the device has room for `bytes` more beside what the rest of the window needs to run.
  void make_room(size_t bytes);
  int device() const { return device_; }

  // Held over direct host access to device memory, so that no other thread is running kernels meanwhile.
  std::mutex& execution_mutex() { return execution_mutex_; }
  std::mutex& window_mutex() { return window_mutex_; }

  void clear_plans();
  size_t plans() const { return cache_.size(); }

 private:
  friend class Recording;
  friend class Call;

  bool is_full() const;                // window_mutex_ held
  uint64_t next_context(uint64_t id);  // window_mutex_ held
  void end_call(uint64_t id);
  void run_locked(FlushCause cause);  // execution_mutex_ held; runs running_
  void cut_and_run();                 // window full: runs its head, keeps its tail pending
  void run_planned(const Plan& plan, size_t first_node);
  void take_head();                    // both held: a window's head to run, its tail stays pending
  std::shared_ptr<Plan> fused_plan();  // of running_; null: op by op
  void run_unfused(size_t begin, size_t end);
  void run_node(size_t i);
  void run_host(size_t i);
  void run_steps(const Step* steps, Frame& frame, size_t first_node);  // the batch that begins here
  void note_error(const Node* node, const std::string& what, ErrorKind kind = ErrorKind::kOther);

  const int device_;
  std::mutex execution_mutex_;  // taken before window_mutex_
  std::mutex window_mutex_;
  Window window_, running_;
  std::atomic<bool> sheds_ = false;  // whether the window may need memory again that it gave away
  struct Met {
    uint64_t hash = 0, serial = 0;
  };
  uint64_t context_ = 0;                      // windowed hash of the last ops; shifting by 11 bits forgets after six
  uint64_t serial_ = 0;                       // ops recorded
  std::array<std::array<Met, 4>, 64> met_{};  // the latest four of those that fall together
  Encoder encoder_;
  TraceCache cache_;
  std::vector<uint8_t> live_;
  std::vector<size_t> last_use_;  // per slot, while a window runs op by op
  uint64_t windows_run_ = 0;
  std::string error_;  // first data error of the running window
  ErrorKind error_kind_ = ErrorKind::kOther;
};

Recorder& recorder(int device);

// A keyboard interrupt that came while a window was being planned: delivered once the window has run.
void defer_interrupt();

// One call of the program that records many ops. They have one origin and count as one op, and a window is not cut
// between them. Calls may nest: the outermost one counts.
class Call {
 public:
  // `id` names the op that is called.
  explicit Call(uint64_t id);
  ~Call();
  // Commits the call. May run the window.
  void finish();

  const Origin* origin() const { return origin_; }

 private:
  const uint64_t id_;
  const Origin* origin_;
  bool outermost_;
};

// Records one op: add operands and scalars in schema order, then the outputs, then finish().
class Recording {
 public:
  Recording(Recorder& recorder, const OpRow& row);
  ~Recording();

  void input(c10::TensorImpl* t) {
    operand_arg();
    window_.add_operand(t);
    ++node_.n_in;
  }
  // A tensor walked in a way that no tensor can be: with strides of any sign, from an offset of its own.
  void input(c10::TensorImpl* t, c10::IntArrayRef strides, int64_t offset) {
    operand_arg();
    window_.add_operand(t, strides, offset, false);
    ++node_.n_in;
  }
  void scalar(double value);
  void scalar(int64_t value);
  void scalar(const at::Scalar& value) {
    if (value.isFloatingPoint())
      scalar(value.toDouble());
    else
      scalar(value.isBoolean() ? int64_t{value.toBool()} : value.toLong());
  }
  void absent() { arg(ArgKind::kAbsent); }
  void attr(int64_t value) {
    window_.attrs.push_back({value, nullptr});
    ++node_.n_attrs;
  }
  void attr(const std::string& text);
  // `fresh`: nothing that its memory holds now is needed.
  void output(c10::TensorImpl* t, bool fresh);
  // An output all of whose elements are written.
  void overwritten(c10::TensorImpl* t, Part part = {});
  void host(std::unique_ptr<HostCall> call) { node_.host = std::move(call); }
  // A host op's tensor argument: an input that has no place in `args`.
  uint32_t host_input(c10::TensorImpl* t) {
    window_.add_operand(t);
    return node_.n_in++;
  }
  // Commits the op. May run the window.
  void finish(c10::ScalarType compute, c10::ScalarType result);

 private:
  void operand_arg() { arg(ArgKind::kOperand); }
  void arg(ArgKind kind) { node_.args |= static_cast<uint64_t>(kind) << (4 * n_args_++); }

  Recorder& recorder_;
  const Call* call_;  // that the op is part of, or null
  std::unique_lock<std::mutex> lock_;
  Window& window_;
  Node node_{};
  int n_args_ = 0;
  size_t dims_mark_;
};

// A new device tensor with memory from the allocator.
at::Tensor new_tensor(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype, int device);
at::Tensor new_contiguous_tensor(c10::IntArrayRef sizes, c10::ScalarType dtype, int device);

// Grows or shrinks a storage, keeping the common prefix of its bytes.
void resize_storage(c10::StorageImpl* storage, size_t bytes);

// What the planner is asked for: nodes [begin, end) of a window, as the encoder has them.
struct PlanRequest {
  const Encoder& encoder;
  const Window& window;
  size_t begin, end;
  const std::vector<uint8_t>* live;  // null: a single op
  uint32_t seen;                     // sights of this trace
  uint64_t number;                   // windows run so far
  const TraceCache& cache;
};

// Without a plan the window runs op by op, and the planner is asked again at a later sight: when `ready` says so, if
// its kernels are being compiled meanwhile.
struct PlanAnswer {
  std::shared_ptr<Plan> plan;
  uint32_t ask_at = 0;
  bool waiting = false;
};

// What Python does on a miss; set by bindings.
struct PlannerBridge {
  PlanAnswer (*plan)(const PlanRequest& request) = nullptr;
  // Whether a plan of this signature is known to be in the disk cache.
  bool (*known)(Hash128 hash) = nullptr;
  // Whether what a window of this signature waits for has come.
  bool (*ready)(Hash128 hash) = nullptr;
};
PlannerBridge& planner_bridge();

}  // namespace neuron
