#include "backend/world/hosts.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>

#include "backend/machine/address.hpp"
#include "backend/rank/progress.hpp"
#include "sim/error.hpp"
#include "sim/text/system_file.hpp"

namespace backend {

Greeting greeting(std::map<std::string, std::string> alike) {
  std::array<char, 64> time_namespace{};  // "time:[4026531834]": containers may have a CLOCK_MONOTONIC of their own
  if (readlink("/proc/self/ns/time", time_namespace.data(), time_namespace.size() - 1) < 0) time_namespace[0] = '\0';
  return {.host = host_name(),
          .clock = sim::first_line("/proc/sys/kernel/random/boot_id").value_or("unknown") + ' ' + time_namespace.data(),
          .alike = std::move(alike)};
}

Hosts::Hosts(const std::vector<Greeting>& greetings) {
  std::vector<std::string> clocks;
  for (std::uint32_t rank = 0; rank < greetings.size(); ++rank) {
    const auto known = std::ranges::find(clocks, greetings[rank].clock);
    host_of_.push_back(static_cast<std::uint32_t>(known - clocks.begin()));
    if (known == clocks.end()) {
      clocks.push_back(greetings[rank].clock);
      hosts_.push_back({.name = greetings[rank].host});
    }
    hosts_[host_of_[rank]].ranks.push_back(rank);
  }
  for (std::uint32_t rank = 0; rank < greetings.size(); ++rank)
    if (const Greeting& away = greetings[rank]; away.stays_away)
      rethrow({.status = away.status, .text = fmt::format("{}: {}", named(rank), away.why)});
  for (std::uint32_t rank = 1; rank < greetings.size(); ++rank) {
    const Greeting &first = greetings[0], &other = greetings[rank];
    for (const auto& [what, value] : first.alike) {
      const auto theirs = other.alike.find(what);
      const std::string found = theirs == other.alike.end() ? "none" : theirs->second;
      if (found != value)
        throw sim::ConfigError("{} has another {} ({}) than {} ({}); all ranks must have the same", named(rank), what,
                               found, named(0), value);
    }
    for (const auto& [what, value] : other.alike)
      if (!first.alike.contains(what))
        throw sim::ConfigError("{} has another {} ({}) than {} (none); all ranks must have the same", named(rank), what,
                               value, named(0));
  }
  const std::size_t each = hosts_[0].ranks.size();
  for (const Host& host : hosts_) {
    if (host.ranks.size() != each)
      throw sim::ConfigError("{} has {} ranks and {} has {}; all hosts must have as many", hosts_[0].name, each,
                             host.name, host.ranks.size());
    if (host.ranks.back() - host.ranks.front() >= each)
      throw sim::ConfigError(
          "ranks {} are on {}, and the ranks between them aren't; ranks must lie host by host (srun "
          "--distribution=block, mpirun --map-by slot)",
          fmt::format("{} and {}", host.ranks[0], host.ranks[1]), host.name);
  }
}

std::string Hosts::named(std::uint32_t rank) const {
  return several() ? fmt::format("rank {} on {}", rank, hosts_[host_of_[rank]].name) : fmt::format("rank {}", rank);
}

}  // namespace backend
