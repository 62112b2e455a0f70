#include <fmt/format.h>

#include "backend/calibrate.hpp"
#include "bench/commands.hpp"
#include "bench/machine.hpp"
#include "sim/cost/origin.hpp"
#include "sim/error.hpp"
#include "sim/simulate/forecast.hpp"
#include "sim/simulate/simulate.hpp"
#include "sim/text/spec.hpp"

namespace bench {

int trace(const Options& options) {
  const std::vector<Job> jobs = make_jobs(options.subject, options.machine);
  if (jobs.size() != 1)
    throw sim::ConfigError("trace takes one model, one strategy and one world, found {} combinations", jobs.size());
  const Job& job = jobs[0];
  sim::Profile profile(options.machine.device);
  if (!options.profile.empty()) {
    profile = sim::load_profile(options.profile);
    sim::check_origin(profile, job.cluster);  // before anything runs
  }
  const Worlds worlds = open_worlds(options.machine, jobs);
  if (worlds.done) return *worlds.done;
  if (const std::optional<std::string> reason = why_not(job, options.machine, worlds))
    throw sim::ConfigError("trace: {} {}", to_text(job), *reason);
  if (options.profile.empty()) {
    profile.environment = context(options.machine, worlds);
    backend::Calibrator calibrator(sim::calibration_tasks(jobs), worlds.by_label());
    for (std::size_t t = 0; t < calibrator.tasks().size(); ++t)
      add(calibrator.visit(t), calibrator.tasks()[t], profile);
  }
  const sim::Timeline measured =
      worlds.at(job.world).run({.program = job.program, .warmup_steps = 2, .steps = 1}).steps[0].timeline;
  const sim::Forecast forecast =
      sim::forecast(job.program, job.cluster, *sim::make_cost_model("profiled", job.cluster, &profile));
  const sim::Timeline predicted = sim::simulate(job.program, forecast.costs, job.cluster);
  sim::write_text_file(options.output,
                       sim::chrome_trace(job.program, {{"predicted", &predicted}, {"measured", &measured}}));
  fmt::print("{}: predicted {:.3f} ms, measured {:.3f} ms, written to {}\n", to_text(job), forecast.step.step_s * 1e3,
             sim::step_time(job.program, measured).step_s * 1e3, sim::printable(options.output));
  return 0;
}

}  // namespace bench
