#include <array>

#include "sim/cost/collective/collective.hpp"

namespace sim {
namespace {

struct WorldAlgorithms {
  std::string_view name, all_reduce, broadcast;
};

}  // namespace

const Table<CollectiveAlgorithm>& collective_table() {
  static const std::array algorithms{ring_algorithm(), tree_algorithm(), direct_algorithm()};
  static const Table<CollectiveAlgorithm> table("collective algorithm", algorithms);
  return table;
}

const CollectiveAlgorithm& collective_algorithm(std::string_view world, CollectiveKind kind) {
  // gloo: the defaults of gloo/allreduce.cc and gloo/broadcast.cc. nccl: its choice inside a node for large arrays.
  static constexpr std::array<WorldAlgorithms, 3> kWorlds{
      {{"local", "direct", "direct"}, {"gloo", "ring", "tree"}, {"nccl", "ring", "ring"}}};
  static const Table<WorldAlgorithms> worlds("world", kWorlds);
  const WorldAlgorithms& row = worlds.at(world.substr(0, world.find('@')));  // "gloo@1gbit": gloo over a network
  return collective_table().at(kind == CollectiveKind::all_reduce ? row.all_reduce : row.broadcast);
}

}  // namespace sim
