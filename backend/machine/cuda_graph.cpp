// CUDA's graphs, in a library that is loaded when they are asked for (backend/machine/cuda.hpp). at::cuda::CUDAGraph has the
// capture's allocations come from a pool of its own, which lives as long as it.
#include <ATen/cuda/CUDAGraph.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "backend/machine/graph.hpp"

namespace backend {
namespace {

class CudaGraph final : public Graph {
 public:
  void capture(const std::function<void()>& work) override {
    // What earlier steps have left is free, but a capture's allocations may not have it: it would be held twice.
    c10::getDeviceAllocator(c10::DeviceType::CUDA)->emptyCache();
    graph_.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);  // other threads may do what they like
    try {
      work();
    } catch (...) {
      try {
        graph_.capture_end();
      } catch (const std::exception&) {
        // The first failure is the cause.
      }
      throw;
    }
    graph_.capture_end();
  }
  void replay() override { graph_.replay(); }

 private:
  at::cuda::CUDAGraph graph_;
};

}  // namespace
}  // namespace backend

extern "C" backend::Graph* paragauge_make_cuda_graph() { return new backend::CudaGraph; }
