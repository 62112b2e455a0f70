// What is cut among replicas, and into which units.
#include "sim/error.hpp"
#include "sim/strategy/option/reading.hpp"

namespace sim {
namespace {

std::vector<std::string> if_zero(const StrategyKind& kind, std::vector<std::string> values) {
  return kind.otherwise("zero", 0) > 0 ? values : std::vector<std::string>{};
}

void read_zero(const StrategyReading& r, Strategy& s) {
  const auto own = static_cast<std::int64_t>(r.kind.otherwise("zero", 0));
  const std::int64_t zero = r.text.integer("zero", own, 0, 3);
  if (own > 0 && zero != own)
    throw ConfigError("strategy '{}': {} is zero={}; use mesh,zero={}", r.text.whole(), r.kind.name, own, zero);
  s.zero = static_cast<std::uint32_t>(zero);
  if (s.zero > 0 && s.dp < 2)
    throw ConfigError("strategy '{}': zero={} needs dp of at least 2, found dp={}", r.text.whole(), s.zero, s.dp);
  for (const char* key :
       {"replicas", "shard", "units", "prefetch", "reshard", "flat", "wire", "param_dtype", "reduce_dtype"})
    if (r.text.has(key) && s.zero == 0)
      throw ConfigError("strategy '{}': {} needs zero=1, 2 or 3, found zero=0", r.text.whole(), key);
  for (const char* key : {"prefetch", "reshard", "flat"})
    if (r.text.has(key) && s.zero < 3)
      throw ConfigError("strategy '{}': {} needs zero=3, found zero={}", r.text.whole(), key, s.zero);
  for (const char* key : {"first_bucket_MiB", "bucket_MiB"})
    if (r.text.has(key) && s.zero > 0)
      throw ConfigError("strategy '{}': {} is DDP's; with zero={} give units", r.text.whole(), key, s.zero);
}

/// What they are without being given.
std::string usual_units(const Strategy& s, const StrategyKind& kind) {
  if (s.zero == 0) return "";
  return std::string(kind.word_otherwise("units", s.zero == 3 ? "block" : "25MiB"));
}

/// A pipeline's stage keeps its weights until the last microbatch's backward, as torch.distributed.pipelining does
/// (stage.py, backward_maybe_with_nosync).
bool usual_reshard(const Strategy& s) { return s.pp == 1; }

bool usual_sums_each(const Strategy& s) { return s.zero > 1 && s.pp == 1; }

/// DeepSpeed makes the whole model half precision, where it is; elsewhere autocast copies f32 weights.
bool is_half_throughout(const StrategyKind& kind) { return kind.word_otherwise("param_dtype", "f32") == "half"; }

bool usual_half(const Strategy& s, const StrategyKind& kind, const Model& model) {
  return s.zero > 0 && is_autocast(model.precision) && is_half_throughout(kind);
}

bool read_half(const StrategyReading& r, std::string_view key, bool usual) {
  const std::optional<std::string> given = r.text.text(key);
  if (!given) return usual;
  if (*given != "f32" && *given != "half")
    throw ConfigError("strategy '{}': {}={} must be f32 or half", r.text.whole(), key, *given);
  if (*given == "half" && !is_autocast(r.model.precision))
    throw ConfigError("strategy '{}': {}=half needs a model with precision=bf16 or fp16", r.text.whole(), key);
  return *given == "half";
}

void read_param_dtype(const StrategyReading& r, Strategy& s) {
  const bool usual = usual_half(s, r.kind, r.model);
  s.half_parameters = read_half(r, "param_dtype", usual);
  if (usual && !s.half_parameters)
    throw ConfigError("strategy '{}': DeepSpeed makes the whole model half precision; zero1, zero2 and zero3 don't",
                      r.text.whole());
  if (s.half_parameters && r.model.is_imported() && !r.model.no_half_parameters.empty())
    throw ConfigError("strategy '{}': {}: {}; otherwise {}", r.text.whole(),
                      usual ? "DeepSpeed makes the whole model half precision" : "param_dtype=half",
                      r.model.no_half_parameters, usual ? "use zero1, zero2 or zero3" : "use param_dtype=f32");
}

bool usual_scatters(const StrategyKind& kind) { return kind.word_otherwise("wire", "scatter") == "scatter"; }

void read_accumulate(const StrategyReading& r, Strategy& s) {
  const std::string given = r.text.text("accumulate").value_or(usual_sums_each(s) ? "every" : "last");
  if (given != "every" && given != "last")
    throw ConfigError("strategy '{}': accumulate={} must be every or last", r.text.whole(), given);
  s.sums_each_microbatch = given == "every";
}

void read_wire(const StrategyReading& r, Strategy& s) {
  s.scatters = usual_scatters(r.kind);
  const std::optional<std::string> given = r.text.text("wire");
  if (!given) return;
  if (*given != "scatter" && *given != "all")
    throw ConfigError("strategy '{}': wire={} must be scatter or all", r.text.whole(), *given);
  if ((*given == "scatter") != s.scatters && r.kind.otherwise("zero", 0) > 0)
    throw ConfigError("strategy '{}': wire must be {}; {} is {}{}", r.text.whole(), s.scatters ? "scatter" : "all",
                      s.scatters ? "all_reduce into shards" : "reduce_scatter",
                      s.scatters ? "deepspeed_stage_" : "zero", s.zero);
  s.scatters = *given == "scatter";
  if (!s.scatters && !s.flat)
    throw ConfigError("strategy '{}': wire=all needs flat=1; of FSDP2's rows everyone gets its own", r.text.whole());
}

void read_reduce_dtype(const StrategyReading& r, Strategy& s) {
  s.half_sums = read_half(r, "reduce_dtype", s.half_parameters);
  if (s.half_sums && !s.half_parameters)
    throw ConfigError("strategy '{}': reduce_dtype=half needs param_dtype=half here", r.text.whole());
}

}  // namespace

namespace {

/// A number of elements that DeepSpeed's presets have and others don't.
struct Elements {
  std::string_view key;
  double Strategy::*of;
  double usual, least;
};
// As Lightning's DeepSpeedStrategy gives them: stage3_prefetch_bucket_size, stage3_param_persistence_threshold,
// stage3_max_reuse_distance.
constexpr Elements kPrefetch{"prefetch_elements", &Strategy::prefetch_elements, 5e7, 1};
constexpr Elements kPersistence{"persistence", &Strategy::persistence, 1e5, 0};
constexpr Elements kReuse{"reuse_elements", &Strategy::reuse_elements, 1e9, 0};

template <const Elements& elements>
StrategyOption row_of(std::string_view values, std::string_view meaning, decltype(StrategyOption::tried) tried) {
  return {.name = elements.key,
          .values = values,
          .meaning = meaning,
          .read =
              [](const StrategyReading& r, Strategy& s) {
                if (r.kind.takes(elements.key))
                  s.*elements.of = r.text.number(elements.key, elements.usual, elements.least, 1e12);
              },
          .write =
              [](const Strategy& s, const StrategyKind&) {
                return s.*elements.of == elements.usual ? "" : fmt::format("{}", s.*elements.of);
              },
          .tried = tried};
}

std::vector<std::string> some_or_none(const Model&, const StrategyKind&) { return {"100", "0"}; }

}  // namespace

std::vector<StrategyOption> zero_options() {
  using Reading = StrategyReading;
  using Kind = StrategyKind;
  using Values = std::vector<std::string>;
  return {
      {.name = "zero",
       .values = "0 to 3",
       .meaning = "cut among the replicas are 1: the optimizer's states, 2: and sums of gradients, 3: and weights",
       .read = read_zero,
       .write = [](const Strategy& s, const Kind& kind) { return unless_usual(s.zero, kind, "zero", 0); },
       .tried = [](const Model&,
                   const Kind& kind) { return if_zero(kind, {fmt::to_string(kind.otherwise("zero", 0))}); }},
      {.name = "units",
       .values = "layer, block, all, a size (25MiB, 2e8 elements), or prefixes joined by +",
       .meaning = "parameters that are cut, and travel, together",
       .read = [](const Reading& r, Strategy& s) { s.units = r.text.text("units").value_or(usual_units(s, r.kind)); },
       .write = [](const Strategy& s,
                   const Kind& kind) { return s.units == usual_units(s, kind) ? std::string() : s.units; },
       .tried =
           [](const Model&, const Kind& kind) {
             return if_zero(kind, {"layer", "all", "0.01MiB"});
           }},
      {.name = "prefetch",
       .values = "0 to 1048576",
       .meaning = "units that are gathered ahead of the one in use",
       .read =
           [](const Reading& r, Strategy& s) {
             const std::int64_t usual = r.kind.takes("prefetch_elements") ? kMostRanks : 1;
             s.prefetch = static_cast<std::uint32_t>(r.text.integer("prefetch", usual, 0, kMostRanks));
           },
       .write = [](const Strategy& s, const Kind&) { return s.prefetch == 1 ? "" : fmt::to_string(s.prefetch); },
       .tried =
           [](const Model&, const Kind& kind) {
             return if_zero(kind, {"0", "2"});
           }},
      row_of<kPrefetch>("1 to 1e12", "elements that are gathered ahead, of any number of units",
                        [](const Model&, const Kind&) { return Values{"1000"}; }),
      row_of<kPersistence>("0 to 1e12", "parameters of at most so many elements aren't cut", some_or_none),
      row_of<kReuse>("0 to 1e12", "weights aren't freed whose next use is less than so many elements away",
                     some_or_none),
      {.name = "reshard",
       .values = "0 or 1",
       .meaning = "what a forward has gathered is freed, and gathered again for the backward",
       .read = [](const Reading& r, Strategy& s) { s.reshard = read_switch(r, "reshard", usual_reshard(s)); },
       .write =
           [](const Strategy& s, const Kind&) {
             return s.zero < 3 || s.reshard == usual_reshard(s) ? "" : fmt::format("{:d}", s.reshard);
           },
       .tried =
           [](const Model&, const Kind& kind) {
             return if_zero(kind, {"0", "1"});
           }},
      {.name = "flat",
       .values = "0 or 1",
       .meaning = "what is cut is the unit as one flat tensor (FSDP1), or each parameter by its rows (FSDP2)",
       .read = [](const Reading& r, Strategy& s) { s.flat = read_switch(r, "flat", true); },
       .write = [](const Strategy& s, const Kind& kind) { return unless_usual(s.flat ? 1 : 0, kind, "flat", 1); },
       .tried =
           [](const Model&, const Kind& kind) {
             return if_zero(kind, {"0", "1"});
           }},
      {.name = "accumulate",
       .values = "every or last",
       .meaning = "gradients are summed over the replicas after every microbatch, or after the last one",
       .read = read_accumulate,
       .write =
           [](const Strategy& s, const Kind&) {
             const bool is_usual = s.sums_each_microbatch == usual_sums_each(s);
             return std::string(is_usual ? "" : s.sums_each_microbatch ? "every" : "last");
           },
       .tried =
           [](const Model&, const Kind&) {
             return Values{"every", "last"};
           }},
      {.name = "param_dtype",
       .values = "f32 or half",
       .meaning = "of the weights that are gathered, and used: as they are kept, or in the model's half precision",
       .read = read_param_dtype,
       .write =
           [](const Strategy& s, const Kind& kind) {
             return std::string(s.half_parameters && !is_half_throughout(kind) ? "half" : "");
           },
       .tried = [](const Model&, const Kind&) { return Values{}; }},
      {.name = "reduce_dtype",
       .values = "f32 or half",
       .meaning = "of the sums of gradients on their way; param_dtype's unless given",
       .read = read_reduce_dtype,
       .write =
           [](const Strategy& s, const Kind&) {
             return std::string(s.half_sums == s.half_parameters ? "" : s.half_sums ? "half" : "f32");
           },
       .tried = [](const Model&, const Kind&) { return Values{}; }},
      {.name = "wire",
       .values = "scatter or all",
       .meaning = "everyone gets its part of the sums, or all of them (DeepSpeed)",
       .read = read_wire,
       .write =
           [](const Strategy& s, const Kind& kind) {
             return std::string(s.scatters == usual_scatters(kind) ? "" : s.scatters ? "scatter" : "all");
           },
       .tried = [](const Model&, const Kind&) { return Values{}; }}};
}

}  // namespace sim
