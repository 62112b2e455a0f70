#include <algorithm>
#include <array>
#include <charconv>

#include "sim/strategy/schedule/schedule.hpp"

namespace sim {
namespace {

// Huang et al. 2018, arXiv 1811.06965, in the order of torch.distributed.pipelining.ScheduleGPipe: all forwards, then
// all backwards, both from the first microbatch to the last. With p equal stages and m microbatches the step takes (f +
// b)(m + p − 1).
std::vector<Action> gpipe(std::uint32_t /*stage*/, std::uint32_t /*stages*/, std::int32_t microbatches) {
  std::vector<Action> actions;
  for (const Action::Kind kind : {Action::Kind::forward, Action::Kind::backward})
    for (std::int32_t m = 0; m < microbatches; ++m) actions.push_back({kind, m});
  return actions;
}

// Narayanan et al. 2019, PipeDream (SOSP), with a flush per step (Narayanan et al. 2021, arXiv 2104.04473), in the
// order of torch.distributed.pipelining.Schedule1F1B: stage s of p begins with min(m, p − s) forwards, then a backward
// and a forward in turn. The makespan is GPipe's; a stage keeps the activations of at most p − s microbatches, not of
// m.
std::vector<Action> one_f_one_b(std::uint32_t stage, std::uint32_t stages, std::int32_t microbatches) {
  std::vector<Action> actions;
  const std::int32_t ahead = std::min(microbatches, static_cast<std::int32_t>(stages - stage));
  std::int32_t forward = 0;
  while (forward < ahead) actions.push_back({Action::Kind::forward, forward++});
  for (std::int32_t backward = 0; backward < microbatches; ++backward) {
    actions.push_back({Action::Kind::backward, backward});
    if (forward < microbatches) actions.push_back({Action::Kind::forward, forward++});
  }
  return actions;
}

// The pipelined classes of PyTorch's model-parallel tutorial (and R2's ConvNet): only the forward is written as a
// pipeline; the outputs are concatenated and have one loss. Autograd goes through the concatenated graph from its end,
// so that the microbatches come back in reverse. The makespan is GPipe's.
std::vector<Action> forward_only(std::uint32_t stage, std::uint32_t stages, std::int32_t microbatches) {
  std::vector<Action> actions = gpipe(stage, stages, microbatches);
  std::reverse(actions.begin() + microbatches, actions.end());
  return actions;
}

}  // namespace

const Table<ScheduleKind>& schedule_table() {
  static constexpr std::array<ScheduleKind, 3> kKinds{
      {{"gpipe", "F0 … Fm-1 B0 … Bm-1 on every stage; makespan (f+b)(m+p-1)", gpipe},
       {"1f1b", "F0 … then B and F in turn, then the last B; makespan (f+b)(m+p-1), min(m, p-s) microbatches alive",
        one_f_one_b},
       {"forward_only", "F0 … Fm-1, one loss on the concatenation, Bm-1 … B0; makespan (f+b)(m+p-1)", forward_only,
        /*one_loss=*/true}}};
  static constexpr Table<ScheduleKind> kTable("schedule", kKinds);
  return kTable;
}

std::string to_text(const std::vector<Action>& actions) {
  std::string text;
  for (const Action& action : actions)
    text += fmt::format("{}{}{}", text.empty() ? "" : " ", action.kind == Action::Kind::forward ? 'F' : 'B',
                        action.microbatch);
  return text;
}

std::vector<Action> actions_from_text(std::string_view text) {
  std::vector<Action> actions;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    const char* end = word.data() + word.size();
    Action action{word.starts_with('F') ? Action::Kind::forward : Action::Kind::backward, -1};
    const bool known = word.size() >= 2 && (word[0] == 'F' || word[0] == 'B') &&
                       std::from_chars(word.data() + 1, end, action.microbatch).ptr == end && action.microbatch >= 0;
    if (!known) throw ConfigError("schedule text: '{}' is not an action; expected F0, B0, …", word);
    actions.push_back(action);
    text.remove_prefix(std::min(word.size() + 1, text.size()));
  }
  return actions;
}

}  // namespace sim
