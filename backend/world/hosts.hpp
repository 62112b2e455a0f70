// The hosts that the ranks of a world are on.
//
//   const Hosts hosts({{"a", "boot 1", {}}, {"a", "boot 1", {}}, {"b", "boot 2", {}}, {"b", "boot 2", {}}});
//   hosts.several()                     // true
//   hosts.named(3)                      // "rank 3 on b"
//   hosts.place_of(3)                   // 1: the second rank there
//
// A host is what has one clock. Ranks lie on hosts in their order, as many on each: what an axis of a strategy has
// beside each other is on one host, and the outermost axes cross hosts.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace backend {

/// What a rank says of itself when the ranks meet.
struct Greeting {
  std::string host;   // its name
  std::string clock;  // that of two processes is one where they read the same clock
  /// What all ranks must have alike, by what it is called: "version" → "0.1.0".
  std::map<std::string, std::string> alike;
  /// It doesn't come: it has ended before, with this sim::exit_status, and this is why.
  bool stays_away = false;
  int status = 0;
  std::string why = {};
};
/// Of this process.
Greeting greeting(std::map<std::string, std::string> alike);

struct Host {
  std::string name;
  std::vector<std::uint32_t> ranks;  // ascending
};

class Hosts {
 public:
  /// Greetings by rank. ConfigError, which names both, where a host has something else than rank 0's, or where the ranks
  /// lie otherwise. Where one stays away, why, with its name.
  explicit Hosts(const std::vector<Greeting>& greetings);

  [[nodiscard]] const std::vector<Host>& list() const { return hosts_; }
  [[nodiscard]] bool several() const { return hosts_.size() > 1; }
  [[nodiscard]] std::uint32_t host_of(std::uint32_t rank) const { return host_of_[rank]; }
  /// Which of the ranks of its host it is, from 0 on.
  [[nodiscard]] std::uint32_t place_of(std::uint32_t rank) const { return rank - first_of(rank); }
  /// The first rank of a rank's host.
  [[nodiscard]] std::uint32_t first_of(std::uint32_t rank) const { return hosts_[host_of_[rank]].ranks.front(); }
  /// "rank 3", and where there are several hosts "rank 3 on b".
  [[nodiscard]] std::string named(std::uint32_t rank) const;

 private:
  std::vector<Host> hosts_;
  std::vector<std::uint32_t> host_of_;  // by rank
};

}  // namespace backend
