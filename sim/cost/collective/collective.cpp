#include "sim/cost/collective/collective.hpp"

#include <algorithm>
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
/// The n-ths that are moved: every member's is reduced in one place, then copied to all.
double two_of_each_part(std::uint32_t n) { return 2 * all_but_ones_own(n); }
double depth(std::uint32_t n) { return std::bit_width(n - 1U); }  // ⌈log2 n⌉
double depth_up_and_down(std::uint32_t n) { return 2 * depth(n); }

double two_of_all(std::uint32_t /*n*/) { return 2; }

constexpr ClosedForm kNoForm{};
/// The closed forms of all_reduce, broadcast, reduce, all_gather, reduce_scatter.
constexpr std::array<ClosedForm, kCollectiveKinds.size()> kRing{{{hops_there_and_back, two_of_each_part, Pattern::ring},
                                                                 {hops, one, Pattern::chain},
                                                                 {hops, one, Pattern::chain},
                                                                 {hops, all_but_ones_own, Pattern::ring},
                                                                 {hops, all_but_ones_own, Pattern::ring},
                                                                 kNoForm,
                                                                 kNoForm,
                                                                 kNoForm}};

/// The forms are those of all_reduce, broadcast, reduce, all_gather, reduce_scatter, all_to_all, scatter, gather.
constexpr std::array kAlgorithms{
    // reduce_scatter and all_gather each go once around the ring in n−1 steps with chunks of s/n bytes; all_reduce is
    // one and then the other. broadcast and reduce: the array goes down a chain from (to) the root in chunks; all links
    // but the first idle until the first chunk comes: n−1 latencies, s bytes.
    CollectiveAlgorithm{
        .name = "ring",
        .equation = "all_reduce: 2(n-1) steps, 2(n-1)/n s bytes; all_gather, reduce_scatter: half of that; broadcast, "
                    "reduce: n-1 steps, s bytes",
        .assumes = "all members send and receive at once at full bandwidth; chunks of a broadcast are small against s",
        .source = "Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, JPDC 69 (2009); gloo/allreduce.cc, "
                  "gloo/allgather.cc; nccl-tests doc/PERFORMANCE.md",
        .forms = kRing},
    CollectiveAlgorithm{.name = "striped_ring",
                        .equation = "as ring, in as many rings as a node has ports, each with its part of the array",
                        .assumes = "as ring; the rings leave and enter a node by different ports",
                        .source = "NCCL src/graph/search.cc (a channel per NIC), src/graph/tuning.cc",
                        .forms = kRing,
                        .is_striped = true},
    // A chain inside each node, and between the nodes two binary trees, each with half of the array: who is a leaf in
    // one is none in the other.
    CollectiveAlgorithm{
        .name = "double_tree",
        .equation = "all_reduce: 2(g-1) steps in a node of g, 2 ceil(log2 N) between N nodes, 2 s bytes on each link",
        .assumes = "the array goes in chunks that are small against it; adding is free",
        .source = "Sanders, Speck and Traff, Two-tree algorithms for full bandwidth broadcast, reduction and scan, "
                  "Parallel Computing 35 (2009); NCCL src/graph/tuning.cc (half of the bus bandwidth)",
        .forms = {{{hops_there_and_back, two_of_all, Pattern::double_tree},
                   kNoForm,
                   kNoForm,
                   kNoForm,
                   kNoForm,
                   kNoForm,
                   kNoForm,
                   kNoForm}},
        .is_striped = true},
    // A binomial tree: the members that have the array double in every step. The root sends the whole array in each of
    // them, so its link carries all ⌈log2 n⌉ copies. reduce: the same tree towards the root, adding; all_reduce: that
    // and then the broadcast.
    CollectiveAlgorithm{
        .name = "tree",
        .equation = "broadcast, reduce: ceil(log2 n) steps, ceil(log2 n) s bytes; all_reduce: twice that",
        .assumes = "a member passes the array on when it has all of it; adding is free",
        .source =
            "Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in MPICH (2005); "
            "gloo/broadcast.cc",
        .forms = {{{depth_up_and_down, depth_up_and_down, Pattern::binomial},
                   {depth, depth, Pattern::binomial},
                   {depth, depth, Pattern::binomial},
                   kNoForm,
                   kNoForm,
                   kNoForm,
                   kNoForm,
                   kNoForm}}},
    // In step k each member exchanges its parts with the member k places further: whatever isn't one's own goes once
    // over one's link. scatter and gather: the root's.
    CollectiveAlgorithm{.name = "pairwise",
                        .equation = "all_to_all, reduce_scatter, scatter, gather: n-1 steps, (n-1)/n s bytes",
                        .assumes = "all members send and receive at once at full bandwidth; adding is free",
                        .source = "Thakur, Rabenseifner and Gropp (2005), section 4.3; gloo/alltoallv.cc",
                        .forms = {{kNoForm,
                                   kNoForm,
                                   kNoForm,
                                   kNoForm,
                                   {hops, all_but_ones_own, Pattern::all_pairs},
                                   {hops, all_but_ones_own, Pattern::all_pairs},
                                   {hops, all_but_ones_own, Pattern::from_root},
                                   {hops, all_but_ones_own, Pattern::from_root}}}},
    // A ring's reduce_scatter, after which each member sends its sum to the root.
    CollectiveAlgorithm{
        .name = "ring_gather",
        .equation = "reduce: 2(n-1) steps, 2(n-1)/n s bytes",
        .assumes = "all members send and receive at once at full bandwidth; the root receives one part after the other",
        .source = "gloo/reduce.cc",
        .forms = {{kNoForm,
                   kNoForm,
                   {hops_there_and_back, two_of_each_part, Pattern::ring_and_root},
                   kNoForm,
                   kNoForm,
                   kNoForm,
                   kNoForm,
                   kNoForm}}},
    // Members see each other's memory. all_reduce: each sums its n-th of everyone's array (reads (n−1)/n s from
    // others), all meet, then each copies the other n−1 parts. broadcast: all copy from the root at once; reduce: the
    // root reads everyone's. The others: each copies (or sums) what it gets.
    CollectiveAlgorithm{
        .name = "direct",
        .equation = "all_reduce: 2 steps, 2(n-1)/n s bytes; broadcast: 1 step, s bytes; reduce: 1 step, (n-1) s bytes; "
                    "scatter: 1 step, s/n bytes; the others: 1 step, (n-1)/n s bytes",
        .assumes =
            "reading another member's memory costs the link; members that read the same memory don't slow each other",
        .source = "backend/world/local.cpp",
        .forms = {{{two, two_of_each_part, Pattern::all_pairs},
                   {one, one, Pattern::from_root},
                   {one, hops, Pattern::from_root},
                   {one, all_but_ones_own, Pattern::all_pairs},
                   {one, all_but_ones_own, Pattern::all_pairs},
                   {one, all_but_ones_own, Pattern::all_pairs},
                   {one, one_part, Pattern::from_root},
                   {one, all_but_ones_own, Pattern::from_root}}}}};

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

