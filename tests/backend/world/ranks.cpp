#include "tests/backend/world/ranks.hpp"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include <numeric>
#include <optional>
#include <thread>

#include "backend/machine/scheduling.hpp"
#include "backend/session.hpp"
#include "sim/error.hpp"

namespace backend {
namespace {

using sim::CollectiveKind;
using sim::Moved;
using Tensors = std::vector<at::Tensor>;

/// One collective, and what its members give.
struct Case {
  CollectiveKind kind;
  std::uint32_t root = 0, members = 1;
  sim::Reduction reduction = sim::Reduction::sum;
  at::ScalarType dtype = at::kFloat;
  /// All parts are of one size, in one tensor; else of other sizes in a tensor each, with storages of their own or one.
  enum class Parts : std::uint8_t { even, uneven, uneven_together } parts = Parts::even;

  [[nodiscard]] bool moves_parts() const {
    return kind != CollectiveKind::all_reduce && kind != CollectiveKind::broadcast && kind != CollectiveKind::reduce;
  }
  /// Block `block` of what member `m` gives: numbers that name both. Where it gives all alike, it is of the giver's size,
  /// else of the receiver's.
  [[nodiscard]] at::Tensor given(std::uint32_t m, std::uint32_t block) const {
    const bool of_giver = kind == CollectiveKind::all_gather || kind == CollectiveKind::gather;
    const std::int64_t size = !moves_parts() ? 7 : parts == Parts::even ? 5 : 3 + 2 * (of_giver ? m : block);
    return (at::arange(size, at::kDouble) + (100.0 * m + 10.0 * block + 1)).to(dtype);
  }
  /// Block `block` of every member, reduced on one device.
  [[nodiscard]] at::Tensor reduced(std::uint32_t block) const {
    Tensors given_by_all;
    for (std::uint32_t m = 0; m < members; ++m) given_by_all.push_back(given(m, block));
    const at::Tensor all = at::stack(given_by_all);
    return reduction == sim::Reduction::sum   ? all.sum(0)
           : reduction == sim::Reduction::max ? at::amax(all, 0)
                                              : all.mean(0);
  }
  /// What member `me` has in the end: nothing where it gets nothing.
  [[nodiscard]] Tensors got(std::uint32_t me) const {
    const auto of_each = [&](std::uint32_t block) {
      Tensors all;
      for (std::uint32_t m = 0; m < members; ++m) all.push_back(given(m, block));
      return parts == Parts::even && members > 1 ? Tensors{at::cat(all)} : all;
    };
    switch (kind) {
      case CollectiveKind::all_reduce:
        return {reduced(0)};
      case CollectiveKind::broadcast:
        return {given(root, 0)};
      case CollectiveKind::reduce:
        return me == root ? Tensors{reduced(0)} : Tensors{};
      case CollectiveKind::all_gather:
        return of_each(0);
      case CollectiveKind::reduce_scatter:
        return {reduced(me)};
      case CollectiveKind::all_to_all:
        return of_each(me);
      case CollectiveKind::scatter:
        return {given(root, me)};
      case CollectiveKind::gather:
        return me == root ? of_each(0) : Tensors{};
    }
    throw sim::InternalError("collective kind {}", static_cast<int>(kind));
  }
  [[nodiscard]] std::string text() const {
    return fmt::format("{} ({}) from {} of {}, {}, {}", to_string(kind), to_string(reduction), root, members,
                       c10::toString(dtype), std::array{"even", "uneven", "uneven together"}[std::size_t(parts)]);
  }
};

/// One after the other in one storage.
Tensors together(const Tensors& tensors) {
  if (tensors.empty()) return {};
  const at::Tensor all = at::cat(tensors);
  Tensors views;
  std::int64_t begin = 0;
  for (const at::Tensor& tensor : tensors) {
    views.push_back(all.narrow(0, begin, tensor.numel()));
    begin += tensor.numel();
  }
  return views;
}

void play(Communicator& rank, const Case& one) {
  const std::uint32_t me = rank.rank();
  const sim::CollectiveOperands operands = operands_of(one.kind, me == one.root);
  Tensors reads, expected = one.got(me);
  const std::uint32_t blocks = operands.reads == Moved::nothing ? 0 : operands.reads == Moved::array ? 1 : one.members;
  for (std::uint32_t block = 0; block < blocks; ++block) reads.push_back(one.given(me, block));
  if (one.parts == Case::Parts::even && blocks > 1) reads = {at::cat(reads)};
  const Tensors before = reads;
  for (at::Tensor& tensor : reads) tensor = tensor.to(rank.device(), /*non_blocking=*/false, /*copy=*/true);
  if (one.parts == Case::Parts::uneven_together) reads = together(reads);
  Tensors writes;
  if (operands.in_place) {
    writes = reads;
  } else if (operands.writes != Moved::nothing) {
    for (const at::Tensor& tensor : expected) writes.push_back(at::full_like(tensor, -1).to(rank.device()));
    if (one.parts == Case::Parts::uneven_together) writes = together(writes);
  }
  rank.begin_step();
  Completion done;
  rank.wait(rank.post_collective({one.kind, 0, one.root, one.reduction}, reads, writes), done);
  rank.end_step();
  ASSERT_EQ(writes.size(), operands.writes == Moved::nothing ? 0 : expected.size());
  for (std::size_t k = 0; k < writes.size(); ++k)
    EXPECT_TRUE(writes[k].cpu().allclose(expected[k], /*rtol=*/one.reduction == sim::Reduction::mean ? 1e-6 : 0, 0))
        << writes[k].cpu() << expected[k];
  for (std::size_t k = 0; k < reads.size() && !operands.in_place; ++k)
    EXPECT_TRUE(reads[k].cpu().equal(before[k])) << "what it read has changed";
}

}  // namespace

std::vector<sim::Group> everyone(std::uint32_t ranks) { return {{"data", 1, sim::Mesh{{{"rank", ranks}}}}}; }

std::vector<std::string> execute_local(std::uint32_t ranks, double timeout_s, const RankBody& execute,
                                       const std::string& device) {
  const World world = world_table().at("local").make({.ranks = ranks, .device = device, .timeout_s = timeout_s});
  std::vector<std::string> errors(ranks);
  std::vector<std::jthread> threads;
  for (std::uint32_t r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      pin_to_core(core_of_rank(r));
      at::set_num_threads(1);  // OpenMP's threads would spin on this rank's core
      std::optional<RealTime> urgent;
      if (device == "cpu") urgent.emplace(kComputePriority);
      try {
        execute(*world.ranks[r]);
      } catch (const std::exception& error) {
        errors[r] = error.what();
        world.ranks[r]->abandon();
      }
    });
  threads.clear();
  return errors;
}

void expect_no_errors(const std::vector<std::string>& errors) {
  for (std::size_t r = 0; r < errors.size(); ++r) EXPECT_EQ(errors[r], "") << "rank " << r;
}

void do_collectives(Communicator& rank) {
  using sim::Reduction;
  const std::uint32_t n = rank.size();
  rank.prepare(everyone(n), n);
  for (const CollectiveKind kind : sim::kCollectiveKinds)
    for (const Reduction reduction : {Reduction::sum, Reduction::mean, Reduction::max})
      for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kLong})
        for (const Case::Parts parts : {Case::Parts::even, Case::Parts::uneven, Case::Parts::uneven_together})
          for (std::uint32_t root = 0; root < (has_root(kind) ? n : 1); ++root) {
            const bool has_none = !reduces(kind) || (reduction == Reduction::mean && dtype == at::kLong);
            if (reduction != Reduction::sum && has_none) continue;
            const Case one{kind, root, n, reduction, dtype, parts};
            SCOPED_TRACE(one.text());
            play(rank, one);
          }
}

}  // namespace backend
