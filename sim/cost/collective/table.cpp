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
  switch (kind) {
    case CollectiveKind::all_reduce:
      return collective_table().at(row.all_reduce);
    case CollectiveKind::broadcast:
      return collective_table().at(row.broadcast);
  }
  throw InternalError("world '{}' has no algorithm for collective kind {}", world, static_cast<int>(kind));
}

}  // namespace sim
