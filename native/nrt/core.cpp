// Life cycle, counts and device facts of the software NeuronCore.
#include "core.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "model.h"
#include "nrtx.h"
#include "storage.h"
#include "tensor.h"
#include "tensor_set.h"

namespace neuroncore {

void FreeDeleter::operator()(void* memory) const { std::free(memory); }

Core& core() {
  static Core* const instance = new Core;
  return *instance;
}

uint64_t bytes_limit_of(const Core& core) {
  if (core.bytes_limit != 0) return core.bytes_limit;
  static const uint64_t physical = uint64_t(sysconf(_SC_PHYS_PAGES)) * uint64_t(sysconf(_SC_PAGESIZE));
  return physical;
}

namespace {

// A child of fork() has one thread: without this, a lock another thread held would stay locked for ever.
__attribute__((constructor)) void survive_fork() {
  pthread_atfork([] { core().mutex.lock(); }, [] { core().mutex.unlock(); }, [] { core().mutex.unlock(); });
}

NRT_STATUS count(uint32_t* out) {
  if (out == nullptr) return NRT_INVALID;
  const std::lock_guard lock(core().mutex);
  *out = core().vnc_count;
  return NRT_SUCCESS;
}

}  // namespace
}  // namespace neuroncore

using namespace neuroncore;

extern "C" {

NRT_STATUS nrt_init(nrt_framework_type_t framework, const char*, const char*) {
  if (framework <= NRT_FRAMEWORK_TYPE_INVALID || framework > NRT_FRAMEWORK_TYPE_PRECHECK) return NRT_INVALID;
  const std::lock_guard lock(core().mutex);
  if (core().phase == NRT_SUCCESS) return NRT_INVALID;  // one owner a process
  core().phase = NRT_SUCCESS;
  return NRT_SUCCESS;
}

void nrt_close(void) {
  std::unique_lock lock(core().mutex);
  if (core().phase != NRT_SUCCESS) return;
  core().phase = NRT_CLOSED;
  const auto tensor_infos = std::exchange(core().tensor_infos, {});
  const auto tensors = core().tensors.take_all();
  const auto tensor_sets = core().tensor_sets.take_all();
  const auto loader = std::exchange(core().loader, nullptr);
  const auto models = core().models.take_all();
  // Unlocked first: the objects die when this returns, models before tensors.
  lock.unlock();
}

NRT_STATUS nrt_get_total_vnc_count(uint32_t* vnc_count) { return count(vnc_count); }
NRT_STATUS nrt_get_visible_vnc_count(uint32_t* vnc_count) { return count(vnc_count); }
NRT_STATUS nrt_get_total_nc_count(uint32_t* vnc_count) { return count(vnc_count); }
NRT_STATUS nrt_get_visible_nc_count(uint32_t* vnc_count) { return count(vnc_count); }

NRT_STATUS nrt_get_version(nrt_version_t* ver, size_t size) {
  if (ver == nullptr || size == 0) return NRT_INVALID;
  nrt_version_t version = {};
  version.rt_major = NRT_MAJOR_VERSION;
  version.rt_minor = NRT_MINOR_VERSION;
  std::strcpy(version.rt_detail, "software NeuronCore");
  std::memcpy(ver, &version, std::min(size, sizeof version));
  return NRT_SUCCESS;
}

NRT_STATUS nrt_get_instance_info(nrt_instance_info_t* info, size_t instance_info_len) {
  return when_open([&] {
    if (info == nullptr || instance_info_len == 0) return NRT_INVALID;
    nrt_instance_info_t facts = {};  // family 0: none of the hardware's
    count(&facts.size);
    std::strcpy(facts.arch_name, "software");
    std::memcpy(info, &facts, std::min(instance_info_len, sizeof facts));
    return NRT_SUCCESS;
  });
}

NRT_STATUS nrt_get_vnc_memory_stats(uint32_t vnc, nrt_vnc_memory_stats_t* stats, size_t stats_size_in,
                                    size_t* stats_size_out) {
  return when_open([&] {
    if (stats == nullptr || stats_size_out == nullptr || stats_size_in == 0) return NRT_INVALID;
    nrt_vnc_memory_stats_t facts = {};
    {
      const std::lock_guard lock(core().mutex);
      if (vnc >= core().vnc_count) return NRT_INVALID;
      facts.bytes_limit = bytes_limit_of(core());
    }
    facts.bytes_used = Storage::bytes_used(vnc);
    *stats_size_out = std::min(stats_size_in, sizeof facts);
    std::memcpy(stats, &facts, *stats_size_out);
    return NRT_SUCCESS;
  });
}

uint32_t nrtx_abi_version(void) { return NRTX_ABI_VERSION; }

NRT_STATUS nrtx_configure(uint32_t vnc_count, uint64_t bytes_limit) {
  if (vnc_count == 0 || vnc_count > kMaxCores) return NRT_INVALID;
  const std::lock_guard lock(core().mutex);
  if (core().phase == NRT_SUCCESS) return NRT_INVALID;
  core().vnc_count = vnc_count;
  core().bytes_limit = bytes_limit;
  return NRT_SUCCESS;
}

}  // extern "C"
