#include "device.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <chrono>
#include <vector>

#include "allocator.h"
#include "generator.h"
#include "recorder.h"
#include "runtime_api.h"

namespace neuron {
namespace {

thread_local c10::DeviceIndex t_device = 0;
thread_local std::vector<c10::StreamId> t_streams;
bool g_forked_child = false;

c10::StreamId& current_stream(c10::DeviceIndex device) {
  if (t_streams.size() <= static_cast<size_t>(device)) t_streams.resize(device + 1, 0);
  return t_streams[device];
}

c10::DeviceIndex index_of(c10::Device d) { return d.has_index() ? d.index() : t_device; }

struct Event {
  std::chrono::steady_clock::time_point time;
};

// A device has one in-order stream; Stream objects are handles to it, so `block` has nothing to wait for. An event runs
// the window and then takes the time: the time between two events is the time the work between them took.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kNeuron; }
  c10::Device exchangeDevice(c10::Device d) const override {
    const c10::Device old(kNeuron, t_device);
    setDevice(d);
    return old;
  }
  c10::Device getDevice() const override { return {kNeuron, t_device}; }
  void setDevice(c10::Device d) const override { set_device(index_of(d)); }
  void uncheckedSetDevice(c10::Device d) const noexcept override { t_device = index_of(d); }
  c10::Stream getStream(c10::Device d) const override {
    return c10::Stream(c10::Stream::UNSAFE, {kNeuron, index_of(d)}, current_stream(index_of(d)));
  }
  c10::Stream getDefaultStream(c10::Device d) const override {
    return c10::Stream(c10::Stream::DEFAULT, {kNeuron, index_of(d)});
  }
  c10::Stream getNewStream(c10::Device d, int) const override {
    static std::atomic<c10::StreamId> next{1};
    return c10::Stream(c10::Stream::UNSAFE, {kNeuron, index_of(d)}, next++);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool) const override { return getNewStream(d, 0); }
  c10::Stream exchangeStream(c10::Stream s) const override {
    auto& current = current_stream(s.device_index());
    const c10::Stream old(c10::Stream::UNSAFE, s.device(), current);
    current = s.id();
    return old;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(device_count()); }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    recorder(stream.device_index()).flush(FlushCause::kEvent);
    if (!*event) *event = new Event;
    static_cast<Event*>(*event)->time = std::chrono::steady_clock::now();
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  void synchronizeEvent(void*) const override {}
  double elapsedTime(void* a, void* b, const c10::DeviceIndex) const override {
    TORCH_CHECK(a && b, "Both events must be recorded before calculating elapsed time.");
    return std::chrono::duration<double, std::milli>(static_cast<Event*>(b)->time - static_cast<Event*>(a)->time)
        .count();
  }
  bool queryStream(const c10::Stream& s) const override { return recorder(s.device_index()).idle(); }
  void synchronizeStream(const c10::Stream& s) const override {
    recorder(s.device_index()).flush(FlushCause::kSynchronize);
  }
  void synchronizeDevice(const c10::DeviceIndex d) const override { recorder(d).flush(FlushCause::kSynchronize); }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};

struct Hooks final : at::PrivateUse1HooksInterface {
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(device_count()); }
  void setCurrentDevice(c10::DeviceIndex d) const override { set_device(d); }
  c10::DeviceIndex getCurrentDevice() const override { return t_device; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex d) const override {
    const auto old = t_device;
    if (d >= 0) set_device(d);
    return old;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex d) const override { return exchangeDevice(d); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex d) const override {
    return default_generator(d < 0 ? t_device : d);
  }
  at::Generator getNewGenerator(c10::DeviceIndex d) const override { return make_generator(d < 0 ? t_device : d); }
  at::Device getDeviceFromPtr(void*) const override { return {kNeuron, t_device}; }
  bool isPinnedPtr(const void*) const override { return false; }
  // All host memory can be copied from at full speed: pinning has nothing to add.
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(c10::kCPU); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage.unsafeGetStorageImpl(), bytes);
  }
};

}  // namespace

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

int device_count() { return runtime_api().device_count; }
int current_device() { return t_device; }

void set_device(int device) {
  TORCH_CHECK(device >= 0 && device < device_count(), "invalid device ordinal: neuron:", device, "; there are ",
              device_count(), " neuron devices (ADAPTIVE_EAGER_DEVICES sets the number)");
  t_device = static_cast<c10::DeviceIndex>(device);
}

void register_hooks() {
  static Hooks hooks;
  c10::SetAllocator(kNeuron, allocator());
  if (!at::isPrivateUse1HooksRegistered()) at::RegisterPrivateUse1HooksInterface(&hooks);
}

bool in_forked_child() { return g_forked_child; }
void mark_forked_child() { g_forked_child = true; }

}  // namespace neuron
