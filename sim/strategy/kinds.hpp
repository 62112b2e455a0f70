// The constructors of the strategy table's rows (one per .cpp of this folder, listed in table.cpp).
#pragma once

#include "sim/error.hpp"
#include "sim/strategy/strategy.hpp"

namespace sim {

StrategyKind single_kind();
StrategyKind model_parallel_kind();
StrategyKind pipeline_kind();
StrategyKind ddp_kind();
StrategyKind mesh_kind();

}  // namespace sim
