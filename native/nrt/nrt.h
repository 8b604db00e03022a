// The part of the Neuron Runtime's public C interface (NRT, major version 2) that this project uses.
//
// The declarations are our own. They are binary compatible with libnrt.so.1, so that one binding serves the real
// library and the software NeuronCore. This file is also the source of the cffi binding (native/library.py), which
// drops the preprocessor lines: keep it to plain C declarations.
#ifndef ADAPTIVE_EAGER_NRT_H
#define ADAPTIVE_EAGER_NRT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NRT_MAJOR_VERSION 2
#define NRT_MINOR_VERSION 0

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

// ---- Types ----------------------------------------------------------------------------------------------------------

// Each enumeration ends with a value that widens it: in C++ an int out of its range would be undefined behaviour, and
// both sides of the interface may pass codes that the other does not know.

// A caller must accept codes that are not in this list.
typedef enum {
  NRT_SUCCESS = 0,
  NRT_FAILURE = 1,         // unspecific
  NRT_INVALID = 2,         // bad argument, bad range, damaged model file
  NRT_INVALID_HANDLE = 3,  // not a live object of this runtime
  NRT_RESOURCE = 4,        // out of memory or of another resource
  NRT_TIMEOUT = 5,
  NRT_HW_ERROR = 6,
  NRT_QUEUE_FULL = 7,
  NRT_LOAD_NOT_ENOUGH_NC = 9,
  NRT_UNSUPPORTED_NEFF_VERSION = 10,
  NRT_FAIL_HOST_MEM_ALLOC = 11,
  NRT_UNINITIALIZED = 13,  // before nrt_init
  NRT_CLOSED = 14,         // after nrt_close
  NRT_QUEUE_EMPTY = 15,
  NRT_EXEC_UNIT_UNRECOVERABLE = 101,
  NRT_EXEC_BAD_INPUT = 1002,
  NRT_EXEC_COMPLETED_WITH_NUM_ERR = 1003,
  NRT_EXEC_COMPLETED_WITH_ERR = 1004,
  NRT_EXEC_NC_BUSY = 1005,
  NRT_EXEC_OOB = 1006,
  NRT_COLL_PENDING = 1100,
  NRT_EXEC_HW_ERR_COLLECTIVES = 1200,
  NRT_EXEC_HW_ERR_HBM_UE = 1201,
  NRT_EXEC_HW_ERR_NC_UE = 1202,
  NRT_EXEC_HW_ERR_DMA_ABORT = 1203,
  NRT_EXEC_SW_NQ_OVERFLOW = 1204,
  NRT_EXEC_HW_ERR_REPAIRABLE_HBM_UE = 1205,
  NRT_NETWORK_PROXY_FAILURE = 1206,
  NRT_STATUS_WIDEST_ = 0x7fffffff
} NRT_STATUS;

typedef enum {
  NRT_FRAMEWORK_TYPE_INVALID = 0,
  NRT_FRAMEWORK_TYPE_NO_FW = 1,
  NRT_FRAMEWORK_TYPE_TENSORFLOW = 2,
  NRT_FRAMEWORK_TYPE_PYTORCH = 3,
  NRT_FRAMEWORK_TYPE_MXNET = 4,
  NRT_FRAMEWORK_TYPE_PRECHECK = 5,
  NRT_FRAMEWORK_TYPE_WIDEST_ = 0x7fffffff
} nrt_framework_type_t;

typedef enum {
  NRT_TENSOR_PLACEMENT_DEVICE = 0,
  NRT_TENSOR_PLACEMENT_HOST = 1,
  NRT_TENSOR_PLACEMENT_VIRTUAL = 2,
  NRT_TENSOR_PLACEMENT_WIDEST_ = 0x7fffffff
} nrt_tensor_placement_t;

// Hardware codes. Neither float64 nor bool exist on the hardware; nrtx.h adds codes for the software core.
typedef enum {
  NRT_DTYPE_UNKNOWN = 0x0,
  NRT_DTYPE_UINT64 = 0x1,
  NRT_DTYPE_INT8 = 0x2,
  NRT_DTYPE_UINT8 = 0x3,
  NRT_DTYPE_INT16 = 0x4,
  NRT_DTYPE_UINT16 = 0x5,
  NRT_DTYPE_BFLOAT16 = 0x6,
  NRT_DTYPE_FLOAT16 = 0x7,
  NRT_DTYPE_INT32 = 0x8,
  NRT_DTYPE_UINT32 = 0x9,
  NRT_DTYPE_FLOAT32 = 0xA,
  NRT_DTYPE_FP32R = 0xB,
  NRT_DTYPE_INT64 = 0xC,
  NRT_DTYPE_FP8_E3 = 0xD,
  NRT_DTYPE_FP8_E4 = 0xE,
  NRT_DTYPE_FP8_E5 = 0xF,
  NRT_DTYPE_WIDEST_ = 0x7fffffff
} nrt_dtype_t;

