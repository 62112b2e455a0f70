// The file format of profile.hpp: writing, and strict reading.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "sim/cost/profile.hpp"
#include "sim/error.hpp"
#include "sim/text/spec.hpp"

namespace sim {
namespace {

using Json = nlohmann::ordered_json;
// `busy` ranks are of one node, and every level up to the highest costs memory.
constexpr std::int64_t kMostRanks = 1 << 20, kMostBusy = 1024;
constexpr double kMostBytes = 1ULL << 60, kMostSpread = 1e3, kMostVariance = 1e12, kMostLost = 0.999;
// A line through times sums their squares and those of their reciprocals, and the simulator divides them by each other.
constexpr double kLongest_s = 1e9, kShortest_s = 1e-15;

/// Five digits, of a deviation three: more than any measurement has.
Json number(double value, int digits = 5) {
  return value == 0 ? 0.0 : std::stod(fmt::format("{:.{}g}", value, digits));
}
/// Equal times may differ by a last bit.
Json deviation(const std::optional<double>& value) {
  return value ? number(*value < kShortest_s ? 0 : *value, 3) : Json();
}

Json with(Json row, const Statistic& statistic) {
  row["count"] = statistic.count;
  row["mean_s"] = number(statistic.mean_s);
  row["sd_s"] = deviation(statistic.sd_s);
  row["median_s"] = number(statistic.median_s);
  row["jitter_s"] = deviation(statistic.jitter_s);
  return row;
}

/// What isn't known is missing at the end.
Json list_of(const Statistic& statistic) {
  Json list{statistic.count, number(statistic.mean_s), number(statistic.median_s)};
  for (const std::optional<double>& value : {statistic.sd_s, statistic.jitter_s})
    if (value) list.push_back(deviation(value));
  return list;
}

/// One line per key, and per row of a list.
std::string to_lines(const Json& file) {
  std::string text = "{";
  for (const auto& [key, value] : file.items()) {
    text += fmt::format("{}\n {}: ", text.size() > 1 ? "," : "", Json(key).dump());
    const std::size_t rows = value.is_array() ? value.size() : 0;
    if (rows == 0) text += value.dump();
    for (std::size_t i = 0; i < rows; ++i)
      text += fmt::format("{}\n  {}{}", i == 0 ? "[" : ",", value[i].dump(), i + 1 == rows ? "]" : "");
  }
  return text + "\n}\n";
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

double from_0_to(double most, std::string_view shown, const JsonObject& row, std::string_view key, double value) {
  if (value >= 0 && value <= most) return value;
  throw ConfigError("{}: '{}' must be from 0 to {}, found {}", row.where(), key, shown, value);
}

/// The object of a key that may be missing.
JsonObject object_or_none(JsonObject& file, std::string_view key) {
  return file.has(key) ? file.object(key) : parse_json("{}", fmt::format("{}: {}", file.where(), key));
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
  if (statistic.jitter_s && !statistic.sd_s)
    throw ConfigError("{}: 'jitter_s' must be null for one sample; count={}", row.where(), statistic.count);
  return statistic;
}

/// The statistic of `list_of`.
Statistic read_list(JsonObject& row, const std::string& key) {
  const std::size_t values = row.numbers(key).size();
  if (values < 3 || values > 5)
    throw ConfigError("{}: '{}' must be [count, mean_s, median_s, sd_s, jitter_s], found {} values", row.where(), key,
                      values);
  nlohmann::json named{{"sd_s", nullptr}, {"jitter_s", nullptr}};
  std::size_t place = 0;
  for (const char* name : {"count", "mean_s", "median_s", "sd_s", "jitter_s"})
    if (place < values) named[name] = row.value(key)[place++];
  JsonObject object(named, row.where() + ": " + key);
  return read_statistic(object);
}

std::uint32_t read_busy(const JsonObject& row, const std::string& text) {
  std::uint32_t busy = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, busy);
  if (error != std::errc() || stop != end || busy < 1 || busy > kMostBusy || text.front() == '0')
    throw ConfigError("{}: a number of busy ranks must be from 1 to {}, found '{}'", row.where(), kMostBusy, text);
  return busy;
}

}  // namespace

/// Reads and writes what a Profile keeps to itself.
class ProfileFile {
 public:
  static Json json_of(const Profile& profile) {
    Json file{{"format", "paragauge-profile-3"}, {"device", profile.device}, {"environment", profile.environment}};
    if (profile.launch_) file["launch"] = with(Json::object(), *profile.launch_);
    if (profile.gap_) file["gap"] = with(Json::object(), *profile.gap_);
    for (const char* key : {"ops", "links"}) file[key] = Json::array();
    for (const char* key : {"core_share", "rank_spread", "interruptions", "process_bytes"}) file[key] = Json::object();
    std::map<std::string, Json> ops;  // by work
    for (const auto& [work, bytes] : profile.workspaces_) ops[work]["workspace_bytes"] = bytes;
    for (const auto& [work, time] : profile.issues_) ops[work]["issue"] = list_of(time);
    for (const auto& [key, time] : profile.ops_) {
      const auto& [work, world, busy] = key;
      ops[work]["times"][world][fmt::to_string(busy)] = list_of(time);
    }
    for (const auto& [work, known] : ops) {
      Json& op = file["ops"].emplace_back(Json{{"work", work}});
      op.update(known);
    }
    for (const auto& [key, times] : profile.links_)
      for (const auto& [bytes, measured] : times.sizes) {
        Json row{{"world", key.world}, {"kind", key.kind}, {"members", key.members}, {"bytes", bytes}};
        row = with(std::move(row), measured.time);
        row["post_s"] = number(measured.posts.send_overhead_s);
        row["recv_post_s"] = number(measured.posts.recv_overhead_s);
        if (measured.posts.engaged_s > 0) row["engaged_s"] = number(measured.posts.engaged_s);
        if (measured.posts.rewriting_s > 0) row["rewriting_s"] = number(measured.posts.rewriting_s);
        if (measured.posts.core_time > 0) row["core_time"] = number(measured.posts.core_time);
        if (!key.devices.empty()) row["devices"] = key.devices;
        if (!key.spread.empty()) row["spread"] = key.spread;
        if (key.own_in_place) row["own_in_place"] = true;
        file["links"].push_back(std::move(row));
      }
    for (const auto& [world, share] : profile.core_shares_) file["core_share"][world] = number(share.mean);
    for (const auto& [world, spread] : profile.rank_spreads_)
      file["rank_spread"][world] = {{"count", spread.count},
                                    {"difference", number(spread.difference)},
                                    {"hiccup_variance", number(spread.hiccup_variance)}};
    for (const auto& [world, found] : profile.interruptions_)
      file["interruptions"][world] = {{"played_s", found.played_s},
                                      {"lost_s", std::min(found.lost_s, kMostLost * found.played_s)}};
    for (const auto& [world, late] : profile.late_transfers_)
      file["late_transfers"][world] = {{"count", late.count}, {"lost_s", number(late.lost_s)}};
    for (const auto& [task, seconds] : profile.rounds_)
      for (const double round_s : seconds) file["rounds"][task].push_back(number(round_s));
    for (const auto& [world, bytes] : profile.process_bytes_)
      for (const double process : bytes) file["process_bytes"][world].push_back(std::llround(process));
    return file;
  }

