#include "loader.h"

#include <dlfcn.h>
#include <gnu/lib-names.h>

#include <algorithm>

#include "artifact.h"
#include "core.h"
#include "elf_object.h"
#include "nrtx.h"

namespace neuroncore {
namespace {

std::string& last_error() {
  thread_local std::string text;
  return text;
}

bool copy_texts(const char* const* texts, uint32_t count, std::vector<std::string>* copy) {
  if (texts == nullptr && count != 0) return false;
  for (uint32_t i = 0; i < count; ++i) {
    if (texts[i] == nullptr) return false;
    copy->emplace_back(texts[i]);
  }
  return true;
}

}  // namespace

Loader::Loader(std::vector<std::string> targets, const std::vector<std::string>& libraries)
    : targets_(std::move(targets)) {
  std::vector<std::string> names = {LIBM_SO, LIBC_SO};
  names.insert(names.end(), libraries.begin(), libraries.end());
  for (const std::string& name : names) {
    // Never loads one: what its constructors do is not for us to start.
    void* const library = dlopen(name.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) {
      for (void* const opened : libraries_) dlclose(opened);
      throw LoadError{NRT_INVALID, "the library " + name + " is not loaded in this process"};
    }
    libraries_.push_back(library);
  }
}

Loader::~Loader() {
  for (void* const library : libraries_) dlclose(library);
}

std::shared_ptr<const Loader> Loader::current() {
  {
    const std::lock_guard lock(core().mutex);
    if (core().loader != nullptr) return core().loader;
  }
  return std::make_shared<Loader>(std::vector<std::string>(), std::vector<std::string>());
}

void* Loader::find(const char* name) const {
  for (void* const library : libraries_) {
    if (void* const address = dlsym(library, name)) return address;
  }
  return nullptr;
}

std::unique_ptr<ObjectCode> Loader::load(const Artifact& artifact) const {
  if (!targets_.empty() && std::find(targets_.begin(), targets_.end(), artifact.target) == targets_.end()) {
    unsupported("it is for the target " + artifact.target);
  }
  return std::make_unique<ObjectCode>(artifact.code, artifact.code_size,
                                      [this](const char* name) { return find(name); });
}

NRT_STATUS note_load_error(const LoadError& error) {
  last_error() = error.reason;
  return error.status;
}

}  // namespace neuroncore

using namespace neuroncore;

extern "C" {

NRT_STATUS nrtx_set_loader(const char* const* targets, uint32_t n_targets, const char* const* libraries,
                           uint32_t n_libraries) {
  return when_open([&] {
    std::vector<std::string> accepted, opened;
    if (!copy_texts(targets, n_targets, &accepted) || !copy_texts(libraries, n_libraries, &opened)) return NRT_INVALID;
    std::shared_ptr<const Loader> loader;
    try {
      loader = std::make_shared<Loader>(std::move(accepted), opened);
    } catch (const LoadError& error) {
      return note_load_error(error);
    }
    const std::lock_guard lock(core().mutex);
    if (core().phase != NRT_SUCCESS) return core().phase;
    core().loader.swap(loader);  // the old one dies after the lock is gone
    return NRT_SUCCESS;
  });
}

const char* nrtx_load_error(void) { return last_error().c_str(); }

}  // extern "C"