typedef enum {
  NRT_TENSOR_USAGE_INPUT = 0,
  NRT_TENSOR_USAGE_OUTPUT = 1,
  NRT_TENSOR_USAGE_WIDEST_ = 0x7fffffff
} nrt_tensor_usage_t;

typedef struct nrt_model nrt_model_t;
typedef struct nrt_tensor nrt_tensor_t;
typedef void nrt_tensor_set_t;

typedef struct nrt_version {
  uint64_t rt_major;
  uint64_t rt_minor;
  uint64_t rt_patch;
  uint64_t rt_maintenance;
  char rt_detail[128];
  char git_hash[64];
} nrt_version_t;

typedef struct nrt_instance_info {
  uint32_t family;
  uint32_t size;
  char arch_name[16];
  char device_revision[8];
} nrt_instance_info_t;

// May grow at its end in later versions: callers say how large theirs is.
typedef struct nrt_vnc_memory_stats {
  size_t bytes_used;
  size_t bytes_limit;
} nrt_vnc_memory_stats_t;

typedef struct nrt_tensor_batch_op {
  uint64_t offset;
  uint64_t size;
  void* buffer;
} nrt_tensor_batch_op_t;

typedef struct nrt_tensor_batch {
  const nrt_tensor_t* tensor;
  const nrt_tensor_batch_op_t* ops;
  uint32_t num_ops;
} nrt_tensor_batch_t;

typedef struct nrt_tensor_info {
  char name[256];
  nrt_tensor_usage_t usage;
  size_t size;
  nrt_dtype_t dtype;
  uint32_t* shape;
  uint32_t ndim;
} nrt_tensor_info_t;

typedef struct nrt_tensor_info_array {
  uint64_t tensor_count;
  nrt_tensor_info_t tensor_array[];
} nrt_tensor_info_array_t;

typedef struct nrt_model_info {
  uint32_t vnc;
} nrt_model_info_t;

// ---- Runtime --------------------------------------------------------------------------------------------------------

// Takes the cores for this process. Strings are borrowed for the call.
NRT_STATUS nrt_init(nrt_framework_type_t framework, const char* fw_version, const char* fal_version);
// Frees every tensor, set and model, and gives the cores back. nrt_init may follow.
void nrt_close(void);

// The counts and the version may be asked for before nrt_init. The _nc_ names are deprecated aliases.
NRT_STATUS nrt_get_total_vnc_count(uint32_t* vnc_count);
NRT_STATUS nrt_get_visible_vnc_count(uint32_t* vnc_count);
NRT_STATUS nrt_get_total_nc_count(uint32_t* vnc_count);
NRT_STATUS nrt_get_visible_nc_count(uint32_t* vnc_count);
NRT_STATUS nrt_get_version(nrt_version_t* ver, size_t size);

NRT_STATUS nrt_get_instance_info(nrt_instance_info_t* info, size_t instance_info_len);
// Fills at most stats_size_in bytes and says in *stats_size_out how many are meaningful.
NRT_STATUS nrt_get_vnc_memory_stats(uint32_t vnc, nrt_vnc_memory_stats_t* stats, size_t stats_size_in,
                                    size_t* stats_size_out);
// Returns a static string, never null.
const char* nrt_get_status_as_str(NRT_STATUS status);

// ---- Tensors --------------------------------------------------------------------------------------------------------

// *tensor: a new handle, owned by the caller, for nrt_tensor_free. The name is copied and may be null.
NRT_STATUS nrt_tensor_allocate(nrt_tensor_placement_t tensor_placement, int vnc, size_t size, const char* name,
                               nrt_tensor_t** tensor);
