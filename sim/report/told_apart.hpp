// Whether the forecasts of two strategies lie far enough apart to say which is faster.
//
//   const ComparedForecast ddp{.step_s = 0.074, .ratio_sd = 0.18}, pipeline{.step_s = 0.182, .ratio_sd = 0.18};
//   told_apart(ddp, pipeline);      // true: ln(182 / 74) = 0.90 > 1.645 · 0.18
//
// A paired comparison: both forecasts are made of the same costs, so what is wrong about both alike cancels, and most
// of a forecast's own interval says nothing of their order. What is left of the error of ln(b / a) has the variance
//
//   r²                          ratios of this cost model to `single` have varied by r around their mean error on machines
//                               that were measured; of `single` and another, around none
//   + Σ (b_k − a_k)²            a kind of op (k: that was measured) that takes longer than forecast does so in both
//   + (Σ b_g − Σ a_g)²          so do all kinds that are guessed together; g: these
//   + (κ (Σ a_g + Σ b_g) / 2)²  but a guess isn't equally wrong for other shapes; only kinds whose works differ
//
// where a_k is by how much the kind may be wrong, as a share of the step (sim/simulate/forecast.hpp, KindSpread). They
// are told apart where |ln(b / a)| exceeds 1.645 standard deviations: one in twenty such orders is wrong. Of the
// committed pairs of strategies that were measured here it is one in 56 for `analytic`, none for the others
// (tests/sim/report/committed_result_test.cpp).
//
// Assumes: where the cost model has no record on a device, it knows as much of ratios there as where it has one.
#pragma once

#include <optional>
#include <vector>

#include "sim/simulate/forecast.hpp"

namespace sim {

/// κ. Of kinds and ops that were left out of a profile, the steps' ratios at two and four times the batch were off by
/// 0.12 and 0.25 of what the steps themselves may be (root mean square, ResNet-18 and the ConvNet;
/// tests/sim/cost/fitted_test.cpp holds the intervals that follow).
constexpr double kGuessAtOtherShapes = 0.25;

struct ComparedForecast {
  double step_s = 0;
  std::vector<KindSpread> spreads;  // empty: the cost model says nothing of them, or they aren't known any more
  double stated_sd = 0;             // of ln(true step / forecast), by the forecast itself; counts where spreads don't
  std::optional<double> ratio_sd;   // of the errors of ratios to `single`, by a track record (RatioRecord)
};

/// The standard deviation of the error of ln(b / a); nothing where neither a record nor the forecasts say anything.
std::optional<double> ratio_sd(const ComparedForecast& a, const ComparedForecast& b);
/// Not where nothing is known of the errors.
bool told_apart(const ComparedForecast& a, const ComparedForecast& b);

}  // namespace sim
