// The op table: one row a traced op. What an op computes lives in adaptive/compiler/semantics; this says how it
// records.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "row_hooks.h"

namespace neuron {

enum class OpKind : uint8_t {
  kMap,         // pointwise: compiled, fused
  kReduction,   // compiled, pointwise neighbours fused into it
  kRowProgram,  // compiled: pointwise ops and reductions over rows (adaptive/row_programs)
  kHost,        // ATen's CPU kernel is the best kernel; a node of the window
  kHostNow,     // ATen's CPU kernel, result shape depends on the data: runs the window first
};

enum OpFlags : uint32_t {
  kBoolResult = 1 << 0,      // result is bool whatever the operands
  kIntToFloat = 1 << 1,      // integers compute in the default float dtype
  kBoolOperands = 1 << 2,    // operands are read as bool
  kSelfDtype = 1 << 3,       // computes in the dtype of `self`, other operands do not promote
  kIndexResult = 1 << 4,     // result is int64
  kIntSum = 1 << 5,          // integers accumulate in int64
  kNativeOut = 1 << 6,       // host op with a true out= kernel: writes device memory directly
  kRandom = 1 << 7,          // draws from a generator
  kHostIndices = 1 << 8,     // takes index tensors of the host, as on other devices: the op then runs at once
  kMaskOperand = 1 << 9,     // a bool beside a float is a mask: it changes no dtype and is not refused
  kNoBool = 1 << 10,         // refuses a bool operand, or one beside another dtype
  kHeldNumbers = 1 << 11,    // refuses a Scalar argument that the compute dtype cannot hold, as ATen's CPU kernel does
  kOpmathNumbers = 1 << 12,  // the same of the dtype that half types compute in
  kSameOut = 1 << 13,        // its out= has the dtype of the result, and no other
  kIntOperands = 1 << 14,    // int arguments are runtime values, like numbers
  kCastOut = 1 << 15,        // a row program whose out= may have another dtype than the result
};

// "map", "reduction", ...
const char* kind_name(OpKind kind);

struct OpRow {
  std::string name;  // ATen base name, the name semantics knows
  OpKind kind;
  uint32_t flags = 0;
  uint64_t id = 0;  // hash of kind and name; stable across processes
  // Compute dtypes the compiler has this op for, one bit a dtype; asked once each (compiler_supports).
  mutable uint32_t supported = 0, asked = 0;
  RowHooks hooks = {};
  bool is(OpFlags f) const { return flags & f; }
};

// How a schema gives its result.
enum class VariantKind : uint8_t { kFunctional, kInPlace, kOut };

// What an argument of a compiled op may be, by the schema.
enum class ArgRole : uint8_t { kTensor, kNumber, kOther };

// One registered schema of a row.
struct OpVariant {
  const OpRow* row;
  VariantKind kind;
  c10::OperatorHandle handle;                     // this overload
  std::optional<c10::OperatorHandle> functional;  // its functional overload: what shapes and dtypes are inferred with
  std::optional<c10::OperatorHandle> out;         // its out= overload, for kNativeOut
  const c10::KernelFunction* meta = nullptr;      // torch's structured meta function of the functional overload
  std::vector<bool> promotes;                     // per argument: takes part in type promotion
  std::vector<ArgRole> roles;                     // per argument of the functional overload
};

// Whether the compiler can compute the row in this dtype; if not, the op runs on the host.
bool compiler_supports(const OpRow& row, c10::ScalarType compute);

// The row that the common overloads of aten::`name` record, or null. Once the table is registered.
const OpRow* op_row(const std::string& name);

// Registers kernels for every row on PrivateUse1. Called when the extension is loaded.
void register_op_table();

// (row name, kind, schemas registered), for tests and documentation.
struct OpTableEntry {
  std::string name, kind, schema;
};
const std::vector<OpTableEntry>& op_table_entries();

}  // namespace neuron
