#include "origin.h"

#include <c10/util/flat_hash_map.h>
#include <torch/csrc/utils/pybind.h>

#include <fstream>
#include <map>
#include <mutex>
#include <tuple>

#include "call_site.h"
#include "fork.h"
#include "hash.h"

namespace neuron {
namespace {

struct CallSiteHasher {
  size_t operator()(const CallSite& s) const {
    return fold_multiply(reinterpret_cast<uint64_t>(s.code), 0x9E3779B97F4A7C15ull + s.offset);
  }
};
struct CallSiteEqual {
  bool operator()(const CallSite& a, const CallSite& b) const { return a.code == b.code && a.offset == b.offset; }
};

// Everything known about code objects. Those in here are kept alive, so an address means one code object for ever.
struct Known {
  ForkMutex mutex;
  std::vector<std::string> folders;
  ska::flat_hash_map<PyCodeObject*, bool> library;
  ska::flat_hash_map<CallSite, const Origin*, CallSiteHasher, CallSiteEqual> sites;
  std::map<std::tuple<std::string, int>, Origin> origins;
};

Known& known() {
  static auto* k = new Known;  // used until the interpreter is gone
  return *k;
}

bool in_library(const Known& k, const char* file) {
  const std::string_view name(file);
  if (name.starts_with("<frozen")) return true;
  for (const auto& folder : k.folders) {
    if (name.starts_with(folder)) return true;
  }
  return false;
}

// No garbage collection meanwhile: a finaliser could record ops, and the window is locked.
class Interpreter {
 public:
  Interpreter() : gil_(PyGILState_Ensure()), collecting_(PyGC_Disable()) {}
  ~Interpreter() {
    if (PyErr_Occurred()) PyErr_Clear();
    if (collecting_) PyGC_Enable();
    PyGILState_Release(gil_);
  }

 private:
  PyGILState_STATE gil_;
  int collecting_;
};

// Called with the mutex held, and lets go of it while it waits for the GIL.
bool is_library(Known& k, std::unique_lock<ForkMutex>& lock, PyCodeObject* code) {
  if (const auto it = k.library.find(code); it != k.library.end()) return it->second;
  lock.unlock();
  bool library = false;
  {
    const Interpreter interpreter;
    const char* file = PyUnicode_AsUTF8(code->co_filename);
    library = !file || in_library(k, file);
    Py_INCREF(code);
  }
  lock.lock();
  k.library.emplace(code, library);
  return library;
}

const Origin* make_origin(Known& k, std::unique_lock<ForkMutex>& lock, const CallSite& site) {
  Origin origin;
  lock.unlock();
  {
    const Interpreter interpreter;
    const char* file = PyUnicode_AsUTF8(site.code->co_filename);
    const char* function = PyUnicode_AsUTF8(site.code->co_name);
    origin = {file ? file : "?", PyCode_Addr2Line(site.code, site.offset), function ? function : "?"};
  }
  lock.lock();
  const Origin* stored = &k.origins.try_emplace({origin.file, origin.line}, origin).first->second;
  k.sites.emplace(site, stored);
  return stored;
}

// Each thread's own memory of call sites, so that a loop over user code takes no lock: the innermost frame is most
// often the user's own line. Direct-mapped; code objects in `Known` live for ever, so an address names one for ever.
struct Recent {
  static constexpr size_t kEntries = 256;
  struct Entry {
    CallSite site;
    const Origin* origin = nullptr;
  } entries[kEntries];

  Entry& at(const CallSite& site) { return entries[CallSiteHasher()(site) % kEntries]; }
};

}  // namespace

void set_library_folders(std::vector<std::string> folders) { known().folders = std::move(folders); }

const Origin* current_origin() {
  if (!Py_IsInitialized()) return nullptr;
  thread_local Recent recent;
  const CallSite innermost = walk_frames([](const CallSite&) { return true; });
  if (!innermost.code) return nullptr;
  Recent::Entry& entry = recent.at(innermost);
  if (entry.origin && CallSiteEqual()(entry.site, innermost)) return entry.origin;

  Known& k = known();
  std::unique_lock<ForkMutex> lock(k.mutex);
  const CallSite site = walk_frames([&](const CallSite& s) { return !is_library(k, lock, s.code); });
  if (!site.code) return nullptr;
  const auto it = k.sites.find(site);
  const Origin* origin = it != k.sites.end() ? it->second : make_origin(k, lock, site);
  // A line inside a library is called from many places: only the user's own is worth remembering.
  if (CallSiteEqual()(site, innermost)) entry = {site, origin};
  return origin;
}

void warn_at(const Origin* origin, const std::string& message) {
  pybind11::gil_scoped_acquire gil;
  const int failed = origin ? PyErr_WarnExplicit(PyExc_UserWarning, message.c_str(), origin->file.c_str(), origin->line,
                                                 nullptr, nullptr)
                            : PyErr_WarnEx(PyExc_UserWarning, message.c_str(), 1);
  if (failed) throw pybind11::error_already_set();
}

std::string describe(const Origin* origin) {
  if (!origin) return {};
  std::string text = origin->file + ":" + std::to_string(origin->line) + ", in " + origin->function;
  std::ifstream in(origin->file);
  std::string line;
  for (int i = 0; i < origin->line && std::getline(in, line); ++i) {
  }
  if (in) {
    const size_t start = line.find_first_not_of(" \t");
    if (start != std::string::npos) text += ": " + line.substr(start);
  }
  return text;
}

}  // namespace neuron
