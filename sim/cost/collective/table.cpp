#include <array>

#include "sim/cluster/world.hpp"
#include "sim/cost/collective/collective.hpp"

namespace sim {

const Table<CollectiveAlgorithm>& collective_table() {
  static const std::array algorithms{ring_algorithm(), tree_algorithm(), direct_algorithm()};
  static const Table<CollectiveAlgorithm> table("collective algorithm", algorithms);
  return table;
}

const CollectiveAlgorithm& collective_algorithm(std::string_view world, CollectiveKind kind) {
  const WorldKind& row = world_kind(world);
  return collective_table().at(kind == CollectiveKind::all_reduce ? row.all_reduce : row.broadcast);
}

}  // namespace sim
