// Microbatches, and where a pipeline is cut.
#include <algorithm>

#include "sim/error.hpp"
#include "sim/strategy/option/reading.hpp"
#include "sim/strategy/schedule/schedule.hpp"

namespace sim {
namespace {

/// Without a pipeline microbatches only save memory: one at a time.
std::string usual_schedule(const Strategy& s, const StrategyKind& kind) {
  if (!kind.schedule.empty()) return std::string(kind.schedule);
  return s.pp > 1 ? "gpipe" : "1f1b";
}

bool has_microbatches(const Strategy& s, const StrategyKind& kind) {
  return s.microbatches > 1 || kind.otherwise("microbatches", 1) > 1;
}

/// A single microbatch is played alike by all schedules, but for those that place stages or split backwards otherwise.
bool is_schedule_played(const Strategy& s, const StrategyKind& kind) {
  if (has_microbatches(s, kind)) return true;
  const ScheduleKind& schedule = schedule_table().at(s.schedule);
  return s.pp > 1 && s.schedule != usual_schedule(s, kind) && (schedule.chunks > 1 || schedule.splits);
}

void read_schedule(const StrategyReading& r, Strategy& s) {
  s.schedule = r.text.text("schedule").value_or(usual_schedule(s, r.kind));
  const ScheduleKind& schedule = schedule_table().at(s.schedule);
  if (schedule.chunks > 1 && s.pp < 2)
    throw ConfigError("strategy '{}': schedule {} needs pp of at least 2, found pp={}", r.text.whole(), s.schedule,
                      s.pp);
}

void read_microbatches(const StrategyReading& r, Strategy& s) {
  const std::int64_t rows = r.model.global_batch / s.dp;
  const std::string_view key = r.text.has("split_size") ? "split_size" : "microbatches";
  if (r.text.has("split_size") && r.text.has("microbatches"))
    throw ConfigError("strategy '{}': give split_size or microbatches, not both", r.text.whole());
  const auto otherwise = static_cast<std::int64_t>(r.kind.otherwise("microbatches", 1));
  const std::int64_t part = r.text.integer(key, otherwise, 1, 10'000'000);
  if (rows % part != 0)
    throw ConfigError("strategy '{}': {}={} must divide the {} samples per replica of model '{}'", r.text.whole(), key,
                      part, rows, r.model.name);
  s.microbatches = key == "split_size" ? rows / part : part;
  if (!is_schedule_played(s, r.kind)) s.schedule = usual_schedule(s, r.kind);
}

void read_chunks(const StrategyReading& r, Strategy& s) {
  const ScheduleKind& schedule = schedule_table().at(s.schedule);
  s.chunks = static_cast<std::int32_t>(r.text.integer("chunks", schedule.chunks, 1, 1000));
  if (s.chunks < schedule.chunks || s.chunks > schedule.most_chunks)
    throw ConfigError("strategy '{}': schedule {} takes chunks={}{}, found {}", r.text.whole(), s.schedule,
                      schedule.chunks, schedule.most_chunks > schedule.chunks ? " or more" : "", s.chunks);
  if (schedule.most_chunks == 1 || schedule.order != PartOrder::loop) return;
  // As in torch.distributed.pipelining. An epoch's last step is played in fewer rounds.
  const std::int64_t rounds = std::max<std::int64_t>(1, s.microbatches / s.pp);
  if (s.microbatches % rounds != 0)
    throw ConfigError("strategy '{}': microbatches={} must be a multiple of {} rounds", r.text.whole(), s.microbatches,
                      rounds);
}

void read_cut(const StrategyReading& r, Strategy& s) {
  const std::string given = r.text.text("cut").value_or("balanced");
  if (const auto preset = r.model.cuts.find(given); preset != r.model.cuts.end())
    s.cut = preset->second;
  else if (given != "balanced")
    s.cut = split(given, '+');
  if (!s.cut.empty() && s.chunks > 1 && s.cut.size() + 1 != std::size_t{s.pp} * static_cast<std::uint32_t>(s.chunks))
    throw ConfigError("strategy '{}': cut names {} nodes, but pp={} times chunks={} are {} stages", r.text.whole(),
                      s.cut.size(), s.pp, s.chunks, std::size_t{s.pp} * static_cast<std::uint32_t>(s.chunks));
  if (!s.cut.empty() && s.chunks == 1 && s.cut.size() + 1 != s.pp)
    throw ConfigError("strategy '{}': cut names {} nodes, so pp must be {}, found pp={}", r.text.whole(), s.cut.size(),
                      s.cut.size() + 1, s.pp);
}

/// Those with chunks where there is a pipeline, and the model has as many nodes as two ranks have stages.
std::vector<std::string> schedules(const Model& model, const StrategyKind& kind) {
  std::vector<std::string> names;
  for (const ScheduleKind& schedule : schedule_table())
    if (schedule.chunks == 1 || (kind.otherwise("pp", 1) > 1 && model.nodes.size() >= 4))
      names.emplace_back(schedule.name);
  return names;
}

}  // namespace

std::vector<StrategyOption> pipeline_options() {
  using Reading = StrategyReading;
  using Kind = StrategyKind;
  using Values = std::vector<std::string>;
  return {{.name = "schedule",
           .values = "a schedule's name",
           .meaning = "in which order a stage plays the microbatches' forwards and backwards",
           .read = read_schedule,
           .write = [](const Strategy& s, const Kind& kind) { return is_schedule_played(s, kind) ? s.schedule : ""; },
           .tried = schedules},
          {.name = "microbatches",
           .values = "1 to 10000000",
           .meaning = "per replica and step",
           .read = read_microbatches,
           .write = [](const Strategy& s,
                       const Kind& kind) { return has_microbatches(s, kind) ? fmt::to_string(s.microbatches) : ""; },
           .tried = [](const Model&, const Kind&) { return Values{"2"}; }},
          {.name = "split_size",
           .values = "1 to 10000000",
           .meaning = "samples of a microbatch, instead of microbatches",
           .read = [](const Reading&, Strategy&) {},  // with microbatches
           .write = [](const Strategy&, const Kind&) { return std::string(); },
           .tried = [](const Model&, const Kind&) { return Values{"2"}; }},
          {.name = "chunks",
           .values = "1 to 1000",
           .meaning = "stages of each rank, where the schedule interleaves them",
           .read = read_chunks,
           .write =
               [](const Strategy& s, const Kind&) {
                 return s.chunks == schedule_table().at(s.schedule).chunks ? "" : fmt::to_string(s.chunks);
               },
           .tried = [](const Model&, const Kind&) { return Values{}; }},
          {.name = "cut",
           .values = "balanced, a cut of the model, or nodes joined by +",
           .meaning = "the last node of every stage but the last",
           .read = read_cut,
           .write = [](const Strategy& s, const Kind&) { return fmt::to_string(fmt::join(s.cut, "+")); },
           .tried = [](const Model&, const Kind&) { return Values{}; }}};
}

}  // namespace sim
