// What the software NeuronCore offers beyond the public interface (prefix nrtx_). The real libnrt has none of these
// symbols: a binding tells the two apart by looking for nrtx_abi_version.
#ifndef ADAPTIVE_EAGER_NRTX_H
#define ADAPTIVE_EAGER_NRTX_H

#include "kernel_abi.h"
#include "nrt.h"

#define NRTX_ABI_VERSION 1

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

// Changes whenever this file, kernel_abi.h or the artefact format does.
uint32_t nrtx_abi_version(void);

// Number of virtual cores (1 to 64) and bytes of device memory each (0: the host's physical memory). Only while the
// runtime is not open, else NRT_INVALID; kept over nrt_close.
NRT_STATUS nrtx_configure(uint32_t vnc_count, uint64_t bytes_limit);

// Element types the hardware does not have; otherwise as nrt_dtype_t.
enum { NRTX_DTYPE_FLOAT64 = 0x40, NRTX_DTYPE_BOOL = 0x41 };

// ---- Linking --------------------------------------------------------------------------------------------------------

// Turns object code into addresses, for nrt_load. The library itself knows no linker.
typedef struct nrtx_loader {
  void* ctx;                   // passed to both functions; must live as long as the loader or any model it linked
  const char* const* targets;  // artefact targets that may be loaded; copied
  uint32_t n_targets;          // 0: any
  // Returns 0, or an NRT_STATUS that nrt_load then returns. All arguments are borrowed for the call. On success fills
  // addresses[n] (none null) and *handle, which belongs to the model until unlink gets it.
  int (*link)(void* ctx, const void* object_code, size_t size, const char* const* entries, uint32_t n, void** addresses,
              void** handle);
  // Called once for each successful link, from whichever thread drops the model's last user.
  void (*unlink)(void* ctx, void* handle);
} nrtx_loader_t;

// Copies *loader; null removes it. Models keep the loader that linked them. No lock is held during its calls.
NRT_STATUS nrtx_set_loader(const nrtx_loader_t* loader);

// The address of an entry, to be called directly; good until nrt_unload. NRT_INVALID: no entry of that name.
NRT_STATUS nrtx_model_entry(nrt_model_t* model, const char* name, nrtx_kernel_fn* fn);

// ---- Execution ------------------------------------------------------------------------------------------------------

// nrt_execute calls the entry "k" with phase 0. Access i is the i-th tensor that the artefact declares, taken by its
// name from the input set or the output set, whichever its usage says. The input set also holds the tensor "launch",
// whose first bytes are this block, all fields 64-bit little-endian, followed by sizes[n_dims],
// strides[n_accesses][n_dims] and scalars[n_scalars], each element as in nrtx_kernel_args.
//
// NRT_EXEC_BAD_INPUT, and nothing runs: a missing name, a size or a core that does not fit, an inconsistent block, or
// strides that leave a tensor (checked where the declared dtype is known).
// That the scalars and the chunk fields suit the kernel is the caller's word.
// NRT_EXEC_COMPLETED_WITH_ERR: the kernel reported a data error; all outputs are written.
typedef struct nrtx_launch {
  int64_t begin;  // work items [begin, end)
  int64_t end;
  int64_t n_chunks;  // the next four: as in nrtx_kernel_args, 0 for a map kernel
  int64_t chunks_per_o;
  int64_t o_per_chunk;
  int64_t n_per_chunk;
  int64_t n_dims;      // at most 64
  int64_t n_accesses;  // as many as the artefact declares tensors
  int64_t n_scalars;   // at most 65536
} nrtx_launch_t;

// ---- Debugging ------------------------------------------------------------------------------------------------------

// Guarded memory: device memory allocated while this is on cannot be touched except between nrtx_guard_open and
// nrtx_guard_close and inside the runtime's own calls; anything else faults at once. Freed memory is unmapped. Slow.
// Switch it while the runtime is not open, else NRT_INVALID. The two calls count, and cost nothing while it is off.
NRT_STATUS nrtx_guard_enable(bool on);
void nrtx_guard_open(void);
void nrtx_guard_close(void);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
