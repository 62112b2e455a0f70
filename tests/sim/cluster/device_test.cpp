#include "sim/cluster/device.hpp"

#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using namespace testing;

/// What a user knows of a GPU.
constexpr const char* kFile = R"({
  "format": "paragauge-device-1", "name": "mine", "asynchronous": true,
  "peak_f32_TFLOPps": 10, "peak_bf16_TFLOPps": 100,
  "memory_bandwidth_GBps": 1000, "memory_capacity_GiB": 24
})";

Device load(const std::string& text) {
  const TemporaryFolder folder;
  return load_device(folder.file("mine.json", text));
}

std::string refused(std::string_view from, std::string_view to) {
  const std::string message = message_of([&] { (void)load(replaced(kFile, from, to)); });
  return message.substr(std::min(message.find("mine.json"), message.size()));
}

TEST(Device, NeedsWhatAUserKnows) {
  const Device device = load(kFile);
  // The defaults of catalog/README.md.
  EXPECT_DOUBLE_EQ(device.matmul_rate(Arithmetic::f32).base(), 0.94 * 10e12);
  EXPECT_DOUBLE_EQ(device.matmul_rate(Arithmetic::bf16).base(), 0.8 * 100e12);
  EXPECT_DOUBLE_EQ(device.matmul_rate(Arithmetic::f16).base(), 0.8 * 100e12);
  EXPECT_DOUBLE_EQ(device.memory_efficiency, 0.8);
  EXPECT_DOUBLE_EQ(device.launch.in_seconds(), 25e-6);
  EXPECT_FALSE(device.has(Arithmetic::tf32));
  EXPECT_FALSE(device.has(Arithmetic::f64));
  EXPECT_EQ(device.matmul_rate(Arithmetic::tf32), FlopsPerSecond());
  const Device core = load(replaced(kFile, "true", "false"));
  EXPECT_DOUBLE_EQ(core.matmul_rate(Arithmetic::f32).base(), 0.7 * 10e12);
  EXPECT_DOUBLE_EQ(core.memory_efficiency, 0.6);
  EXPECT_DOUBLE_EQ(core.launch.in_seconds(), 2e-6);
}

TEST(Device, TakesPublishedRatesBeforeShares) {
  const Device published = load(replaced(kFile, "\"peak_bf16_TFLOPps\": 100",
                                         "\"peak_bf16_TFLOPps\": 100, \"matmul_bf16_TFLOPps\": 60, "
                                         "\"matmul_source\": \"a page\", \"peak_tf32_TFLOPps\": 50"));
  EXPECT_DOUBLE_EQ(published.matmul_rate(Arithmetic::bf16).base(), 60e12);
  EXPECT_DOUBLE_EQ(published.matmul_rate(Arithmetic::f16).base(), 60e12);
  EXPECT_DOUBLE_EQ(published.matmul_rate(Arithmetic::tf32).base(), 0.8 * 50e12);
}

/// As they were before there were defaults.
TEST(Device, ReadsOlderFiles) {
  const Device device = load(R"({
    "format": "paragauge-device-1", "name": "old", "source": "a data sheet", "driver_name": "", "asynchronous": true,
    "peak_f32_TFLOPps": 19.5, "peak_f64_TFLOPps": 9.7, "peak_bf16_TFLOPps": 312,
    "memory_bandwidth_GBps": 2039, "memory_capacity_GiB": 80,
    "compute_efficiency": 0.7, "memory_efficiency": 0.85, "launch_us": 6})");
  for (const Arithmetic arithmetic : {Arithmetic::f32, Arithmetic::f64, Arithmetic::bf16})
    EXPECT_DOUBLE_EQ(device.matmul_rate(arithmetic) / device.peak(arithmetic), 0.7) << to_string(arithmetic);
  EXPECT_DOUBLE_EQ(device.memory_efficiency, 0.85);
  EXPECT_DOUBLE_EQ(device.launch.in_seconds(), 6e-6);
}

TEST(Device, SaysWhatIsWrong) {
  EXPECT_EQ(refused("\"peak_f32_TFLOPps\": 10,", ""), "mine.json: 'peak_f32_TFLOPps' is missing");
  EXPECT_EQ(refused("\"peak_f32_TFLOPps\": 10", "\"peak_f32_TFLOPps\": 0"),
            "mine.json: peak_f32_TFLOPps=0 must be from 1e-09 to 10000");
  // GFLOP/s, bytes per second, MiB.
  EXPECT_EQ(refused("\"peak_f32_TFLOPps\": 10", "\"peak_f32_TFLOPps\": 35600"),
            "mine.json: peak_f32_TFLOPps=35600 must be from 1e-09 to 10000");
  EXPECT_EQ(refused("\"memory_bandwidth_GBps\": 1000", "\"memory_bandwidth_GBps\": 9.36e11"),
            "mine.json: memory_bandwidth_GBps=936000000000 must be from 1e-09 to 100000");
  EXPECT_EQ(refused("\"memory_capacity_GiB\": 24", "\"memory_capacity_GiB\": 24564"),
            "mine.json: memory_capacity_GiB=24564 must be from 1e-09 to 10000");
  EXPECT_EQ(refused("\"asynchronous\"", "\"matmul_tf32_TFLOPps\": 1, \"asynchronous\""),
            "mine.json: 'matmul_tf32_TFLOPps' needs 'peak_tf32_TFLOPps'");
  EXPECT_EQ(
      refused("peak_bf16_TFLOPps", "peak_bf16_TFLOPs"),
      "mine.json: unknown key 'peak_bf16_TFLOPs'; known: asynchronous, compute_efficiency, context_MiB, driver_name, "
      "format, "
      "launch_us, matmul_bf16_TFLOPps, matmul_f16_TFLOPps, matmul_f32_TFLOPps, matmul_f64_TFLOPps, matmul_source, "
      "matmul_tf32_TFLOPps, memory_bandwidth_GBps, memory_capacity_GiB, memory_efficiency, name, "
      "peak_bf16_TFLOPps, peak_f16_TFLOPps, peak_f32_TFLOPps, peak_f64_TFLOPps, peak_tf32_TFLOPps, source; did "
      "you mean 'peak_bf16_TFLOPps'?");
}

TEST(Device, TheCatalogNamesItsSources) {
  for (const std::string& name : catalog_names("devices")) {
    const Device device = load_device(name);
    EXPECT_EQ(device.name, name);
    EXPECT_GT(device.source.size(), 20U) << name;
    const bool is_gpu = device.asynchronous;
    EXPECT_EQ(device.driver_name.empty(), !is_gpu) << name;
    EXPECT_EQ(find_device(device.driver_name).has_value(), is_gpu) << name;
    if (is_gpu) {
      EXPECT_EQ(find_device(device.driver_name)->name, name);
    }
    for (std::size_t i = 0; i < kArithmetics; ++i) {
      const auto arithmetic = static_cast<Arithmetic>(i);
      EXPECT_LE(device.matmul_rate(arithmetic), device.peak(arithmetic)) << name << ' ' << to_string(arithmetic);
    }
    // Dense, with f32 sums: not twice as much.
    EXPECT_LE(device.peak(Arithmetic::tf32) * 1.9, device.peak(Arithmetic::bf16)) << name;
  }
}

}  // namespace
}  // namespace sim
