#include "backend/machine/environment.hpp"

#include <ATen/Context.h>
#include <ATen/Version.h>
#include <fmt/format.h>
#include <sys/utsname.h>
#include <torch/version.h>
#include <unistd.h>

#include <array>
#include <ctime>
#include <fstream>
#include <numeric>
#include <optional>
#include <string>

#include "backend/machine/accelerator.hpp"
#include "backend/machine/process.hpp"
#include "backend/machine/scheduling.hpp"
#include "sim/cluster/allowance.hpp"
#include "sim/cluster/cluster.hpp"
#include "sim/text/system_file.hpp"

namespace backend {

extern const char* const kSources;  // the sources' checksum, made with each build

namespace {

using Json = nlohmann::json;

/// Or null.
Json json(const std::optional<std::string>& value) { return value ? Json(*value) : Json(); }
Json line_of(const std::string& path) { return json(sim::first_line(path)); }

struct Ticks {
  std::uint64_t steal = 0, total = 0;
};

/// /proc/stat's first line: user nice system idle iowait irq softirq steal …
Ticks ticks() {
  std::ifstream file("/proc/stat");
  std::string word;
  file >> word;
  std::array<std::uint64_t, 8> columns{};
  for (std::uint64_t& column : columns) file >> column;
  return {columns[7], std::accumulate(columns.begin(), columns.end(), std::uint64_t{0})};
}

const Ticks kTicksAtStart = ticks();

Json caches() {
  Json sizes = Json::object();
  for (int index = 0; index < 5; ++index) {
    const std::string folder = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(index);
    const Json level = line_of(folder + "/level"), type = line_of(folder + "/type");
    if (!level.is_null() && !type.is_null())
      sizes[fmt::format("L{} {}", level.get<std::string>(), type.get<std::string>())] = line_of(folder + "/size");
  }
  return sizes;
}

Json describe_gpus() {
  Json list = Json::array();
  for (const Accelerator& gpu : gpus()) list.push_back(gpu.details);
  return list;
}

}  // namespace

std::string version() {
  return fmt::format("{}, sources {}, LibTorch {}", PARAGAUGE_VERSION, std::string_view(kSources).substr(0, 12),
                     TORCH_VERSION);
}

Json steal_share() {
  const Ticks now = ticks();
  const double total = static_cast<double>(now.total - kTicksAtStart.total);
  return total > 0 ? Json(static_cast<double>(now.steal - kTicksAtStart.steal) / total) : Json();
}

Json environment() {
  utsname system{};
  uname(&system);
  const std::time_t seconds = std::time(nullptr);
  std::array<char, 32> date{};
  std::strftime(date.data(), date.size(), "%FT%TZ", std::gmtime(&seconds));
  const std::string source = PARAGAUGE_SOURCE_DIR;
  return {{"date", date.data()},
          {"commit", json(output_of("git -C '" + source + "' describe --always --dirty --abbrev=12"))},
          {"cpu",
           {{"model", sim::cpu_name()},
            {"usable_cores", sim::usable_cores()},
            {"MHz", json(sim::field("/proc/cpuinfo", "cpu MHz"))},
            {"governor", line_of("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")},
            {"caches", caches()}}},
          {"memory_GiB", sim::usable_memory() / 1073741824.0},
          {"kernel", std::string(system.sysname) + " " + system.release},
          {"huge_pages", line_of("/sys/kernel/mm/transparent_hugepage/enabled")},
          {"rt_runtime_us", line_of("/proc/sys/kernel/sched_rt_runtime_us")},
          {"version", version()},
          {"torch", TORCH_VERSION},
          {"mkl", at::get_mkl_version()},
          {"onednn", at::get_mkldnn_version()},
          {"cpu_capability", at::get_cpu_capability()},
          {"gpus", describe_gpus()}};
}

}  // namespace backend
