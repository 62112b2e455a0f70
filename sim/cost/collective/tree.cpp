#include <bit>

#include "sim/cost/collective/collective.hpp"

namespace sim {
namespace {

// A binomial tree: the members that have the array double in every step. The root sends the whole array in each of
// them, so its link carries all ⌈log2 n⌉ copies. all_reduce: the same tree towards the root, adding, then the
// broadcast.

double steps(CollectiveKind kind, std::uint32_t members) {
  const double depth = std::bit_width(members - 1U);  // ⌈log2 n⌉
  switch (kind) {
    case CollectiveKind::all_reduce:
      return 2 * depth;
    case CollectiveKind::broadcast:
      return depth;
  }
  throw InternalError("tree has no steps of collective kind {}", static_cast<int>(kind));
}

double wire_bytes(CollectiveKind kind, std::uint32_t members, double bytes) { return steps(kind, members) * bytes; }

}  // namespace

CollectiveAlgorithm tree_algorithm() {
  return {.name = "tree",
          .equation = "broadcast: ceil(log2 n) steps, ceil(log2 n) s bytes; all_reduce: twice that",
          .assumes = "a member passes the array on when it has all of it; adding is free",
          .source =
              "Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in MPICH (2005); "
              "gloo/broadcast.cc",
          .steps = steps,
          .wire_bytes = wire_bytes};
}

}  // namespace sim
