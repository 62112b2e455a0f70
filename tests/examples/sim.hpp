// What the examples in sim's headers don't declare themselves (tests/examples/extract.sh). Compiled, never linked.
#pragma once

#include <fmt/format.h>

#include <fstream>
#include <iostream>
#include <map>

#include "sim/calibrate/conditions.hpp"
#include "sim/calibrate/samples.hpp"
#include "sim/calibrate/speed_model.hpp"
#include "sim/calibrate/tasks.hpp"
#include "sim/cost/collective/collective.hpp"
#include "sim/cost/fit.hpp"
#include "sim/cost/profile.hpp"
#include "sim/lower/lower.hpp"
#include "sim/lower/pass/pass.hpp"
#include "sim/lower/plan.hpp"
#include "sim/report/accuracy.hpp"
#include "sim/report/console.hpp"
#include "sim/report/report.hpp"
#include "sim/report/result.hpp"
#include "sim/simulate/forecast.hpp"
#include "sim/simulate/placed_program.hpp"
#include "sim/simulate/simulate.hpp"
#include "sim/simulate/step.hpp"
#include "sim/strategy/strategy.hpp"
#include "sim/text/spec.hpp"
#include "sim/units.hpp"

namespace sim {

extern Model model;
extern Strategy strategy;
extern Cluster cluster;
extern Device device;
extern JsonObject file;
extern Program program;
extern Role role;
extern Work work;
extern Draft draft;
extern Plan plan;
extern Tables tables;
extern Layout layout;
extern GroupOf groups;
extern TransferMatching transfers;
extern std::unique_ptr<CostModel> cost_model;
extern Profile profile;
extern Costs costs;
extern TransferCost cost;
extern TransferQuestion question;
extern PlacedProgram placed;
extern Factors* factors;
extern Forecast f;
extern StepTime step;
extern Timeline timeline, measured, predicted;
extern std::vector<Timeline> timelines;
extern std::vector<Job> jobs;
extern CalibrationTask task;
extern MachineSpeed before, after, beside_the_steps;
extern std::map<int, std::vector<MachineSpeed>> of_rounds;
extern CalibrationSamples samples_of_task;
extern nlohmann::json context, context_of_today;
extern Result result;
extern Report report;
extern ConsoleColumn times;
extern std::vector<ShapeSample> samples;
extern ShapeFit broader;
extern Demand demand;
extern std::vector<double> samples_s, more_samples_s, shape;
extern TensorSpec x;
extern std::string text;
extern std::vector<std::uint32_t> seen, spread;
extern double s, expected_s, predicted_s;
extern std::int64_t batch;
extern std::size_t index, size, tensors, n;
extern std::uint32_t rank, r, i;

}  // namespace sim
