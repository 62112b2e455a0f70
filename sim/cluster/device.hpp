// What a rank computes on: a GPU, or a core of a CPU, as its data sheet has it.
//
//   const Device device = load_device("a100_sxm_80g");   // catalog/devices/a100_sxm_80g.json
//   device.matmul_rate(Arithmetic::tf32);                // 134 TFLOP/s, of 156 by the data sheet
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "sim/dtype.hpp"
#include "sim/table.hpp"
#include "sim/units.hpp"

namespace sim {

class JsonObject;

/// The format in which numbers are multiplied. Sums are f32, of f64 f64. tf32: f32 tensors
/// on tensor cores, rounded to 10 bits.
enum class Arithmetic : std::uint8_t { f32, f64, tf32, bf16, f16 };
constexpr std::size_t kArithmetics = 5;
inline constexpr EnumNames<Arithmetic, kArithmetics> kArithmeticNames{"arithmetic",
                                                                      {"f32", "f64", "tf32", "bf16", "f16"}};
inline std::string_view to_string(Arithmetic arithmetic) { return kArithmeticNames.of(arithmetic); }
/// Its key in a device's file: "peak_tf32_TFLOPps".
std::string peak_key(Arithmetic arithmetic);
/// The format of the elements as they are.
Arithmetic arithmetic_of(Dtype dtype);

/// catalog/devices/*.json, described in catalog/README.md. Source of the numbers: the vendor's data sheet, named in the
/// file.
struct Device {
  std::string name, source;
  std::string sheet;          // where it was read: alike of devices that differ in their share only
  std::string driver_name;    // what its driver calls it: "NVIDIA H200"; empty: not known
  bool asynchronous = false;  // a GPU: the host issues ahead; a CPU core: the issuing thread computes itself
  /// The data sheet's dense rate by Arithmetic; 0: it has none. `matmul`: what large matrix products reach of it; 0:
  /// compute_efficiency's share.
  std::array<FlopsPerSecond, kArithmetics> peaks = {}, matmul = {};
  /// The file gives a compute_efficiency: all that multiplies reaches this one share, convolutions, too.
  bool one_share = false;
  bool has_even_rows = false;  // what if every row in half precision began where its tensor cores want it
  BytesPerSecond memory_bandwidth;
  Bytes memory_capacity;
  /// What a process holds of it beside all tensors: the context of CUDA, its kernels, cuBLAS's workspace.
  Bytes context;
  double compute_efficiency = 1, memory_efficiency = 1;  // achievable share of the peak, of memory_bandwidth
  Seconds launch;                                        // host time to issue one instruction
  double share = 1;                                      // of its time that the ranks get: others use it, too

  [[nodiscard]] bool has(Arithmetic arithmetic) const;
  [[nodiscard]] FlopsPerSecond& peak(Arithmetic arithmetic) { return peaks[static_cast<std::size_t>(arithmetic)]; }
  [[nodiscard]] FlopsPerSecond peak(Arithmetic arithmetic) const { return peaks[static_cast<std::size_t>(arithmetic)]; }
  /// What a large matrix product reaches; 0 where the device has no such arithmetic.
  [[nodiscard]] FlopsPerSecond matmul_rate(Arithmetic arithmetic) const;
  /// So many of them together, as one.
  [[nodiscard]] Device times(std::uint32_t count) const;
};

/// `name`: of a file of catalog/devices, or a path. ConfigError when the file doesn't describe a device.
Device load_device(std::string_view name);
/// What such a file has; `format` may be missing. ConfigError when it doesn't describe a device.
Device read_device(JsonObject& file);
/// The catalog's device that the driver calls so.
std::optional<Device> find_device(std::string_view driver_name);

}  // namespace sim
