#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <span>

#include "backend/calibrate.hpp"
#include "backend/machine/launch.hpp"
#include "backend/machine/scheduling.hpp"
#include "bench/commands.hpp"
#include "bench/machine.hpp"
#include "bench/peers.hpp"
#include "bench/progress.hpp"
#include "sim/calibrate/speed_model.hpp"
#include "sim/cluster/world.hpp"
#include "sim/report/answer.hpp"
#include "sim/report/report.hpp"
#include "sim/simulate/attribution.hpp"
#include "sim/simulate/forecast.hpp"
#include "sim/simulate/simulate.hpp"
#include "sim/text/spec.hpp"

namespace bench {
namespace {

/// What a round keeps of a cell's visits. No timelines: of a small model's steps they would be larger than the model,
/// in the very process whose memory is measured.
struct Measured {
  void add(const Job& job, const backend::RunResult& run, sim::Cell& cell) {
    if (round.measured.empty()) second_loss = run.losses.at(1);
    add_measured(cell, round, job.program, run);
    if (run.speed) speeds.push_back(*run.speed);
    if (job.cluster.one_launch) return;  // only the whole step has a time
    for (const backend::StepResult& step : run.steps) {
      const sim::Durations durations = sim::durations_of(job.program, step.timeline, job.cluster);
      replayed_s += sim::step_time(job.program, sim::replay(job.program, durations, job.cluster)).step_s;
      steps.add(job.program, step.timeline, durations);
    }
    round.replayed_s = replayed_s / static_cast<double>(steps.count);
  }

  sim::Round round;
  sim::MeasuredSteps steps;
  std::vector<sim::MachineSpeed> speeds;              // by visit
  double second_loss = 0, replayed_s = 0;             // the latter of all steps together
  std::map<std::string_view, Peers::Answer> answers;  // of plain PyTorch, by sim::kPeers
};

/// The forecasts of one cell from this round's calibration, and where they differ from the measured steps.
void add_forecasts(const Job& job, const sim::Profile& own, const sim::Profile& others,
                   const sim::MeasuredSteps& measured, sim::Round& round, sim::Cell& cell) {
  for (const sim::CostModelKind& kind : sim::cost_model_table()) {
    const sim::Profile& profile = kind.for_other_shapes ? others : own;
    if (kind.needs_profile && profile.ops() == 0) continue;
    const sim::Forecast forecast =
        sim::forecast(job.program, job.cluster, *sim::make_cost_model(kind.name, job.cluster, &profile));
    round.add_forecast(std::string(kind.name), forecast);
    if (measured.count > 0) {
      const sim::Timeline predicted = sim::simulate(job.program, forecast.costs, job.cluster);
      cell.attribution[std::string(kind.name)].add(
          sim::attribute_cost_error(job.program, job.cluster, predicted, forecast.step.step_s, measured).classes);
    }
    if (!kind.needs_profile || kind.for_other_shapes) continue;  // only measured shapes have measured workspaces
    const sim::MemoryForecast held =
        sim::forecast_memory(job.program, forecast.costs, job.cluster, profile.process_bytes(job.world),
                             sim::world_kind(job.world).processes);
    sim::place(cell, job.program, job.cluster, forecast.costs.workspace_bytes);
    cell.memory.predicted_allocator_peak_bytes = held.allocator_peak_bytes;
    cell.memory.predicted_resident_peak_bytes = held.resident_peak_bytes;
  }
}

/// "r.json" → "r.profile.json".
std::filesystem::path beside(const std::string& result, const std::string& name) {
  return std::filesystem::path(result).replace_extension(name + ".json");
}

sim::Profile load_or_new(const std::filesystem::path& path, const std::string& device) {
  return std::filesystem::exists(path) ? sim::load_profile(path) : sim::Profile(device);
}

/// Of a result file that isn't there yet. ConfigError where one is: a profile of something else, or of a result that is gone.
void check_no_profiles(const Options& options) {
  if (options.json.empty()) return;
  for (const char* name : {".profile", ".fit_profile"}) {
    const std::filesystem::path path = beside(options.json, name);
    if (std::filesystem::exists(path))
      throw sim::ConfigError(
          "{} is there, but {}, beside which it would be written, isn't; remove it, or name another file",
          path.string(), options.json);
  }
}

/// Whether plain PyTorch was asked for, and has fewer rounds than ours.
bool lack_peers(const Options& options, const std::vector<Job>& jobs, const sim::Result& result, int rounds) {
  return options.peers && std::ranges::any_of(jobs, [&](const Job& job) {
           if (!has_peer(job.model, job.strategy, job.world)) return false;
           const auto cell = result.find(job.program.model, job.program.strategy, job.world, sim::kPeers[0]);
           return !cell || (result.cells[*cell].skipped.empty() && std::ssize(result.cells[*cell].rounds) < rounds);
         });
}

bool has_samples(const sim::Result& result) {
  return std::ranges::any_of(result.cells, [](const sim::Cell& cell) {
    return std::ranges::any_of(cell.rounds, [](const sim::Round& round) { return !round.measured.samples.empty(); });
  });
}

/// What the cost model for other shapes may know: nothing of the compared models.
class OtherShapes {
 public:
  explicit OtherShapes(const std::vector<Job>& compared) {
    for (const Job& job : compared) {
      for (const sim::Work& work : job.program.works) works_.insert(sim::work_key(work));
      for (const sim::Role& role : job.program.roles)
        for (std::uint32_t i = 0; i < role.size(); ++i)
          if (role.kind[i] == sim::InstructionKind::send || role.kind[i] == sim::InstructionKind::collective)
            sizes_.insert(job.program.transfer_bytes(role, i));
    }
  }
  [[nodiscard]] sim::CalibrationSamples of(sim::CalibrationSamples samples, const sim::CalibrationTask& task) const {
    std::erase_if(samples.works, [&](const auto& work) { return works_.contains(work.first); });
    std::erase_if(samples.workspaces, [&](const auto& work) { return works_.contains(work.first); });
    if (sizes_.contains(task.question.bytes)) samples.link = samples.unexpected = {};
    return samples;
  }

