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
double one_part(std::uint32_t n) { return 1.0 / n; }
double all_but_ones_own(std::uint32_t n) { return (n - 1.0) / n; }
/// Of n-ths: every member's is reduced in one place, then copied to all.
double two_of_each_part(std::uint32_t n) { return 2 * all_but_ones_own(n); }
double depth(std::uint32_t n) { return std::bit_width(n - 1U); }  // ⌈log2 n⌉
double depth_up_and_down(std::uint32_t n) { return 2 * depth(n); }

constexpr ClosedForm kNoForm{};

/// The forms are those of all_reduce, broadcast, reduce, all_gather, reduce_scatter, all_to_all, scatter, gather.
constexpr std::array kAlgorithms{
    // reduce_scatter and all_gather each go once around the ring in n−1 steps with chunks of s/n bytes; all_reduce is one
    // and then the other. broadcast and reduce: the array goes down a chain from (to) the root in chunks; all links but
    // the first idle until the first chunk comes: n−1 latencies, s bytes.
    CollectiveAlgorithm{
        .name = "ring",
        .equation = "all_reduce: 2(n-1) steps, 2(n-1)/n s bytes; all_gather, reduce_scatter: half of that; broadcast, "
                    "reduce: n-1 steps, s bytes",
        .assumes = "all members send and receive at once at full bandwidth; chunks of a broadcast are small against s",
        .source = "Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, JPDC 69 (2009); gloo/allreduce.cc, "
                  "gloo/allgather.cc; nccl-tests doc/PERFORMANCE.md",
        .forms = {{{hops_there_and_back, two_of_each_part},
                   {hops, one},
                   {hops, one},
                   {hops, all_but_ones_own},
                   {hops, all_but_ones_own},
                   kNoForm,
                   kNoForm,
                   kNoForm}}},
    // A binomial tree: the members that have the array double in every step. The root sends the whole array in each of
    // them, so its link carries all ⌈log2 n⌉ copies. reduce: the same tree towards the root, adding; all_reduce: that and
    // then the broadcast.
    CollectiveAlgorithm{
        .name = "tree",
        .equation = "broadcast, reduce: ceil(log2 n) steps, ceil(log2 n) s bytes; all_reduce: twice that",
        .assumes = "a member passes the array on when it has all of it; adding is free",
        .source =
            "Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in MPICH (2005); "
            "gloo/broadcast.cc",
        .forms = {{{depth_up_and_down, depth_up_and_down},
                   {depth, depth},
                   {depth, depth},
                   kNoForm,
                   kNoForm,
                   kNoForm,
                   kNoForm,
                   kNoForm}}},
    // In step k each member exchanges its parts with the member k places further: whatever isn't one's own goes once over
    // one's link. scatter and gather: the root's.
    CollectiveAlgorithm{.name = "pairwise",
                        .equation = "all_to_all, reduce_scatter, scatter, gather: n-1 steps, (n-1)/n s bytes",
                        .assumes = "all members send and receive at once at full bandwidth; adding is free",
                        .source = "Thakur, Rabenseifner and Gropp (2005), section 4.3; gloo/alltoallv.cc",
                        .forms = {{kNoForm,
                                   kNoForm,
                                   kNoForm,
                                   kNoForm,
                                   {hops, all_but_ones_own},
                                   {hops, all_but_ones_own},
                                   {hops, all_but_ones_own},
                                   {hops, all_but_ones_own}}}},
    // A ring's reduce_scatter, after which each member sends its sum to the root.
    CollectiveAlgorithm{
        .name = "ring_gather",
        .equation = "reduce: 2(n-1) steps, 2(n-1)/n s bytes",
        .assumes = "all members send and receive at once at full bandwidth; the root receives one part after the other",
        .source = "gloo/reduce.cc",
        .forms =
            {{kNoForm, kNoForm, {hops_there_and_back, two_of_each_part}, kNoForm, kNoForm, kNoForm, kNoForm, kNoForm}}},
    // Members see each other's memory. all_reduce: each sums its n-th of everyone's array (reads (n−1)/n s from others),
    // all meet, then each copies the other n−1 parts. broadcast: all copy from the root at once; reduce: the root reads
    // everyone's. The others: each copies (or sums) what it gets.
    CollectiveAlgorithm{
        .name = "direct",
        .equation = "all_reduce: 2 steps, 2(n-1)/n s bytes; broadcast: 1 step, s bytes; reduce: 1 step, (n-1) s bytes; "
                    "scatter: 1 step, s/n bytes; the others: 1 step, (n-1)/n s bytes",
        .assumes =
            "reading another member's memory costs the link; members that read the same memory don't slow each other",
        .source = "backend/world/local.cpp",
        .forms = {{{two, two_of_each_part},
                   {one, one},
                   {one, hops},
                   {one, all_but_ones_own},
                   {one, all_but_ones_own},
                   {one, all_but_ones_own},
                   {one, one_part},
                   {one, all_but_ones_own}}}}};

const ClosedForm& form_of(const CollectiveAlgorithm& algorithm, CollectiveKind kind) {
  if (!algorithm.is_for(kind))
    throw InternalError("'{}' has nothing for collective kind {}", algorithm.name, static_cast<int>(kind));
  return algorithm.forms[static_cast<std::size_t>(kind)];
}

}  // namespace

bool CollectiveAlgorithm::is_for(CollectiveKind kind) const {
  const auto index = static_cast<std::size_t>(kind);
  return index < forms.size() && forms[index].steps != nullptr;
}

double CollectiveAlgorithm::steps(CollectiveKind kind, std::uint32_t members) const {
  return members == 1 ? 0 : form_of(*this, kind).steps(members);
}

double CollectiveAlgorithm::wire_bytes(CollectiveKind kind, std::uint32_t members, double bytes) const {
  return members == 1 ? 0 : form_of(*this, kind).wire_share(members) * bytes;
}

const Table<CollectiveAlgorithm>& collective_table() {
  static constexpr Table<CollectiveAlgorithm> kTable("collective algorithm", kAlgorithms);
  return kTable;
}

const CollectiveAlgorithm& collective_algorithm(std::string_view world, CollectiveKind kind) {
  const WorldKind& of_world = world_kind(world);
  const auto index = static_cast<std::size_t>(kind);
  check_internal(index < of_world.collectives.size(), "world '{}' has nothing for collective kind {}", world, index);
  return collective_table().at(of_world.collectives[index]);
}

}  // namespace sim
