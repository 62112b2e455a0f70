#include "sim/plan/candidates.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sim/error.hpp"
#include "sim/model/op/rule.hpp"
#include "sim/strategy/axis/axis.hpp"
#include "sim/strategy/layout.hpp"
#include "sim/strategy/schedule/schedule.hpp"

namespace sim {
namespace {

constexpr std::uint32_t kAllUpTo = 16;  // devices

struct Degrees {
  std::uint32_t dp = 1, pp = 1, tp = 1;
  [[nodiscard]] std::uint32_t ranks() const { return dp * pp * tp; }
  friend auto operator<=>(const Degrees&, const Degrees&) = default;
};

/// The degrees that the header names, each layer cut `tp` times, on so many times `tp` devices.
void add_degrees(const StrategyKind& kind, const Model& model, std::uint32_t devices, std::uint32_t tp,
                 std::set<Degrees>& all) {
  const bool has_dp = kind.takes("dp") || kind.takes("levels") || kind.is_hybrid(), has_pp = kind.takes("pp");
  const auto add = [&](std::uint32_t dp, std::uint32_t pp) {
    if (dp == 0) return;
    if ((dp == 1 || has_dp) && (pp == 1 || has_pp) && dp >= kind.otherwise("dp", 1) && pp >= kind.otherwise("pp", 1))
      all.insert({dp, pp, tp});
  };
  if (devices <= kAllUpTo) {
    for (std::uint32_t pp = 1; pp <= devices; ++pp)
      for (std::uint32_t dp = 1; dp * pp <= devices; ++dp) add(dp, pp);
  } else {
    for (std::uint32_t room = devices; room > 0; room /= 2) {
      std::set<std::uint32_t> stages;
      for (std::uint32_t pp = 1; pp <= room; pp *= 2) stages.insert(pp);
      if (room == devices) {
        for (std::uint32_t pp = 1; pp <= kAllUpTo; ++pp) stages.insert(pp);
        stages.insert(devices);
      }
      for (const std::uint32_t pp : stages) {
        add(1, pp);
        std::uint32_t dp = room / pp;
        if (!kind.needs_equal_parts) add(dp, pp);
        while (model.global_batch % dp != 0) --dp;
        add(dp, pp);
      }
    }
  }
}

/// The most devices first.
std::vector<Degrees> degrees_of(const StrategyKind& kind, const Model& model, std::uint32_t devices,
                                const std::vector<std::uint32_t>& tp) {
  std::set<Degrees> all;
  if (kind.otherwise("tp", 1) == 1) add_degrees(kind, model, devices, 1, all);
  if (kind.takes("tp"))
    for (const std::uint32_t parts : tp) add_degrees(kind, model, devices / parts, parts, all);
  std::vector<Degrees> sorted(all.begin(), all.end());
  std::ranges::stable_sort(sorted, [](const Degrees& a, const Degrees& b) {
    return a.ranks() != b.ranks() ? a.ranks() > b.ranks() : std::pair(a.tp, a.pp) < std::pair(b.tp, b.pp);
  });
  return sorted;
}

/// The next number that divides `rows`, up to twice as much; 0: there is none.
std::int64_t dividing(std::int64_t rows, std::int64_t least) {
  for (std::int64_t number = least; number < 2 * least; ++number)
    if (rows % number == 0) return number;
  return 0;
}

/// A text's endings: ",microbatches=4,schedule=gpipe", …
std::vector<std::string> microbatches_of(std::uint32_t pp, std::int64_t rows, bool may_be_one) {
  std::vector<std::string> endings;
  if (may_be_one) endings.emplace_back();
  std::set<std::int64_t> numbers;
  for (const std::int64_t least : pp == 1 ? std::vector<std::int64_t>{2, 4, 8, 16}
                                          : std::vector<std::int64_t>{pp, 2 * std::int64_t{pp}, 4 * std::int64_t{pp}})
    if (const std::int64_t microbatches = dividing(rows, least); microbatches > 0) numbers.insert(microbatches);
  // What fills the bubble isn't much shorter with more microbatches than it takes.
  const auto enough = numbers.lower_bound(2 * std::int64_t{pp} - 1);
  const std::int64_t filling = enough != numbers.end() ? *enough : numbers.empty() ? 0 : *numbers.rbegin();
  for (const std::int64_t microbatches : numbers)
    if (pp == 1)
      endings.push_back(fmt::format(",microbatches={}", microbatches));
    else
      for (const ScheduleKind& schedule : schedule_table())
        if (const bool is_short = schedule.chunks == 1 && !schedule.splits; is_short || microbatches == filling)
          endings.push_back(fmt::format(",microbatches={},schedule={}", microbatches, schedule.name));
  return endings;
}

/// Whether the schedule that it names gives each rank several stages.
bool has_chunks(const std::string& ending) {
  constexpr std::string_view kKey = "schedule=";
  const std::size_t at = ending.find(kKey);
  return at != std::string::npos && schedule_table().at(ending.substr(at + kKey.size())).chunks > 1;
}

/// Whether other rows say the same of these degrees: the general one is for what they can't.
bool is_said_more_simply(const StrategyKind& kind, const Degrees& degrees, bool with_microbatches) {
  if (!kind.takes("dp") || !kind.takes("pp")) return false;
  return std::ranges::any_of(strategy_table(), [&](const StrategyKind& other) {
    return &other != &kind && other.axes == kind.axes && other.otherwise("zero", 0) == 0 &&
           degrees.dp >= other.otherwise("dp", 1) && degrees.pp >= other.otherwise("pp", 1) &&
           degrees.tp >= other.otherwise("tp", 1) && (degrees.tp == 1 || other.takes("tp")) &&
           (degrees.dp == 1 || other.takes("dp")) && (degrees.pp == 1 || other.takes("pp")) &&
           (!with_microbatches || other.takes("microbatches"));
  });
}

class Candidates {
 public:
  Candidates(const Model& model, std::uint32_t devices, bool are_cores)
      : model_(model), devices_(devices), are_cores_(are_cores) {}

