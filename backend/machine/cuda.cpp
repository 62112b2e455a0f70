#include "backend/machine/cuda.hpp"

#include <dlfcn.h>

#include "sim/error.hpp"

namespace backend {

#ifdef PARAGAUGE_CUDA
namespace {

/// paragauge_cuda.so (backend/machine/cuda_graph.cpp) and with it libtorch_cuda.so, for as long as the process lives.
void* library() {
  static void* const kLibrary = [] {
    void* const loaded = dlopen("paragauge_cuda.so", RTLD_NOW | RTLD_GLOBAL);
    if (loaded == nullptr) throw sim::ConfigError("device=cuda: {}", dlerror());
    return loaded;
  }();
  return kLibrary;
}

}  // namespace

void load_cuda() { library(); }

std::unique_ptr<Graph> make_cuda_graph() {
  using Make = Graph*();
  auto* const make = reinterpret_cast<Make*>(dlsym(library(), "paragauge_make_cuda_graph"));
  sim::check_internal(make != nullptr, "paragauge_cuda.so makes no graphs");
  return std::unique_ptr<Graph>(make());
}

#else

void load_cuda() {}

std::unique_ptr<Graph> make_cuda_graph() {
  throw sim::ConfigError("graph: this build has no CUDA (PARAGAUGE_CUDA=OFF)");
}

#endif

}  // namespace backend