namespace {

/// A level's units, m members in each, `units` of them in a group and `all` altogether; M members in a group.
struct Units {
  double n = 2, m = 1, units = 1, all = 1;
  [[nodiscard]] double in_group() const { return std::min(n, m * units); }
  [[nodiscard]] bool is_last() const { return in_group() >= n; }
};

/// The traffic in shares of s: what `of_member` says leaves each member.
LevelTraffic cross(Pattern pattern, CollectiveKind kind, const Units& at, double of_member) {
  const auto [n, m, units, all] = at;
  const double group = at.in_group(), outside = at.is_last() ? 0 : 1;
  const auto from_root = [&] {
    const bool parts = kind == CollectiveKind::scatter || kind == CollectiveKind::gather;
    const double others = (n - m) / (parts ? n : 1);
    return LevelTraffic{.port_bytes = m == 1 ? of_member : others, .flows = 1, .bus_bytes = others};
  };
  switch (pattern) {
    case Pattern::ring:
      return {.port_bytes = of_member, .flows = 1, .bus_bytes = (units + outside) * of_member};
    case Pattern::chain:
      return {.port_bytes = of_member, .flows = 1, .bus_bytes = (units - 1 + 2 * outside) * of_member};
    case Pattern::all_pairs:
      return {.port_bytes = m * (n - m) / (n - 1) * of_member,
              .flows = m,
              .bus_bytes = (group * (group - m) + 2 * group * (n - group)) / (n - 1) * of_member};
    case Pattern::from_root:
      return from_root();
    case Pattern::ring_and_root: {
      const double ring = (n - 1) / n;
      const double to_root = (n - m) / n;
      return {.port_bytes = ring + to_root, .flows = 1, .bus_bytes = (units + outside) * ring + to_root};
    }
    case Pattern::binomial: {
      const double ways = kind == CollectiveKind::all_reduce ? 2 : 1;
      const double copies = depth(static_cast<std::uint32_t>(all));
      return {.port_bytes = ways * m * copies,
              .flows = m,
              .bus_bytes = ways * (m * (units - 1) + outside * group * copies)};
    }
    case Pattern::double_tree:
      return {.port_bytes = 2, .flows = 1, .bus_bytes = 2 * (units - 1 + 2 * outside)};
  }
  throw InternalError("pattern {}", static_cast<int>(pattern));
}

}  // namespace

