#include "backend/machine/cuda.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <optional>

#include "sim/error.hpp"

namespace backend {

#ifdef PARAGAUGE_CUDA
namespace {

/// paragauge_cuda.so (backend/machine/cuda_library.cpp) and with it libtorch_cuda.so, for as long as the process lives.
void* library() {
  static void* const kLibrary = [] {
    // Streams of one hardware queue wait for each other, and the driver has eight queues unless it's told otherwise.
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
    void* const loaded = dlopen("paragauge_cuda.so", RTLD_NOW | RTLD_GLOBAL);
    if (loaded == nullptr) throw sim::ConfigError("device=cuda: {}", dlerror());
    return loaded;
  }();
  return kLibrary;
}

template <class Function>
Function* entry(const char* name) {
  auto* const found = reinterpret_cast<Function*>(dlsym(library(), name));
  sim::check_internal(found != nullptr, "paragauge_cuda.so has no {}", name);
  return found;
}

}  // namespace

void load_cuda() { library(); }

std::unique_ptr<Graph> make_cuda_graph() {
  return std::unique_ptr<Graph>(entry<Graph*()>("paragauge_make_cuda_graph")());
}

c10::Stream make_cuda_stream(c10::Device device) {
  std::optional<c10::Stream> made;
  entry<void(c10::Device, std::optional<c10::Stream>&)>("paragauge_make_cuda_stream")(device, made);
  return made.value();
}

void hold_cuda(double seconds) { entry<void(double)>("paragauge_hold_cuda")(seconds); }

#else

void load_cuda() {}

std::unique_ptr<Graph> make_cuda_graph() {
  throw sim::ConfigError("graph: this build has no CUDA (PARAGAUGE_CUDA=OFF)");
}

c10::Stream make_cuda_stream(c10::Device /*device*/) {
  throw sim::ConfigError("this build has no CUDA (PARAGAUGE_CUDA=OFF)");
}

void hold_cuda(double /*seconds*/) { throw sim::ConfigError("this build has no CUDA (PARAGAUGE_CUDA=OFF)"); }

#endif

}  // namespace backend
