// What is forecast, measured and calibrated for: a model by a strategy on a cluster.
//
//   const Job job = make_job(load_model("convnet"), "ddp,dp=2", load_cluster("cpu_gloo", 2, 2));
//   forecast(job.program, job.cluster, "analytic");
#pragma once

#include <string>
#include <string_view>

#include "sim/cluster/cluster.hpp"
#include "sim/model/model.hpp"
#include "sim/program/program.hpp"
#include "sim/strategy/strategy.hpp"

namespace sim {

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