  static void read_ops(JsonObject& file, Profile& profile) {
    std::set<std::string> works;
    for (JsonObject& row : file.objects("ops")) {
      const std::string work = row.text("work");
      if (!works.insert(work).second) throw ConfigError("{}: '{}' is there twice", row.where(), work);
      if (row.has("workspace_bytes")) profile.workspaces_[work] = whole(row, "workspace_bytes", 0);
      if (row.has("issue")) profile.issues_[work] = read_list(row, "issue");
      JsonObject times = object_or_none(row, "times");
      for (const std::string& world : times.keys()) {
        JsonObject levels = times.object(world);
        for (const std::string& busy : levels.keys())
          profile.ops_[{work, world, read_busy(levels, busy)}] = read_list(levels, busy);
      }
      row.finish();
    }
  }

  /// Reads the ops of format 2: a row for each world and level.
  static void read_ops_2(JsonObject& file, Profile& profile) {
    for (JsonObject& row : file.objects("ops")) {
      const std::string world = row.text("world"), work = row.text("work");
      const std::int64_t busy = whole(row, "busy", 1, kMostBusy);
      const Profile::OpKey key(work, world, static_cast<std::uint32_t>(busy));
      if (!profile.ops_.emplace(key, read_statistic(row)).second)
        throw ConfigError("{}: '{}' with world={} busy={} is there twice", row.where(), work, world, busy);
      row.finish();
    }
    if (!file.has("workspaces")) return;
    for (JsonObject& row : file.objects("workspaces")) {
      const std::string work = row.text("work");
      if (!profile.workspaces_.emplace(work, whole(row, "bytes", 0)).second)
        throw ConfigError("{}: '{}' is there twice", row.where(), work);
      row.finish();
    }
  }

  /// At least two levels, of at least a unit each.
  static std::vector<std::uint32_t> read_spread(JsonObject& row) {
    std::vector<std::uint32_t> spread;
    for (const std::int64_t units : row.integers("spread")) {
      if (units < 1 || units > kMostRanks)
        throw ConfigError("{}: spread={} must be from 1 to {}", row.where(), units, kMostRanks);
      spread.push_back(static_cast<std::uint32_t>(units));
    }
    if (spread.size() < 2) throw ConfigError("{}: spread must have two levels or more", row.where());
    return spread;
  }

