#include "op_table.h"

#include <torch/library.h>

#include <sstream>

#include "foreach_ops.h"
#include "hash.h"
#include "map_kernels.h"
#include "meta_functions.h"
#include "record_boxed.h"

namespace neuron {
namespace {

struct TableLine {
  OpKind kind;
  const char* name;
  uint32_t flags;
  const char* overloads;
};

const TableLine kLines[] = {
#define OP(kind, name, flags, overloads) {OpKind::k##kind, #name, flags, overloads},
#include "op_rows.inc"
#undef OP
};

constexpr const char* kKindNames[] = {"map", "reduction", "row_program", "host", "host_now"};

std::vector<OpTableEntry>& entries() {
  static std::vector<OpTableEntry> v;
  return v;
}

std::map<std::string, const OpRow*>& rows() {
  static std::map<std::string, const OpRow*> m;
  return m;
}

bool same_inputs(const c10::FunctionSchema& a, const c10::FunctionSchema& b) {
  const auto inputs = [](const c10::FunctionSchema& s) {
    std::vector<std::string> types;
    for (const auto& arg : s.arguments()) {
      if (!arg.is_out()) types.push_back(arg.type()->str() + " " + arg.name());
    }
    return types;
  };
  return inputs(a) == inputs(b);
}

// Which arguments take part in type promotion: tensors but conditions and masks, and numbers that are operands.
std::vector<bool> promoting_arguments(const OpRow& row, const c10::FunctionSchema& schema) {
  std::vector<bool> promotes;
  for (const auto& arg : schema.arguments()) {
    const std::string& n = arg.name();
    const bool tensor = arg.type()->isSubtypeOf(*c10::OptionalType::ofTensor());
    const bool operand = n == "other" || n == "exponent" || n == "self" || n == "min" || n == "max";
    promotes.push_back(row.is(kSelfDtype) ? n == "self" || n == "self_or_result"
                                          : (tensor && n != "condition" && n != "mask") || (!tensor && operand));
  }
  return promotes;
}

std::vector<ArgRole> argument_roles(const c10::FunctionSchema& schema) {
  static const auto optional_number = c10::OptionalType::create(c10::NumberType::get());
  std::vector<ArgRole> roles;
  for (const auto& arg : schema.arguments()) {
    const auto& type = *arg.type();
    const bool number = type.kind() == c10::TypeKind::NumberType || type.isSubtypeOf(*optional_number);
    roles.push_back(type.isSubtypeOf(*c10::OptionalType::ofTensor()) ? ArgRole::kTensor
                    : number                                         ? ArgRole::kNumber
                                                                     : ArgRole::kOther);
  }
  return roles;
}

using SchemaIndex = std::multimap<std::string, c10::OperatorHandle>;

SchemaIndex index_schemas() {
  SchemaIndex index;
  for (const auto& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    if (auto handle = c10::Dispatcher::singleton().findSchema(name)) index.emplace(name.name, *handle);
  }
  return index;
}

class Registrar {
 public:
  Registrar(torch::Library& library, torch::Library& autograd)
      : library_(library), autograd_(autograd), schemas_(index_schemas()) {}

  void add(const TableLine& line) {
    auto* row = new OpRow;  // rows and variants live as long as the kernels that point to them: for ever
    row->name = line.name;
    row->kind = line.kind;
    row->flags = line.flags;
    row->hooks = row_hooks(line.name);
    row->id = hash_text(std::string(kind_name(line.kind)) + " " + line.name);
    rows().emplace(row->name, row);  // of several with one name the first
    std::istringstream overloads(line.overloads);
    std::string overload;
    while (overloads >> overload) add_overload(*row, overload == "-" ? "" : overload);
  }

 private:
  void add_overload(const OpRow& row, const std::string& overload) {
    const auto handle = c10::Dispatcher::singleton().findSchema({"aten::" + row.name, overload});
    TORCH_CHECK(handle, "op table: aten::", row.name, ".", overload, " does not exist in this version of torch");
    if (row.name.back() == '_') return add_variant(row, VariantKind::kInPlace, *handle, std::nullopt, std::nullopt);
    std::optional<c10::OperatorHandle> out;
    const auto [first, last] = schemas_.equal_range("aten::" + row.name);
    for (auto it = first; it != last; ++it) {
      if (it->second.schema().is_mutable() && same_inputs(it->second.schema(), handle->schema())) out = it->second;
    }
    const bool native_out = row.is(kNativeOut);
    add_variant(row, VariantKind::kFunctional, *handle, *handle, native_out ? out : std::nullopt);
    if (out && row.kind != OpKind::kHostNow && out->schema().returns().size() == 1) {
      add_variant(row, VariantKind::kOut, *out, *handle, std::nullopt);
    }
    if (row.kind != OpKind::kMap && row.kind != OpKind::kHost) return;
    const auto [f, l] = schemas_.equal_range("aten::" + row.name + "_");
    for (auto it = f; it != l; ++it) {
      if (same_inputs(it->second.schema(), handle->schema())) {
        add_variant(row, VariantKind::kInPlace, it->second, *handle, std::nullopt);
      }
    }
  }

  void add_variant(const OpRow& row, VariantKind kind, const c10::OperatorHandle& handle,
                   std::optional<c10::OperatorHandle> functional, std::optional<c10::OperatorHandle> out) {
    // Composite ops reach us as the ops they are made of; a kernel here would hide their autograd formula.
    if (handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) return;
    auto* variant = new OpVariant{&row, kind, handle, functional, out, nullptr, {}};
    if (functional) {
      const auto& op = functional->schema();
      variant->meta = meta_function(row.name + (op.overload_name().empty() ? "" : "." + op.overload_name()));
    }
    variant->promotes = promoting_arguments(row, functional ? functional->schema() : handle.schema());
    variant->roles = argument_roles(functional ? functional->schema() : handle.schema());
    const std::string name = c10::toString(handle.operator_name());
    const bool unboxed = row.kind == OpKind::kMap && !row.hooks.check;
    if (auto kernels = unboxed ? unboxed_map_kernels(*variant) : std::nullopt) {
      library_.impl(name.c_str(), std::move(kernels->device));
      autograd_.impl(name.c_str(), std::move(kernels->autograd));
    } else {
      library_.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<BoxedKernel>(*variant)));
      if (kind == VariantKind::kFunctional) {
        auto autograd = std::make_unique<BoxedAutogradKernel>(*variant);
        autograd_.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::move(autograd)));
      }
    }
    entries().push_back({row.name, kind_name(row.kind), name});
  }

  torch::Library &library_, &autograd_;
  SchemaIndex schemas_;
};

}  // namespace

const OpRow* op_row(const std::string& name) {
  const auto it = rows().find(name);
  return it == rows().end() ? nullptr : it->second;
}

const char* kind_name(OpKind kind) { return kKindNames[static_cast<int>(kind)]; }

const std::vector<OpTableEntry>& op_table_entries() { return entries(); }

void register_op_table() {
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  static torch::Library autograd(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradPrivateUse1, __FILE__,
                                 __LINE__);
  Registrar registrar(library, autograd);
  for (const TableLine& line : kLines) registrar.add(line);
  register_foreach(library);
}

}  // namespace neuron
