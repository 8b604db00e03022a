// What the software NeuronCore offers beyond the public interface (prefix nrtx_). The real libnrt has none of these
// symbols: a binding tells the two apart by looking for nrtx_abi_version.
#ifndef ADAPTIVE_EAGER_NRTX_H
#define ADAPTIVE_EAGER_NRTX_H

#include "kernel_abi.h"
#include "nrt.h"

#define NRTX_ABI_VERSION 2

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

// ---- Loading --------------------------------------------------------------------------------------------------------

// The code of an artefact is an ELF relocatable object for this machine. nrt_load gives it memory that is never
// writable and executable at once, and finds the functions it calls: in the C library (libm, libc), then in the
// libraries set here, in their order.
//
// NRT_INVALID: the artefact or its object is damaged. NRT_UNSUPPORTED_NEFF_VERSION: it is for another target or
// machine, or needs a function or a kind of relocation that is not there. NRT_RESOURCE: no memory.

// What nrt_load accepts, until nrt_close; before that, any target and no library. All strings are copied.
// targets: artefact targets that may be loaded; none: any. libraries: paths or sonames of shared libraries, each of
// them loaded in this process already, else NRT_INVALID; they stay while models call into them.
NRT_STATUS nrtx_set_loader(const char* const* targets, uint32_t n_targets, const char* const* libraries,
                           uint32_t n_libraries);

// Why the last nrt_load or nrtx_set_loader of this thread failed, or "" if there is no more to say than its status.
// Borrowed until the thread's next such call.
const char* nrtx_load_error(void);

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
