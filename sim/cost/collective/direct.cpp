#include "sim/cost/collective/collective.hpp"

namespace sim {
namespace {

// Members see each other's memory. all_reduce: each sums its n-th of everyone's array (reads (n−1)/n s from others),
// all meet, then each copies the other n−1 parts. broadcast: all copy from the root at once.

double steps(CollectiveKind kind, std::uint32_t members) {
  if (members == 1) return 0;
  switch (kind) {
    case CollectiveKind::all_reduce:
      return 2;
    case CollectiveKind::broadcast:
      return 1;
  }
  throw InternalError("direct has no steps of collective kind {}", static_cast<int>(kind));
}

double wire_bytes(CollectiveKind kind, std::uint32_t members, double bytes) {
  if (members == 1) return 0;
  switch (kind) {
    case CollectiveKind::all_reduce:
      return 2 * (members - 1.0) / members * bytes;
    case CollectiveKind::broadcast:
      return bytes;
  }
  throw InternalError("direct has no wire bytes of collective kind {}", static_cast<int>(kind));
}

}  // namespace

CollectiveAlgorithm direct_algorithm() {
  return {.name = "direct",
          .equation = "all_reduce: 2 steps, 2(n-1)/n s bytes; broadcast: 1 step, s bytes",
          .assumes =
              "reading another member's memory costs the link; members that read the same memory don't slow each other",
          .source = "backend/world/local.cpp",
          .steps = steps,
          .wire_bytes = wire_bytes};
}

}  // namespace sim
