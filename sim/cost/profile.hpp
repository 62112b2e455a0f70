// What was measured of a device and its links: the source of the `profiled` cost model. Written by `calibrate`, never
// from the step to be predicted.
//
//   Profile profile("cpu");
//   profile.add_op("gloo", work_key(work), /*busy=*/2, samples_s);       // merges with what is there
//   profile.add_link({"gloo", "all_reduce", 2}, /*bytes=*/4 << 20, samples_s);
//   profile.save("cpu.json");  Profile same = load_profile("cpu.json");
//
// File format "paragauge-profile-3" (JSON). `environment` is whatever the calibrating program wrote about the machine:
// which device it is, among others (sim/cost/origin.hpp).
//   device       text
//   environment  object
//   launch       {count, mean_s, sd_s, median_s, jitter_s}: host time to issue one instruction; missing if not measured
//   gap          the same, of an asynchronous device: from an instruction's end to the next one's begin where the host
//                is ahead; missing elsewhere
//   ops          [{work, workspace_bytes, times: {world: {busy: [count, mean_s, median_s, sd_s, jitter_s]}}, issue}]:
//                `work` is sim::work_key; `busy` ranks compute at the same time; a single sample has no sd_s and
//                jitter_s. issue: host time to issue it, as such a list; of asynchronous devices only.
//                workspace_bytes: what the op allocates beside its outputs and gives back; missing if not measured
//   links        [{world, kind, members, devices, spread, own_in_place, bytes, count, mean_s, sd_s, median_s, jitter_s,
//                post_s, recv_post_s, engaged_s, rewriting_s, core_time}]: kind send (the receiver had posted first, if
//                the world notifies), unexpected_send (it hadn't), or a collective's name; seconds from ready to done;
//                mean host seconds until the posting thread goes on, of a send or collective and of a recv, 0 where
//                missing. Or note: what handling the notification of the first post takes from the other end's core
//                (sim::Rendezvous), of 0 bytes. Among ranks that share devices: devices (TransferQuestion::devices) and engaged_s
//                (TransferCost::engaged_s), missing elsewhere. rewriting_s (TransferCost::rewriting_s): 0 where
//                missing. core_time (PostTimes::core_time): missing where nothing was computed beside it. Between
//                hosts: spread (TransferQuestion::spread), missing within one. own_in_place
//                (TransferQuestion::own_in_place): missing where not
//   core_share   {world: share}: of each end's core while a transfer runs; worlds not measured are missing
//   rank_spread  {world: {count, difference, hiccup_variance}}: how far apart ranks that run the same lie in one step;
//                worlds not measured are missing
//   interruptions {world: {played_s, lost_s}}: what took the machine away from ops, which is in no time above; worlds
//                without are missing
//   late_transfers {world: {count, lost_s}}: what few of so many transfers took longer by far, which is in no time above;
//                worlds without are missing
//   rounds       {calibration task: [seconds]}: what its works took together, round by
//                round; missing if not calibrated so
//   process_bytes {world: [bytes]}: what each process holds beside its ranks' tensors; worlds not measured are missing
// "paragauge-profile-2" is read, too: ops [{world, work, busy, count,
// mean_s, sd_s, median_s, jitter_s}], workspaces [{work, bytes}].
//
// Ops belong to the world they ran in: a process beside gloo's threads isn't as fast as a thread of one process.
#pragma once

#include <algorithm>
#include <array>
#include <compare>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/cluster/cluster.hpp"
#include "sim/cost/cost_model.hpp"
#include "sim/cost/statistic.hpp"

namespace sim {

constexpr auto kLinkKinds = [] {
  std::array<std::string_view, 3 + kCollectiveNames.names.size()> kinds{"send", "unexpected_send", "note"};
  std::ranges::copy(kCollectiveNames.names, kinds.begin() + 3);
  return kinds;
}();

struct LinkKey {
  std::string world;  // "local", "gloo", "nccl"
  std::string kind;   // one of kLinkKinds
  std::uint32_t members = 2;
  std::string devices = {};                // TransferQuestion::devices
  std::vector<std::uint32_t> spread = {};  // TransferQuestion::spread: over which levels of the network
  bool own_in_place = false;               // TransferQuestion::own_in_place
  friend auto operator<=>(const LinkKey&, const LinkKey&) = default;
};

class Profile {
 public:
  explicit Profile(std::string device_name) : device(std::move(device_name)) {}

  std::string device;
  nlohmann::json environment = nlohmann::json::object();

