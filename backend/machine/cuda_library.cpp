// What only CUDA's headers can do, in a library that is loaded when it is asked for (backend/machine/cuda.hpp).
// at::cuda::CUDAGraph has the capture's allocations come from a pool of its own, which lives as long as it.
#include <ATen/cuda/CUDAGraph.h>
#include <ATen/cuda/Sleep.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <optional>

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

extern "C" void paragauge_make_cuda_stream(c10::Device device, std::optional<c10::Stream>& made) {
  const c10::cuda::CUDAGuard guard(device);
  cudaStream_t stream = nullptr;
  C10_CUDA_CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  made = c10::cuda::getStreamFromExternal(stream, device.index()).unwrap();
}

extern "C" void paragauge_hold_cuda(double seconds) {
  constexpr double kFastest_Hz = 2e9;  // of an NVIDIA GPU's cycles; a slower one takes longer
  at::cuda::sleep(static_cast<std::int64_t>(seconds * kFastest_Hz));
}