  Proposal all() && {
    const std::vector<std::uint32_t> tp = ways_to_cut_layers();
    for (const StrategyKind& kind : strategy_table())
      if (kind.is_proposed)
        for (const Degrees& degrees : degrees_of(kind, model_, devices_, tp)) add(kind, degrees);
    std::ranges::stable_sort(found_, std::ranges::greater(), &Strategy::ranks);
    std::vector<OmittedStrategies> rest = left_out();
    return {.strategies = std::move(found_), .skipped = std::move(skipped_), .left_out = std::move(rest)};
  }

 private:
  /// Why some degrees are left out, in a few words.
  struct Reason {
    std::string_view key;  // dp or pp
    std::string why;
    std::set<std::uint32_t> numbers;
    std::vector<std::string_view> kinds;
  };

  /// Degrees of tensor parallelism, within a node as people use it; what the model doesn't allow is left out.
  std::vector<std::uint32_t> ways_to_cut_layers() {
    std::vector<std::uint32_t> ways;
    for (const std::uint32_t tp : {2U, 4U, 8U}) {
      if (tp > devices_) break;
      std::string why = why_no_tensor_parts(model_);
      if (why.empty()) why = obstacle(model_, parse_strategy(fmt::format("mesh,tp={}", tp), model_));
      if (why.empty())
        ways.push_back(tp);
      else
        reason(strategy_table().at("tp"), "tp", why).numbers.insert(tp);
    }
    return ways;
  }

  void add(const StrategyKind& kind, const Degrees& degrees) {
    const auto [dp, pp, tp] = degrees;
    std::string text(kind.name);
    if (kind.takes("levels")) {
      for (const std::string_view choice : {"dp", "in", "out"})
        if (dp > 1) try_texts(kind, degrees, fmt::format("{},levels={},layers={}", text, dp, choice));
      return;
    }
    if (kind.is_hybrid()) {  // groups of two devices, four, …: a node's, or a part of one
      if (devices_ > kAllUpTo && 2 * degrees.ranks() <= devices_) return;
      for (std::uint32_t shard = 2; shard <= dp / 2; shard *= 2)
        if (dp % shard == 0) add(kind, degrees, fmt::format("{},replicas={},shard={}", text, dp / shard, shard));
      return;
    }
    if (dp > 1) text += fmt::format(",dp={}", dp);
    if (pp > 1) text += fmt::format(",pp={}", pp);
    if (tp > 1) text += fmt::format(",tp={}", tp);
    add(kind, degrees, text);
  }

