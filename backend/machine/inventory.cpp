#include "backend/machine/inventory.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <thread>

#include "backend/machine/address.hpp"
#include "backend/machine/arithmetic.hpp"
#include "backend/machine/process.hpp"
#include "backend/machine/scheduling.hpp"
#include "sim/cluster/allowance.hpp"
#include "sim/cluster/cluster.hpp"
#include "sim/text/system_file.hpp"

namespace sim {
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FoundGpu, name, memory_GiB, pcie_gen, pcie_lanes, nvlink_GBps)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FoundNic, name, gigabits, has_verbs)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FoundCore, f32_GFLOPps, f64_GFLOPps, bf16_GFLOPps, memory_GBps)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(FoundHost, name, cpu, cores, sockets, memory_GiB, core, gpus, nics, meets_over)
}  // namespace sim

namespace backend {
namespace {

/// A number at the beginning of a text, or 0: "16", "81920 MiB", "[N/A]".
double leading_number(std::string_view text) { return std::max(0.0, std::strtod(std::string(text).c_str(), nullptr)); }

/// Processors of how many sockets /proc/cpuinfo lists; 1 where it doesn't say.
std::uint32_t sockets() {
  std::set<std::string> ids;
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("physical id")) ids.insert(line);
  return std::max<std::uint32_t>(1, static_cast<std::uint32_t>(ids.size()));
}

/// Through which card the launch's hosts meet; empty where nobody says.
std::string meeting_interface() {
  if (const char* chosen = std::getenv("GLOO_SOCKET_IFNAME")) return chosen;
  const char* meeting_place = std::getenv("MASTER_ADDR");
  return meeting_place != nullptr ? interface_with(reachable_address(meeting_place)) : "";
}

std::vector<std::filesystem::path> entries(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> list;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) list.push_back(entry.path());
  std::ranges::sort(list);
  return list;
}

/// What one try of a core does; returns how much that was.
using Try = std::function<double()>;
/// Makes the tries of the core that calls it.
using Work = Try (*)();

Try product_of(at::ScalarType dtype) {
  constexpr std::int64_t kSize = 768;  // three matrices of f64 are 14 MB
  constexpr double kGFLOP = 2e-9 * kSize * kSize * kSize;
  const at::Tensor a = at::ones({kSize, kSize}, dtype), b = at::ones({kSize, kSize}, dtype);
  at::Tensor product = at::empty({kSize, kSize}, dtype);
  return [a, b, product]() mutable {
    at::mm_out(product, a, b);
    return kGFLOP;
  };
}

Try copy_of_memory() {
  constexpr std::int64_t kElements = 8 << 20;       // 32 MiB each: a core's part of no cache is as large
  constexpr double kGB = 1e-9 * 2 * 4 * kElements;  // read and written
  const at::Tensor from = at::ones({kElements}, at::kFloat);
  at::Tensor to = at::ones({kElements}, at::kFloat);
  return [from, to]() mutable {
    to.copy_(from);
    return kGB;
  };
}

/// The best rate of each work on all cores together, divided by their number. The works take turns, so that what else the
/// machine does meets them alike; all cores' tries of a turn begin together.
std::vector<double> rates_of_a_core(const std::vector<Work>& works) {
  constexpr int kRounds = 6;         // the first warms up
  constexpr double kLeast_s = 0.04;  // of a turn
  const std::uint32_t cores = sim::usable_cores();
  std::barrier meet(static_cast<std::ptrdiff_t>(cores));
  std::vector<std::array<std::vector<double>, kRounds>> rates(cores);  // by core, round, work
  {
    std::vector<std::jthread> threads;
    for (std::uint32_t core = 0; core < cores; ++core)
      threads.emplace_back([&, core] {
        pin_to_core(core_of_rank(core));
        at::set_num_threads(1);
        std::vector<Try> tries;
        for (const Work work : works) tries.push_back(work());
        for (std::vector<double>& of_round : rates[core])
          for (const Try& once : tries) {
            meet.arrive_and_wait();
            const double begin_s = now_s();
            double done = 0;
            do done += once();
            while (now_s() - begin_s < kLeast_s);
            of_round.push_back(done / (now_s() - begin_s));
          }
      });
  }
  std::vector<double> best(works.size());
  for (std::size_t round = 1; round < kRounds; ++round)
    for (std::size_t w = 0; w < works.size(); ++w) {
      double sum = 0;
      for (const auto& of_core : rates) sum += of_core[round][w];
      best[w] = std::max(best[w], sum / cores);
    }
  return best;
}

}  // namespace

