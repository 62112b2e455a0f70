// Tensors cut along an axis, and put together again, as placements say: for tests of rules.
//
//   parts.push_back(cut(whole, rule.inputs[0], axis, at));         // of each coordinate
//   put_together(parts, rule.inputs[0]).equal(whole);
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include <vector>

#include "backend/rank/initial.hpp"
#include "sim/error.hpp"
#include "sim/mesh/placement.hpp"

namespace backend {

/// What coordinate `at` has of it, in its storage; undefined for nothing.
inline at::Tensor cut(const at::Tensor& whole, const sim::Placement& placement, const sim::Axis& axis,
                      std::uint32_t at) {
  const auto ranges = sim::piece(whole.sizes().vec(), placement, axis, at);
  return ranges ? narrowed(whole, *ranges) : at::Tensor();
}

/// The whole of what the coordinates have. `shares`: of the samples, where something is a mean over them.
inline at::Tensor put_together(const std::vector<at::Tensor>& parts, const sim::Placement& placement,
                               const std::vector<double>& shares = {}) {
  using Kind = sim::Placement::Kind;
  switch (placement.kind) {
    case Kind::replicate:
      for (const at::Tensor& part : parts) EXPECT_TRUE(part.equal(parts[0])) << "replicas differ";
      return parts[0];
    case Kind::shard:
      return at::cat(parts, placement.dim);
    case Kind::partial: {
      std::vector<at::Tensor> weighted;
      for (std::size_t i = 0; i < parts.size(); ++i)
        weighted.push_back(placement.reduction == sim::Reduction::mean ? parts[i] * shares.at(i) : parts[i]);
      return at::stack(weighted).sum(0);
    }
    case Kind::rooted:
      return parts.at(placement.root == sim::kLast ? parts.size() - 1 : placement.root);
    case Kind::own:
      break;
  }
  throw sim::InternalError("copies that differ can't be put together");
}

}  // namespace backend
