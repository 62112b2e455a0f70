#include "sim/cluster/device.hpp"

#include "sim/cluster/read.hpp"
#include "sim/error.hpp"

namespace sim {

FlopsPerSecond Device::peak(Dtype dtype) const {
  switch (dtype) {
    case Dtype::f64:
      return peak_f64;
    case Dtype::bf16:
    case Dtype::f16:
      return peak_bf16;  // the same units and rate on all devices of the catalog
    case Dtype::f32:
    case Dtype::i64:
      return peak_f32;
  }
  throw InternalError("dtype {}", static_cast<int>(dtype));
}

Device load_device(std::string_view name) {
  JsonObject file = read_json_file(catalog_file("devices", "device", name));
  check_format(file, "paragauge-device", 1, "write it as those of sim/catalog/devices are");
  Device device;
  device.name = file.text("name");
  device.source = file.text("source");
  device.driver_name = file.text("driver_name", "");
  device.asynchronous = file.boolean("asynchronous", false);
  device.peak_f32 = teraflops_per_second(read_rate(file, "peak_f32_TFLOPps"));
  device.peak_f64 = teraflops_per_second(read_rate(file, "peak_f64_TFLOPps"));
  device.peak_bf16 = teraflops_per_second(read_rate(file, "peak_bf16_TFLOPps"));
  device.memory_bandwidth = gigabytes_per_second(read_rate(file, "memory_bandwidth_GBps"));
  device.memory_capacity = gibibytes(read_rate(file, "memory_capacity_GiB"));
  device.compute_efficiency = read_share(file, "compute_efficiency", 1, kLeastShare);
  device.memory_efficiency = read_share(file, "memory_efficiency", 1, kLeastShare);
  device.launch = read_time_us(file, "launch_us");
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
