// Schedules: in which order a rank of a pipeline plays the microbatches of its stages.
//
//   std::vector<Action> actions = schedule_table().at("gpipe").stage(/*stage=*/0, /*stages=*/2, /*microbatches=*/4);
//   to_text(actions) == "F0 F1 F2 F3 B0 B1 B2 B3"
//   schedule_table().at("interleaved").stage(0, 2, 2, /*chunks=*/2);      // F0.0 F1.0 F0.1 F1.1 B0.1 B1.1 B0.0 B1.0
//
// A rank may have several stages, its chunks, that aren't neighbours. A backward may be in two: B computes the gradients
// of a stage's input, W those of the parameters of its matrix ops, which nobody waits for.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/table.hpp"

namespace sim {

struct Action {
  enum class Kind : std::uint8_t { forward, backward, weights } kind;
  std::int32_t microbatch = 0;
  std::int32_t chunk = 0;
  friend bool operator==(const Action&, const Action&) = default;
};

/// Which of `stages` ranks has which of a model's parts, in the model's order.
enum class PartOrder : std::uint8_t {
  loop,  // part i is rank i mod stages'
  turn   // the second time around from the last rank to the first
};

struct ScheduleKind {
  std::string_view name;
  std::string_view equation;
  std::vector<Action> (*make)(std::uint32_t stage, std::uint32_t stages, std::int32_t microbatches,
                              std::int32_t chunks) = nullptr;
  /// One loss on all microbatches' outputs together, after the last forward; else each microbatch has its own.
  bool one_loss = false;
  /// Backwards are in two.
  bool splits = false;
  /// A rank's, without being given, and at least; and at most.
  std::int32_t chunks = 1, most_chunks = 1;
  PartOrder order = PartOrder::loop;

  [[nodiscard]] std::vector<Action> stage(std::uint32_t of, std::uint32_t stages, std::int32_t microbatches,
                                          std::int32_t of_chunks = 1) const {
    return make(of, stages, microbatches, of_chunks);
  }
};
const Table<ScheduleKind>& schedule_table();

/// The rank that has a part of the model, and which of its chunks that is.
struct PartOfRank {
  std::uint32_t stage = 0;
  std::int32_t chunk = 0;
};
PartOfRank rank_of_part(std::uint32_t part, std::uint32_t stages, PartOrder order);

/// Into how many rounds of as many microbatches, at least one for each rank, the interleaved schedules cut a step.
std::int32_t rounds_of(std::uint32_t stages, std::int32_t microbatches);

std::string to_text(const std::vector<Action>& actions);
/// ConfigError for anything but "F0 F1 B0 …", or with chunks "F0.1 B0.1 W0.1 …".
std::vector<Action> actions_from_text(std::string_view text);

}  // namespace sim
