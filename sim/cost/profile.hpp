// What was measured of a device and its links: the source of the `profiled` cost model. Written by `calibrate`, never
// from the step to be predicted.
//
//   Profile profile("cpu");
//   profile.add_op("gloo", work_key(work), /*busy=*/2, samples_s);       // merges with what is there
//   profile.add_link({"gloo", "all_reduce", 2}, /*bytes=*/4 << 20, samples_s);
//   profile.save("cpu.json");  Profile same = load_profile("cpu.json");
//
// File format "paragauge-profile-2" (JSON). `environment` is whatever the calibrating program wrote about the machine.
//   device       text
//   environment  object
//   launch       {count, mean_s, sd_s, median_s, jitter_s}: host time to issue one instruction; missing if not measured
//   ops          [{world, work, busy, count, mean_s, sd_s, median_s, jitter_s}]: `work` is sim::work_key; `busy` ranks
//                compute at the same time
//   workspaces   [{work, bytes}]: what the op allocates beside its outputs and gives back
//   links        [{world, kind, members, bytes, count, mean_s, sd_s, median_s, jitter_s, post_s, recv_post_s}]: kind
//                send (the receiver had posted first, if the world has notes), unexpected_send (it hadn't), all_reduce
//                or broadcast; seconds from ready to done; mean host seconds until the posting thread goes on, of a
//                send or collective and of a recv, 0 where missing. Or note: what the first post takes from the other
//                end's core (sim::Rendezvous), of 0 bytes
//   core_share   {world: share}: of each end's core while a transfer runs; worlds not measured are missing
//   rank_spread  {world: {count, difference, hiccup_variance}}: how far apart ranks that play the same lie in one step;
//                worlds not measured are missing
//   interruptions {world: {played_s, lost_s}}: what took the machine away, which is in no other time above; worlds
//                without are missing
//   process_bytes {world: [bytes]}: what each process holds beside its ranks' tensors; worlds not measured are missing
//   link_fits    [{world, kind, members, sizes, alpha_us, bandwidth_GBps, residual_percent}]: computed from `links`
//                when written, not read
//
// Ops belong to the world they ran in: a process beside gloo's threads isn't as fast as a thread of one process.
#pragma once

#include <compare>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/cost/statistic.hpp"

namespace sim {

struct Cluster;
struct TransferCost;

struct LinkKey {
  std::string world;  // "local", "gloo", "nccl"
  std::string kind;   // "send", "unexpected_send", "note", "all_reduce", "broadcast"
  std::uint32_t members = 2;
  friend auto operator<=>(const LinkKey&, const LinkKey&) = default;
};

/// Host time until the thread that posts a transfer goes on: of a send or collective, and of a recv.
struct PostTimes {
  double post_s = 0, recv_post_s = 0;
  friend PostTimes operator*(double factor, const PostTimes& p) { return {factor * p.post_s, factor * p.recv_post_s}; }
};

/// A transfer's time: a part that doesn't depend on the size, and the rest.
struct TransferTime {
  double latency_s = 0, wire_s = 0;
  double jitter = 0;  // relative standard deviation at the nearest measured size above
  PostTimes posts;
};

/// t(s) = α + s/β over the measured sizes. Each size weighs 1/t², so the relative residuals are minimised: the sizes
/// span decades.
struct AlphaBeta {
  double alpha_s = 0, s_per_byte = 0;  // neither negative
  std::size_t sizes = 0;
  double residual = 0;  // √(mean of ((fit − t)/t)²)
};

class Profile {
 public:
  explicit Profile(std::string device_name) : device(std::move(device_name)) {}

  std::string device;
  nlohmann::json environment = nlohmann::json::object();
  std::map<std::string, double> core_share;  // by world, 0…1
  /// By world, and there by process (the first one also holds the tool's own data; further ones are like the last that
  /// is listed): what it holds beside its ranks' tensors (programs, libraries, the C library's own), in bytes.
  std::map<std::string, std::vector<double>> process_bytes;

