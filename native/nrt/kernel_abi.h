// The ABI of a software NeuronCore kernel: what generated code, the runtime and the torch extension agree on.
#ifndef ADAPTIVE_EAGER_KERNEL_ABI_H
#define ADAPTIVE_EAGER_KERNEL_ABI_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Arguments of one launch. All arrays are borrowed for the duration of the call.
typedef struct nrtx_kernel_args {
  char* const* ptrs;        // [accesses] first element of each access, storage offset applied
  const int64_t* sizes;     // [dims] loop sizes, outermost first
  const int64_t* strides;   // [accesses][dims] in elements; 0 where the access does not move
  const uint64_t* scalars;  // [scalars] raw bits of a double or an int64_t
  int64_t* error;           // set by the first op that meets a data error (integer division by zero, an index out of
                            // range): 1 + its ordinal in the low 16 bits; above them 4 bits that say which of its
                            // indices is wrong, and that index, held within 44 bits
  // Reductions only. A reduction's index space is cut into chunks whose limits depend on the sizes alone; each chunk is
  // reduced on its own and the chunks are combined in rising order, so the result never depends on who ran what.
  char* partials;        // [items][n_chunks][acc_bytes] scratch, 64-byte aligned; phases 1 and 2 only
  int64_t phase;         // 0: chunks and combine in one call; 1: chunks only; 2: combine and finish only
  int64_t n_chunks;      // chunks an item
  int64_t chunks_per_o;  // chunks along the last reduced dim (inner reductions), else 1
  int64_t o_per_chunk;   // rows (points of the reduced dims but the last; outer reductions: of all) a chunk
  int64_t n_per_chunk;   // elements of the last reduced dim a chunk (inner reductions)
} nrtx_kernel_args;

// Runs work items [begin, end).
// map kernel:           item = one point of the loop nest in row-major order; begin may be any multiple of nothing
// tiled map kernel:     item = one tile of `block` x `block` points of the last two dims, in row-major order of the
// outer
//                       dims, then of the tiles along each of the two
// inner reduction:      item = one kept point (phases 0, 2), or kept point * n_chunks + chunk (phase 1)
// outer reduction:      item = outer kept point * col_blocks + column block (phases 0, 2), or that * n_chunks + chunk
// (1)
//                       with col_blocks = ceil(last size / block), `block` as the compiler reports it
typedef void (*nrtx_kernel_fn)(const nrtx_kernel_args* args, int64_t begin, int64_t end);

#ifdef __cplusplus
}
#endif
#endif