std::vector<LevelTraffic> CollectiveAlgorithm::traffic(CollectiveKind kind, std::uint32_t members,
                                                       std::span<const std::uint32_t> spread, double bytes) const {
  std::vector<LevelTraffic> levels(spread.size());
  if (members == 1) return levels;
  const ClosedForm& form = form_of(*this, kind);
  const auto steps_among = [&](std::uint32_t units) { return units > 1 ? form.steps(units) : 0; };
  std::uint32_t all = 1;  // units of the level above that have members
  for (std::size_t level = spread.size(); level-- > 0;) {
    const std::uint32_t units = level == 0 ? members : all * spread[level];
    std::uint32_t inside = 1;
    for (std::size_t below = 0; below < level; ++below) inside *= spread[below];
    const Units at{.n = static_cast<double>(members),
                   .m = static_cast<double>(std::min(inside, members)),
                   .units = static_cast<double>(spread[level]),
                   .all = static_cast<double>(units)};
    LevelTraffic& here = levels[level];
    here = cross(form.pattern, kind, at, form.wire_share(members));
    here.port_bytes *= bytes, here.bus_bytes *= bytes, here.members = at.m, here.units = spread[level];
    if (form.pattern == Pattern::double_tree)
      here.steps = level + 1 == spread.size() && level > 0 ? 2 * depth(spread[level]) : 2 * (spread[level] - 1.0);
    else
      here.steps = steps_among(units) - steps_among(all);
    all = units;
  }
  return levels;
}

const Table<CollectiveAlgorithm>& collective_table() {
  static constexpr Table<CollectiveAlgorithm> kTable("collective algorithm", kAlgorithms);
  return kTable;
}

namespace {

std::string_view names_of(const WorldCollectives& collectives, CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::all_reduce:
      return collectives.all_reduce;
    case CollectiveKind::broadcast:
      return collectives.broadcast;
    case CollectiveKind::reduce:
      return collectives.reduce;
    case CollectiveKind::all_gather:
      return collectives.all_gather;
    case CollectiveKind::reduce_scatter:
      return collectives.reduce_scatter;
    case CollectiveKind::all_to_all:
      return collectives.all_to_all;
    case CollectiveKind::scatter:
      return collectives.scatter;
    case CollectiveKind::gather:
      return collectives.gather;
  }
  throw InternalError("collective kind {}", static_cast<int>(kind));
}

}  // namespace

std::vector<const CollectiveAlgorithm*> collective_algorithms(std::string_view world, CollectiveKind kind) {
  std::vector<const CollectiveAlgorithm*> algorithms;
  std::string_view names = names_of(world_kind(world).collectives, kind);
  while (!names.empty()) {
    const std::size_t end = std::min(names.find(' '), names.size());
    algorithms.push_back(&collective_table().at(names.substr(0, end)));
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  return algorithms;
}

const CollectiveAlgorithm& collective_algorithm(std::string_view world, CollectiveKind kind) {
  return *collective_algorithms(world, kind).front();
}

}  // namespace sim