  /// `text` names its degrees.
  void add(const StrategyKind& kind, const Degrees& degrees, const std::string& text) {
    const auto [dp, pp, tp] = degrees;
    std::vector<std::string> endings{""};
    if (kind.takes("microbatches")) {
      endings = microbatches_of(pp, std::max<std::int64_t>(1, model_.global_batch / dp), /*may_be_one=*/pp == 1);
      std::erase_if(endings, [&](const std::string& e) { return is_said_more_simply(kind, degrees, !e.empty()); });
      if (kind.otherwise("zero", 0) > 0 && endings.size() > 2)  // the fastest, and what needs least memory
        endings.erase(endings.begin() + 1, endings.end() - 1);
      if (endings.empty() && !is_said_more_simply(kind, degrees, /*with_microbatches=*/true))
        endings.push_back(fmt::format(",microbatches={}", pp));  // more than there are samples
    } else if (is_said_more_simply(kind, degrees, /*with_microbatches=*/false)) {
      return;
    }
    // Stages of few activations, whose replicas share out their states, as Megatron's.
    const bool may_be_cut = dp > 1 && kind.takes("zero") && kind.otherwise("zero", 0) == 0;
    for (const std::string& ending : endings) {
      if (!try_texts(kind, degrees, text + ending)) {
        if (has_chunks(ending)) continue;  // that needs more stages, or another number of microbatches
        return;                            // for one reason
      }
      const bool with_states = may_be_cut && ending.ends_with(pp > 1 ? "1f1b" : "");
      if (with_states) try_texts(kind, degrees, text + ending + ",zero=1");
      if (tp == 1 || !kind.takes("sp") || !model_.is_imported()) continue;
      if (try_texts(kind, degrees, text + ending + ",sp=1") && with_states)
        try_texts(kind, degrees, text + ending + ",sp=1,zero=1");
    }
  }

  /// Also with the threads that divide the cores among the ranks.
  bool try_texts(const StrategyKind& kind, const Degrees& degrees, const std::string& text) {
    if (!try_text(kind, degrees, text)) return false;
    const std::uint32_t ranks = degrees.ranks(), threads = devices_ / ranks;
    if (are_cores_ && devices_ % ranks == 0 && threads > 1 && threads <= kMostThreads)
      try_text(kind, degrees, fmt::format("{},threads={}", text, threads));
    return true;
  }

  bool try_text(const StrategyKind& kind, const Degrees& degrees, const std::string& text) {
    std::string why;
    try {
      Strategy strategy = parse_strategy(text, model_);
      if (strategy.idle > 0) strategy = parse_strategy(strategy.text(), model_);  // as asked for without the idle ones
      why = obstacle(model_, strategy);
      if (why.empty()) {
        if (seen_.insert(strategy.text()).second) found_.push_back(std::move(strategy));
        return true;
      }
    } catch (const ConfigError& error) {
      why = error.what();
    }
    if ((kind.takes("dp") || kind.is_hybrid()) && kind.needs_equal_parts && model_.global_batch % degrees.dp != 0)
      reason(kind, "dp", fmt::format("{} samples don't divide", model_.global_batch)).numbers.insert(degrees.dp);
    else if (degrees.pp > model_.nodes.size())
      reason(kind, "pp", fmt::format("the model has {} layers", model_.nodes.size())).numbers.insert(degrees.pp);
    else if (!kind.takes("dp") && kind.takes("microbatches") && model_.global_batch < degrees.pp)
      reason(kind, "pp", fmt::format("{} samples are fewer", model_.global_batch)).numbers.insert(degrees.pp);
    else if (auto& [count, first] = others_[kind.name]; count++ == 0)
      first = fmt::format("{} ({})", text, why);
    skipped_.push_back({text, why});
    return false;
  }

  Reason& reason(const StrategyKind& kind, std::string_view key, const std::string& why) {
    auto found = std::ranges::find_if(reasons_, [&](const Reason& r) { return r.key == key && r.why == why; });
    if (found == reasons_.end()) found = reasons_.insert(reasons_.end(), {key, why, {}, {}});
    if (std::ranges::find(found->kinds, kind.name) == found->kinds.end()) found->kinds.push_back(kind.name);
    return *found;
  }