 private:
  std::set<std::string> works_;
  std::set<std::int64_t> sizes_;  // of transfers
};

/// Steps of a visit to a job, and to its ops: as many for everything of a model on a device, for a step's time depends
/// on how many went before. By the data sheet: so they don't depend on what else is compared.
std::uint32_t steps_of(const Job& job, std::uint32_t least) {
  const sim::Job single = sim::make_job(job.model, "single", job.cluster);
  const std::unique_ptr<sim::CostModel> sheet = sim::make_cost_model("analytic", single.cluster);
  const std::uint32_t steps =
      backend::steps_for(sim::forecast(single.program, single.cluster, *sheet).step.step_s, least);
  // Of training steps that are played together as many in all, but two lists for a spread.
  const auto together = static_cast<std::uint32_t>(job.program.steps_in_list());
  return together == 1 ? steps : std::max(2U, steps / together);
}

/// The tasks of the jobs, and after them those of the models to fit on, which are nobody's own.
std::vector<sim::CalibrationTask> tasks_of(const Options& options, const std::vector<Job>& jobs) {
  const bool fits = !options.fit_on.empty();
  std::vector<sim::CalibrationTask> tasks = sim::calibration_tasks(jobs, {.other_sizes = fits});
  if (!fits) return tasks;
  std::uint32_t busy = 1;
  for (const sim::CalibrationTask& task : tasks)
    if (task.only_computes()) busy = std::max(busy, task.ranks());
  Machine machine = options.machine;
  machine.ranks = 0;
  std::set<std::string> singles;  // what a thread takes says nothing of two
  for (const Job& job : jobs)
    singles.insert(job.strategy.threads == 1 ? "single" : fmt::format("single,threads={}", job.strategy.threads));
  const std::vector<Job> others = make_jobs({options.fit_on, {singles.begin(), singles.end()}}, machine);
  for (sim::CalibrationTask& task : sim::calibration_tasks(others, {.busy_ranks = busy})) {
    task.jobs.clear();
    tasks.push_back(std::move(task));
  }
  return tasks;
}

/// A round visits everything in shuffled order: the calibration tasks, the jobs, and the same steps in plain PyTorch.
/// Then it forecasts each job from what it has calibrated.
class Rounds {
 public:
  Rounds(const Options& options, const std::vector<Job>& jobs, const Worlds& worlds, bool goes_on)
      : options_(options),
        jobs_(jobs),
        worlds_(worlds),
        calibrator_(tasks_of(options, jobs), worlds.by_label(), options.visits),
        other_shapes_(jobs) {
    for (const Job& job : jobs) steps_.push_back(steps_of(job, options.steps));
    if (goes_on) {
      kept_ = load_or_new(beside(options.json, ".profile"), kept_.device);
      kept_others_ = load_or_new(beside(options.json, ".fit_profile"), kept_.device);
    }
    // The forecasts' profiles, too, say what they were measured on.
    kept_.environment = kept_others_.environment = empty_.environment = context(options.machine, worlds);
    if (options.peers) peers_.emplace(options.machine, worlds.at("local").options().ranks);  // as many as any job needs
  }

