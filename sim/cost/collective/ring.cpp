#include "sim/cost/collective/collective.hpp"

namespace sim {
namespace {

// all_reduce: reduce-scatter, then all-gather; each goes once around the ring in n−1 steps with chunks of s/n bytes.
// broadcast: the array goes down the chain from the root in chunks; all links but the first idle until the first chunk
// comes: n−1 latencies, s bytes.

double steps(CollectiveKind kind, std::uint32_t members) {
  const double hops = members - 1.0;
  switch (kind) {
    case CollectiveKind::all_reduce:
      return 2 * hops;
    case CollectiveKind::broadcast:
      return hops;
  }
  throw InternalError("ring has no steps of collective kind {}", static_cast<int>(kind));
}

double wire_bytes(CollectiveKind kind, std::uint32_t members, double bytes) {
  if (members == 1) return 0;
  switch (kind) {
    case CollectiveKind::all_reduce:
      return 2 * (members - 1.0) / members * bytes;
    case CollectiveKind::broadcast:
      return bytes;
  }
  throw InternalError("ring has no wire bytes of collective kind {}", static_cast<int>(kind));
}

}  // namespace

CollectiveAlgorithm ring_algorithm() {
  return {
      .name = "ring",
      .equation = "all_reduce: 2(n-1) steps, 2(n-1)/n s bytes; broadcast: n-1 steps, s bytes",
      .assumes = "all members send and receive at once at full bandwidth; chunks of a broadcast are small against s",
      .source =
          "Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, JPDC 69 (2009); gloo/allreduce.cc; nccl-tests "
          "doc/PERFORMANCE.md",
      .steps = steps,
      .wire_bytes = wire_bytes};
}

}  // namespace sim
