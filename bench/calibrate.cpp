#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "bench/calibration.hpp"
#include "bench/commands.hpp"
#include "bench/progress.hpp"
#include "sim/text/spec.hpp"

namespace bench {
namespace {

/// The profile's environment remembers, per task, how many rounds it has: a later run goes on there.
constexpr const char* kDone = "rounds_done";

}  // namespace

int calibrate(const CalibrateOptions& options) {
  const std::vector<Job> jobs = make_jobs(options.subject, options.machine);
  sim::Profile profile(options.machine.device);
  const bool resumed = std::filesystem::exists(options.output);
  if (resumed) profile = sim::load_profile(options.output);
  const auto [opened, exit_status_if_done_by_ranks] = open_worlds(options.machine, jobs);
  if (!opened) return exit_status_if_done_by_ranks;
  const Worlds& worlds = *opened;
  if (!resumed) profile.environment = context(options.machine, worlds);
  std::vector<CalibrationTask> tasks = calibration_tasks(jobs, worlds.busy_ranks(), true);
  std::set<std::size_t> rehearsed;
  if (resumed) fmt::print("calibrate: going on with {}\n", options.output);
  Progress progress("calibrate");
  for (std::uint32_t round = 0; round < options.rounds; ++round) {
    progress.begin(fmt::format("round {}/{}", round + 1, options.rounds), round, options.rounds);
    for (std::size_t t = 0; t < tasks.size(); ++t) {
      nlohmann::json& done = profile.environment[kDone][tasks[t].label];
      if (done.is_number_unsigned() && done.get<std::uint32_t>() > round) continue;
      progress.at(tasks[t].label, t, tasks.size());
      if (rehearsed.insert(t).second) rehearse_task(tasks[t], worlds, 1);
      add(measure_task(tasks[t], worlds), tasks[t], profile);
      done = round + 1;
      profile.save(options.output);
    }
  }
  progress.end();
  fmt::print("\n{}\n{} ops and the links above are in {}\n", profile.describe_links(), profile.ops(), options.output);
  return 0;
}

}  // namespace bench
