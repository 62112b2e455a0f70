#include <array>

#include "sim/plan/candidates.hpp"
#include "sim/plan/method.hpp"

namespace sim {

const Table<Method>& method_table() {
  static const std::array<Method, 3> methods{
      {{.name = "candidates",
        .description = "every strategy on every number of devices; HyPar's layers all cut alike",
        .propose = propose_candidates,
        .smaller = with_recomputation},
       {.name = "hypar",
        .description = "HyPar's dynamic programming: for each layer and level what communicates least",
        .propose = propose_hypar},
       {.name = "layers",
        .description = "for each layer and level what takes least time by forecast, and fits",
        .propose = propose_layers}}};
  static const Table<Method> table("method", methods);
  return table;
}

}  // namespace sim
