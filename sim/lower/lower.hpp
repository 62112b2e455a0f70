// Model + Strategy → Program.
//
//   Program program = lower(model, parse_strategy("ddp,dp=2", model));
//   const Job job = make_job(load_model("convnet"), "ddp,dp=2", load_cluster("cpu_gloo", 2, 2));
//
// It knows layouts, no strategies (sim/strategy/layout.hpp). Steps: which ranks do the same, with what shapes
// (plan.hpp); the list of each role by the schedule's actions, node by node, forward and backward (role_builder.hpp),
// with redistributions where a value isn't where it is needed (redistribute.hpp) and a send for every tensor that a
// later stage reads; then the passes in `sim/lower/pass`: buffers, sums of gradients, optimizer, frees.
#pragma once

#include "sim/cluster/cluster.hpp"
#include "sim/model/model.hpp"
#include "sim/program/program.hpp"
#include "sim/strategy/strategy.hpp"

namespace sim {

/// What is played and forecast, `bodies` times (sim/program/unroll.hpp). ConfigError when the strategy doesn't fit (batch
/// not divisible, …).
Program lower(const Model& model, const Strategy& strategy);
/// The same with one body: where steps reach into each other a prologue, a body and an epilogue. It has passed `validate`.
Program lower_periodic(const Model& model, const Strategy& strategy);

/// What is forecast, measured and calibrated for: a model by a strategy on a cluster.
struct Job {
  Model model;
  Strategy strategy;
  std::string world;  // as the cluster says: "gloo", or behind a network "gloo@1gbit"
  Program program;
  Cluster cluster;
};
/// ConfigError when the strategy doesn't fit the model.
Job make_job(const Model& model, std::string_view strategy, const Cluster& cluster);

}  // namespace sim
