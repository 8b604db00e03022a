// Loader: what nrt_load accepts, and where object code finds the functions it calls.
#ifndef ADAPTIVE_EAGER_NRT_LOADER_H
#define ADAPTIVE_EAGER_NRT_LOADER_H

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "nrt.h"
#include "object_code.h"

namespace neuroncore {

struct Artifact;
struct LoadError;

class Loader {
 public:
  // No targets: any. Libraries are looked through in their order, after the C library. Throws LoadError for one that is
  // not loaded in this process.
  Loader(std::vector<std::string> targets, const std::vector<std::string>& libraries);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The one that nrtx_set_loader set, or one that accepts any target and knows the C library only.
  static std::shared_ptr<const Loader> current();

  // Throws LoadError.
  std::unique_ptr<ObjectCode> load(const Artifact& artifact) const;

 private:
  void* find(const char* name) const;

  const std::vector<std::string> targets_;
  std::vector<void*> libraries_;  // of dlopen, so that they stay
};

// Keeps the words of `error` for nrtx_load_error of this thread, and returns its status.
NRT_STATUS note_load_error(const LoadError& error);

}  // namespace neuroncore
#endif
