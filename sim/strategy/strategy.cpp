#include "sim/strategy/strategy.hpp"

#include <algorithm>
#include <tuple>
#include <utility>

#include "sim/error.hpp"
#include "sim/model/model_file.hpp"
#include "sim/strategy/schedule/schedule.hpp"
#include "sim/text/spec.hpp"

namespace sim {
namespace {

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::vector<std::string> cut_names(const SpecText& text, const Model& model) {
  const std::string given = text.text("cut").value_or("balanced");
  if (given == "balanced") return {};
  if (const auto preset = model.cuts.find(given); preset != model.cuts.end()) return preset->second;
  return split(given, '+');
}

/// dp+3*in: dp+in+in+in.
std::vector<std::string> read_choices(const SpecText& text, const std::string& level, std::string_view given) {
  constexpr std::int64_t kMost = 10'000;
  std::vector<std::string> choices;
  for (const std::string& item : split(level, '+')) {
    const std::size_t star = item.find('*');
    const bool is_repeated = star != std::string::npos;
    const std::int64_t times = is_repeated ? text.integer_in("layers", item.substr(0, star), 1, kMost) : 1;
    choices.insert(choices.end(), static_cast<std::size_t>(times), is_repeated ? item.substr(star + 1) : item);
    if (std::ssize(choices) > kMost) throw ConfigError("strategy '{}': more than {} layers", given, kMost);
  }
  return choices;
}

/// The inverse: three alike or more are counted.
std::string text_of(const std::vector<std::string>& choices) {
  constexpr std::ptrdiff_t kCounted = 3;
  std::vector<std::string> items;
  for (auto begin = choices.begin(); begin != choices.end();) {
    const auto end = std::find_if(begin, choices.end(), [&](const std::string& choice) { return choice != *begin; });
    if (end - begin >= kCounted)
      items.push_back(fmt::format("{}*{}", end - begin, *begin));
    else
      items.insert(items.end(), begin, end);
    begin = end;
  }
  return fmt::to_string(fmt::join(items, "+"));
}

const StrategyKind& kind_of(const SpecText& text) {
  return strategy_table().at(text.head().empty() ? "mesh" : text.head());
}

/// levels=2x2, layers=dp+in/out+in: what isn't given is one level of two, and dp.
void read_levels(const SpecText& text, std::string_view given, Strategy& s) {
  std::uint64_t ranks = 1;
  for (const std::string& level : split(text.text("levels").value_or("2"), 'x')) {
    s.levels.push_back(static_cast<std::uint32_t>(text.integer_in("levels", level, 2, 1 << 20)));
    ranks *= s.levels.back();
    if (s.levels.size() > 8 || ranks > 1 << 20)
      throw ConfigError("strategy '{}': levels must be at most 8, of at most {} ranks together", given, 1 << 20);
  }
  for (const std::string& level : split(text.text("layers").value_or("dp"), '/'))
    s.layers.push_back(read_choices(text, level, given));
  if (s.layers.size() == 1) s.layers.resize(s.levels.size(), s.layers[0]);
  if (s.layers.size() != s.levels.size())
    throw ConfigError("strategy '{}': layers for {} levels, but {} levels; give one list for all or one for each",
                      given, s.layers.size(), s.levels.size());
  const std::string form = text.text("form").value_or("derived");
  if (form != "derived" && form != "rooted")
    throw ConfigError("strategy '{}': form={} must be derived or rooted", given, form);
  s.rooted = form == "rooted";
}

/// What `kind` doesn't take but others do is no mistyped key: they are named.
void check_keys(const SpecText& text, const StrategyKind& kind) {
  for (const auto& [key, value] : text.items()) {
    std::vector<std::string_view> others;
    for (const StrategyKind& other : strategy_table())
      if (other.takes(key)) others.push_back(other.name);
    if (kind.takes(key) || others.empty()) continue;
    throw ConfigError("strategy '{}': '{}' takes no '{}', but {}; known: {}", text.whole(), kind.name, key,
                      fmt::to_string(fmt::join(others, ", ")) + (others.size() > 1 ? " do" : " does"),
                      fmt::to_string(fmt::join(kind.keys, ", ")));
  }
  text.finish(kind.keys);
}

/// dp=8 of 250 samples: "dp=5 or 10, or global_batch=248 or 256".
std::string allowed_beside(std::int64_t dp, std::int64_t batch) {
  const auto either = [](const std::vector<std::int64_t>& values) { return fmt::to_string(fmt::join(values, " or ")); };
  std::vector<std::int64_t> degrees, batches;
  for (std::int64_t fewer = dp - 1; fewer > 1 && degrees.empty(); --fewer)
    if (batch % fewer == 0) degrees.push_back(fewer);
  for (std::int64_t more = batch / dp; more > 0; --more)  // by samples per replica
    if (batch % more == 0) {
      degrees.push_back(batch / more);
      break;
    }
  if (batch > dp) batches.push_back(batch - batch % dp);
  batches.push_back(batch + dp - batch % dp);
  return fmt::format("{}{}global_batch={}", degrees.empty() ? "" : "dp=" + either(degrees) + ", or ", "",
                     either(batches));
}

/// Into how many parts torch.chunk cuts so many samples when asked for `parts`.
std::uint32_t chunks(std::int64_t samples, std::uint32_t parts) {
  const std::int64_t size = (samples + parts - 1) / parts;
  return static_cast<std::uint32_t>((samples + size - 1) / size);
}

}  // namespace

std::string Strategy::text() const {
  const Strategy otherwise;
  const StrategyKind& kind = strategy_table().at(preset.empty() ? "mesh" : preset);
  std::string text = preset;
  if (dp != otherwise.dp) text += fmt::format(",dp={}", dp);
  if (pp != otherwise.pp) text += fmt::format(",pp={}", pp);
  if (threads != otherwise.threads) text += fmt::format(",threads={}", threads);
  if (microbatches > 1 || kind.microbatches > 1) {
    if (kind.takes("schedule")) text += fmt::format(",schedule={}", schedule);
    text += fmt::format(",microbatches={}", microbatches);
  }
  if (!cut.empty()) text += fmt::format(",cut={}", fmt::join(cut, "+"));
  if (first_bucket_MiB != otherwise.first_bucket_MiB) text += fmt::format(",first_bucket_MiB={}", first_bucket_MiB);
  if (bucket_MiB != kind.bucket_MiB) text += fmt::format(",bucket_MiB={}", bucket_MiB);
  if (dp > 1 && overlap != kind.overlap) text += fmt::format(",overlap={}", overlap ? 1 : 0);
  if (!broadcast_buffers) text += ",broadcast_buffers=0";
  if (levels.empty()) return text;
  std::vector<std::string> by_level;
  for (const auto& choices : layers) by_level.push_back(text_of(choices));
  return text + fmt::format(",levels={},layers={}{}", fmt::join(levels, "x"), fmt::join(by_level, "/"),
                            rooted ? ",form=rooted" : "");
}

std::uint32_t Strategy::ranks() const {
  std::uint32_t product = dp * pp;
  for (const std::uint32_t level : levels) product *= level;
  return product;
}

void check_strategy_text(std::string_view given) {
  const SpecText text(given, "strategy");
  check_keys(text, kind_of(text));
}

Strategy parse_strategy(std::string_view given, const Model& model) {
  check_internal(model.device_batch == 0, "the global batch of '{}' isn't known yet", model.text());
  check_strategy_text(given);
  const SpecText text(given, "strategy");
  const StrategyKind& kind = kind_of(text);
  Strategy s;
  s.preset = kind.name;
  s.dp = static_cast<std::uint32_t>(text.integer("dp", kind.least_dp, 1, 1 << 20));
  s.pp = static_cast<std::uint32_t>(text.integer("pp", kind.least_pp, 1, 1 << 20));
  if (std::uint64_t{s.dp} * s.pp > 1 << 20)
    throw ConfigError("strategy '{}': dp={} times pp={} must be at most {} ranks", given, s.dp, s.pp, 1 << 20);
  s.threads = static_cast<std::uint32_t>(text.integer("threads", 1, 1, kMostThreads));
  // Without a pipeline microbatches only save memory: one at a time.
  const std::string usual = s.pp > 1 ? s.schedule : "1f1b";
  s.schedule = text.text("schedule").value_or(usual);
  static_cast<void>(schedule_table().at(s.schedule));
  s.first_bucket_MiB = text.number("first_bucket_MiB", s.first_bucket_MiB, 0, 1 << 20);
  s.bucket_MiB = text.number("bucket_MiB", kind.bucket_MiB, 0, 1 << 20);
  s.overlap = text.integer("overlap", kind.overlap, 0, 1) == 1;
  if (!s.overlap && kind.name == "ddp") throw ConfigError("strategy '{}': ddp overlaps; use ddp_blocking", given);
  s.overlap = s.overlap && s.dp > 1;
  s.broadcast_buffers = text.integer("broadcast_buffers", s.broadcast_buffers, 0, 1) == 1;
  for (const auto& [key, degree, least] :
       {std::tuple("dp", s.dp, kind.least_dp), std::tuple("pp", s.pp, kind.least_pp)})
    if (degree < least) throw ConfigError("strategy '{}': {}={} must be at least {}", given, key, degree, least);

  if (kind.takes("levels")) read_levels(text, given, s);
  if (kind.needs_equal_parts && model.global_batch % s.dp != 0)
    throw ConfigError("strategy '{}': dp={} must divide global_batch={} of model '{}'; near: {}", given, s.dp,
                      model.global_batch, model.name, allowed_beside(s.dp, model.global_batch));
  if (!kind.needs_equal_parts && kind.takes("dp")) {  // torch.chunk: parts of one size, which may be fewer
    const std::uint32_t asked = std::exchange(s.dp, chunks(model.global_batch, s.dp));
    s.idle = asked - s.dp;
    if (s.dp < kind.least_dp)
      throw ConfigError("strategy '{}': the {} sample of global_batch={} is played by one device; use single", given,
                        model.global_batch, model.global_batch);
  }
  const std::int64_t rows = model.global_batch / s.dp;
  const std::string_view key = text.has("split_size") ? "split_size" : "microbatches";
  if (text.has("split_size") && text.has("microbatches"))
    throw ConfigError("strategy '{}': give split_size or microbatches, not both", given);
  const std::int64_t part = text.integer(key, kind.microbatches, 1, 10'000'000);
  if (rows % part != 0)
    throw ConfigError("strategy '{}': {}={} must divide the {} samples per replica of model '{}'", given, key, part,
                      rows, model.name);
  s.microbatches = key == "split_size" ? rows / part : part;
  if (s.microbatches == 1 && kind.microbatches == 1) s.schedule = usual;
  s.cut = cut_names(text, model);
  if (!s.cut.empty() && s.cut.size() + 1 != s.pp)
    throw ConfigError("strategy '{}': cut names {} nodes, so pp must be {}, found pp={}", given, s.cut.size(),
                      s.cut.size() + 1, s.pp);
  return s;
}

Model with_global_batch(const Model& model, std::string_view strategy) {
  if (model.device_batch == 0) return model;
  const SpecText text(strategy, "strategy");
  const StrategyKind& kind = strategy_table().at(text.head().empty() ? "mesh" : text.head());
  Model whole = model;
  whole.device_batch = 0;
  whole.global_batch = model.device_batch * text.integer("dp", kind.least_dp, 1, 1 << 20);
  if (whole.global_batch > kLargestGlobalBatch)
    throw ConfigError("strategy '{}': device_batch={} of model '{}' makes global_batch={}; at most {}", strategy,
                      model.device_batch, model.name, whole.global_batch, kLargestGlobalBatch);
  return whole;
}

std::string remark_on(const Strategy& strategy, const Model& model) {
  if (strategy.idle == 0) return "";
  return fmt::format("{}: the {} samples are {} parts (torch.chunk); {} of {} devices have none", strategy.text(),
                     model.global_batch, strategy.dp, strategy.idle, strategy.dp + strategy.idle);
}

}  // namespace sim
