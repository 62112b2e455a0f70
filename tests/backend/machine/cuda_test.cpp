#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "backend/machine/accelerator.hpp"
#include "sim/error.hpp"

namespace backend {
namespace {

#ifdef PARAGAUGE_NCCL  // a build with CUDA

bool has_loaded(const std::string& library) {
  std::ifstream maps("/proc/self/maps");
  return std::string(std::istreambuf_iterator<char>(maps), {}).find(library) != std::string::npos;
}

/// Without a GPU too: then CUDA itself says that there is none, not a LibTorch that was never given CUDA.
TEST(LibTorchsSecondHalf, IsLoadedWhenAskedFor) {
  EXPECT_FALSE(has_loaded("libtorch_cuda.so"));
  std::string said;
  try {
    first_device("cuda");
  } catch (const sim::ConfigError& error) {
    said = error.what();
  }
  EXPECT_TRUE(has_loaded("libtorch_cuda.so"));
  if (said.empty()) return;  // there is one
  EXPECT_EQ(said, "device=cuda: this machine has no usable one");
  try {
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
    FAIL() << "a device of CUDA where there is none";
  } catch (const std::exception& error) {
    EXPECT_NE(std::string(error.what()).find("NVIDIA"), std::string::npos) << error.what();
  }
}

#endif

}  // namespace
}  // namespace backend
