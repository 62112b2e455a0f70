// Schedules: the order of microbatch actions on each pipeline stage.
//
//   std::vector<Action> actions = schedule_table().at("gpipe").stage(/*stage=*/0, /*stages=*/2, /*microbatches=*/4);
//   to_text(actions) == "F0 F1 F2 F3 B0 B1 B2 B3"
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sim/table.hpp"

namespace sim {

struct Action {
  enum class Kind : std::uint8_t { forward, backward } kind;
  std::int32_t microbatch = 0;
  friend bool operator==(const Action&, const Action&) = default;
};

struct ScheduleKind {
  std::string_view name;
  std::string_view equation;
  std::vector<Action> (*stage)(std::uint32_t stage, std::uint32_t stages, std::int32_t microbatches);
  /// One loss on all microbatches' outputs together, after the last forward; else each microbatch has its own.
  bool one_loss = false;
};
const Table<ScheduleKind>& schedule_table();

std::string to_text(const std::vector<Action>& actions);
/// ConfigError for anything but "F0 F1 B0 …".
std::vector<Action> actions_from_text(std::string_view text);

}  // namespace sim