  /// Runs everything for a moment, so that nothing is cold, and to know how long it takes; keeps no times.
  void rehearse() {
    Progress progress("compare");
    progress.begin("rehearsal", 0, 1);
    const std::vector<sim::CalibrationTask>& tasks = calibrator_.tasks();
    const std::size_t all = jobs_.size() + tasks.size();
    std::size_t done = 0;
    for (const Job& job : jobs_) {
      progress.at(short_text(job), done++, all);
      worlds_.at(job.world).run(request_of(job, options_.machine, 1, 2));
    }
    for (std::size_t t = 0; t < tasks.size(); ++t) {
      progress.at(tasks[t].label, done++, all);
      calibrator_.rehearse(t, tasks[t].jobs.empty() ? std::nullopt : std::optional(steps_[tasks[t].jobs[0]]));
    }
    for (const Job& job : jobs_)
      for (const std::string_view peer : peers_of(job)) run_peer(job, peer, 1);
  }

  void run(int number, sim::Result& result, Progress& progress) {
    own_.assign(jobs_.size(), empty_);
    others_.assign(jobs_.size(), empty_);
    measured_.assign(jobs_.size(), {});
    visited_.clear();
    const std::vector<Visit> visits = visits_of(number, result);
    for (std::size_t v = 0; v < visits.size(); ++v) {
      progress.at(visits[v].label, v, visits.size());
      visits[v].make();
    }
    add_visits();
    for (std::size_t j = 0; j < jobs_.size(); ++j) {
      sim::Cell& cell = result.cell(jobs_[j].program, jobs_[j].world);
      if (std::ranges::count(cell.rounds, number, &sim::Round::round) > 0) continue;
      sim::Round& round = measured_[j].round;
      round.round = number;
      add_forecasts(jobs_[j], own_[j], others_[j], measured_[j].steps, round, cell);
      cell.rounds.push_back(round);
      for (const std::string_view peer : peers_of(jobs_[j])) add_peer(jobs_[j], peer, measured_[j], result);
    }
  }

  /// The profiles that the forecasts of all rounds came from, beside the result where that is a file.
  void save_profiles(const std::string& result) const {
    if (!std::filesystem::is_regular_file(result)) return;
    kept_.save(beside(result, ".profile"));
    if (!options_.fit_on.empty()) kept_others_.save(beside(result, ".fit_profile"));
  }

 private:
  struct Visit {
    std::string label;
    std::function<void()> make;
  };

