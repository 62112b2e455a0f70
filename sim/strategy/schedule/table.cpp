#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "sim/strategy/schedule/schedule.hpp"

namespace sim {
namespace {

// Huang et al. 2018, arXiv 1811.06965, in the order of torch.distributed.pipelining.ScheduleGPipe: all forwards, then
// all backwards, both from the first microbatch to the last. With p equal stages and m microbatches the step takes (f +
// b)(m + p − 1).
std::vector<Action> gpipe(std::uint32_t /*stage*/, std::uint32_t /*stages*/, std::int32_t microbatches,
                          std::int32_t /*chunks*/) {
  std::vector<Action> actions;
  for (const Action::Kind kind : {Action::Kind::forward, Action::Kind::backward})
    for (std::int32_t m = 0; m < microbatches; ++m) actions.push_back({kind, m});
  return actions;
}

// Narayanan et al. 2019, PipeDream (SOSP), with a flush per step (Narayanan et al. 2021, arXiv 2104.04473), in the
// order of torch.distributed.pipelining.Schedule1F1B: stage s of p begins with min(m, p − s) forwards, then a backward
// and a forward in turn. The makespan is GPipe's; a stage keeps the activations of at most p − s microbatches, not of
// m.
std::vector<Action> one_f_one_b(std::uint32_t stage, std::uint32_t stages, std::int32_t microbatches,
                                std::int32_t /*chunks*/) {
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

// The same, but what the stage before waits for is sent before the parameters' gradients are computed: with equal stages
// the step takes m(f+b+w) + (p−1)(f+b).
std::vector<Action> one_f_one_b_split(std::uint32_t stage, std::uint32_t stages, std::int32_t microbatches,
                                      std::int32_t chunks) {
  std::vector<Action> actions;
  for (const Action& action : one_f_one_b(stage, stages, microbatches, chunks)) {
    actions.push_back(action);
    if (action.kind == Action::Kind::backward) actions.push_back({Action::Kind::weights, action.microbatch});
  }
  return actions;
}

// The pipelined classes of PyTorch's model-parallel tutorial (and R2's ConvNet): only the forward is written as a
// pipeline; the outputs are concatenated and have one loss. Autograd goes through the concatenated graph from its end,
// so that the microbatches come back in reverse. The makespan is GPipe's.
std::vector<Action> forward_only(std::uint32_t stage, std::uint32_t stages, std::int32_t microbatches,
                                 std::int32_t chunks) {
  std::vector<Action> actions = gpipe(stage, stages, microbatches, chunks);
  std::reverse(actions.begin() + microbatches, actions.end());
  return actions;
}

/// A rank's actions, of which each microbatch's follow each other in every chunk.
class Order {
 public:
  explicit Order(std::int32_t chunks) : next_(static_cast<std::size_t>(chunks)) {}

  void add(Action::Kind kind, std::int32_t chunk) {
    std::int32_t& next = next_[static_cast<std::size_t>(chunk)].*of(kind);
    actions_.push_back({kind, next++, chunk});
  }
  std::vector<Action> actions() && { return std::move(actions_); }

 private:
  struct Next {
    std::int32_t forward = 0, backward = 0, weights = 0;
  };
  static std::int32_t Next::*of(Action::Kind kind) {
    return kind == Action::Kind::forward    ? &Next::forward
           : kind == Action::Kind::backward ? &Next::backward
                                            : &Next::weights;
  }
  std::vector<Next> next_;  // by chunk: microbatches
  std::vector<Action> actions_;
};

// Narayanan et al. 2021, arXiv 2104.04473, in the order of torch.distributed.pipelining's ScheduleInterleaved1F1B and
// ScheduleInterleavedZeroBubble (schedules.py, _get_1f1b_rank_ops): the microbatches go in rounds of μ, each chunk by
// chunk. Rank r of p begins with (v−1)μ + ahead·(p−1−r) forwards, then a forward and a backward in turn, then the last
// backwards. With equal chunks, m microbatches and v chunks the step takes m(f+b) + (p−1)(f+b)/v. Zero bubble: from the
// r-th backward on each is followed by the first W that is left; the rest of them come last.
std::vector<Action> in_rounds(std::uint32_t stage, std::uint32_t stages, std::int32_t microbatches, std::int32_t chunks,
                              std::int32_t ahead, bool zero_bubble) {
  const std::int32_t each = microbatches / rounds_of(stages, microbatches), all = microbatches * chunks;
  const auto rank = static_cast<std::int32_t>(stage), last = static_cast<std::int32_t>(stages) - 1;
  const std::int32_t warm_up = std::min(all, (chunks - 1) * each + ahead * (last - rank));
  const auto chunk_of = [&](std::int32_t step) { return step / each % chunks; };
  Order order(chunks);
  for (std::int32_t step = 0; step < warm_up; ++step) order.add(Action::Kind::forward, chunk_of(step));
  std::int32_t weights = 0;
  for (std::int32_t step = 0; step < all; ++step) {
    if (warm_up + step < all) order.add(Action::Kind::forward, chunk_of(warm_up + step));
    order.add(Action::Kind::backward, chunks - 1 - chunk_of(step));
    if (zero_bubble && step >= rank) order.add(Action::Kind::weights, chunks - 1 - chunk_of(weights++));
  }
  while (zero_bubble && weights < all) order.add(Action::Kind::weights, chunks - 1 - chunk_of(weights++));
  return std::move(order).actions();
}

std::vector<Action> interleaved(std::uint32_t stage, std::uint32_t stages, std::int32_t microbatches,
                                std::int32_t chunks) {
  return in_rounds(stage, stages, microbatches, chunks, 2, /*zero_bubble=*/false);
}

// Qi et al. 2023, arXiv 2401.10241: ZB-H1 with one chunk. With equal stages the step takes m(f+b+w) + (p−1)(f+b−w), B
// and W apart; a rank keeps what p microbatches have left.
std::vector<Action> zero_bubble(std::uint32_t stage, std::uint32_t stages, std::int32_t microbatches,
                                std::int32_t chunks) {
  return in_rounds(stage, stages, microbatches, chunks, 1, /*zero_bubble=*/true);
}

// Qi et al. 2024, arXiv 2405.15362, in the order of torch.distributed.pipelining.ScheduleZBVZeroBubble: each rank has two
// chunks, the second time around from the last rank to the first. With equal chunks, where f = b = w, the step takes m(f+b+w)
// + (p−1)f/2. Fewer than 2p−1 microbatches: the order of 2p−1, without those that aren't there.
std::vector<Action> zbv(std::uint32_t stage, std::uint32_t stages, std::int32_t microbatches, std::int32_t chunks) {
  const auto rank = static_cast<std::int32_t>(stage), ranks = static_cast<std::int32_t>(stages);
  const std::int32_t all = std::max(2 * ranks - 1, microbatches);
  Order order(chunks);
  const auto forward = [&](std::int32_t chunk) { order.add(Action::Kind::forward, chunk); };
  const auto backward = [&](std::int32_t chunk) { order.add(Action::Kind::backward, chunk); };
  const auto weights = [&](std::int32_t chunk) { order.add(Action::Kind::weights, chunk); };
  std::int32_t firsts = 0, seconds = 0;  // forwards of either chunk
  for (; firsts < 2 * (ranks - rank) - 1; ++firsts) forward(0);
  for (std::int32_t i = 0; i < rank; ++i, ++firsts, ++seconds) forward(1), forward(0);
  std::int32_t backwards = 0;  // of the second chunk
  for (; backwards < ranks - rank; ++backwards, ++seconds) forward(1), backward(1), weights(1);
  std::int32_t of_first = 0;  // backwards of the first chunk
  for (; seconds < firsts || firsts < all; ++seconds, ++of_first, ++backwards) {
    if (firsts < all) forward(0), ++firsts;
    backward(0), weights(0), forward(1), backward(1), weights(1);
  }
  std::int32_t first_weights = of_first, second_weights = backwards;
  for (std::int32_t i = 0; i < rank; ++i, ++of_first, ++backwards) backward(0), backward(1);
  for (std::int32_t i = 0; i < ranks - rank; ++i, ++of_first, ++first_weights) backward(0), weights(0);
  for (; second_weights < backwards; ++second_weights) weights(1);
  for (; first_weights < of_first; ++first_weights) weights(0);
  std::vector<Action> actions = std::move(order).actions();
  std::erase_if(actions, [&](const Action& action) { return action.microbatch >= microbatches; });
  return actions;
}

}  // namespace

std::int32_t rounds_of(std::uint32_t stages, std::int32_t microbatches) {
  std::int32_t rounds = std::max(1, microbatches / static_cast<std::int32_t>(stages));
  while (microbatches % rounds != 0) --rounds;
  return rounds;
}

PartOfRank rank_of_part(std::uint32_t part, std::uint32_t stages, PartOrder order) {
  const std::uint32_t at = part % stages;
  const auto chunk = static_cast<std::int32_t>(part / stages);
  return {order == PartOrder::turn && chunk % 2 == 1 ? stages - 1 - at : at, chunk};
}

const Table<ScheduleKind>& schedule_table() {
  static constexpr std::int32_t kMostChunks = 1000;
  static constexpr std::array<ScheduleKind, 8> kKinds{
      {{.name = "gpipe", .equation = "F0 … Fm-1 B0 … Bm-1 on every stage; makespan (f+b)(m+p-1)", .make = gpipe},
       {.name = "1f1b",
        .equation = "F0 … then B and F in turn, then the last B; makespan (f+b)(m+p-1), min(m, p-s) microbatches alive",
        .make = one_f_one_b},
       {.name = "1f1b_split",
        .equation = "1f1b that sends the input's gradient before it computes the parameters'; makespan "
                    "m(f+b+w)+(p-1)(f+b)",
        .make = one_f_one_b_split,
        .splits = true},
       {.name = "forward_only",
        .equation = "F0 … Fm-1, one loss on the concatenation, Bm-1 … B0; makespan (f+b)(m+p-1)",
        .make = forward_only,
        .one_loss = true},
       {.name = "interleaved",
        .equation = "1f1b of ranks with v chunks each, in rounds; makespan (f+b)(m+(p-1)/v)",
        .make = interleaved,
        .chunks = 2,
        .most_chunks = kMostChunks},
       {.name = "zb_h1",
        .equation = "1f1b whose parameters' gradients (W) fill the bubble; makespan m(f+b+w)+(p-1)(f+b-w)",
        .make = zero_bubble,
        .splits = true},
       {.name = "interleaved_zb",
        .equation = "zb_h1 of ranks with v chunks each; makespan m(f+b+w)+(p-1)f/v where f=b=w",
        .make = zero_bubble,
        .splits = true,
        .chunks = 2,
        .most_chunks = kMostChunks},
       {.name = "zbv",
        .equation = "two chunks each, there and back, the bubble filled with W; makespan m(f+b+w)+(p-1)f/2 where f=b=w",
        .make = zbv,
        .splits = true,
        .chunks = 2,
        .most_chunks = 2,
        .order = PartOrder::turn}}};
  static constexpr Table<ScheduleKind> kTable("schedule", kKinds);
  return kTable;
}

std::string to_text(const std::vector<Action>& actions) {
  const bool has_chunks = std::ranges::any_of(actions, [](const Action& action) { return action.chunk > 0; });
  std::string text;
  for (const Action& action : actions) {
    const char kind = action.kind == Action::Kind::forward ? 'F' : action.kind == Action::Kind::backward ? 'B' : 'W';
    text += fmt::format("{}{}{}", text.empty() ? "" : " ", kind, action.microbatch);
    if (has_chunks) text += fmt::format(".{}", action.chunk);
  }
  return text;
}

std::vector<Action> actions_from_text(std::string_view text) {
  std::vector<Action> actions;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    const char* end = word.data() + word.size();
    Action action{word.starts_with('F')   ? Action::Kind::forward
                  : word.starts_with('B') ? Action::Kind::backward
                                          : Action::Kind::weights,
                  -1};
    bool known = word.size() >= 2 && std::string_view("FBW").find(word[0]) != std::string_view::npos;
    if (known) {
      const char* at = std::from_chars(word.data() + 1, end, action.microbatch).ptr;
      if (at + 1 < end && *at == '.') at = std::from_chars(at + 1, end, action.chunk).ptr;
      known = at == end && action.microbatch >= 0 && action.chunk >= 0;
    }
    if (!known) throw ConfigError("schedule text: '{}' is not an action; expected F0, B0, W0, F0.1, …", word);
    actions.push_back(action);
    text.remove_prefix(std::min(word.size() + 1, text.size()));
  }
  return actions;
}

}  // namespace sim
