#include "sim/cluster/device.hpp"

#include "sim/cluster/read.hpp"
#include "sim/error.hpp"

namespace sim {
namespace {

// Where a file doesn't say. catalog/README.md has them, too.

// Of the data sheet's peak, what the best matrix products reach. Tensor cores: 271 of 312 TFLOP/s (A100 SXM), 253 of
// 312 (A100 PCIe), 794 of 989 (H100), 829 of 989 (GH200), 1745 of 2250 (B200) in S. Bekman's table of maximum
// achievable matmul FLOPS (github.com/stas00/ml-engineering, compute/accelerator). Other units: 13.2 of 14.1 (V100
// PCIe) and 8.9 of 9.3 (P100 PCIe), the medians of DeepBench's f32 products
// of 20 GFLOP and more (github.com/baidu-research/DeepBench).
constexpr double kTensorCoreShare = 0.8, kGpuShare = 0.94;
// A CPU core's: what the catalog's has, and its memory's.
constexpr double kCpuShare = 0.7, kCpuMemoryShare = 0.6;
// Of a GPU's memory bandwidth: batch norms and ReLUs alone reach 0.9 of it (PipeDream's published profiles,
// github.com/msr-fiddle/pipedream), the memory-bound part of whole training steps about 0.7 (published steps of
// Megatron-LM on A100).
constexpr double kGpuMemoryShare = 0.8;
// Eager PyTorch's way from Python to the driver is 10 to 60 us per operator in what is published; this is the middle. The
// executor's, without Python and autograd, was 10 (an addition) to 76 (a convolution's backward), 31 on average, on an
// H100's host (bench/results/h100.profile.json).
constexpr double kGpuLaunch_us = 25, kCpuLaunch_us = 2;
// Right after its start a process of PyTorch holds 426 MiB of an RTX 6000 Ada with CUDA 13.0
// (github.com/unslothai/unsloth-zoo/pull/1053), 256 MiB of an RTX 3090 with 12.8
// (github.com/invoke-ai/InvokeAI/issues/9413), 274 MiB of another (github.com/pytorch/pytorch/pull/86509, since when
// kernels are loaded as they are called); and cuBLAS's workspace is 32 MiB on Hopper, 8.125 MiB before
// (docs.nvidia.com/cuda/cublas, CUBLAS_WORKSPACE_CONFIG). The largest of them.
constexpr Bytes kContext = mebibytes(426 + 32);

// Of one device: several times those of the largest that there are (a B200's 2250 TFLOP/s and 8000 GB/s, a host's memory).
constexpr double kMost_TFLOPps = 1e4, kMost_GBps = 1e5, kMost_GiB = 1e4;

double default_share(const Device& device, Arithmetic arithmetic) {
  if (!device.asynchronous) return kCpuShare;
  return arithmetic == Arithmetic::f32 || arithmetic == Arithmetic::f64 ? kGpuShare : kTensorCoreShare;
}

void read_rates(JsonObject& file, Device& device) {
  device.one_share = file.has("compute_efficiency");
  device.compute_efficiency = read_share(file, "compute_efficiency", 1, kLeastShare);
  static_cast<void>(file.text("matmul_source", ""));
  for (std::size_t i = 0; i < kArithmetics; ++i) {
    const auto arithmetic = static_cast<Arithmetic>(i);
    const std::string peak = peak_key(arithmetic), matmul = fmt::format("matmul_{}_TFLOPps", to_string(arithmetic));
    if (file.has(matmul) && !file.has(peak)) throw ConfigError("{}: '{}' needs '{}'", file.where(), matmul, peak);
    if (!file.has(peak) && arithmetic != Arithmetic::f32) continue;
    device.peaks[i] = teraflops_per_second(read_rate_up_to(kMost_TFLOPps, file, peak));
    if (file.has(matmul))
      device.matmul[i] = teraflops_per_second(read_rate_up_to(kMost_TFLOPps, file, matmul));
    else if (!device.one_share)
      device.matmul[i] = device.peaks[i] * default_share(device, arithmetic);
  }
  // All GPUs that multiply bf16 multiply f16 as fast.
  constexpr auto bf16 = static_cast<std::size_t>(Arithmetic::bf16), f16 = static_cast<std::size_t>(Arithmetic::f16);
  if (device.has(Arithmetic::f16)) return;
  device.peaks[f16] = device.peaks[bf16];
  device.matmul[f16] = device.matmul[bf16];
}

}  // namespace

std::string peak_key(Arithmetic arithmetic) { return fmt::format("peak_{}_TFLOPps", to_string(arithmetic)); }

Arithmetic arithmetic_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::f64:
      return Arithmetic::f64;
    case Dtype::bf16:
      return Arithmetic::bf16;
    case Dtype::f16:
      return Arithmetic::f16;
    case Dtype::f32:
    case Dtype::i64:
    case Dtype::i32:
    case Dtype::boolean:
      return Arithmetic::f32;
  }
  throw InternalError("dtype {}", static_cast<int>(dtype));
}

Device Device::times(std::uint32_t count) const {
  Device all = *this;
  for (auto* rates : {&all.peaks, &all.matmul})
    for (FlopsPerSecond& rate : *rates) rate = rate * count;
  all.memory_bandwidth = memory_bandwidth * count;
  all.memory_capacity = memory_capacity * count;
  return all;
}

bool Device::has(Arithmetic arithmetic) const { return peak(arithmetic) > FlopsPerSecond(); }

FlopsPerSecond Device::matmul_rate(Arithmetic arithmetic) const {
  const FlopsPerSecond known = matmul[static_cast<std::size_t>(arithmetic)];
  return known > FlopsPerSecond() ? known : peak(arithmetic) * compute_efficiency;
}

Device load_device(std::string_view name) {
  JsonObject file = read_json_file(catalog_file("devices", "device", name));
  check_format(file, "paragauge-device", 1, "write it as sim/catalog/README.md says");
  return read_device(file);
}

Device read_device(JsonObject& file) {
  if (file.has("format")) check_format(file, "paragauge-device", 1, "write it as sim/catalog/README.md says");
  Device device;
  device.name = file.text("name");
  device.sheet = file.where();
  device.source = file.text("source", "");
  device.driver_name = file.text("driver_name", "");
  device.asynchronous = file.boolean("asynchronous", false);
  read_rates(file, device);
  device.memory_bandwidth = gigabytes_per_second(read_rate_up_to(kMost_GBps, file, "memory_bandwidth_GBps"));
  device.memory_capacity = gibibytes(read_rate_up_to(kMost_GiB, file, "memory_capacity_GiB"));
  device.context = read_size_MiB(file, "context_MiB", device.asynchronous ? kContext : Bytes());
  device.memory_efficiency =
      read_share(file, "memory_efficiency", device.asynchronous ? kGpuMemoryShare : kCpuMemoryShare, kLeastShare);
  device.launch = read_time_us(file, "launch_us", device.asynchronous ? kGpuLaunch_us : kCpuLaunch_us);
  file.finish();
  return device;
}

std::optional<Device> find_device(std::string_view driver_name) {
  for (const std::string& name : catalog_names("devices"))
    if (const Device device = load_device(name); !driver_name.empty() && device.driver_name == driver_name)
      return device;
  return std::nullopt;
}

}  // namespace sim