  /// In turns: a job, and all that its forecast is made of, within seconds of each other.
  std::vector<Visit> visits_of(int number, sim::Result& result) {
    std::mt19937 random(options_.seed * 1000 + static_cast<unsigned>(number));
    const std::vector<sim::CalibrationTask>& tasks = calibrator_.tasks();
    std::vector<std::size_t> order(jobs_.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::vector<Visit> visits;
    for (std::uint32_t turn = 0; turn < options_.visits; ++turn) {
      std::ranges::shuffle(order, random);
      std::set<std::size_t> done;  // of the tasks: jobs share some
      for (std::size_t place = 0; place < order.size(); ++place) {
        const std::size_t j = order[place];
        const auto first = static_cast<std::ptrdiff_t>(visits.size());
        for (std::size_t t = 0; t < tasks.size(); ++t) {
          const bool is_due =
              tasks[t].jobs.empty() ? t % order.size() == place : std::ranges::count(tasks[t].jobs, j) > 0;
          if (is_due && turn < calibrator_.visits(t) && done.insert(t).second)
            visits.push_back({tasks[t].label, [=, this] { visited_.push_back({t, calibrator_.visit(t)}); }});
        }
        const std::string label = short_text(jobs_[j]);
        visits.push_back({label, [=, this, &result] { visit_job(j, result); }});
        for (const std::string_view peer : peers_of(jobs_[j]))
          visits.push_back({label + " in plain PyTorch", [=, this] { visit_peer(j, peer); }});
        std::shuffle(visits.begin() + first, visits.end(), random);
      }
    }
    return visits;
  }

  /// What was calibrated in this round, as if the machine had been as fast as beside the steps that it is
  /// compared with.
  void add_visits() {
    std::vector<std::optional<sim::MachineSpeed>> speeds(jobs_.size());  // none: as fast as on average
    for (std::size_t j = 0; j < jobs_.size(); ++j)
      if (!measured_[j].speeds.empty()) speeds[j] = measured_[j].round.speed = sim::mean(measured_[j].speeds);
    for (const auto& [t, samples] : visited_) speeds_.add(calibrator_.tasks()[t], samples);
    speeds_.fit();
    for (const auto& [t, samples] : visited_) {
      const sim::CalibrationTask& task = calibrator_.tasks()[t];
      for (std::size_t j = 0; j < jobs_.size(); ++j) {
        const bool is_own = std::ranges::count(task.jobs, j) > 0;
        add_for_job(is_own ? speeds_.moved(samples, task, speeds[j]) : samples, task, jobs_, j, own_[j]);
      }
      if (!task.jobs.empty()) add(speeds_.moved(samples, task), task, kept_);
      if (options_.fit_on.empty()) continue;
      const sim::CalibrationSamples of_others = other_shapes_.of(samples, task);
      for (std::size_t j = 0; j < jobs_.size(); ++j) add(speeds_.moved(of_others, task, speeds[j]), task, others_[j]);
      add(speeds_.moved(of_others, task), task, kept_others_);
    }
  }

  void visit_job(std::size_t j, sim::Result& result) {
    const Job& job = jobs_[j];
    backend::RunRequest request = request_of(job, options_.machine, 1, steps_[j]);
    request.probe_speed = true;
    measured_[j].add(job, worlds_.at(job.world).run(request), result.cell(job.program, job.world));
  }

  void visit_peer(std::size_t j, std::string_view peer) {
    std::vector<double> step_s = std::move(measured_[j].answers[peer].step_s);  // of the earlier visits
    Peers::Answer& answer = measured_[j].answers[peer] =
        run_peer(jobs_[j], peer, steps_[j] * static_cast<std::uint32_t>(jobs_[j].program.steps_in_list()));
    answer.step_s.insert(answer.step_s.begin(), step_s.begin(), step_s.end());
  }

  /// Plain PyTorch as people write it, and at its best.
  [[nodiscard]] std::span<const std::string_view> peers_of(const Job& job) const {
    if (!peers_ || !has_peer(job.model, job.strategy, job.world)) return {};
    return sim::kPeers;
  }
  Peers::Answer run_peer(const Job& job, std::string_view peer, std::uint32_t steps) {
    return peers_->run(job.model, job.strategy, job.world, /*best=*/peer == sim::kPeers[1], 1, steps);
  }

  /// A cell of its own with the same forecasts, if plain PyTorch has such a step and computes the same.
  static void add_peer(const Job& job, std::string_view peer, const Measured& measured, sim::Result& result) {
    // Other kernels round otherwise in float32, and a large first update makes more of it: ResNet-50's loss falls from
    // 7 to 2.
    constexpr double kOfLoss = 1e-3, kOfChange = 1e-2;
    const Peers::Answer& answer = measured.answers.at(peer);
    sim::Cell& cell = result.cell(job.program, job.world, peer);
    sim::place(cell, job.program, job.cluster);
    cell.skipped = answer.skipped;
    const auto differs = [&](double before, double after) {
      const double bound = std::max(kOfLoss * std::abs(after), kOfChange * std::abs(after - before));
      return !(std::abs(measured.second_loss - after) <= bound);
    };
    if (!answer.losses.empty() && differs(answer.losses.at(0), answer.losses.at(1)))
      cell.skipped = fmt::format("its loss in step 2 is {:g}, paragauge's {:g}: not the same step", answer.losses[1],
                                 measured.second_loss);
    if (!cell.skipped.empty()) return;
    std::vector<sim::StepTime> steps;
    for (double seconds : answer.step_s) steps.push_back({.step_s = seconds});
    sim::Round round = measured.round;
    round.measured = {};
    round.measured.add(steps);
    round.replayed_s.reset();
    cell.settings = answer.settings;
    cell.memory.resident_peak_bytes = answer.resident_peak_bytes;
    cell.rounds.push_back(std::move(round));
  }

  const Options& options_;
  const std::vector<Job>& jobs_;
  const Worlds& worlds_;
  backend::Calibrator calibrator_;
  OtherShapes other_shapes_;
  std::optional<Peers> peers_;
  std::vector<std::uint32_t> steps_;  // per visit, by job
  // Of all rounds: what is measured of the jobs' own shapes, and of others.
  sim::Profile kept_{options_.machine.device}, kept_others_{options_.machine.device};
  sim::Profile empty_{options_.machine.device};
  // Of this round. A job's own shapes and sizes come from its own tasks: the same copy into a bucket takes longer after
  // the backward than in it.
  std::vector<sim::Profile> own_;     // by job
  std::vector<sim::Profile> others_;  // by job: none of the compared models' shapes and sizes
  struct Visited {
    std::size_t task;
    sim::CalibrationSamples samples;
  };
  std::vector<Visited> visited_;
  std::vector<Measured> measured_;  // by job
  sim::SpeedModel speeds_;          // of this run's rounds
};

}  // namespace

int compare(const Options& options) {
  const double begin_s = backend::now_s();
  if (options.peers && backend::ranks_per_host() != 0)
    throw sim::ConfigError("compare: --peers start on one host, and these ranks are on {}", backend::hosts_of_launch());
  sim::Result result;
  result.kind = "compare";
  const bool is_plans = options.measure > 0;  // which measures what it has just chosen
  if (!options.json.empty() && is_plans) sim::check_replaceable(options.json, result.kind);
  if (!options.json.empty() && !is_plans) result = sim::resume_or_new(options.json, result.kind);
  const bool goes_on = !result.sessions.empty();
  if (!goes_on && !is_plans) check_no_profiles(options);
  const bool with_samples = options.raw || has_samples(result);
  std::vector<Job> jobs = make_jobs(options.subject, options.machine, &result);
  // What decides times besides the machine. A mistake is said before ranks are started.
  const nlohmann::json conditions = {{"steps", options.steps},
                                     {"visits", options.visits},
                                     {"fit_on", options.fit_on},
                                     {"real_time", options.machine.real_time}};
  result.check_conditions({{"device", options.machine.device},
                           {"network", options.machine.network},
                           {"graph", options.machine.graph},
                           {"options", conditions}},
                          options.json);
  for (const Job& job : jobs) {
    sim::Cell& cell = result.cell(job.program, job.world);
    sim::check_program(cell, job.program, options.json);
    if (options.machine.graph) cell.settings = "graph";
    if (cell.rounds.empty()) sim::place(cell, job.program, job.cluster);  // else they know the ops' workspaces
  }
  const Worlds worlds = open_worlds(options.machine, jobs);
  if (worlds.done) return *worlds.done;
  nlohmann::json session = context(options.machine, worlds);
  session["options"] = conditions;
  result.begin_session(session, options.json);
  jobs = that_fit(std::move(jobs), options.machine, worlds, result);
  const int first = result.next_round();
  if (first > 0 && first < static_cast<int>(options.rounds))
    fmt::print("compare: goes on with round {} of {} in {}\n", first + 1, options.rounds, sim::printable(options.json));
  else if (first > 0)
    fmt::print(
        "compare: {} has its {} rounds already{}\n", sim::printable(options.json), first,
        lack_peers(options, jobs, result, first) ? "; plain PyTorch is measured beside further ones (--rounds)" : "");
  Rounds rounds(options, jobs, worlds, goes_on);
  if (first < static_cast<int>(options.rounds)) rounds.rehearse();
  Progress progress("compare", options.time_limit_s > 0 ? options.time_limit_s - (backend::now_s() - begin_s) : 0);
  double round_s = 0;  // what the latest one has taken
  for (int round = first; round < static_cast<int>(options.rounds); ++round) {
    // One at least: a rehearsal may take all of the time.
    const double round_begin_s = backend::now_s();
    if (round > first && options.time_limit_s > 0 && round_begin_s - begin_s + round_s > options.time_limit_s) {
      progress.end();
      fmt::print("compare: {} of {} rounds; the time limit of {:g} s has no room for another of {:.1f} s\n", round,
                 options.rounds, options.time_limit_s, round_s);
      break;
    }
    progress.begin(fmt::format("round {}/{}", round + 1, options.rounds), round, options.rounds);
    rounds.run(round, result, progress);
    see_neighbours(result.sessions.back().context);
    see_hosts(result.sessions.back().context, worlds);
    if (!options.json.empty()) {
      sim::save_result(options.json, result, with_samples);
      rounds.save_profiles(options.json);
    }
    round_s = backend::now_s() - round_begin_s;
  }
  progress.end();
  const sim::Report report = sim::make_report(result);
  if (options.details) {
    fmt::print("\n{}", sim::to_console(report));
  } else {
    const char* command = is_plans ? "`paragauge compare` of these" : "the same command";
    const bool goes_on_there = !options.json.empty() && !is_plans;
    const sim::Answer answer = sim::answer_of(
        result, nullptr, fmt::format("{} with {}--rounds {{}}", command, goes_on_there ? "" : "--json FILE and "));
    fmt::print("\n{}\n{}", answer.table, answer.words);
  }
  print_remarks(jobs);
  if (options.machine.graph) fmt::print("{}", kGraphRemark);
  if (!options.csv.empty()) sim::write_text_file(options.csv, sim::to_csv(report));
  return 0;
}

}  // namespace bench