std::vector<sim::FoundGpu> gpus_of(std::string_view table, std::string_view nvlinks) {
  std::vector<sim::FoundGpu> list;
  std::istringstream rows{std::string(table)}, links{std::string(nvlinks)};
  for (std::string row; std::getline(rows, row) && !row.empty();) {
    std::array<std::string, 4> values;
    std::istringstream columns(row);
    for (std::string& value : values) {
      std::getline(columns, value, ',');
      value.erase(0, std::min(value.size(), value.find_first_not_of(' ')));
    }
    list.push_back({.name = values[0],
                    .memory_GiB = leading_number(values[1]) / 1024,
                    .pcie_gen = static_cast<std::uint32_t>(leading_number(values[2])),
                    .pcie_lanes = static_cast<std::uint32_t>(leading_number(values[3]))});
  }
  std::size_t gpu = list.size();
  for (std::string line; std::getline(links, line);) {
    const std::size_t colon = line.find(": "), link = line.find("Link ");
    if (line.starts_with("GPU "))
      gpu = static_cast<std::size_t>(leading_number(std::string_view(line).substr(4)));
    else if (gpu < list.size() && link != std::string::npos && colon != std::string::npos && line.ends_with("GB/s"))
      list[gpu].nvlink_GBps += leading_number(std::string_view(line).substr(colon + 2));
  }
  return list;
}

std::vector<sim::FoundNic> network_cards(const std::filesystem::path& system, std::string_view meets_over) {
  std::vector<sim::FoundNic> list;
  std::set<std::filesystem::path> with_verbs;  // devices
  const auto device_of = [](const std::filesystem::path& card) {
    std::error_code none;
    return std::filesystem::canonical(card / "device", none);
  };
  for (const std::filesystem::path& card : entries(system / "class/infiniband"))
    for (const std::filesystem::path& port : entries(card / "ports")) {
      if (sim::first_line(port / "state").value_or("").find("ACTIVE") == std::string::npos) continue;
      list.push_back({.name = card.filename(),
                      .gigabits = leading_number(sim::first_line(port / "rate").value_or("")),
                      .has_verbs = true});
      with_verbs.insert(device_of(card));
    }
  for (const std::filesystem::path& card : entries(system / "class/net")) {
    const std::filesystem::path device = device_of(card);
    const std::string name = card.filename();
    if (device.empty() ? name != meets_over : with_verbs.contains(device) && name != meets_over) continue;
    const std::string state = sim::first_line(card / "operstate").value_or("");
    if (state == "down" && name != meets_over) continue;
    list.push_back({.name = name, .gigabits = leading_number(sim::first_line(card / "speed").value_or("")) / 1000});
  }
  return list;
}

sim::FoundHost inventory() {
  constexpr double kGiB = 1073741824;
  const sim::Host own = sim::this_host();
  sim::FoundHost host{.name = host_name(),
                      .cpu = own.cpu,
                      .cores = sim::usable_cores(),
                      .sockets = sockets(),
                      .memory_GiB = own.memory.base() / kGiB};
  host.meets_over = meeting_interface();
  host.nics = network_cards("/sys", host.meets_over);
  host.gpus = gpus_of(
      output_of("nvidia-smi --query-gpu=name,memory.total,pcie.link.gen.max,pcie.link.width.max --format=csv,noheader")
          .value_or(""),
      output_of("nvidia-smi nvlink --status").value_or(""));
  return host;
}

sim::FoundCore measure_cores() {
  std::vector<Work> works = {[] { return product_of(at::kFloat); }, [] { return product_of(at::kDouble); },
                             copy_of_memory};
  if (cpu_multiplies(sim::Dtype::bf16)) works.push_back([] { return product_of(at::kBFloat16); });
  const std::vector<double> rates = rates_of_a_core(works);
  return {.f32_GFLOPps = rates[0],
          .f64_GFLOPps = rates[1],
          .bf16_GFLOPps = works.size() > 3 ? rates[3] : 0,
          .memory_GBps = rates[2]};
}

nlohmann::json to_json(const sim::FoundHost& host) { return host; }
sim::FoundHost host_from_json(const nlohmann::json& json) { return json.get<sim::FoundHost>(); }

}  // namespace backend