  /// Samples are finite and not negative; `busy` ≥ 1.
  void add_op(const std::string& world, const std::string& work_key, std::uint32_t busy,
              std::span<const double> samples_s);
  /// `posts`: means over these samples.
  void add_link(const LinkKey& link, std::int64_t bytes, std::span<const double> samples_s,
                const PostTimes& posts = {});
  void add_launch(std::span<const double> samples_s);
  /// Of an asynchronous device: host time to issue an op, and Profile::gap_s.
  void add_issue(const std::string& work_key, std::span<const double> samples_s);
  void add_gap(std::span<const double> samples_s);
  void add_rank_spread(const std::string& world, const RankSpread& spread);
  void add_interruptions(const std::string& world, const Interruptions& interruptions);
  void add_late_transfers(const std::string& world, const LateTransfers& late);
  /// What the op allocates beside its outputs and gives back; the largest that was seen.
  void add_workspace(const std::string& work_key, std::int64_t bytes);
  /// The share of each end's core that a transfer takes, 0…1. A share that was read from a file counts as one.
  void add_core_share(const std::string& world, double share);
  /// What each process holds (the first one also the tool's own data) beside its ranks' tensors (programs,
  /// libraries, the C library's own). The latest count most, since a process grows with its results.
  void add_process_bytes(const std::string& world, std::span<const double> bytes);
  /// What the works of a calibration task took together in one more round.
  void add_round(const std::string& task, double seconds);

  /// Every link as LinkTimes::monotone.
  void even_out_links();

  /// The times by number of busy ranks; of another world where this one lacks the work; empty if none has it. With the
  /// world's share of interruptions.
  [[nodiscard]] std::map<std::uint32_t, Statistic> op_levels(std::string_view world, std::string_view work_key) const;
  /// The time that LinkTimes::at has, and what the world's transfers are late on average.
  [[nodiscard]] std::optional<TransferTime> transfer(const LinkKey& link, std::int64_t bytes) const;
  [[nodiscard]] std::optional<Statistic> link(const LinkKey& link, std::int64_t bytes) const;
  [[nodiscard]] const std::map<LinkKey, LinkTimes>& links() const { return links_; }
  [[nodiscard]] std::optional<Statistic> launch() const { return launch_; }
  /// Its mean. ConfigError where it wasn't measured.
  [[nodiscard]] double launch_s() const;
  /// Mean host time to issue the op; where it wasn't measured, of the same kind and pass in other shapes, since the
  /// shape matters less; nothing where there is none either.
  [[nodiscard]] std::optional<double> issue_s(std::string_view work_key) const;
  /// 0 where it wasn't measured.
  [[nodiscard]] double gap_s() const { return gap_.value_or(Statistic{}).mean_s; }
  [[nodiscard]] std::size_t ops() const { return ops_.size(); }
  [[nodiscard]] std::optional<std::int64_t> workspace(std::string_view work_key) const;
  /// The keys of all works, each once, in their order.
  [[nodiscard]] std::vector<std::string> works() const;
  /// 0 for a world that wasn't measured.
  [[nodiscard]] double rank_jitter(std::string_view world) const;
  [[nodiscard]] std::optional<double> core_share(std::string_view world) const;
  /// Processes beyond the last that is listed are like it; empty for a world that wasn't measured.
  [[nodiscard]] std::vector<double> process_bytes(std::string_view world) const;

  /// The seconds of each round by calibration task.
  [[nodiscard]] const std::map<std::string, std::vector<double>, std::less<>>& rounds() const { return rounds_; }
  /// How far the time in one more round would be from the mean of the rounds, the number of rounds allowed for:
  /// standard deviation of ln(time / mean). 0 below two rounds: not known.
  [[nodiscard]] double drift_sd() const;

  [[nodiscard]] std::string to_json() const;
  /// Atomic: a reader sees the old file or the new one. RunError when it can't be written.
  void save(const std::filesystem::path& path) const;

 private:
  /// How much longer than undisturbed everything takes in a world.
  [[nodiscard]] double stretch(std::string_view world) const;
  friend class ProfileFile;
  using OpKey = std::tuple<std::string, std::string, std::uint32_t>;  // work, world, busy
  template <class Value>
  using ByName = std::map<std::string, Value, std::less<>>;
  struct Share {
    double mean = 0, count = 0;
  };
  std::map<OpKey, Statistic> ops_;
  ByName<std::int64_t> workspaces_;
  std::map<LinkKey, LinkTimes> links_;
  std::optional<Statistic> launch_, gap_;
  ByName<Statistic> issues_;  // by work
  // By world.
  ByName<RankSpread> rank_spreads_;
  ByName<Interruptions> interruptions_;
  ByName<LateTransfers> late_transfers_;
  ByName<Share> core_shares_;
  ByName<std::vector<double>> process_bytes_;
  ByName<std::vector<double>> rounds_;  // by calibration task
};

/// Under which name a profile has what answers the question.
LinkKey link_key(const std::string& world, const TransferQuestion& question);
/// What the profile says of a transfer, as the simulator wants it: with the world's own share of the cores and its
/// notifications. Unavailable as in Profile::transfer.
std::optional<TransferCost> transfer_cost(const Profile& profile, const Cluster& cluster, const LinkKey& link,
                                          std::int64_t bytes);

/// "3 rounds differ by up to 37 % (local ops of …: 8.6 to 11.8 ms): close other programs or take more --rounds". One
/// sentence, or two.
std::string describe_rounds(const Profile& profile);

/// ConfigError when the file is unreadable, truncated, of another version, or says something that can't be.
Profile load_profile(const std::filesystem::path& path);
/// `where` names the text in messages.
Profile profile_from_json(std::string_view text, const std::string& where);

}  // namespace sim
