#include "sim/cost/profile.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "sim/error.hpp"

namespace sim {
namespace {

template <class Map>
const typename Map::mapped_type* find(const Map& map, std::string_view name) {
  const auto found = map.find(name);
  return found == map.end() ? nullptr : &found->second;
}

/// How many ranks' parts a measured collective took that all members move and wait for, where the ranks' threads copy:
/// those on one device copy one after the other, and the simulator lets them do that again. (One with a root was timed
/// by the first rank that had its part.)
double parts_in_turn(const Cluster& cluster, const LinkKey& link) {
  const std::optional<CollectiveKind> kind = kCollectiveNames.find(link.kind);
  if (cluster.link().engine != TransferEngine::receiver || !kind || has_root(*kind)) return 1;
  std::map<std::uint32_t, double> parts;  // by device; the first ranks were measured
  double most = 1;
  for (std::uint32_t rank = 0; rank < std::min<std::size_t>(link.members, cluster.place.size()); ++rank)
    most = std::max(most, ++parts[cluster.place[rank].device]);
  return most;
}

}  // namespace

void Profile::add_op(const std::string& world, const std::string& work_key, std::uint32_t busy,
                     std::span<const double> samples_s) {
  check_internal(busy >= 1, "op '{}' timed with {} busy ranks", work_key, busy);
  if (!samples_s.empty()) ops_[{work_key, world, busy}].add(samples_s);
}

void Profile::add_link(const LinkKey& link, std::int64_t bytes, std::span<const double> samples_s,
                       const PostTimes& posts) {
  check_internal(std::ranges::find(kLinkKinds, link.kind) != kLinkKinds.end() && bytes >= 0, "link '{}' with {} bytes",
                 link.kind, bytes);
  if (!samples_s.empty()) links_[link].add(bytes, samples_s, posts);
}

void Profile::add_launch(std::span<const double> samples_s) {
  if (samples_s.empty()) return;
  if (!launch_) launch_.emplace();
  launch_->add(samples_s);
}

double Profile::launch_s() const {
  if (launch_) return launch_->mean_s;
  throw ConfigError("the profile of device '{}' has no launch time; calibrate some model first", device);
}

void Profile::add_issue(const std::string& work_key, std::span<const double> samples_s) {
  if (!samples_s.empty()) issues_[work_key].add(samples_s);
}

void Profile::add_gap(std::span<const double> samples_s) {
  if (samples_s.empty()) return;
  if (!gap_) gap_.emplace();
  gap_->add(samples_s);
}

std::optional<double> Profile::issue_s(std::string_view work_key) const {
  if (const auto found = issues_.find(work_key); found != issues_.end()) return found->second.mean_s;
  const std::string kind_and_pass(work_key.substr(0, work_key.find(' ') + 1));  // "conv2d.backward "
  std::vector<double> of_kind;
  for (auto each = issues_.lower_bound(kind_and_pass); each != issues_.end() && each->first.starts_with(kind_and_pass);
       ++each)
    of_kind.push_back(each->second.mean_s);
  return of_kind.empty() ? std::nullopt : std::optional(mean_of(of_kind));
}

void Profile::add_rank_spread(const std::string& world, const RankSpread& spread) {
  if (spread.count > 0) rank_spreads_[world].add(spread);
}

void Profile::add_interruptions(const std::string& world, const Interruptions& interruptions) {
  if (interruptions.played_s > 0) interruptions_[world].add(interruptions);
}

void Profile::add_late_transfers(const std::string& world, const LateTransfers& late) {
  if (late.count > 0) late_transfers_[world].add(late);
}

void Profile::add_workspace(const std::string& work_key, std::int64_t bytes) {
  check_internal(bytes >= 0, "op '{}' with a workspace of {} bytes", work_key, bytes);
  std::int64_t& largest = workspaces_[work_key];
  largest = std::max(largest, bytes);
}

void Profile::add_core_share(const std::string& world, double share) {
  check_internal(share >= 0 && share <= 1, "a transfer that takes {} of a core", share);
  Share& known = core_shares_[world];
  known.mean += (share - known.mean) / ++known.count;
}

void Profile::add_process_bytes(const std::string& world, std::span<const double> bytes) {
  std::vector<double>& known = process_bytes_[world];
  for (std::size_t process = 0; process < bytes.size(); ++process)
    if (process < known.size())
      known[process] = std::midpoint(known[process], bytes[process]);
    else
      known.push_back(bytes[process]);
}

void Profile::add_round(const std::string& task, double seconds) {
  check_internal(seconds >= 0, "a round of {} s", seconds);
  if (seconds > 0) rounds_[task].push_back(seconds);
}

// Tasks of a round drift together: many of them tell the variance better, but don't make rounds out of few.
double Profile::drift_sd() const {
  double squares = 0, degrees = 0, most = 0;
  for (const auto& [task, seconds] : rounds_) {
    const auto n = static_cast<double>(seconds.size());
    double mean = 0;
    for (const double s : seconds) mean += std::log(s) / n;
    for (const double s : seconds) squares += std::pow(std::log(s) - mean, 2);
    degrees += n - 1;
    most = std::max(most, n);
  }
  if (degrees < 1) return 0;
  return std::sqrt(squares / degrees * (1 + 1 / most)) * student_t(kNormal90, most - 1) / kNormal90;
}

std::map<std::uint32_t, Statistic> Profile::op_levels(std::string_view world, std::string_view work_key) const {
  std::map<std::uint32_t, Statistic> levels;
  std::string_view found;
  for (auto row = ops_.lower_bound({std::string(work_key), "", 0}); row != ops_.end(); ++row) {
    const auto& [row_work, row_world, busy] = row->first;
    if (row_work != work_key) break;
    if (row_world != found && (found.empty() || row_world == world)) {
      found = row_world;
      levels.clear();
    }
    if (row_world == found) levels.emplace(busy, row->second);
  }
  for (auto& [busy, time] : levels) time.scale(stretch(found));
  return levels;
}

void Profile::even_out_links() {
  for (auto& [link, times] : links_) times = times.monotone();
}

std::optional<TransferTime> Profile::transfer(const LinkKey& link, std::int64_t bytes) const {
  const auto found = links_.find(link);
  std::optional<TransferTime> time = found == links_.end() ? std::nullopt : found->second.at(bytes);
  const LateTransfers* late = find(late_transfers_, link.world);
  if (time && late != nullptr) time->latency_s += late->mean_s();
  return time;
}

std::optional<Statistic> Profile::link(const LinkKey& link, std::int64_t bytes) const {
  const auto found = links_.find(link);
  if (found == links_.end()) return std::nullopt;
  const auto size = found->second.sizes.find(bytes);
  return size == found->second.sizes.end() ? std::nullopt : std::optional(size->second.time);
}

std::optional<std::int64_t> Profile::workspace(std::string_view work_key) const {
  const std::int64_t* bytes = find(workspaces_, work_key);
  return bytes == nullptr ? std::nullopt : std::optional(*bytes);
}

std::vector<std::string> Profile::works() const {
  std::vector<std::string> keys;
  for (const auto& [key, time] : ops_)
    if (keys.empty() || keys.back() != std::get<0>(key)) keys.push_back(std::get<0>(key));
  return keys;
}

double Profile::rank_jitter(std::string_view world) const {
  const RankSpread* spread = find(rank_spreads_, world);
  return spread == nullptr ? 0 : spread->jitter();
}

std::optional<double> Profile::core_share(std::string_view world) const {
  const Share* share = find(core_shares_, world);
  return share == nullptr ? std::nullopt : std::optional(share->mean);
}

std::vector<double> Profile::process_bytes(std::string_view world) const {
  const std::vector<double>* bytes = find(process_bytes_, world);
  return bytes == nullptr ? std::vector<double>() : *bytes;
}

double Profile::stretch(std::string_view world) const {
  const Interruptions* found = find(interruptions_, world);
  return found == nullptr ? 1 : 1 + found->share();
}

LinkKey link_key(const std::string& world, const TransferQuestion& question) {
  const std::string_view kind =
      question.kind == InstructionKind::collective ? to_string(question.collective) : to_string(InstructionKind::send);
  return {world, std::string(kind), question.members, question.devices, question.spread, question.own_in_place};
}

std::optional<TransferCost> transfer_cost(const Profile& profile, const Cluster& cluster, const LinkKey& link,
                                          std::int64_t bytes) {
  const std::optional<TransferTime> time = profile.transfer(link, bytes);
  if (!time) return std::nullopt;
  // Without measured notifications, only a small message's overhead is charged; the core's share covers what a large
  // one's takes more.
  const TransferTime least = *profile.transfer(link, 0);
  const double parts = parts_in_turn(cluster, link);
  TransferCost cost{.latency_s = time->latency_s / parts,
                    .wire_s = time->wire_s / parts,
                    .send_overhead_s = least.posts.send_overhead_s,
                    .recv_overhead_s = least.posts.recv_overhead_s,
                    .core_share = profile.core_share(cluster.world).value_or(cluster.link().core_share),
                    .engaged_s = time->posts.engaged_s,
                    .rewriting_s = time->posts.rewriting_s,
                    .jitter = time->jitter};
  if (cost.core_share > 0) cost.beside_compute = std::max(1.0, time->posts.core_time / cost.core_share);
  if (link.kind != "send") return cost;
  const std::optional<Statistic> note = profile.link({link.world, "note", link.members}, 0);
  const std::optional<TransferTime> unexpected =
      profile.transfer({link.world, "unexpected_send", link.members, {}, link.spread}, bytes);
  if (!note || !unexpected) return cost;
  cost.send_overhead_s = time->posts.send_overhead_s;
  // A small message is written whole while it is posted.
  const double delivery_s = std::max(0.0, least.latency_s - least.posts.send_overhead_s);
  cost.rendezvous = {note->mean_s, delivery_s, unexpected->latency_s, unexpected->wire_s,
                     unexpected->posts.send_overhead_s};
  return cost;
}

std::string describe_rounds(const Profile& profile) {
  constexpr double kQuiet = 0.05;
  const std::vector<double>* worst = nullptr;
  std::string task;
  double most = 0;
  for (const auto& [name, seconds] : profile.rounds()) {
    const auto [low, high] = std::ranges::minmax(seconds);
    if (seconds.size() < 2 || high / low - 1 < most) continue;
    most = high / low - 1;
    worst = &seconds;
    task = name;
  }
  if (worst == nullptr) return "One round doesn't tell how much rounds differ: take 3 --rounds or more.";
  const auto [low, high] = std::ranges::minmax(*worst);
  return fmt::format(
      "{} rounds differ by up to {:.0f} % ({}: {:.3g} to {:.3g} ms){}. For that alone, the intervals of forecasts "
      "reach "
      "from {:.0f} % below to {:.0f} % above.",
      worst->size(), 100 * most, task, 1e3 * low, 1e3 * high,
      most > kQuiet ? ": close other programs or take more --rounds" : "",
      100 * (1 - std::exp(-kNormal90 * profile.drift_sd())), 100 * (std::exp(kNormal90 * profile.drift_sd()) - 1));
}

}  // namespace sim
