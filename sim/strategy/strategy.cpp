#include "sim/strategy/strategy.hpp"

#include "sim/error.hpp"
#include "sim/strategy/schedule/schedule.hpp"
#include "sim/text/spec.hpp"

namespace sim {
namespace {

std::vector<std::string> cut_names(const SpecText& text, const Model& model) {
  const std::string given = text.text("cut").value_or("balanced");
  if (given == "balanced") return {};
  if (const auto preset = model.cuts.find(given); preset != model.cuts.end()) return preset->second;
  std::vector<std::string> names;
  for (std::size_t begin = 0; begin <= given.size();) {
    const std::size_t end = std::min(given.find('+', begin), given.size());
    names.push_back(given.substr(begin, end - begin));
    begin = end + 1;
  }
  return names;
}

}  // namespace

std::string Strategy::text() const {
  const Strategy otherwise;
  std::string text = preset;
  if (dp != otherwise.dp) text += fmt::format(",dp={}", dp);
  if (pp != otherwise.pp) text += fmt::format(",pp={}", pp);
  if (microbatches > 1 || preset == "pipeline")
    text += fmt::format(",schedule={},microbatches={}", schedule, microbatches);
  else if (schedule != otherwise.schedule)
    text += fmt::format(",schedule={}", schedule);
  if (!cut.empty()) text += fmt::format(",cut={}", fmt::join(cut, "+"));
  if (first_bucket_MiB != otherwise.first_bucket_MiB) text += fmt::format(",first_bucket_MiB={}", first_bucket_MiB);
  if (bucket_MiB != otherwise.bucket_MiB) text += fmt::format(",bucket_MiB={}", bucket_MiB);
  if (overlap) text += ",overlap=1";
  if (!broadcast_buffers) text += ",broadcast_buffers=0";
  return text;
}

Strategy parse_strategy(std::string_view given, const Model& model) {
  const SpecText text(given, "strategy");
  const StrategyKind& kind = strategy_table().at(text.head().empty() ? "mesh" : text.head());
  text.finish(kind.keys);
  Strategy s;
  s.preset = kind.name;
  if (kind.defaults != nullptr) kind.defaults(s);
  s.dp = static_cast<std::uint32_t>(text.integer("dp", s.dp, 1, 1 << 20));
  s.pp = static_cast<std::uint32_t>(text.integer("pp", s.pp, 1, 1 << 20));
  if (std::uint64_t{s.dp} * s.pp > 1 << 20)
    throw ConfigError("strategy '{}': dp={} times pp={} must be at most {} ranks", given, s.dp, s.pp, 1 << 20);
  s.schedule = text.text("schedule").value_or(s.schedule);
  static_cast<void>(schedule_table().at(s.schedule));
  s.first_bucket_MiB = text.number("first_bucket_MiB", s.first_bucket_MiB, 0, 1 << 20);
  s.bucket_MiB = text.number("bucket_MiB", s.bucket_MiB, 0, 1 << 20);
  s.overlap = text.integer("overlap", s.overlap ? 1 : 0, 0, 1) == 1;
  s.broadcast_buffers = text.integer("broadcast_buffers", s.broadcast_buffers ? 1 : 0, 0, 1) == 1;
  if (kind.check != nullptr) kind.check(s);

  if (model.global_batch % s.dp != 0)
    throw ConfigError("strategy '{}': dp={} must divide global_batch={} of model '{}'", given, s.dp, model.global_batch,
                      model.name);
  const std::int64_t rows = model.global_batch / s.dp;
  if (text.has("split_size")) {
    if (text.has("microbatches")) throw ConfigError("strategy '{}': give split_size or microbatches, not both", given);
    const std::int64_t split_size = text.integer("split_size", 0, 1, 10'000'000);
    if (rows % split_size != 0)
      throw ConfigError("strategy '{}': split_size={} must divide the {} samples per replica of model '{}'", given,
                        split_size, rows, model.name);
    s.microbatches = rows / split_size;
  } else {
    s.microbatches = text.integer("microbatches", s.microbatches, 1, 10'000'000);
    if (rows % s.microbatches != 0)
      throw ConfigError("strategy '{}': microbatches={} must divide the {} samples per replica of model '{}'", given,
                        s.microbatches, rows, model.name);
  }
  s.cut = cut_names(text, model);
  if (!s.cut.empty() && s.cut.size() + 1 != s.pp)
    throw ConfigError("strategy '{}': cut names {} nodes, so pp must be {}, found pp={}", given, s.cut.size(),
                      s.cut.size() + 1, s.pp);
  return s;
}

}  // namespace sim