// A tensor without storage, to be given some by nrt_tensor_attach_buffer. Handle owned by the caller.
NRT_STATUS nrt_tensor_allocate_empty(const char* name, nrt_tensor_t** tensor);
// A new handle, owned by the caller, on `size` bytes of the same storage: no copy. The source may be freed first.
NRT_STATUS nrt_tensor_allocate_slice(const nrt_tensor_t* tensor_source, size_t offset, size_t size, const char* name,
                                     nrt_tensor_t** tensor_slice);
// Makes the caller's buffer the tensor's storage; it stays the caller's and must outlive the tensor and its slices.
NRT_STATUS nrt_tensor_attach_buffer(nrt_tensor_t* tensor, void* buffer, size_t size);
// Consumes *tensor and sets it to null. The storage goes with its last tensor or slice.
void nrt_tensor_free(nrt_tensor_t** tensor);

// Host buffers are borrowed for the call.
NRT_STATUS nrt_tensor_read(const nrt_tensor_t* tensor, void* buf, size_t offset, size_t size);
NRT_STATUS nrt_tensor_write(nrt_tensor_t* tensor, const void* buf, size_t offset, size_t size);
// Device tensors of one core only; ranges may overlap.
NRT_STATUS nrt_tensor_copy(const nrt_tensor_t* src, size_t src_offset, nrt_tensor_t* dst, size_t dst_offset,
                           size_t size);
NRT_STATUS nrt_tensor_memset(nrt_tensor_t* tensor, uint64_t offset, int value, size_t size);
// unsafe: skip the runtime's tracking of tensors in use (the software core does none).
NRT_STATUS nrt_tensor_read_batch(const nrt_tensor_batch_t* batches, uint64_t num_batches, bool unsafe);
NRT_STATUS nrt_tensor_write_batch(const nrt_tensor_batch_t* batches, uint64_t num_batches, bool unsafe);

// 0 and null for a handle that is not alive.
size_t nrt_tensor_get_size(const nrt_tensor_t* tensor);
// The address is borrowed: it is good until the storage's last tensor is freed.
void* nrt_tensor_get_va(const nrt_tensor_t* tensor);

// ---- Tensor sets ----------------------------------------------------------------------------------------------------

// *result: owned by the caller, for nrt_destroy_tensor_set, which sets the pointer to null.
NRT_STATUS nrt_allocate_tensor_set(nrt_tensor_set_t** result);
void nrt_destroy_tensor_set(nrt_tensor_set_t** tensor_set);
// The tensor is borrowed until the set is destroyed or the name is given another; the name is copied.
NRT_STATUS nrt_add_tensor_to_tensor_set(nrt_tensor_set_t* tensor_set, const char* tensor_name, nrt_tensor_t* tensor);
// *tensor: borrowed, the handle that was added.
NRT_STATUS nrt_get_tensor_from_tensor_set(nrt_tensor_set_t* tensor_set, const char* tensor_name, nrt_tensor_t** tensor);

// ---- Models ---------------------------------------------------------------------------------------------------------

// The bytes are borrowed for the call. *model: owned by the caller, for nrt_unload. vnc -1: the runtime chooses.
// vnc_count is deprecated: pass -1.
NRT_STATUS nrt_load(const void* neff_bytes, size_t size, int32_t vnc, int32_t vnc_count, nrt_model_t** model);
// Consumes the handle. Code that an execution still runs goes when that execution ends.
NRT_STATUS nrt_unload(nrt_model_t* model);
// Blocks until the outputs are written. Sets and tensors are borrowed for the call.
NRT_STATUS nrt_execute(nrt_model_t* model, const nrt_tensor_set_t* input_set, nrt_tensor_set_t* output_set);
NRT_STATUS nrt_execute_repeat(nrt_model_t* model, const nrt_tensor_set_t* input_set, nrt_tensor_set_t* output_set,
                              int repeat_count);

NRT_STATUS nrt_get_model_vnc_count(const nrt_model_t* model, uint32_t* vnc_count);
NRT_STATUS nrt_get_model_instance_count(nrt_model_t* model, uint32_t* instance_count);
NRT_STATUS nrt_get_model_info(const nrt_model_t* model, nrt_model_info_t* info, size_t info_size_in,
                              size_t* info_size_out);
// *tensor_info: owned by the caller, for nrt_free_model_tensor_info; good after nrt_unload.
NRT_STATUS nrt_get_model_tensor_info(nrt_model_t* model, nrt_tensor_info_array_t** tensor_info);
NRT_STATUS nrt_free_model_tensor_info(nrt_tensor_info_array_t* tensor_info);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
