#include "planner_bridge.h"

#include "origin.h"
#include "recorder.h"

namespace py = pybind11;

namespace neuron {
namespace {

// Never destroyed: a planner may be asked while the interpreter shuts down.
py::object& planner() {
  static auto* object = new py::object;
  return *object;
}

using S = c10::ScalarType;
constexpr std::pair<S, const char*> kDtypes[] = {
    {S::Bool, "bool"}, {S::Byte, "u8"},  {S::Char, "i8"},       {S::Short, "i16"}, {S::Int, "i32"},
    {S::Long, "i64"},  {S::Half, "f16"}, {S::BFloat16, "bf16"}, {S::Float, "f32"}, {S::Double, "f64"},
};

const char* dtype_name(S t) {
  for (const auto& [dtype, name] : kDtypes) {
    if (dtype == t) return name;
  }
  return "other";
}

S dtype_of(const std::string& text) {
  for (const auto& [dtype, name] : kDtypes) {
    if (text == name) return dtype;
  }
  TORCH_CHECK(false, "plan: no dtype ", text);
}

// "file.py:12" for messages; empty if nothing is known.
std::string describe_place(const Origin* origin) {
  return origin ? origin->file + ":" + std::to_string(origin->line) : std::string();
}

py::list strings_of(uint64_t args) {
  py::list kinds;
  for (; args & 15; args >>= 4) kinds.append("_xfi-"[args & 15]);
  return kinds;
}

// The trace as Python sees it (adaptive/trace.py): everything that is in the signature, and the origins.
py::dict describe_trace(const PlanRequest& request) {
  const auto& [encoder, window, begin, end, live, seen, number, cache] = request;
  py::list nodes;
  size_t operand = 0;
  const uint32_t first_operand = window.nodes[begin].operands, first_scalar = window.nodes[begin].scalars;
  for (size_t i = begin; i < end; ++i) {
    const Node& n = window.nodes[i];
    py::list ins, outs, scalars, attrs;
    for (int k = 0; k < n.n_in; ++k)
      ins.append(py::make_tuple(n.operands - first_operand + k, encoder.operand_geometry()[operand++]));
    for (int k = 0; k < n.n_out; ++k) {
      outs.append(py::make_tuple(n.operands - first_operand + n.n_in + k, encoder.operand_geometry()[operand++]));
    }
    for (int k = 0; k < n.n_scalars; ++k) scalars.append(n.scalars - first_scalar + k);
    for (int k = 0; k < n.n_attrs; ++k) {
      const Attr& a = window.attrs[n.attrs + k];
      if (a.text)
        attrs.append(*a.text);
      else
        attrs.append(a.value);
    }
    py::dict node;
    node["op"] = n.row->name;
    node["kind"] = kind_name(n.row->kind);
    node["args"] = strings_of(n.args);
    node["inputs"] = ins;
    node["outputs"] = outs;
    node["scalars"] = scalars;
    node["attrs"] = attrs;
    node["part"] = n.part;
    node["compute"] = dtype_name(n.compute);
    node["result"] = dtype_name(n.result);
    if (live) node["origin"] = describe_place(n.origin);
    nodes.append(node);
  }
  py::list geometries;
  for (const Geometry& g : encoder.geometries()) {
    geometries.append(py::make_tuple(g.slot, g.shape, dtype_name(g.dtype), g.contiguous,
                                     py::bytes(reinterpret_cast<const char*>(g.codes), g.ndim)));
  }
  py::list live_slots;
  for (uint32_t s : encoder.slots()) live_slots.append(live ? bool((*live)[s]) : true);
  const Hash128 hash = encoder.hash();
  py::dict trace;
  trace["nodes"] = nodes;
  trace["geometries"] = geometries;
  trace["live"] = live_slots;
  trace["signature"] = py::make_tuple(hash.lo, hash.hi);
  trace["words"] =
      py::bytes(reinterpret_cast<const char*>(encoder.words().data()), encoder.words().size() * sizeof(uint64_t));
  return trace;
}

Launch parse_launch(const py::dict& d) {
  Launch launch;
  launch.fn = reinterpret_cast<nrtx_kernel_fn>(d["address"].cast<uintptr_t>());
  const auto kind = d["kind"].cast<std::string>();
  launch.kind = kind == "map"     ? KernelKind::kMap
                : kind == "tile"  ? KernelKind::kTile
                : kind == "inner" ? KernelKind::kInner
                                  : KernelKind::kOuter;
  launch.n_reduced = d["reduced"].cast<uint8_t>();
  launch.iteration = d["iteration"].cast<uint32_t>();
  launch.loop_dims = d["loop_dims"].cast<std::vector<std::vector<uint8_t>>>();
  TORCH_CHECK(launch.loop_dims.size() <= kMaxLoopDims, "plan: too many loop dims");
  for (const auto& item : d["accesses"]) {
    const auto [operand, itemsize, dims] = item.cast<std::tuple<uint32_t, uint8_t, std::vector<int>>>();
    AccessSource a{};
    a.operand = operand;
    a.itemsize = itemsize;
    TORCH_CHECK(dims.size() == launch.loop_dims.size(), "plan: access has the wrong number of dims");
    for (size_t k = 0; k < dims.size(); ++k) a.dims[k] = static_cast<int8_t>(dims[k]);
    launch.accesses.push_back(a);
  }
  for (const auto& [number, dims] : d["scalars"].cast<std::vector<std::pair<uint32_t, uint32_t>>>()) {
    launch.scalars.push_back({number, dims});
  }
  TORCH_CHECK(launch.accesses.size() <= kMaxAccesses && launch.scalars.size() <= kMaxScalars, "plan: kernel too wide");
  launch.acc_bytes = d["acc_bytes"].cast<int64_t>();
  launch.block = d["block"].cast<int64_t>();
  launch.nodes = d["nodes"].cast<std::vector<uint32_t>>();
  launch.cost = d["cost"].cast<int64_t>();
  launch.n_ops = d["ops"].cast<uint32_t>();
  return launch;
}

// A plan as adaptive/planner.py describes it.
std::shared_ptr<Plan> parse_plan(const py::object& object) {
  auto plan = std::make_shared<Plan>();
  for (const auto& [like, keep, dtype] :
       object["temporaries"].cast<std::vector<std::tuple<uint32_t, uint32_t, std::string>>>()) {
    plan->temporaries.push_back({like, keep, dtype_of(dtype), false});
  }
  for (const auto& item : object["steps"]) {
    Step step;
    if (py::isinstance<py::int_>(item)) {
      step.host_node = item.cast<int32_t>();
    } else {
      step.batch = item["batch"].cast<uint32_t>();
      for (const auto& launch : item["launches"])
        step.strip.launches.push_back(parse_launch(py::reinterpret_borrow<py::dict>(launch)));
      for (const auto& [launch, access, number] :
           item["scratch"].cast<std::vector<std::tuple<uint32_t, uint32_t, uint32_t>>>()) {
        step.strip.scratch.push_back({launch, access, number});
        step.strip.scratches = std::max(step.strip.scratches, number + 1);
      }
    }
    for (const ScratchAccess& s : step.strip.scratch) {
      const uint32_t operand = step.strip.launches.at(s.launch).accesses.at(s.access).operand;
      if (operand >= kFirstTemporary) plan->temporaries.at(operand - kFirstTemporary).scratch = true;
    }
    plan->steps.push_back(std::move(step));
  }
  return plan;
}

// Where each temporary, and each storage that nobody holds after the window, is used last.
void note_last_uses(Plan& plan, const PlanRequest& request) {
  const Window& window = request.window;
  const uint32_t first = window.nodes[request.begin].operands;
  using LastUse = std::pair<size_t, uint32_t>;  // step, operand
  std::vector<LastUse> slots(window.slots.size(), {SIZE_MAX, 0});
  std::vector<LastUse> temporaries(plan.temporaries.size(), {SIZE_MAX, 0});
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    const auto use = [&](uint32_t operand) {
      (operand < kFirstTemporary ? slots[window.operands[first + operand].slot]
                                 : temporaries[operand - kFirstTemporary]) = {i, operand};
    };
    if (step.host_node >= 0) {
      const Node& node = window.nodes[request.begin + static_cast<size_t>(step.host_node)];
      for (uint32_t k = 0; k < uint32_t{node.n_in} + node.n_out; ++k) use(node.operands - first + k);
    }
    for (const Launch& launch : step.strip.launches) {
      for (const AccessSource& access : launch.accesses) use(access.operand);
    }
  }
  const auto note = [&plan](const LastUse& last) {
    if (last.first != SIZE_MAX) plan.steps[last.first].last_uses.push_back(last.second);
  };
  for (const LastUse& last : temporaries) note(last);
  for (size_t s = 0; s < slots.size(); ++s) {
    if (!(*request.live)[s]) note(slots[s]);
  }
}

PlanAnswer ask_planner(const PlanRequest& request) {
  py::gil_scoped_acquire gil;
  const py::dict trace = describe_trace(request);
  if (!request.live) return {parse_plan(planner().attr("plan_op")(trace))};
  try {
    const auto sights = [&request](uint64_t lo, uint64_t hi) { return request.cache.sights({lo, hi}); };
    const py::object answer =
        planner().attr("plan_window")(trace, request.seen, request.number, py::cpp_function(sights));
    if (answer.is_none()) return {nullptr, 0, true};
    if (py::isinstance<py::int_>(answer)) return {nullptr, answer.cast<uint32_t>()};
    const auto plan = parse_plan(answer);
    note_last_uses(*plan, request);
    return {plan};
  } catch (py::error_already_set& e) {  // the window must run whatever happens up there: op by op, then
    if (e.matches(planner().attr("fatal"))) throw;
    if (e.matches(PyExc_KeyboardInterrupt)) defer_interrupt();
    planner().attr("note_failure")(trace, e.what());
  } catch (const std::exception& e) {
    planner().attr("note_failure")(trace, e.what());
  }
  return {nullptr, 2 * request.seen};
}

bool plan_ready(Hash128 hash) {
  py::gil_scoped_acquire gil;
  return planner().attr("ready")(py::make_tuple(hash.lo, hash.hi)).cast<bool>();
}

bool known_plan(Hash128 hash) {
  static const auto* known = [] {
    py::gil_scoped_acquire gil;
    auto* set = new ska::flat_hash_map<Hash128, bool, Hash128Hasher>;
    for (const auto& [lo, hi] : planner().attr("known_plans")().cast<std::vector<std::pair<uint64_t, uint64_t>>>()) {
      set->emplace(Hash128{lo, hi}, true);
    }
    return set;
  }();
  return !known->empty() && known->count(hash) != 0;
}

}  // namespace

bool compiler_supports(const OpRow& row, c10::ScalarType compute) {
  const uint32_t bit = uint32_t{1} << static_cast<int>(compute);
  if (!(row.asked & bit)) {
    py::gil_scoped_acquire gil;
    if (planner().attr("supports")(row.name, kind_name(row.kind), dtype_name(compute)).cast<bool>()) {
      row.supported |= bit;
    }
    row.asked |= bit;
  }
  return row.supported & bit;
}

void set_planner(py::object object) {
  planner() = std::move(object);
  planner_bridge().plan = &ask_planner;
  planner_bridge().known = &known_plan;
  planner_bridge().ready = &plan_ready;
}

}  // namespace neuron
