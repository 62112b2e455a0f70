#include <array>

#include "sim/strategy/kinds.hpp"

namespace sim {

const Table<StrategyKind>& strategy_table() {
  static const std::array kinds{single_kind(), model_parallel_kind(), pipeline_kind(), ddp_kind(), mesh_kind()};
  static const Table<StrategyKind> table("strategy", kinds);
  return table;
}

}  // namespace sim