  /// Samples are finite and not negative; `busy` ≥ 1.
  void add_op(const std::string& world, const std::string& work_key, std::uint32_t busy,
              std::span<const double> samples_s);
  /// `posts`: means over these samples.
  void add_link(const LinkKey& link, std::int64_t bytes, std::span<const double> samples_s,
                const PostTimes& posts = {});
  void add_launch(std::span<const double> samples_s);
  void add_rank_spread(const std::string& world, const RankSpread& spread);
  void add_interruptions(const std::string& world, const Interruptions& interruptions);
  /// 0 for a world that wasn't measured.
  [[nodiscard]] double rank_jitter(std::string_view world) const;

  /// By number of busy ranks; of another world where this one lacks the work; empty if none has it. With the world's
  /// share of interruptions.
  [[nodiscard]] std::map<std::uint32_t, Statistic> op_levels(std::string_view world, std::string_view work_key) const;
  /// Between the measured sizes piecewise linear in bytes. Below the smallest: its time, as latency. Above the largest:
  /// the last segment's slope goes on. With the world's share of interruptions. Unavailable: nothing measured, or only
  /// one size and `bytes` above it.
  [[nodiscard]] std::optional<TransferTime> transfer(const LinkKey& link, std::int64_t bytes) const;
  /// Unavailable below two sizes.
  [[nodiscard]] std::optional<AlphaBeta> fit(const LinkKey& link) const;
  [[nodiscard]] std::optional<Statistic> link(const LinkKey& link, std::int64_t bytes) const;
  [[nodiscard]] std::optional<Statistic> launch() const { return launch_; }

  [[nodiscard]] std::size_t ops() const { return ops_.size(); }
  /// What the op allocates beside its outputs and gives back; the largest that was seen.
  void add_workspace(const std::string& work_key, std::int64_t bytes);
  [[nodiscard]] std::optional<std::int64_t> workspace(std::string_view work_key) const;
  /// The keys of all works, each once, in their order.
  [[nodiscard]] std::vector<std::string> works() const;
  /// A transfer's share of each end's core: measured, or the cluster's own number.
  [[nodiscard]] double core_share_of(const Cluster& cluster) const;
  [[nodiscard]] std::vector<LinkKey> links() const;
  /// A table of the links with their fits, for the console.
  [[nodiscard]] std::string describe_links() const;

  [[nodiscard]] std::string to_json() const;
  /// Atomic: a reader sees the old file or the new one. RunError when it can't be written.
  void save(const std::filesystem::path& path) const;

 private:
  /// How much longer than undisturbed everything takes in a world.
  [[nodiscard]] double stretch(std::string_view world) const;
  friend Profile profile_from_json(std::string_view text, const std::string& where);
  using OpKey = std::tuple<std::string, std::string, std::uint32_t>;  // work, world, busy
  std::map<OpKey, Statistic> ops_;
  std::map<std::string, std::int64_t, std::less<>> workspaces_;
  struct Link {
    Statistic time;
    PostTimes posts;
  };
  std::map<LinkKey, std::map<std::int64_t, Link>> links_;  // by bytes
  std::optional<Statistic> launch_;
  std::map<std::string, RankSpread, std::less<>> rank_spreads_;
  std::map<std::string, Interruptions, std::less<>> interruptions_;
};

/// What the simulator is told of a transfer, the world's own core share and notes included; unavailable as in
/// Profile::transfer.
std::optional<TransferCost> transfer_cost(const Profile& profile, const Cluster& cluster, const LinkKey& link,
                                          std::int64_t bytes);

/// ConfigError when the file is unreadable, truncated, of another version, or says something that can't be.
Profile load_profile(const std::filesystem::path& path);
/// `where` names the text in messages.
Profile profile_from_json(std::string_view text, const std::string& where);

}  // namespace sim
