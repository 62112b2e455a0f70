#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <ranges>
#include <utility>

#include "bench/commands.hpp"
#include "bench/forecasts.hpp"
#include "bench/search.hpp"
#include "sim/cluster/world.hpp"
#include "sim/cost/roofline.hpp"
#include "sim/error.hpp"
#include "sim/lower/lower.hpp"
#include "sim/plan/method.hpp"
#include "sim/report/answer.hpp"
#include "sim/report/console.hpp"
#include "sim/report/report.hpp"
#include "sim/text/file.hpp"

namespace bench {
namespace {

/// GPUs that this machine's ranks, which are processes, sit on: nobody counts them, unless this is a launch.
bool are_uncounted(const Options& options) {
  return options.cluster.empty() && options.hosts == 1 && options.machine.device != "cpu" &&
         sim::world_kind(options.machine.worlds.front()).processes;
}

std::uint32_t devices_of(const Options& options) {
  const std::uint32_t said = std::max(options.plan_devices, options.devices);
  if (are_uncounted(options) && said == 0) throw sim::ConfigError("plan: say how many GPUs: --devices");
  const sim::Cluster cluster = clusters_of(options, are_uncounted(options) ? said : 1).front();
  const std::uint32_t most = cluster.devices();
  if (options.plan_devices > most)
    throw sim::ConfigError("plan: --devices {} but '{}' has {}", options.plan_devices, cluster.name, most);
  return options.plan_devices != 0 ? options.plan_devices : most;
}

struct Found {
  std::vector<Choice> choices;              // the best first
  std::vector<sim::Cell> skipped;           // what isn't among them, and why
  std::size_t alike = 0;                    // left out: forecast like another one in everything that is shown
  std::size_t too_large = 0, too_slow = 0;  // not forecast: by what one microbatch says
  std::vector<sim::OmittedStrategies> left_out;
  std::string words;
  std::string remarks;     // on where the costs come from
  std::string arithmetic;  // what would make the best faster, by a data sheet: a paragraph each, or nothing
};

bool are_alike(const Choice& a, const Choice& b) {
  return a.cell.world == b.cell.world && a.cell.ranks == b.cell.ranks && a.step_s == b.step_s &&
         a.needed() == b.needed();
}

/// What the best choice takes in the devices' other arithmetic and in PyTorch's other memory format, where each is faster
/// than what was named before by a tenth at least: "With memory_format=channels_last zero3,dp=8 takes 28.6 ms, with
/// precision=bf16,memory_format=channels_last 17.0 ms; another strategy may be the fastest then." Not of CPU cores, many
/// of which emulate bf16, and of whose formats no data sheet knows anything.
std::string arithmetic_text(const Options& options, const sim::Model& model, const Choice& best, const Priced& priced) {
  if (!best.fits() || sim::cost_model_table().at(options.cost_models.at(0)).needs_profile ||
      !priced.cluster.device.asynchronous)
    return "";
  const auto has = [&](sim::Arithmetic arithmetic) {
    return std::ranges::all_of(priced.cluster.kinds_in_use(),
                               [&](std::uint32_t kind) { return priced.cluster.kind(kind).has(arithmetic); });
  };
  const auto key_of = [](sim::Precision precision) { return fmt::format(",precision={}", sim::to_string(precision)); };
  std::vector<std::string> precisions{""};  // its own
  if (model.precision == sim::Precision::f32 && model.dtype == sim::Dtype::f32) {
    if (has(sim::Arithmetic::tf32)) precisions.push_back(key_of(sim::Precision::tf32));
    if (has(sim::Arithmetic::bf16))
      precisions.push_back(key_of(sim::Precision::bf16));
    else if (has(sim::Arithmetic::f16))
      precisions.push_back(key_of(sim::Precision::fp16));
  }
  struct Other {
    std::string keys;
    double step_s;
  };
  const auto with = [&](const std::string& keys) -> std::optional<Other> {
    try {
      const sim::Model otherwise = sim::load_model(options.subject.models.at(0) + keys);
      const Choice choice = choice_of(otherwise, sim::parse_strategy(best.cell.strategy, otherwise), priced, options);
      if (choice.fits()) return Other{keys, choice.step_s};
    } catch (const sim::ConfigError&) {  // nobody asked for it: a key that was given, or a model without images
    }
    return std::nullopt;
  };
  std::vector<std::string> faster;
  double fastest_s = best.step_s;
  for (const std::string& precision : precisions) {
    std::optional<Other> other = precision.empty() ? Other{"", best.step_s} : with(precision);
    const std::optional<Other> channels_last =
        model.channels_last ? std::nullopt : with(precision + ",memory_format=channels_last");
    if (channels_last && (!other || channels_last->step_s < 0.95 * other->step_s)) other = channels_last;
    if (!other || other->step_s > 0.9 * fastest_s) continue;
    fastest_s = other->step_s;
    faster.push_back(fmt::format("{}{} {}", other->keys.substr(1),
                                 faster.empty() ? fmt::format(" {} takes", best.cell.strategy) : "",
                                 sim::readable_seconds(fastest_s)));
  }
  if (faster.empty()) return "";
  return sim::paragraph(
      sim::printable(fmt::format("With {}; another strategy may be the fastest then.", fmt::join(faster, ", with "))),
      ' ', 100);
}

/// What the best choice would take if its products in half precision had rows of other lengths: "lm_head has rows of 50257,
/// which half precision multiplies slowly; padded to a multiple of 8 zero3,dp=8 could take 30.8 ms (by what one H200 made of
/// such rows)." Of the product with the most FLOPs.
std::string padding_text(const Options& options, const sim::Model& model, const Choice& best, const Priced& priced) {
  const std::string& cost_model = options.cost_models.at(0);
  if (!best.fits() || sim::cost_model_table().at(cost_model).needs_profile) return "";
  const sim::Strategy strategy = sim::parse_strategy(best.cell.strategy, model);
  const sim::Program program = sim::lower(model, strategy);
  std::optional<std::uint32_t> largest;  // index into Program::works
  for (std::uint32_t w = 0; w < program.works.size(); ++w)
    if (!sim::slow_rows(program.works[w], priced.cluster.device).empty() &&
        (!largest || program.works[w].demand().flops > program.works[*largest].demand().flops))
      largest = w;
  if (!largest) return "";
  Priced padded{.cluster = priced.cluster};
  for (const std::uint32_t kind : padded.cluster.kinds_in_use()) padded.cluster.kind(kind).has_even_rows = true;
  padded.cost_models[cost_model] = sim::make_cost_model(cost_model, padded.cluster, nullptr);
  const Choice choice = choice_of(model, strategy, padded, options);
  if (choice.step_s > 0.95 * best.step_s) return "";
  std::string node;
  for (const sim::Role& role : program.roles)
    for (std::uint32_t i = 0; i < role.size() && node.empty(); ++i)
      if (role.work[i] == *largest && role.node[i] != sim::kNone) node = program.names[role.node[i]];
  return sim::paragraph(sim::printable(fmt::format(
                            "{} has rows of {}, which half precision multiplies slowly; padded to a multiple of 8 {} "
                            "could take {} (by what one H200 made of such rows).",
                            node, *sim::slow_rows(program.works[*largest], priced.cluster.device).rbegin(),
                            best.cell.strategy, sim::readable_seconds(choice.step_s))),
                        ' ', 100);
}

/// What the best choice of half precision takes with weights that are so themselves, where that is faster or smaller by a
/// twentieth at least, or fits: "With param_dtype=half zero3,dp=8 takes 45.3 ms and 3.50 GiB: weights are used, and travel,
/// in bf16."
std::string half_parameters_text(const Options& options, const sim::Model& model, const Choice& best,
                                 const Priced& priced) {
  if (!sim::is_autocast(model.precision) || model.dtype != sim::Dtype::f32) return "";
  const sim::Strategy strategy = sim::parse_strategy(best.cell.strategy, model);
  if (!strategy.kind().takes("param_dtype") || strategy.half_parameters || strategy.zero == 0) return "";
  try {
    const Choice choice =
        choice_of(model, sim::parse_strategy(best.cell.strategy + ",param_dtype=half", model), priced, options);
    const bool is_better = choice.step_s < 0.95 * best.step_s || choice.needed() < 0.95 * best.needed();
    if (!choice.fits() || (best.fits() && !is_better)) return "";
    return sim::paragraph(
        sim::printable(fmt::format("With param_dtype=half {} takes {} and {}: weights are used, and travel, in {}.",
                                   best.cell.strategy, sim::readable_seconds(choice.step_s),
                                   sim::readable_bytes(static_cast<double>(choice.needed())),
                                   to_string(half_of(model.precision)))),
        ' ', 100);
  } catch (const sim::ConfigError&) {  // nobody asked for it: an imported file that doesn't say
    return "";
  }
}

/// What the method proposes, for each world.
Found find(const Options& options, const sim::Model& model, std::uint32_t devices) {
  const sim::Method& method = sim::method_table().at(options.method);
  Found found;
  std::vector<std::string> unpriced;  // why
  const std::vector<Priced> clusters = priced_clusters(options, devices);
  found.remarks = remarks_of(clusters, {&model});
  for (const Priced& priced : clusters) {
    Search search(options, model, priced);
    const auto estimate = [&](const sim::Strategy& strategy) { return search.forecast(strategy).estimate(); };
    sim::Proposal proposal = method.propose(
        {.model = model, .devices = devices, .estimate = estimate, .are_cores = !priced.cluster.device.asynchronous});
    if (found.words.find(proposal.words) == std::string::npos) found.words += proposal.words;
    found.left_out = proposal.left_out;
    const std::string where = where_is(priced.cluster, options);
    for (const sim::SkippedStrategy& strategy : proposal.skipped)
      found.skipped.push_back(sim::skipped_cell(model, strategy.strategy, where, strategy.why));
    search.look_at(proposal.strategies);
    const std::vector<sim::Strategy> smaller = search.smaller(proposal.strategies, method.smaller);
    search.look_at(smaller);
    search.find_smallest();
    proposal.strategies.insert(proposal.strategies.end(), smaller.begin(), smaller.end());
    for (const sim::Strategy& strategy : proposal.strategies) try {
        const Search::Found& of = search.of(strategy);
        if (!of.choice && !of.failure) {
          ++(of.is_too_large() ? found.too_large : found.too_slow);
          continue;
        }
        Choice choice = of.value();
        const bool is_new = std::ranges::none_of(found.choices, [&](const Choice& c) { return are_alike(c, choice); });
        if (is_new)
          found.choices.push_back(std::move(choice));
        else
          ++found.alike;
      } catch (const sim::ConfigError& error) {
        found.skipped.push_back(sim::skipped_cell(model, strategy.text(), where, error.what()));
        unpriced.emplace_back(error.what());
      }
  }
  if (found.choices.empty() && !unpriced.empty()) throw sim::ConfigError("{}", unpriced[0]);
  if (!unpriced.empty())
    found.left_out.push_back({.brief = fmt::format("{} that can't be forecast", unpriced.size()),
                              .whole = fmt::format("{} that can't be forecast ({})", unpriced.size(), unpriced[0])});
  std::ranges::stable_sort(found.choices,
                           [](const Choice& a, const Choice& b) { return a.estimate().is_better_than(b.estimate()); });
  const auto priced_of = [&](const Choice& choice) -> const Priced& {
    return *std::ranges::find(clusters, choice.cell.world,
                              [&](const Priced& priced) { return where_is(priced.cluster, options); });
  };
  // Those that are shown say how far they may be off, too.
  for (Choice& shown : found.choices | std::views::take(options.top))
    shown = choice_of(model, sim::parse_strategy(shown.cell.strategy, model), priced_of(shown), options);
  if (!found.choices.empty()) {
    const Choice& best = found.choices.front();
    const Priced& priced = priced_of(best);
    found.arithmetic = arithmetic_text(options, model, best, priced) +
                       half_parameters_text(options, model, best, priced) + padding_text(options, model, best, priced);
  }
  return found;
}

/// "28 of 40 candidates fit; the 8 fastest are shown (--top); 9 others are slower, by what one of their microbatches
/// takes; what needs least of the others that were forecast, ddp,dp=8, does not fit: needs 95 of 80 GiB (…)."
/// `all_tied`: none of those that are shown can be told from the fastest, so that the next might not either.
std::string rest_text(const Found& found, std::size_t shown, bool all_tied) {
  const std::vector<Choice>& choices = found.choices;
  const auto fitting = static_cast<std::size_t>(std::ranges::count_if(choices, &Choice::fits));
  std::string text = fmt::format("{} of {} candidates fit", fitting, choices.size() + found.too_large);
  if (shown < fitting) text += fmt::format("; the {} fastest are shown (--top)", shown);
  if (found.too_slow > 0)
    text += fmt::format("; {} others are slower, by what one of their microbatches takes", found.too_slow);
  const Choice* least = nullptr;
  for (const Choice& choice : choices)
    if (!choice.fits() && (least == nullptr || choice.needed() < least->needed())) least = &choice;
  if (fitting == 0)
    text += "; what needs least is shown";
  else if (least != nullptr)
    text += fmt::format("; what needs least of the others{}, {}, {}", found.too_slow > 0 ? " that were forecast" : "",
                        least->cell.strategy, sim::fit_text(least->cell.memory));
  if (shown < fitting && all_tied)
    text +=
        fmt::format("; more than the {} may be as fast as the first: --top {}", shown, std::min(fitting, 3 * shown));
  if (found.alike > 0) text += fmt::format("; not counted: {} with the very forecast of another", found.alike);
  return text + ".";
}

/// "Left out: dp = 3, 5, 6; 21 of hypar (--details: why)."; with the reasons in detail.
std::string left_out_text(const std::vector<sim::OmittedStrategies>& list, bool in_detail) {
  if (list.empty()) return "";
  std::vector<std::string_view> parts;
  for (const sim::OmittedStrategies& each : list) parts.push_back(in_detail ? each.whole : each.brief);
  return sim::paragraph(
      sim::printable(fmt::format("Left out: {}{}.", fmt::join(parts, "; "), in_detail ? "" : " (--details: why)")), ' ',
      100);
}

}  // namespace

std::string measured_file(const std::string& file) {
  const std::filesystem::path path(file);
  const std::filesystem::file_status status = std::filesystem::status(path);
  if (file.empty() || (exists(status) && !is_regular_file(status))) return "";  // the console, /dev/null
  return (path.parent_path() / path.stem()).string() + ".measured" + path.extension().string();
}

int plan(const Options& options) {
  if (!options.json.empty()) sim::check_replaceable(options.json, "plan");
  const std::uint32_t devices = devices_of(options);
  const sim::Model model = sim::load_model(options.subject.models.at(0));
  if (model.device_batch != 0)
    throw sim::ConfigError(
        "plan: with device_batch={} every candidate has a batch of its own, and no two are the same training; give "
        "global_batch",
        model.device_batch);
  const Found found = find(options, model, devices);
  const std::vector<Choice>& choices = found.choices;
  if (choices.empty() && !options.is_only_a_rank) fmt::print("{}", found.words);
  if (choices.empty() && options.measure == 0) return 0;
  if (choices.empty()) throw sim::ConfigError("plan: nothing of that can be played, so there is nothing to measure");

  sim::Result result;
  result.kind = "plan";
  result.sessions.push_back({.context = {{"command", "plan"},
                                         {"method", options.method},
                                         {"profile", options.profile},
                                         {"cluster", options.cluster},
                                         {"scale", options.scale},
                                         {"memory_GiB", options.memory_GiB},
                                         {"devices", devices}}});
  std::vector<std::string> best;  // to run
  for (const Choice& choice : choices) {
    if (!(choice.fits() || result.cells.empty())) break;
    if (result.cells.size() < options.top) result.cells.push_back(choice.cell);
    if (choice.fits() && best.size() < options.measure && std::ranges::count(best, choice.cell.strategy) == 0)
      best.push_back(choice.cell.strategy);
  }
  if (!options.is_only_a_rank) {
    const std::optional<sim::TrackRecord> record = track_record();
    const sim::Answer answer = sim::answer_of(result, record ? &*record : nullptr);
    if (!found.words.empty()) fmt::print("{}\n", found.words);
    std::vector<std::string> of_strategies;
    for (const sim::Cell& cell : result.cells)
      of_strategies.push_back(sim::remark_on(sim::parse_strategy(cell.strategy, model), model));
    std::ranges::sort(of_strategies);
    fmt::print("{}\n{}{}{}{}{}{}", answer.table, answer.words, sim::remarks_text(of_strategies), found.arithmetic,
               found.remarks,
               sim::paragraph(sim::printable(rest_text(found, result.cells.size(), answer.all_tied)), ' ', 100),
               left_out_text(found.left_out, options.details));
    sim::Result kept = result;
    kept.cells.insert(kept.cells.end(), found.skipped.begin(), found.skipped.end());
    if (!options.json.empty()) sim::save_report(options.json, kept, record ? &*record : nullptr);
    if (!options.csv.empty())
      sim::write_text_file(options.csv, sim::to_csv(sim::make_report(kept, record ? &*record : nullptr)));
  }
  if (options.measure == 0) return 0;
  if (best.empty()) throw sim::ConfigError("plan: nothing fits, so there is nothing to measure");
  Options run = options;
  run.subject.strategies = best;
  for (std::string* file : {&run.json, &run.csv}) *file = measured_file(*file);
  run.machine.may_idle = true;  // the best may need fewer devices than there are
  return options.compare(run);
}

}  // namespace bench