  static void read_links(JsonObject& file, Profile& profile) {
    for (JsonObject& row : file.objects("links")) {
      LinkKey key{row.text("world"), row.text("kind"), static_cast<std::uint32_t>(whole(row, "members", 2, kMostRanks)),
                  row.has("devices") ? row.text("devices") : ""};
      if (row.has("spread")) key.spread = read_spread(row);
      key.own_in_place = row.boolean("own_in_place", false);
      const std::int64_t bytes = whole(row, "bytes", 0);
      if (std::ranges::find(kLinkKinds, key.kind) == kLinkKinds.end())
        throw ConfigError("{}: unknown kind '{}'; known: {}", row.where(), key.kind,
                          fmt::to_string(fmt::join(kLinkKinds, ", ")));
      LinkTimes::Size measured{read_statistic(row), {}, 0};
      if (row.has("post_s")) measured.posts.send_overhead_s = time_of(row, "post_s");
      if (row.has("recv_post_s")) measured.posts.recv_overhead_s = time_of(row, "recv_post_s");
      if (row.has("engaged_s")) measured.posts.engaged_s = time_of(row, "engaged_s");
      if (row.has("rewriting_s")) measured.posts.rewriting_s = time_of(row, "rewriting_s");
      if (row.has("core_time"))
        measured.posts.core_time = time_of(row, "core_time"), measured.beside = measured.time.count;
      if (!profile.links_[key].sizes.emplace(bytes, measured).second)
        throw ConfigError("{}: {} {} with members={} bytes={}{} is there twice", row.where(), key.world, key.kind,
                          key.members, bytes,
                          (key.devices.empty() ? "" : " devices=" + key.devices) +
                              (key.spread.empty() ? "" : fmt::format(" spread={}", fmt::join(key.spread, "x"))) +
                              (key.own_in_place ? " own_in_place" : ""));
      row.finish();
    }
  }

  /// What is known of a world as a whole.
  static void read_worlds(JsonObject& file, Profile& profile) {
    JsonObject shares = file.object("core_share");
    for (const std::string& world : shares.keys())
      profile.core_shares_[world] = {from_0_to(1, "1", shares, world, shares.number(world)), 1};
    JsonObject spreads = object_or_none(file, "rank_spread");
    for (const std::string& world : spreads.keys()) {
      JsonObject row = spreads.object(world);
      RankSpread& spread = profile.rank_spreads_[world];
      spread.count = whole(row, "count", 1);
      spread.difference = from_0_to(kMostSpread, "1000", row, "difference", row.number("difference"));
      spread.hiccup_variance = from_0_to(kMostVariance, "1e12", row, "hiccup_variance", row.number("hiccup_variance"));
      row.finish();
    }
    JsonObject interruptions = object_or_none(file, "interruptions");
    for (const std::string& world : interruptions.keys()) {
      JsonObject row = interruptions.object(world);
      const Interruptions found = profile.interruptions_[world] = {time_of(row, "played_s"), time_of(row, "lost_s")};
      if (found.lost_s > kMostLost * found.played_s)
        throw ConfigError("{}: 'lost_s' must be at most {} of 'played_s', found {} of {}", row.where(), kMostLost,
                          found.lost_s, found.played_s);
      row.finish();
    }
    JsonObject late_transfers = object_or_none(file, "late_transfers");
    for (const std::string& world : late_transfers.keys()) {
      JsonObject row = late_transfers.object(world);
      profile.late_transfers_[world] = {whole(row, "count", 1), time_of(row, "lost_s")};
      row.finish();
    }
    JsonObject rounds = object_or_none(file, "rounds");
    for (const std::string& task : rounds.keys()) {
      for (const double seconds : profile.rounds_[task] = rounds.numbers(task))
        if (!(seconds >= kShortest_s && seconds <= kLongest_s))
          throw ConfigError("{}: '{}' must be from {} to {} s, found {}", rounds.where(), task, kShortest_s, kLongest_s,
                            seconds);
      if (profile.rounds_[task].empty()) throw ConfigError("{}: '{}' must have a round at least", rounds.where(), task);
    }
    JsonObject processes = object_or_none(file, "process_bytes");
    for (const std::string& world : processes.keys())
      for (const double bytes : profile.process_bytes_[world] = processes.numbers(world))
        from_0_to(kMostBytes, "2^60", processes, world, bytes);
  }

  static Profile read(JsonObject file) {
    const bool is_old = file.has("format") && file.text("format") == "paragauge-profile-2";
    check_format(file, "paragauge-profile", is_old ? 2 : 3, "calibrate again");
    Profile profile(file.text("device"));
    file.object("environment");  // must be an object
    profile.environment = file.value("environment");
    for (const auto& [key, statistic] : {std::pair("launch", &profile.launch_), std::pair("gap", &profile.gap_)}) {
      if (!file.has(key)) continue;
      JsonObject row = file.object(key);
      *statistic = read_statistic(row);
      row.finish();
    }
    is_old ? read_ops_2(file, profile) : read_ops(file, profile);
    read_links(file, profile);
    read_worlds(file, profile);
    if (file.has("link_fits")) file.objects("link_fits");  // lines through the links, of older files
    file.finish();
    return profile;
  }
};

std::string Profile::to_json() const { return to_lines(ProfileFile::json_of(*this)); }

void Profile::save(const std::filesystem::path& path) const { write_text_file(path, to_json()); }

Profile profile_from_json(std::string_view text, const std::string& where) {
  return ProfileFile::read(parse_json(text, where));
}

Profile load_profile(const std::filesystem::path& path) {
  return profile_from_json(read_text_file(path), path.string());
}

}  // namespace sim
