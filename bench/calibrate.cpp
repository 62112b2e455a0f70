#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "backend/calibrate.hpp"
#include "bench/commands.hpp"
#include "bench/machine.hpp"
#include "bench/progress.hpp"
#include "sim/calibrate/conditions.hpp"
#include "sim/error.hpp"
#include "sim/report/console.hpp"

namespace bench {
namespace {

/// The profile's environment remembers, per task, how many rounds it has: a later run goes on there. By the task's
/// content: a model's file may have changed.
constexpr const char* kDone = "rounds_done";

/// A table of the links with their lines.
std::string describe_links(const sim::Profile& profile) {
  std::string text =
      fmt::format("{:<8} {:<15} {:>7} {:>5} {:>14} {:>14} {:>10} {:>14} {:>16}\n", "world", "kind", "members", "sizes",
                  "smallest_bytes", "largest_bytes", "alpha_us", "bandwidth_GBps", "residual_percent");
  for (const auto& [key, times] : profile.links()) {
    text += fmt::format("{:<8} {:<15} {:>7} {:>5} {:>14} {:>14} ", key.world, key.kind, key.members, times.sizes.size(),
                        times.sizes.begin()->first, times.sizes.rbegin()->first);
    if (const std::optional<sim::AlphaBeta> line = times.line())
      text += fmt::format("{:>10.1f} {:>14} {:>16.1f}\n", line->alpha_s * 1e6,
                          line->s_per_byte > 0 ? fmt::format("{:.3f}", 1e-9 / line->s_per_byte) : "n/a",
                          100 * line->residual);
    else
      text += fmt::format("{:>10} {:>14} {:>16}\n", "n/a", "n/a", "n/a");
  }
  return text;
}

}  // namespace

int calibrate(const Options& options) {
  std::vector<Job> jobs = make_jobs(options.subject, options.machine);
  sim::Profile profile(options.machine.device);
  const bool goes_on = std::filesystem::exists(options.output);
  if (goes_on) profile = sim::load_profile(options.output);
  const Worlds worlds = open_worlds(options.machine, jobs);
  if (worlds.done) return *worlds.done;
  const nlohmann::json here = context(options.machine, worlds);
  if (goes_on) {
    sim::check_same_conditions(profile.environment, here, options.output);
    fmt::print("calibrate: going on with {}\n", sim::printable(options.output));
  } else {
    profile.environment = here;
  }
  std::string skipped;
  std::erase_if(jobs, [&](const Job& job) {
    const std::optional<std::string> reason = why_not(job, options.machine, worlds);
    if (reason) skipped += fmt::format("calibrate: {} skipped: {}\n", to_text(job), *reason);
    return reason.has_value();
  });
  if (jobs.empty()) throw sim::ConfigError("{}", skipped.substr(0, skipped.find('\n')));
  fmt::print("{}", skipped);
  backend::Calibrator calibrator(sim::calibration_tasks(jobs, {.other_sizes = true}), worlds.by_label());
  const std::size_t count = calibrator.tasks().size();
  std::map<int, std::vector<sim::MachineSpeed>> speeds;  // by round
  Progress progress("calibrate");
  for (std::uint32_t round = 0; round < options.rounds; ++round) {
    progress.begin(fmt::format("round {}/{}", round + 1, options.rounds), round, options.rounds);
    for (std::size_t t = 0; t < count; ++t) {
      const sim::CalibrationTask& task = calibrator.tasks()[t];
      nlohmann::json& done = profile.environment[kDone][task.id];
      if (done.is_object() && done.value("rounds", 0U) > round) continue;
      progress.at(task.label, t, count);
      const sim::CalibrationSamples samples = calibrator.visit(t);
      add(samples, task, profile);
      if (samples.speed) speeds[static_cast<int>(round)].push_back(*samples.speed);
      if (const std::optional<double> seconds = seconds_of(task, samples)) profile.add_round(task.label, *seconds);
      done = {{"task", task.label}, {"rounds", round + 1}};
      profile.save(options.output);
    }
  }
  progress.end();
  if (const std::string text = sim::describe_speeds(speeds); !text.empty())
    fmt::print("{}", sim::paragraph(fmt::format("This machine isn't equally fast all the time: {}.", text), ' ', 100));
  fmt::print("\n{}\n{} ops and the links above are in {}\n{}\n", describe_links(profile), profile.ops(),
             sim::printable(options.output),
             fmt::join(sim::wrap(sim::printable(sim::describe_rounds(profile)), ' ', 100), "\n"));
  return 0;
}

}  // namespace bench
