#include "sim/cost/collective/collective.hpp"

#include <array>
#include <bit>

#include "sim/cluster/world.hpp"
#include "sim/error.hpp"

namespace sim {
namespace {

double one(std::uint32_t /*n*/) { return 1; }
double two(std::uint32_t /*n*/) { return 2; }
double hops(std::uint32_t n) { return n - 1.0; }
double hops_there_and_back(std::uint32_t n) { return 2 * hops(n); }
/// Of n-ths: every member's is reduced in one place, then copied to all.
double two_of_each_part(std::uint32_t n) { return 2 * (n - 1.0) / n; }
double depth(std::uint32_t n) { return std::bit_width(n - 1U); }  // ⌈log2 n⌉
double depth_up_and_down(std::uint32_t n) { return 2 * depth(n); }

constexpr std::array kAlgorithms{
    // all_reduce: reduce-scatter, then all-gather; each goes once around the ring in n−1 steps with chunks of s/n bytes.
    // broadcast: the array goes down the chain from the root in chunks; all links but the first idle until the first
    // chunk comes: n−1 latencies, s bytes.
    CollectiveAlgorithm{
        .name = "ring",
        .equation = "all_reduce: 2(n-1) steps, 2(n-1)/n s bytes; broadcast: n-1 steps, s bytes",
        .assumes = "all members send and receive at once at full bandwidth; chunks of a broadcast are small against s",
        .source = "Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, JPDC 69 (2009); gloo/allreduce.cc; "
                  "nccl-tests "
                  "doc/PERFORMANCE.md",
        .all_reduce = {hops_there_and_back, two_of_each_part},
        .broadcast = {hops, one}},
    // A binomial tree: the members that have the array double in every step. The root sends the whole array in each of
    // them, so its link carries all ⌈log2 n⌉ copies. all_reduce: the same tree towards the root, adding, then the
    // broadcast.
    CollectiveAlgorithm{
        .name = "tree",
        .equation = "broadcast: ceil(log2 n) steps, ceil(log2 n) s bytes; all_reduce: twice that",
        .assumes = "a member passes the array on when it has all of it; adding is free",
        .source =
            "Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in MPICH (2005); "
            "gloo/broadcast.cc",
        .all_reduce = {depth_up_and_down, depth_up_and_down},
        .broadcast = {depth, depth}},
    // Members see each other's memory. all_reduce: each sums its n-th of everyone's array (reads (n−1)/n s from others),
    // all meet, then each copies the other n−1 parts. broadcast: all copy from the root at once.
    CollectiveAlgorithm{
        .name = "direct",
        .equation = "all_reduce: 2 steps, 2(n-1)/n s bytes; broadcast: 1 step, s bytes",
        .assumes =
            "reading another member's memory costs the link; members that read the same memory don't slow each other",
        .source = "backend/world/local.cpp",
        .all_reduce = {two, two_of_each_part},
        .broadcast = {one, one}}};

/// What `of` (an algorithm, a world) has for the kind.
template <class Of>
const auto& for_kind(const Of& of, CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::all_reduce:
      return of.all_reduce;
    case CollectiveKind::broadcast:
      return of.broadcast;
  }
  throw InternalError("'{}' has nothing for collective kind {}", of.name, static_cast<int>(kind));
}

}  // namespace

double CollectiveAlgorithm::steps(CollectiveKind kind, std::uint32_t members) const {
  return members == 1 ? 0 : for_kind(*this, kind).steps(members);
}

double CollectiveAlgorithm::wire_bytes(CollectiveKind kind, std::uint32_t members, double bytes) const {
  return members == 1 ? 0 : for_kind(*this, kind).wire_share(members) * bytes;
}

const Table<CollectiveAlgorithm>& collective_table() {
  static constexpr Table<CollectiveAlgorithm> kTable("collective algorithm", kAlgorithms);
  return kTable;
}

const CollectiveAlgorithm& collective_algorithm(std::string_view world, CollectiveKind kind) {
  return collective_table().at(for_kind(world_kind(world), kind));
}

}  // namespace sim
