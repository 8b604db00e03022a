#include "recorder.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <Python.h>
#include <c10/core/AutogradState.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>

#include "fork.h"
#include "host_call.h"
#include "launch_group.h"
#include "origin.h"
#include "pooled.h"

namespace neuron {
namespace {

std::atomic<bool> g_interrupted{false};

// Strings among structural arguments, kept for ever.
ForkMutex g_texts_mutex;
auto& g_texts = *new ska::flat_hash_map<std::string, std::unique_ptr<std::string>>;

// What a thread that records is in the midst of.
struct Thread {
  const Call* call = nullptr;
  bool entered = false;
};
thread_local Thread t_thread;

// Backward runs in the thread that calls it: a second thread would bring a second OpenMP pool.
void enter(Thread& thread) {
  c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  thread.entered = true;
}

// Set in the context of an op whose last ops were met a few ops ago in the same order.
constexpr uint64_t kMetBefore = uint64_t{1} << 63;

// Where to cut a full window: after the op of smallest context, the last of them, so that a loop cuts at the same
// places each round. A window that its bytes filled early has fewer ops, and so has its shortest head. The head is cut
// shorter only where nothing else tells one round from the next.
size_t cut_position(const Window& window) {
  const auto smallest = [&window](int64_t begin, int64_t end) {
    int64_t best = end - 1;
    for (int64_t i = end - 1; i >= begin; --i) {
      if (window.nodes[i].context < window.nodes[best].context) best = i;
    }
    return best;
  };
  const auto n = static_cast<int64_t>(window.nodes.size());
  const int64_t shortest =
      std::clamp<int64_t>(n * params().min_ops / params().max_ops, 1, std::min(n, params().min_ops));
  int64_t best = smallest(shortest - 1, n);
  if ((window.nodes[best].context & kMetBefore) && shortest > 1) {
    const int64_t early = smallest(0, shortest - 1);
    if (!(window.nodes[early].context & kMetBefore)) best = early;
  }
  return window.nodes[best].context == kInsideCall ? window.nodes.size() : static_cast<size_t>(best) + 1;
}

// A window of one call after another with thousands of tensors each.
constexpr int64_t kNodesAnOp = 16;

}  // namespace

void lock_without_gil(std::mutex& mutex) {
  if (mutex.try_lock()) return;
  if (Py_IsInitialized() && PyGILState_Check()) {
    PyThreadState* state = PyEval_SaveThread();
    mutex.lock();
    PyEval_RestoreThread(state);
  } else {
    mutex.lock();
  }
}

void defer_interrupt() { g_interrupted = true; }

PlannerBridge& planner_bridge() {
  static PlannerBridge bridge;
  return bridge;
}

Recorder& recorder(int device) {
  // Never destroyed: threads may record, and tensors be freed, until the process is gone.
  static Recorder** const recorders = [] {
    const int n = std::max(1, device_count());
    auto** all = new Recorder*[n];
    for (int i = 0; i < n; ++i) all[i] = new Recorder(i);
    return all;
  }();
  return *recorders[device];
}

// ---- recording -----------------------------------------------------------------------------------------------------

Recording::Recording(Recorder& recorder, const OpRow& row) : recorder_(recorder), window_(recorder.window_) {
  Thread& thread = t_thread;
  if (!thread.entered) [[unlikely]]
    enter(thread);
  call_ = thread.call;
  node_.origin = call_ ? call_->origin() : current_origin();
  lock_without_gil(recorder.window_mutex_);
  lock_ = std::unique_lock<std::mutex>(recorder.window_mutex_, std::adopt_lock);
  node_.row = &row;
  node_.operands = static_cast<uint32_t>(window_.operands.size());
  node_.scalars = static_cast<uint32_t>(window_.scalars.size());
  node_.attrs = static_cast<uint32_t>(window_.attrs.size());
  dims_mark_ = window_.dims.size();
}

Recording::~Recording() {
  if (!lock_.owns_lock()) return;
  window_.operands.resize(node_.operands);  // not finished: forget what was added
  window_.scalars.resize(node_.scalars);
  window_.attrs.resize(node_.attrs);
  window_.dims.resize(dims_mark_);
}

void Recording::scalar(double value) {
  arg(ArgKind::kFloat);
  uint64_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  window_.scalars.push_back(bits);
  ++node_.n_scalars;
}

void Recording::scalar(int64_t value) {
  arg(ArgKind::kInt);
  window_.scalars.push_back(static_cast<uint64_t>(value));
  ++node_.n_scalars;
}

void Recording::attr(const std::string& text) {
  std::lock_guard<ForkMutex> lock(g_texts_mutex);
  auto& interned = g_texts[text];
  if (!interned) interned = std::make_unique<std::string>(text);
  window_.attrs.push_back({static_cast<int64_t>(hash_text(text)), interned.get()});
  ++node_.n_attrs;
}

void Recording::output(c10::TensorImpl* t, bool fresh) {
  const size_t slots = window_.slots.size();
  window_.add_operand(t);
  ++node_.n_out;
  if (fresh && window_.slots.size() > slots) window_.made.back() = 1;
}

void Recording::overwritten(c10::TensorImpl* t, Part part) {
  const bool whole =
      t->is_contiguous() && static_cast<size_t>(t->numel()) * t->itemsize() == t->unsafe_storage().nbytes();
  node_.part = static_cast<uint16_t>(part.apart);
  output(t, whole || part.first_ever);
}

void Recording::finish(c10::ScalarType compute, c10::ScalarType result) {
  node_.compute = compute;
  node_.result = result;
  const Operand& last = window_.operands.back();
  const uint64_t op =
      node_.row->id + (node_.args << 20) + (uint64_t{last.ndim} << 8) + static_cast<uint8_t>(node_.compute);
  node_.context = call_ ? kInsideCall : recorder_.next_context(op);
  if (window_.new_bytes > params().max_bytes) {
    window_.shed();
    recorder_.sheds_ = true;
  }
  window_.nodes.push_back(std::move(node_));
  if (!call_) ++window_.calls;
  ++stats().ops_recorded;
  const bool inside = call_ && static_cast<int64_t>(window_.nodes.size()) < kNodesAnOp * params().max_ops;
  const bool full = !inside && recorder_.is_full();
  lock_.unlock();
  if (!call_ && params().mode == Mode::kStepwise) {
    recorder_.flush(FlushCause::kStepwise);
  } else if (full) {
    recorder_.cut_and_run();
  }
}

bool Recorder::is_full() const {
  return window_.calls >= params().max_ops || window_.held_bytes > params().max_bytes ||
         static_cast<int64_t>(window_.nodes.size()) >= kNodesAnOp * params().max_ops;
}

// A hash over the last ops. What was met a few ops ago is larger than all that was not: inside a short loop all places
// are alike, and a cut at any of them would drift against the loop around it.
uint64_t Recorder::next_context(uint64_t op) {
  context_ = (context_ << 11) + scramble(op);
  const uint64_t hash = scramble(context_);
  auto& places = met_[hash % met_.size()];
  Met* met = &places[0];
  for (Met& place : places) {
    if (place.hash == hash) {
      met = &place;
      break;
    }
    if (place.serial < met->serial) met = &place;
  }
  const bool before = met->hash == hash && serial_ - met->serial <= static_cast<uint64_t>(params().min_ops);
  *met = {hash, serial_++};
  return before ? (hash | kMetBefore) & ~uint64_t{1} : hash & ~kMetBefore;  // never kInsideCall
}

void Recorder::end_call(uint64_t id) {
  {
    GilFreeLock lock(window_mutex_);
    // Nothing was recorded on this device, or it has run already.
    if (window_.empty() || window_.nodes.back().context != kInsideCall) return;
    window_.nodes.back().context = next_context(id);
    ++window_.calls;
    if (params().mode != Mode::kStepwise && !is_full()) return;
  }
  if (params().mode == Mode::kStepwise)
    flush(FlushCause::kStepwise);
  else
    cut_and_run();
}

Call::Call(uint64_t id) : id_(id), origin_(nullptr), outermost_(!t_thread.call) {
  if (!outermost_) return;
  origin_ = current_origin();
  t_thread.call = this;
}

Call::~Call() {
  if (outermost_) t_thread.call = nullptr;
}

void Call::finish() {
  if (!outermost_) return;
  t_thread.call = nullptr;
  for (int d = 0; d < device_count(); ++d) recorder(d).end_call(id_);
}

// ---- running -------------------------------------------------------------------------------------------------------

bool Recorder::idle() {
  GilFreeLock lock(window_mutex_);
  return window_.empty();
}

bool Recorder::pending(const c10::StorageImpl* storage) {
  GilFreeLock lock(window_mutex_);
  return window_.holds(storage);
}

void Recorder::flush(FlushCause cause) {
  GilFreeLock execution(execution_mutex_);
  {
    GilFreeLock lock(window_mutex_);
    if (window_.empty()) return;
    std::swap(window_, running_);
    window_.renew();
  }
  run_locked(cause);
}

void Recorder::cut_and_run() {
  GilFreeLock execution(execution_mutex_);
  FlushCause cause;
  {
    GilFreeLock lock(window_mutex_);
    if (!is_full()) return;
    cause = window_.held_bytes > params().max_bytes ? FlushCause::kBytes : FlushCause::kFull;
    take_head();
  }
  run_locked(cause);
}

// Memory that the window will need again when it runs must not be given away before.
void Recorder::make_room(size_t bytes) {
  if (!sheds_) return;
  const auto needed = [&] {
    GilFreeLock lock(window_mutex_);
    sheds_ = window_.shed_bytes != 0;
    return window_.shed_bytes != 0 && !has_room(bytes + static_cast<size_t>(window_.shed_bytes), device_);
  };
  while (needed()) {
    GilFreeLock execution(execution_mutex_);
    {
      GilFreeLock lock(window_mutex_);
      if (window_.empty()) return;
      take_head();
    }
    run_locked(FlushCause::kMemory);
  }
}

void Recorder::take_head() {
  std::swap(window_, running_);
  window_.renew();
  const size_t cut = cut_position(running_);
  if (cut < running_.nodes.size()) running_.split(cut, window_);
}

void Recorder::run_locked(FlushCause cause) {
  ++stats().windows;
  ++stats().flush_causes[static_cast<size_t>(cause)];
  error_.clear();
  {
    struct Release {
      Window& w;
      ~Release() { w.renew(); }
    } release{running_};
    const size_t n = running_.nodes.size();
    const bool fuse = params().mode == Mode::kAdaptive && n > 1 && !at::globalContext().deterministicAlgorithms();
    if (const std::shared_ptr<Plan> plan = fuse ? fused_plan() : nullptr) {
      run_planned(*plan, 0);
    } else {
      run_unfused(0, n);
    }
  }
  if (g_interrupted.exchange(false)) PyErr_SetInterrupt();
  if (!error_.empty()) {
    std::string message = std::move(error_);
    error_.clear();
    if (error_kind_ == ErrorKind::kIndex) TORCH_CHECK_INDEX(false, message);
    if (error_kind_ == ErrorKind::kMemory) C10_THROW_ERROR(OutOfMemoryError, message);
    TORCH_CHECK(false, message);
  }
}

std::shared_ptr<Plan> Recorder::fused_plan() {
  const size_t n = running_.nodes.size();
  live_.resize(running_.slots.size());
  for (size_t s = 0; s < live_.size(); ++s) live_[s] = running_.slots[s].use_count() > 1;
  encoder_.encode(running_, 0, n, &live_);
  const Hash128 hash = encoder_.hash();
  TraceEntry* entry = cache_.find(encoder_.words(), hash);
  if (!entry) return nullptr;
  ++entry->seen;
  ++windows_run_;
  if (entry->plan) {
    ++stats().plans_hit;
    return entry->plan;
  }
  const bool hot = entry->seen >= params().hot_after && entry->seen >= entry->ask_at;
  const bool ask =
      entry->waiting ? planner_bridge().ready(hash) : hot || (entry->seen == 1 && planner_bridge().known(hash));
  if (!ask) return nullptr;
  PlanAnswer answer;
  try {
    answer = planner_bridge().plan({encoder_, running_, 0, n, &live_, entry->seen, windows_run_, cache_});
  } catch (const std::exception& e) {  // what the program is to know of; the window still runs
    note_error(&running_.nodes.front(), e.what());
    return nullptr;
  }
  if (answer.plan) ++stats().plans_new;
  entry->plan = std::move(answer.plan);
  entry->ask_at = answer.ask_at;
  entry->waiting = answer.waiting;
  return entry->plan;
}

void Recorder::run_planned(const Plan& plan, size_t first_node) {
  Frame frame(running_, first_node, plan.temporaries);
  for (size_t i = 0; i < plan.steps.size(); i += plan.steps[i].batch) {
    const Step& step = plan.steps[i];
    if (step.host_node >= 0) {
      run_host(first_node + static_cast<size_t>(step.host_node));
    } else {
      try {
        run_steps(&step, frame, first_node);
      } catch (const c10::OutOfMemoryError& e) {
        const Node& node = running_.nodes[first_node + step.strip.launches.front().nodes.front()];
        note_error(&node, e.what_without_backtrace(), ErrorKind::kMemory);
      }
    }
    for (uint32_t k = 0; k < step.batch; ++k) {
      for (uint32_t operand : plan.steps[i + k].last_uses) frame.release(operand);
    }
  }
}

void Recorder::run_unfused(size_t begin, size_t end) {
  last_use_.assign(running_.slots.size(), 0);
  const auto slot = [this](const Node& node, uint32_t k) { return running_.operands[node.operands + k].slot; };
  for (size_t i = begin; i < end; ++i) {
    const Node& node = running_.nodes[i];
    for (uint32_t k = 0; k < uint32_t{node.n_in} + node.n_out; ++k) last_use_[slot(node, k)] = i;
  }
  for (size_t i = begin; i < end; ++i) {
    run_node(i);
    const Node& node = running_.nodes[i];
    for (uint32_t k = 0; k < uint32_t{node.n_in} + node.n_out; ++k) {
      if (last_use_[slot(node, k)] == i) running_.release(slot(node, k));
    }
  }
}

void Recorder::run_node(size_t i) {
  const Node& node = running_.nodes[i];
  if (node.host) return run_host(i);
  encoder_.encode(running_, i, i + 1, nullptr);
  TraceEntry* entry = cache_.find(encoder_.words(), encoder_.hash());
  TORCH_CHECK(entry, "[neuron.", node.row->name, "] signature collision");
  if (!entry->plan) {
    try {
      entry->plan = planner_bridge().plan({encoder_, running_, i, i + 1, nullptr, 1, windows_run_, cache_}).plan;
    } catch (const std::exception& e) {
      return note_error(&node, e.what());
    }
  }
  run_planned(*entry->plan, i);
}

void Recorder::run_steps(const Step* steps, Frame& frame, size_t first_node) {
  const size_t n = steps->batch;
  stats().launches += n > 1 ? 1 : static_cast<int64_t>(steps->strip.launches.size());  // a batch wakes the threads once
  for (size_t i = 0; i < n; ++i) {
    for (const Launch& launch : steps[i].strip.launches) {
      if (launch.n_ops > 1) stats().fused_ops += launch.n_ops;
    }
  }
  const BoundLaunch* failed = n > 1 ? run_launch_group(steps, n, frame) : run_strip(steps->strip, frame);
  if (failed) [[unlikely]] {
    const Node& node = running_.nodes[first_node + failed->failed_node()];
    const DataError error = data_error(running_, node, failed->wrong_index(), failed->wrong_value());
    note_error(&node, error.what, error.kind);
  }
}

void Recorder::run_host(size_t i) {
  const Node& node = running_.nodes[i];
  ++stats().host_ops;
  try {
    run_host_call(*this, running_, node);
  } catch (const c10::IndexError& e) {
    note_error(&node, e.what_without_backtrace(), ErrorKind::kIndex);
  } catch (const c10::OutOfMemoryError& e) {
    note_error(&node, e.what_without_backtrace(), ErrorKind::kMemory);
  } catch (const c10::Error& e) {
    note_error(&node, e.what_without_backtrace());
  } catch (const std::exception& e) {
    note_error(&node, e.what());
  }
}

// The first error of a window is the one the program would have met; the ops after it still run, so that everything
// that does not depend on the failed op keeps its value.
void Recorder::note_error(const Node* node, const std::string& what, ErrorKind kind) {
  if (!error_.empty()) return;
  error_kind_ = kind;
  error_ = "[neuron." + node->row->name + "] " + what;
  const std::string where = describe(node->origin);
  if (!where.empty()) error_ += "\n  recorded at " + where;
}

void Recorder::clear_plans() {
  GilFreeLock execution(execution_mutex_);
  cache_.clear();
}

// ---- tensors -------------------------------------------------------------------------------------------------------

namespace {

// Memory for a new tensor. What the pending window holds and nobody else does is given back before memory is said to be
// out.
c10::DataPtr memory(size_t bytes, int device) {
  if (device >= 0 && device < device_count()) recorder(device).make_room(bytes);
  try {
    return allocate(bytes, device);
  } catch (const c10::OutOfMemoryError&) {
    if (recorder(device).idle()) throw;
  }
  recorder(device).flush(FlushCause::kMemory);
  return allocate(bytes, device);
}

at::Tensor tensor_over(size_t bytes, c10::ScalarType dtype, int device) {
  c10::intrusive_ptr<c10::StorageImpl> storage = c10::make_intrusive<Pooled<c10::StorageImpl>>(
      c10::StorageImpl::use_byte_size_t(), static_cast<int64_t>(bytes), memory(bytes, device), allocator(), true);
  return at::detail::make_tensor<Pooled<c10::TensorImpl>>(c10::Storage(std::move(storage)),
                                                          c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                                          c10::scalarTypeToTypeMeta(dtype));
}

}  // namespace

at::Tensor new_contiguous_tensor(c10::IntArrayRef sizes, c10::ScalarType dtype, int device) {
  at::Tensor t = tensor_over(at::detail::computeStorageNbytesContiguous(sizes, c10::elementSize(dtype)), dtype, device);
  if (sizes.size() != 1 || sizes[0] != 0) t.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return t;
}

at::Tensor new_tensor(c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype, int device) {
  at::Tensor t = tensor_over(at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(dtype)), dtype, device);
  t.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return t;
}

void resize_storage(c10::StorageImpl* storage, size_t bytes) {
  const int device = storage->device().index();
  Recorder& r = recorder(device);
  if (r.pending(storage)) r.flush(FlushCause::kResize);
  c10::DataPtr fresh = memory(bytes, device);
  GilFreeLock execution(r.execution_mutex());
  const size_t common = std::min(bytes, storage->nbytes());
  if (common) std::memcpy(fresh.mutable_get(), storage->data(), common);
  storage->set_data_ptr_noswap(std::move(fresh));
  storage->set_nbytes(bytes);
}

}  // namespace neuron
