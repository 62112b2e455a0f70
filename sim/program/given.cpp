#include "sim/program/given.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <span>
#include <utility>

namespace sim {
namespace {

/// Pieces of a storage that have been written: their bytes, and what the rank's ops had moved by then.
struct Written {
  double bytes = 0, moments = 0;  // moments: the sum of bytes times when
  double by_writers = 0;          // what the pieces' own ops move

  /// What was moved since then, on average over the pieces, by ops that write none of them.
  [[nodiscard]] std::optional<double> since(double now) const {
    return bytes > 0 ? std::optional(std::max(0.0, now - by_writers - moments / bytes)) : std::nullopt;
  }
};

/// Plays a role's list for what becomes of its storages.
class History {
 public:
  History(const Program& program, const Role& role)
      : program_(program),
        role_(role),
        given_(role.size()),
        moved_before_(role.size()),
        storages_(role.storages.size()) {
    for (std::size_t s = 0; s < storages_.size(); ++s) storages_[s].allocated = role.storages[s].persistent;
  }

  void play_step() {
    role_.play(1, [&](std::uint32_t i) {
      const auto given =
          role_.kind[i] == InstructionKind::collective ? role_.reads(i) : std::span<const std::uint32_t>();
      for (const std::uint32_t tensor : given) give(i, role_.tensors[tensor].storage);
      write(i);
      for (const std::uint32_t tensor : given) storages_[role_.tensors[tensor].storage].reader = i;
      for (const std::uint32_t s : role_.frees(i)) {
        freed_[role_.storages[s].bytes].push_back(storages_[s].reader);
        storages_[s] = {};
      }
    });
  }
  [[nodiscard]] std::vector<std::optional<GivenMemory>> given() && { return std::move(given_); }

 private:
  struct State {
    bool allocated = false;
    Written written;
    std::uint32_t reader = kNone;  // the collective that has read it since
  };

  void write(std::uint32_t i) {
    const double moved = is_computed(role_.kind[i]) ? program_.works[role_.work[i]].demand().bytes : 0;
    std::set<std::uint32_t> storages;
    for (const std::uint32_t tensor : role_.writes(i)) {
      const std::uint32_t s = role_.tensors[tensor].storage;
      State& state = storages_[s];
      if (!std::exchange(state.allocated, true)) {
        std::vector<std::uint32_t>& blocks = freed_[role_.storages[s].bytes];
        if (!blocks.empty()) {
          state.reader = blocks.back();
          blocks.pop_back();
        }
      }
      if (const std::uint32_t reader = std::exchange(state.reader, kNone); reader != kNone) {
        state.written = {};
        if (GivenMemory& given = *given_[reader]; !given.until_written) {
          given.until_written = moved_ - moved_before_[reader];
          given.writer = i;
        }
      }
      const auto bytes = static_cast<double>(role_.tensors[tensor].spec.bytes());
      state.written.bytes += bytes;
      if (storages.insert(s).second) state.written.by_writers += moved;
      state.written.moments += bytes * (moved_ + moved - state.written.by_writers);
    }
    moved_ += moved;
  }

  void give(std::uint32_t i, std::uint32_t s) {
    moved_before_[i] = moved_;
    if (!given_[i]) given_[i].emplace();
    given_[i]->since_written = storages_[s].written.since(moved_);  // the second step's is like all others
  }

  const Program& program_;
  const Role& role_;
  std::vector<std::optional<GivenMemory>> given_;
  std::vector<double> moved_before_;  // by collective
  std::vector<State> storages_;
  std::map<std::int64_t, std::vector<std::uint32_t>> freed_;  // by bytes: State::reader of blocks, the last ones last
  double moved_ = 0;
};

}  // namespace

std::vector<std::optional<GivenMemory>> given_by(const Program& program, const Role& role) {
  History history(program, role);
  for (int step = 0; step < 2; ++step) history.play_step();
  return std::move(history).given();
}

}  // namespace sim
