// What a rank computes on: a GPU, or a core of a CPU, as its data sheet has it.
//
//   const Device device = load_device("a100_sxm_80g");   // catalog/devices/a100_sxm_80g.json
//   device.peak(Dtype::f32);
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "sim/dtype.hpp"
#include "sim/units.hpp"

namespace sim {

/// catalog/devices/*.json. Source of the numbers: the vendor's data sheet, named in the file.
struct Device {
  std::string name, source;
  std::string driver_name;    // what its driver calls it: "NVIDIA H200"; empty: not known
  bool asynchronous = false;  // a GPU: the host issues ahead; a CPU core: the issuing thread computes itself
  FlopsPerSecond peak_f32, peak_f64, peak_bf16;
  BytesPerSecond memory_bandwidth;
  Bytes memory_capacity;
  double compute_efficiency = 1, memory_efficiency = 1;  // achievable share of the peak (roofline ceilings)
  Seconds launch;                                        // host time to issue one instruction

  [[nodiscard]] FlopsPerSecond peak(Dtype dtype) const;
};

/// `name`: of a file of catalog/devices, or a path. ConfigError when the file doesn't describe a device.
Device load_device(std::string_view name);
/// The catalog's device that the driver calls so.
std::optional<Device> find_device(std::string_view driver_name);

}  // namespace sim
