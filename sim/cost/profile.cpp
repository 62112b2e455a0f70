#include "sim/cost/profile.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "sim/cluster/cluster.hpp"
#include "sim/cost/cost_model.hpp"
#include "sim/error.hpp"
#include "sim/text/file_format.hpp"
#include "sim/text/spec.hpp"

namespace sim {
namespace {

using Json = nlohmann::ordered_json;
constexpr std::array<std::string_view, 5> kLinkKinds{"send", "unexpected_send", "note", "all_reduce", "broadcast"};
// `busy` ranks are of one node, and every level up to the highest costs memory.
constexpr std::int64_t kMostRanks = 1 << 20, kMostBusy = 1024;
constexpr double kMostBytes = 1ULL << 60, kMostSpread = 1e3, kMostLost = 0.999;
// The fit sums squares of times and of their reciprocals, and the simulator divides times by each other.
constexpr double kLongest_s = 1e9, kShortest_s = 1e-15;

void write(Json& row, const Statistic& statistic) {
  row["count"] = statistic.count;
  row["mean_s"] = statistic.mean_s;
  row["sd_s"] = statistic.sd_s ? Json(*statistic.sd_s) : Json();
  row["median_s"] = statistic.median_s;
  row["jitter_s"] = statistic.jitter_s ? Json(*statistic.jitter_s) : Json();
}

double time_of(JsonObject& row, std::string_view key) {
  const double value = row.number(key);
  if (value < 0) throw ConfigError("{}: '{}' must not be negative, found {}", row.where(), key, value);
  if (value > kLongest_s || (value > 0 && value < kShortest_s))
    throw ConfigError("{}: '{}' must be 0 or from {} to {} s, found {}", row.where(), key, kShortest_s, kLongest_s,
                      value);
  return value;
}

std::int64_t whole(JsonObject& row, std::string_view key, std::int64_t minimum,
                   std::int64_t maximum = std::int64_t{1} << 53) {
  const std::int64_t value = row.integer(key);
  if (value < minimum || value > maximum)
    throw ConfigError("{}: '{}' must be from {} to {}, found {}", row.where(), key, minimum, maximum, value);
  return value;
}

/// An object per world; none where the file lacks the key.
std::vector<std::pair<std::string, JsonObject>> objects_by_world(JsonObject& file, std::string_view key) {
  std::vector<std::pair<std::string, JsonObject>> rows;
  if (!file.has(key)) return rows;
  JsonObject worlds = file.object(key);
  for (const std::string& world : worlds.keys()) rows.emplace_back(world, worlds.object(world));
  return rows;
}

Statistic read_statistic(JsonObject& row) {
  Statistic statistic{.count = whole(row, "count", 1),
                      .mean_s = time_of(row, "mean_s"),
                      .sd_s = {},
                      .median_s = time_of(row, "median_s")};
  if (!row.value("sd_s").is_null()) statistic.sd_s = time_of(row, "sd_s");
  if (!row.value("jitter_s").is_null()) statistic.jitter_s = time_of(row, "jitter_s");
  if (statistic.sd_s.has_value() != (statistic.count > 1))
    throw ConfigError("{}: 'sd_s' must be null for one sample and a number for more; count={}", row.where(),
                      statistic.count);
  return statistic;
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
  if (samples_s.empty()) return;
  auto& [time, known] = links_[link][bytes];
  time.add(samples_s);
  const double share = static_cast<double>(samples_s.size()) / static_cast<double>(time.count);
  known.post_s += share * (posts.post_s - known.post_s);
  known.recv_post_s += share * (posts.recv_post_s - known.recv_post_s);
}

void Profile::add_launch(std::span<const double> samples_s) {
  if (samples_s.empty()) return;
  if (!launch_) launch_.emplace();
  launch_->add(samples_s);
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

void Profile::add_workspace(const std::string& work_key, std::int64_t bytes) {
  check_internal(bytes >= 0, "op '{}' with a workspace of {} bytes", work_key, bytes);
  std::int64_t& largest = workspaces_[work_key];
  largest = std::max(largest, bytes);
}

std::optional<std::int64_t> Profile::workspace(std::string_view work_key) const {
  const auto found = workspaces_.find(work_key);
  return found == workspaces_.end() ? std::nullopt : std::optional(found->second);
}

std::vector<std::string> Profile::works() const {
  std::vector<std::string> keys;
  for (const auto& [key, time] : ops_)
    if (keys.empty() || keys.back() != std::get<0>(key)) keys.push_back(std::get<0>(key));
  return keys;
}

void Profile::add_rank_spread(const std::string& world, const RankSpread& spread) {
  if (spread.count > 0) rank_spreads_[world].add(spread);
}

double Profile::rank_jitter(std::string_view world) const {
  const auto found = rank_spreads_.find(world);
  return found == rank_spreads_.end() ? 0 : found->second.jitter();
}

void Profile::add_interruptions(const std::string& world, const Interruptions& interruptions) {
  if (interruptions.played_s > 0) interruptions_[world].add(interruptions);
}

double Profile::stretch(std::string_view world) const {
  const auto found = interruptions_.find(world);
  return found == interruptions_.end() ? 1 : 1 + found->second.share();
}

double Profile::core_share_of(const Cluster& cluster) const {
  const auto share = core_share.find(cluster.world);
  return share == core_share.end() ? cluster.link.core_share : share->second;
}

std::optional<Statistic> Profile::link(const LinkKey& link, std::int64_t bytes) const {
  const auto ladder = links_.find(link);
  if (ladder == links_.end()) return std::nullopt;
  const auto found = ladder->second.find(bytes);
  return found == ladder->second.end() ? std::nullopt : std::optional(found->second.time);
}

std::vector<LinkKey> Profile::links() const {
  std::vector<LinkKey> keys;
  for (const auto& [key, ladder] : links_) keys.push_back(key);
  return keys;
}

std::optional<TransferTime> Profile::transfer(const LinkKey& link, std::int64_t bytes) const {
  const auto found = links_.find(link);
  if (found == links_.end()) return std::nullopt;
  const std::map<std::int64_t, Link>& ladder = found->second;
  const double factor = stretch(link.world), smallest_s = factor * ladder.begin()->second.time.mean_s;
  auto above = ladder.lower_bound(bytes);
  if (above == ladder.begin())
    return TransferTime{smallest_s, 0, above->second.time.jitter(), factor * above->second.posts};
  const bool beyond = above == ladder.end();
  if (beyond && ladder.size() == 1) return std::nullopt;
  if (beyond) --above;
  const auto below = std::prev(above);
  const double of_segment =
      static_cast<double>(bytes - below->first) / static_cast<double>(above->first - below->first);
  const auto at = [&](double low, double high) {
    // Noise at the top must not make larger transfers free.
    return factor * (beyond ? high + (of_segment - 1) * std::max(high - low, 0.0) : std::lerp(low, high, of_segment));
  };
  const Link &low = below->second, &high = above->second;
  const double total = at(low.time.mean_s, high.time.mean_s), latency = std::min(smallest_s, total);
  return TransferTime{latency,
                      total - latency,
                      high.time.jitter(),
                      {at(low.posts.post_s, high.posts.post_s), at(low.posts.recv_post_s, high.posts.recv_post_s)}};
}

std::optional<TransferCost> transfer_cost(const Profile& profile, const Cluster& cluster, const LinkKey& link,
                                          std::int64_t bytes) {
  const std::optional<TransferTime> time = profile.transfer(link, bytes);
  if (!time) return std::nullopt;
  // Where nothing is known of rendezvous, the share of the core that a transfer takes stands for what a large message's
  // post takes beyond a small one's.
  const TransferTime least = *profile.transfer(link, 0);
  TransferCost cost{.latency_s = time->latency_s,
                    .wire_s = time->wire_s,
                    .post_s = least.posts.post_s,
                    .recv_post_s = least.posts.recv_post_s,
                    .core_share = profile.core_share_of(cluster),
                    .jitter = time->jitter,
                    .engine = cluster.link.engine};
  if (link.kind != "send") return cost;
  const std::optional<Statistic> note = profile.link({link.world, "note", link.members}, 0);
  const std::optional<TransferTime> unexpected = profile.transfer({link.world, "unexpected_send", link.members}, bytes);
  if (!note || !unexpected) return cost;
  cost.post_s = time->posts.post_s;
  // A small message is written whole while it is posted.
  const double delivery_s = std::max(0.0, least.latency_s - least.posts.post_s);
  cost.rendezvous = {note->mean_s, delivery_s, unexpected->latency_s, unexpected->wire_s, unexpected->posts.post_s};
  return cost;
}

std::optional<AlphaBeta> Profile::fit(const LinkKey& link) const {
  const auto found = links_.find(link);
  if (found == links_.end() || found->second.size() < 2) return std::nullopt;
  double w = 0, wx = 0, wt = 0, wxx = 0, wxt = 0;
  for (const auto& [bytes, link_times] : found->second) {
    const Statistic& time = link_times.time;
    if (time.mean_s < kShortest_s) return std::nullopt;
    const double x = static_cast<double>(bytes), t = time.mean_s, weight = 1 / (t * t);
    w += weight, wx += weight * x, wt += weight * t, wxx += weight * x * x, wxt += weight * x * t;
  }
  AlphaBeta fit{.sizes = found->second.size()};
  fit.s_per_byte = (w * wxt - wx * wt) / (w * wxx - wx * wx);
  fit.alpha_s = (wt - fit.s_per_byte * wx) / w;
  // Neither can be negative; the constrained optimum then lies on the edge.
  if (fit.alpha_s < 0) fit.alpha_s = 0, fit.s_per_byte = wxt / wxx;
  if (fit.s_per_byte < 0) fit.s_per_byte = 0, fit.alpha_s = wt / w;
  // Sizes that hardly differ have no line.
  if (!std::isfinite(fit.alpha_s) || !std::isfinite(fit.s_per_byte)) return std::nullopt;
  double squares = 0;
  for (const auto& [bytes, link_times] : found->second) {
    const Statistic& time = link_times.time;
    const double off = (fit.alpha_s + fit.s_per_byte * static_cast<double>(bytes)) / time.mean_s - 1;
    squares += off * off;
  }
  fit.residual = std::sqrt(squares / static_cast<double>(fit.sizes));
  return fit;
}

std::string Profile::describe_links() const {
  std::string text =
      fmt::format("{:<8} {:<11} {:>7} {:>5} {:>14} {:>14} {:>10} {:>14} {:>16}\n", "world", "kind", "members", "sizes",
                  "smallest_bytes", "largest_bytes", "alpha_us", "bandwidth_GBps", "residual_percent");
  for (const auto& [key, ladder] : links_) {
    text += fmt::format("{:<8} {:<11} {:>7} {:>5} {:>14} {:>14} ", key.world, key.kind, key.members, ladder.size(),
                        ladder.begin()->first, ladder.rbegin()->first);
    if (const std::optional<AlphaBeta> line = fit(key))
      text += fmt::format("{:>10.1f} {:>14.3f} {:>16.1f}\n", line->alpha_s * 1e6, 1e-9 / line->s_per_byte,
                          100 * line->residual);
    else
      text += fmt::format("{:>10} {:>14} {:>16}\n", "n/a", "n/a", "n/a");
  }
  return text;
}

std::string Profile::to_json() const {
  Json file{{"format", "paragauge-profile-2"}, {"device", device}, {"environment", environment}};
  if (launch_) write(file["launch"], *launch_);
  Json& ops = file["ops"] = Json::array();
  for (const auto& [key, time] : ops_) {
    const auto& [work, world, busy] = key;
    Json row{{"world", world}, {"work", work}, {"busy", busy}};
    write(row, time);
    ops.push_back(std::move(row));
  }
  Json& workspaces = file["workspaces"] = Json::array();
  for (const auto& [key, bytes] : workspaces_) workspaces.push_back({{"work", key}, {"bytes", bytes}});
  Json& links = file["links"] = Json::array();
  Json fits = Json::array();
  for (const auto& [key, ladder] : links_) {
    const Json names{{"world", key.world}, {"kind", key.kind}, {"members", key.members}};
    for (const auto& [bytes, measured] : ladder) {
      Json row = names;
      row["bytes"] = bytes;
      write(row, measured.time);
      row["post_s"] = measured.posts.post_s;
      row["recv_post_s"] = measured.posts.recv_post_s;
      links.push_back(std::move(row));
    }
    if (const std::optional<AlphaBeta> line = fit(key)) {
      Json row = names;
      row["sizes"] = line->sizes;
      row["alpha_us"] = line->alpha_s * 1e6;
      row["bandwidth_GBps"] = line->s_per_byte > 0 ? Json(1e-9 / line->s_per_byte) : Json();
      row["residual_percent"] = 100 * line->residual;
      fits.push_back(std::move(row));
    }
  }
  file["core_share"] = core_share.empty() ? Json::object() : Json(core_share);
  Json& spreads = file["rank_spread"] = Json::object();
  for (const auto& [world, spread] : rank_spreads_)
    spreads[world] = {
        {"count", spread.count}, {"difference", spread.difference}, {"hiccup_variance", spread.hiccup_variance}};
  Json& interruptions = file["interruptions"] = Json::object();
  for (const auto& [world, found] : interruptions_)
    interruptions[world] = {{"played_s", found.played_s}, {"lost_s", found.lost_s}};
  file["process_bytes"] = process_bytes.empty() ? Json::object() : Json(process_bytes);
  file["link_fits"] = std::move(fits);
  return file.dump(1) + "\n";
}

void Profile::save(const std::filesystem::path& path) const { write_text_file(path, to_json()); }

Profile profile_from_json(std::string_view text, const std::string& where) {
  JsonObject file = parse_json(text, where);
  check_format(file, "paragauge-profile", 2, "calibrate again");
  Profile profile(file.text("device"));
  file.object("environment");  // must be an object
  profile.environment = file.value("environment");
  if (file.has("launch")) {
    JsonObject launch = file.object("launch");
    profile.launch_ = read_statistic(launch);
    launch.finish();
  }
  for (JsonObject& row : file.objects("ops")) {
    const std::string world = row.text("world"), work = row.text("work");
    const std::int64_t busy = whole(row, "busy", 1, kMostBusy);
    if (!profile.ops_.emplace(Profile::OpKey(work, world, static_cast<std::uint32_t>(busy)), read_statistic(row))
             .second)
      throw ConfigError("{}: '{}' with world={} busy={} is there twice", row.where(), work, world, busy);
    row.finish();
  }
  if (file.has("workspaces"))
    for (JsonObject& row : file.objects("workspaces")) {
      const std::string work = row.text("work");
      if (!profile.workspaces_.emplace(work, whole(row, "bytes", 0)).second)
        throw ConfigError("{}: '{}' is there twice", row.where(), work);
      row.finish();
    }
  for (JsonObject& row : file.objects("links")) {
    LinkKey key{row.text("world"), row.text("kind"), static_cast<std::uint32_t>(whole(row, "members", 2, kMostRanks))};
    const std::int64_t bytes = whole(row, "bytes", 0);
    if (std::ranges::find(kLinkKinds, key.kind) == kLinkKinds.end())
      throw ConfigError("{}: unknown kind '{}'; known: {}", row.where(), key.kind,
                        fmt::to_string(fmt::join(kLinkKinds, ", ")));
    Profile::Link measured{read_statistic(row), {}};
    if (row.has("post_s")) measured.posts.post_s = time_of(row, "post_s");
    if (row.has("recv_post_s")) measured.posts.recv_post_s = time_of(row, "recv_post_s");
    if (!profile.links_[key].emplace(bytes, measured).second)
      throw ConfigError("{}: {} {} with members={} bytes={} is there twice", row.where(), key.world, key.kind,
                        key.members, bytes);
    row.finish();
  }
  JsonObject shares = file.object("core_share");
  for (const std::string& world : shares.keys()) {
    const double share = profile.core_share[world] = shares.number(world);
    if (share < 0 || share > 1)
      throw ConfigError("{}: '{}' must be from 0 to 1, found {}", shares.where(), world, share);
  }
  for (auto& [world, row] : objects_by_world(file, "rank_spread")) {
    RankSpread& spread = profile.rank_spreads_[world];
    spread.count = whole(row, "count", 1);
    for (const auto& [key, value] :
         {std::pair("difference", &spread.difference), {"hiccup_variance", &spread.hiccup_variance}}) {
      *value = row.number(key);
      if (*value < 0 || *value > kMostSpread)
        throw ConfigError("{}: '{}' must be from 0 to {}, found {}", row.where(), key, kMostSpread, *value);
    }
    row.finish();
  }
  for (auto& [world, row] : objects_by_world(file, "interruptions")) {
    Interruptions& found = profile.interruptions_[world];
    found = {time_of(row, "played_s"), time_of(row, "lost_s")};
    if (found.lost_s > kMostLost * found.played_s)
      throw ConfigError("{}: 'lost_s' must be at most {} of 'played_s', found {} of {}", row.where(), kMostLost,
                        found.lost_s, found.played_s);
    row.finish();
  }
  if (file.has("process_bytes")) {
    JsonObject held = file.object("process_bytes");
    for (const std::string& world : held.keys()) {
      for (const double bytes : profile.process_bytes[world] = held.numbers(world))
        if (bytes < 0 || bytes > kMostBytes)
          throw ConfigError("{}: '{}' must be from 0 to 2^60, found {}", held.where(), world, bytes);
    }
  }
  file.objects("link_fits");
  file.finish();
  return profile;
}

Profile load_profile(const std::filesystem::path& path) {
  return profile_from_json(read_text_file(path), path.string());
}

}  // namespace sim