  [[nodiscard]] std::vector<OmittedStrategies> left_out() const {
    std::vector<OmittedStrategies> list;
    for (const Reason& reason : reasons_) {
      const std::string numbers = fmt::format("{} = {}", reason.key, fmt::join(reason.numbers, ", "));
      OmittedStrategies& each = list.emplace_back();
      each.brief = numbers;
      if (reason.kinds.size() > 1)
        each.brief += fmt::format(" of {} strategies", reason.kinds.size());
      else if (reason.kinds[0] != reason.key)
        each.brief += fmt::format(" of {}", reason.kinds[0]);
      each.whole = fmt::format("{} with {} ({})", fmt::join(reason.kinds, ", "), numbers, reason.why);
    }
    for (const auto& [kind, other] : others_) {
      const std::string number = fmt::format("{} of {}", other.first, kind);
      list.push_back({.brief = number, .whole = fmt::format("{}, such as {}", number, other.second)});
    }
    std::map<std::string_view, std::vector<std::string_view>> not_tried;  // by their reasons
    for (const StrategyKind& kind : strategy_table())
      if (!kind.not_tried.empty()) not_tried[kind.not_tried].push_back(kind.name);
    OmittedStrategies& others = list.emplace_back();
    std::size_t presets = 0;
    for (const auto& [why, kinds] : not_tried) {
      others.whole += fmt::format("{}{} ({})", others.whole.empty() ? "" : "; ", fmt::join(kinds, ", "), why);
      presets += kinds.size();
    }
    others.brief = fmt::format("{} other presets", presets);
    if (devices_ > kAllUpTo)
      list.push_back({.brief = "numbers of devices that leave more of them idle",
                      .whole = fmt::format("numbers of devices above {} that aren't all, a half, a quarter, … and "
                                           "would leave more of them idle",
                                           kAllUpTo)});
    return list;
  }

  const Model& model_;
  std::uint32_t devices_;
  bool are_cores_;
  std::vector<Strategy> found_;
  std::vector<SkippedStrategy> skipped_;
  std::set<std::string> seen_;  // texts
  std::vector<Reason> reasons_;
  std::map<std::string_view, std::pair<std::size_t, std::string>>
      others_;  // by kind: how many, and the first with its reason
};

}  // namespace

std::string obstacle(const Model& given, const Strategy& strategy) {
  try {
    const std::optional<Model> halved = halved_model(given, strategy);
    const Model& model = halved ? *halved : given;
    const Layout layout = layout_of(model, strategy);
    const std::vector<OpInstance> ops = model.instances(model.global_batch / layout.microbatches);
    for (std::size_t n = 0; n < ops.size(); ++n)
      for (const bool last : {false, true}) {
        OpInstance op = ops[n];
        try {
          for (std::size_t axis = 0; axis < layout.mesh.axes.size(); ++axis)
            if (const std::string& rule = layout.play[n][axis].rule; !rule.empty())
              op = part_of(op, rule_of(op, rule), layout.mesh.axes[axis], last ? layout.mesh.axes[axis].size - 1 : 0);
          static_cast<void>(op.signature());
        } catch (const ConfigError& error) {
          return fmt::format("node '{}': {}", model.nodes[n].name, error.what());
        }
      }
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

Proposal candidate_strategies(const Model& model, std::uint32_t devices, bool are_cores) {
  return Candidates(model, devices, are_cores).all();
}

std::optional<Strategy> with_recomputation(const Model& model, const Strategy& strategy) {
  if (strategy.recompute != Recompute::none || !strategy.kind().takes("recompute")) return std::nullopt;
  for (const Recompute recompute : {Recompute::block, Recompute::selective}) try {
      Strategy smaller =
          parse_strategy(fmt::format("{},recompute={}", strategy.text(), kRecomputes.of(recompute)), model);
      if (obstacle(model, smaller).empty()) return smaller;
    } catch (const ConfigError&) {  // a batch norm in a block
      continue;
    }
  return std::nullopt;
}

Proposal propose_candidates(const PlanQuestion& question) {
  return candidate_strategies(question.model, question.devices, question.are_cores);
}

}  // namespace sim
