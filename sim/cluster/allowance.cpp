#include "sim/cluster/allowance.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <string_view>

#include "sim/text/system_file.hpp"

namespace sim {
namespace {

/// "max", and what is missing, are 0.
double number_in(const std::string& path) { return std::strtod(first_line(path).value_or("").c_str(), nullptr); }

/// The folders of the control groups that this process is in, of a controller ("cpu", "memory") or of all that version
/// 2 has (""): its own first, then those above. A container often sees its own as the top.
std::vector<std::string> groups(const std::string& root, std::string_view controller) {
  std::ifstream file(root + "/proc/self/cgroup");
  std::string own;
  for (std::string line; std::getline(file, line);) {  // "4:memory:/docker/0b9f", in version 2 "0::/docker/0b9f"
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string names = ',' + line.substr(first + 1, second - first - 1) + ',';
    if (names.find(',' + std::string(controller) + ',') != std::string::npos) own = line.substr(second + 1);
  }
  const std::string top = root + "/sys/fs/cgroup" + (controller.empty() ? "" : "/" + std::string(controller));
  std::vector<std::string> folders;
  for (; own.size() > 1; own.resize(own.rfind('/'))) folders.push_back(top + own);
  folders.push_back(top);
  return folders;
}

/// What a version of control groups calls its files.
struct MemoryFiles {
  const char *controller, *limit, *used, *page_cache[2];
};
constexpr MemoryFiles kMemoryFiles[] = {
    {"memory", "/memory.limit_in_bytes", "/memory.usage_in_bytes", {"total_inactive_file", "total_active_file"}},
    {"", "/memory.max", "/memory.current", {"inactive_file", "active_file"}}};

/// Calls `limited(folder, files, limit in bytes)` for each control group that has a limit.
template <class Limited>
void for_each_memory_limit(const std::string& root, Limited limited) {
  constexpr double kNone = 1e18;  // version 1 says 2^63 less a page
  for (const MemoryFiles& files : kMemoryFiles)
    for (const std::string& folder : groups(root, files.controller))
      if (const double limit = number_in(folder + files.limit); limit > 0 && limit < kNone)
        limited(folder, files, limit);
}

double page_cache(const std::string& folder, const MemoryFiles& files) {
  std::ifstream statistic(folder + "/memory.stat");  // "inactive_file 4096": without a colon
  double sum = 0, bytes = 0;
  for (std::string name; statistic >> name >> bytes;)
    if (name == files.page_cache[0] || name == files.page_cache[1]) sum += bytes;
  return sum;
}

double left_of(double limit, const std::string& folder, const MemoryFiles& files) {
  return std::max(0.0, limit - std::max(0.0, number_in(folder + files.used) - page_cache(folder, files)));
}

}  // namespace

const std::vector<std::uint32_t>& core_list() {
  static const std::vector<std::uint32_t> cores = [] {
    std::vector<std::uint32_t> list;
    // The kernel refuses a set that is smaller than its own, whose size it doesn't say.
    for (std::uint32_t most = CPU_SETSIZE; list.empty() && most <= (1U << 20); most *= 2) {
      cpu_set_t* set = CPU_ALLOC(most);
      if (sched_getaffinity(0, CPU_ALLOC_SIZE(most), set) == 0)
        for (std::uint32_t core = 0; core < most; ++core)
          if (CPU_ISSET_S(core, CPU_ALLOC_SIZE(most), set)) list.push_back(core);
      CPU_FREE(set);
    }
    if (list.empty()) list.push_back(0);
    return list;
  }();
  return cores;
}

std::uint32_t usable_cores() {
  static const auto number = static_cast<std::uint32_t>(
      std::clamp(std::floor(cores_of_group().value_or(1e9)), 1.0, static_cast<double>(core_list().size())));
  return number;
}

std::optional<double> cores_of_group(const std::string& root) {
  std::optional<double> least;
  const auto take = [&](double quota, double period) {  // both in µs
    if (quota > 0 && period > 0) least = std::min(least.value_or(quota / period), quota / period);
  };
  for (const std::string& folder : groups(root, "cpu"))
    take(number_in(folder + "/cpu.cfs_quota_us"), number_in(folder + "/cpu.cfs_period_us"));  // -1: no limit
  for (const std::string& folder : groups(root, "")) {
    std::ifstream file(folder + "/cpu.max");  // "150000 100000", "max 100000"
    double quota = 0, period = 0;
    if (file >> quota >> period) take(quota, period);
  }
  return least;
}

double usable_memory(const std::string& root) {
  double least = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
  for_each_memory_limit(root,
                        [&](const std::string&, const MemoryFiles&, double limit) { least = std::min(least, limit); });
  return least;
}

std::optional<double> free_memory(const std::string& root) {
  std::optional<double> least = field_bytes(root + "/proc/meminfo", "MemAvailable:");
  for_each_memory_limit(root, [&](const std::string& folder, const MemoryFiles& files, double limit) {
    const double left = left_of(limit, folder, files);
    least = std::min(least.value_or(left), left);
  });
  return least;
}

double free_share(const std::string& root) {
  const double all = field_bytes(root + "/proc/meminfo", "MemTotal:").value_or(0);
  double least = all > 0 ? field_bytes(root + "/proc/meminfo", "MemAvailable:").value_or(all) / all : 1;
  for_each_memory_limit(root, [&](const std::string& folder, const MemoryFiles& files, double limit) {
    least = std::min(least, left_of(limit, folder, files) / limit);
  });
  return least;
}

}  // namespace sim
