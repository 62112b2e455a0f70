#include "tests/backend/world/ranks.hpp"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full_like.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <optional>
#include <thread>

#include "backend/machine/scheduling.hpp"
#include "backend/session.hpp"

namespace backend {
namespace {

using sim::CollectiveKind;
using sim::Moved;
using Tensors = std::vector<at::Tensor>;

/// One collective, and what its members give.
struct Case {
  CollectiveKind kind;
  std::uint32_t root = 0, members = 1;
  at::ScalarType dtype = at::kFloat;
  bool even = true;  // all parts are of one size

  [[nodiscard]] bool moves_parts() const {
    return kind != CollectiveKind::all_reduce && kind != CollectiveKind::broadcast && kind != CollectiveKind::reduce;
  }
  /// Block `block` of what member `m` gives: numbers that name both. Where it gives all alike, it is of the giver's size,
  /// else of the receiver's.
  [[nodiscard]] at::Tensor given(std::uint32_t m, std::uint32_t block) const {
    const bool of_giver = kind == CollectiveKind::all_gather || kind == CollectiveKind::gather;
    const std::int64_t size = !moves_parts() ? 7 : even ? 5 : 3 + 2 * (of_giver ? m : block);
    return (at::arange(size, at::kDouble) + (100.0 * m + 10.0 * block + 1)).to(dtype);
  }
  /// What member `me` gets, by block: a plain sum, on one device.
  [[nodiscard]] Tensors got(std::uint32_t me) const {
    std::map<std::uint32_t, at::Tensor> blocks;
    sim::for_each_move(kind, members, root, [&](const sim::Move& move) {
      if (move.to != me) return;
      at::Tensor sum;
      for (std::uint32_t m = 0; m < members; ++m)
        if (move.from == sim::kEveryone || move.from == m)
          sum = sum.defined() ? sum + given(m, move.from_block) : given(m, move.from_block);
      blocks[move.block] = sum;
    });
    Tensors tensors;
    for (const auto& [block, tensor] : blocks) tensors.push_back(tensor);
    return even && tensors.size() > 1 ? Tensors{at::cat(tensors)} : tensors;
  }
  [[nodiscard]] std::string text() const {
    return fmt::format("{} from {} of {}, {}, {}", to_string(kind), root, members, c10::toString(dtype),
                       even ? "even" : "uneven");
  }
};

void play(Communicator& rank, const Case& one) {
  const std::uint32_t me = rank.rank();
  const sim::CollectiveOperands operands = operands_of(one.kind, me == one.root);
  Tensors reads, expected = one.got(me);
  const std::uint32_t blocks = operands.reads == Moved::nothing ? 0 : operands.reads == Moved::array ? 1 : one.members;
  for (std::uint32_t block = 0; block < blocks; ++block) reads.push_back(one.given(me, block));
  if (one.even && blocks > 1) reads = {at::cat(reads)};
  const Tensors before = reads;
  for (at::Tensor& tensor : reads) tensor = tensor.to(rank.device(), /*non_blocking=*/false, /*copy=*/true);
  Tensors writes;
  if (operands.in_place) {
    writes = reads;
    if (expected.empty()) expected = before;  // the root of a broadcast
  } else if (operands.writes != Moved::nothing) {
    for (const at::Tensor& tensor : expected) writes.push_back(at::full_like(tensor, -1).to(rank.device()));
  }
  rank.begin_step();
  Completion done;
  rank.wait(rank.post_collective({one.kind, 0, one.root}, reads, writes), done);
  rank.end_step();
  ASSERT_EQ(writes.size(), operands.writes == Moved::nothing ? 0 : expected.size());
  for (std::size_t k = 0; k < writes.size(); ++k)
    EXPECT_TRUE(writes[k].cpu().equal(expected[k])) << writes[k].cpu() << expected[k];
  for (std::size_t k = 0; k < reads.size() && !operands.in_place; ++k)
    EXPECT_TRUE(reads[k].cpu().equal(before[k])) << "what it read has changed";
}

}  // namespace

std::vector<sim::Group> everyone(std::uint32_t ranks) {
  std::vector<std::uint32_t> members(ranks);
  std::iota(members.begin(), members.end(), 0);
  return {{"data", {members}}};
}

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
  const std::uint32_t n = rank.size();
  rank.prepare(everyone(n), n);
  for (const CollectiveKind kind : sim::kCollectiveKinds)
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kLong})
      for (const bool even : {true, false})
        for (std::uint32_t root = 0; root < (has_root(kind) ? n : 1); ++root) {
          const Case one{kind, root, n, dtype, even};
          SCOPED_TRACE(one.text());
          play(rank, one);
        }
}

}  // namespace backend
