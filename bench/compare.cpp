#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>

#include "backend/machine/clock.hpp"
#include "bench/calibration.hpp"
#include "bench/commands.hpp"
#include "bench/machine.hpp"
#include "bench/peers.hpp"
#include "bench/progress.hpp"
#include "sim/cluster/world.hpp"
#include "sim/program/memory.hpp"
#include "sim/report/answer.hpp"
#include "sim/report/report.hpp"
#include "sim/simulate/attribution.hpp"
#include "sim/simulate/forecast.hpp"
#include "sim/simulate/simulate.hpp"
#include "sim/text/spec.hpp"

namespace bench {
namespace {

/// What a round has calibrated.
struct Profiles {
  /// A job's own shapes and sizes, in the order of its own program: the same copy into a bucket takes longer after the
  /// backward than in it.
  std::vector<sim::Profile> same;
  sim::Profile others;  // none of the compared models' shapes and sizes
};

/// Of the rank whose tensors are most, or where all ranks are threads of one process, of that process.
void predict_memory(const Job& job, const sim::Profile& profile, const sim::Prices& prices, sim::CellMemory& memory) {
  double peak = 0, all = 0;
  std::vector<double> held;  // by role
  for (const sim::Role& role : job.program.roles) {
    peak = std::max(peak, sim::peak_with_workspace(role, prices.workspace_bytes));
    held.push_back(sim::held_with_reuse(role, prices.workspace_bytes));
    all += held.back() * static_cast<double>(role.ranks.size());
  }
  memory.predicted_allocator_peak_bytes = std::llround(peak);
  const auto world = profile.process_bytes.find(job.world);
  if (world == profile.process_bytes.end() || world->second.empty()) return;
  if (!sim::world_kind(job.world).processes) {
    memory.predicted_resident_peak_bytes = std::llround(world->second[0] + all);
    return;
  }
  const auto largest = std::ranges::max_element(
      job.program.roles, {}, [](const sim::Role& role) { return sim::peak_memory(role).peak_bytes; });
  const std::size_t process = std::min<std::size_t>(largest->ranks.front(), world->second.size() - 1);
  const auto role = static_cast<std::size_t>(largest - job.program.roles.begin());
  memory.predicted_resident_peak_bytes = std::llround(world->second[process] + held[role]);
}

/// What a round keeps of a cell's visits. No timelines: of a small model's steps they would be larger than the model,
/// in the very process whose memory is measured.
struct Visits {
  void add(const Job& job, const backend::RunResult& run, sim::Cell& cell) {
    if (round.measured.empty()) first_loss = run.steps[0].loss;
    add_measured(cell, round, run);
    for (const backend::StepResult& step : run.steps) {
      const sim::Durations durations = sim::durations_of(job.program, step.timeline, job.cluster);
      replayed_s += sim::replay(job.program, durations, job.cluster).step_s;
      steps.add(step.timeline, durations);
    }
    round.replayed_s = replayed_s / static_cast<double>(steps.count);
  }

  sim::Round round;
  sim::MeasuredSteps steps;
  double first_loss = 0, replayed_s = 0;  // the latter of all steps together
};

/// The forecasts of one cell from this round's calibration, and where they differ from the measured steps.
void add_forecasts(const Job& job, const sim::Profile& same, const sim::Profile& others,
                   const sim::MeasuredSteps& measured, sim::Round& round, sim::Cell& cell) {
  for (const sim::CostModelKind& kind : sim::cost_model_table()) {
    const sim::Profile& profile = kind.for_other_shapes ? others : same;
    if (kind.needs_profile && profile.ops() == 0) continue;
    const sim::Forecast forecast = sim::forecast(job.program, job.cluster, kind.name, &profile);
    const sim::Timeline predicted = sim::simulate(job.program, forecast.costs, job.cluster);
    if (kind.name == "profiled") {
      predict_memory(job, profile, forecast.costs, cell.memory);
      sim::place(cell, job.program, job.cluster, forecast.costs.workspace_bytes);
    }
    round.predicted[std::string(kind.name)] = forecast.step;
    cell.attribution[std::string(kind.name)].add(
        sim::attribute_cost_error(job.program, job.cluster, predicted, forecast.step.step_s, measured).classes);
  }
}

/// One round: everything in several visits, in shuffled order; what takes long is calibrated in fewer.
class Rounds {
 public:
  Rounds(const CompareOptions& options, const std::vector<Job>& jobs, const Worlds& worlds)
      : options_(options),
        jobs_(jobs),
        worlds_(worlds),
        tasks_(calibration_tasks(jobs, worlds.busy_ranks(), !options.fit_on.empty())),
        first_other_(tasks_.size()) {
    for (const Job& job : jobs) {
      for (const sim::Work& work : job.program.works) own_works_.insert(sim::work_key(work));
      for (const sim::Role& role : job.program.roles)
        for (std::uint32_t i = 0; i < role.size(); ++i)
          if (role.kind[i] == sim::InstructionKind::send || role.kind[i] == sim::InstructionKind::collective)
            own_sizes_.insert(job.program.transfer_bytes(role, i));
    }
    if (!options.fit_on.empty()) {
      Machine machine = options.machine;
      machine.ranks = 0;
      const std::vector<Job> others = make_jobs({options.fit_on, {"single"}}, machine);
      for (const CalibrationTask& task : calibration_tasks(others, worlds.busy_ranks(), false)) tasks_.push_back(task);
    }
    if (!options.profile.empty() && std::filesystem::exists(options.profile))
      kept_ = sim::load_profile(options.profile);
    kept_.environment = context(options.machine, worlds);
    if (options.peers) peers_.emplace(options.machine, worlds.at("local").options().ranks);  // as many as any job needs
  }

  /// Plays everything for a moment, to know how long it takes; nothing of it is kept.
  void rehearse() {
    Progress progress("compare");
    progress.begin("rehearsal", 0, 1);
    const std::size_t all = jobs_.size() + tasks_.size();
    std::size_t done = 0;
    std::map<std::string, std::vector<double>> step_s;  // by model
    for (const Job& job : jobs_) {
      progress.at(short_text(job), done++, all);
      step_s[job.model.text()].push_back(
          shortest_step_s(worlds_.at(job.world).run({.program = job.program, .warmup_steps = 1, .steps = 2})));
    }
    // As many for everything of a model, for a step's time depends on how many went before: see rehearse_task.
    std::map<std::string, std::uint32_t> steps;
    for (auto& [model, seconds] : step_s) {
      std::ranges::sort(seconds);
      steps[model] = steps_for(seconds[seconds.size() / 2], options_.steps);
    }
    for (const Job& job : jobs_) steps_.push_back(steps.at(job.model.text()));
    for (std::size_t i = 0; i < tasks_.size(); ++i) {
      progress.at(tasks_[i].label, done++, all);
      const bool own = i < first_other_ && !tasks_[i].jobs.empty();
      rehearse_task(tasks_[i], worlds_, options_.visits, own ? std::optional(steps_[tasks_[i].jobs[0]]) : std::nullopt);
    }
    for (const Job& job : jobs_)
      if (has_peer(job)) peers_->run(job.model.text(), job.strategy.text(), 1, 1);
  }

  void play(int number, sim::Result& result, Progress& progress) {
    const std::size_t peers = peers_ ? jobs_.size() : 0;
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < tasks_.size() + jobs_.size() + peers; ++i)
      order.insert(order.end(), i < tasks_.size() ? tasks_[i].visits : options_.visits, i);
    std::shuffle(order.begin(), order.end(), std::mt19937(options_.seed * 1000 + static_cast<unsigned>(number)));
    const sim::Profile empty(options_.machine.device);
    Profiles profiles{std::vector<sim::Profile>(jobs_.size(), empty), empty};
    std::vector<Visits> visits(jobs_.size());
    std::vector<Peers::Answer> answers(peers);
    std::size_t done = 0;
    for (const std::size_t i : order) {
      progress.at(i < tasks_.size() ? tasks_[i].label : short_text(jobs_[(i - tasks_.size()) % jobs_.size()]), done++,
                  order.size());
      if (i < tasks_.size()) {
        const CalibrationSamples samples = measure_task(tasks_[i], worlds_);
        if (i < first_other_) {
          for (std::size_t j = 0; j < jobs_.size(); ++j)
            if (tasks_[i].copies == 0 || std::ranges::find(tasks_[i].jobs, j) != tasks_[i].jobs.end())
              add(samples, tasks_[i], profiles.same[j]);
            else
              add_machine(samples, tasks_[i], profiles.same[j]);
          add(samples, tasks_[i], kept_);
        }
        if (!options_.fit_on.empty()) add(without_own(samples, tasks_[i]), tasks_[i], profiles.others);
      } else if (i >= tasks_.size() + jobs_.size()) {
        const std::size_t j = i - tasks_.size() - jobs_.size();
        if (!has_peer(jobs_[j])) continue;
        Peers::Answer answer = peers_->run(jobs_[j].model.text(), jobs_[j].strategy.text(), 1, steps_[j]);
        answer.step_s.insert(answer.step_s.begin(), answers[j].step_s.begin(), answers[j].step_s.end());
        answers[j] = std::move(answer);
      } else {
        const std::size_t j = i - tasks_.size();
        const backend::RunResult run =
            worlds_.at(jobs_[j].world).run({.program = jobs_[j].program, .warmup_steps = 1, .steps = steps_[j]});
        visits[j].add(jobs_[j], run, result.cell(jobs_[j].program, jobs_[j].world));
      }
    }
    if (!options_.profile.empty()) kept_.save(options_.profile);
    for (std::size_t j = 0; j < jobs_.size(); ++j) {
      sim::Cell& cell = result.cell(jobs_[j].program, jobs_[j].world);
      if (std::any_of(cell.rounds.begin(), cell.rounds.end(), [&](const sim::Round& r) { return r.round == number; }))
        continue;
      sim::Round& round = visits[j].round;
      round.round = number;
      add_forecasts(jobs_[j], profiles.same[j], profiles.others, visits[j].steps, round, cell);
      cell.rounds.push_back(round);
      if (has_peer(jobs_[j])) add_peer(jobs_[j], answers[j], visits[j].first_loss, round, result);
    }
  }

 private:
  /// Whether plain PyTorch plays it: in one process (world `local`) or in one per rank (`gloo`).
  [[nodiscard]] bool has_peer(const Job& job) const {
    const sim::Strategy& strategy = job.strategy;
    if (!peers_) return false;
    if (strategy.ranks() == 1) return true;
    const bool one_process = strategy.dp == 1 && (strategy.microbatches == 1 || strategy.schedule == "forward_only");
    return sim::world_kind(job.world).processes != one_process;
  }

  /// What the cost model for other shapes may know: nothing of the compared models.
  [[nodiscard]] CalibrationSamples without_own(CalibrationSamples samples, const CalibrationTask& task) const {
    std::erase_if(samples.works, [&](const auto& work) { return own_works_.contains(work.first); });
    std::erase_if(samples.workspaces, [&](const auto& work) { return own_works_.contains(work.first); });
    if (own_sizes_.contains(task.question.bytes)) samples.link = samples.unexpected = {};
    return samples;
  }

  /// A cell of its own with the same forecasts, if plain PyTorch has such a step and computes the same.
  static void add_peer(const Job& job, const Peers::Answer& answer, double loss, sim::Round round,
                       sim::Result& result) {
    constexpr double kLossBound = 1e-3;  // float32, other kernels
    sim::Cell& cell = result.cell(job.program, job.world, sim::kPlainPyTorch);
    sim::place(cell, job.program, job.cluster);
    cell.skipped = answer.skipped;
    if (answer.skipped.empty() && std::abs(answer.losses.at(1) / loss - 1) > kLossBound)
      cell.skipped =
          fmt::format("its loss in step 2 is {:g}, paragauge's {:g}: not the same step", answer.losses[1], loss);
    if (!cell.skipped.empty()) return;
    std::vector<sim::StepTime> steps;
    for (double seconds : answer.step_s) steps.push_back({.step_s = seconds});
    round.measured = {};
    round.measured.add(steps);
    round.replayed_s.reset();
    cell.memory.resident_peak_bytes = answer.resident_peak_bytes;
    cell.rounds.push_back(std::move(round));
  }

  const CompareOptions& options_;
  const std::vector<Job>& jobs_;
  const Worlds& worlds_;
  std::vector<CalibrationTask> tasks_;
  std::size_t first_other_;           // tasks from here on are for the cost model for other shapes alone
  std::set<std::string> own_works_;   // of the compared models
  std::set<std::int64_t> own_sizes_;  // of their transfers
  std::optional<Peers> peers_;
  sim::Profile kept_{options_.machine.device};
  std::vector<std::uint32_t> steps_;  // per visit, by job
};

}  // namespace

int compare(const CompareOptions& options) {
  const double begin_s = backend::now_s();
  const std::vector<Job> jobs = make_jobs(options.subject, options.machine);
  sim::Result result;
  result.kind = "compare";
  if (!options.output.json.empty()) result = sim::resume_or_new(options.output.json, result.kind);
  // What decides times besides the machine. A mistake is said before ranks are started.
  const nlohmann::json conditions = {{"steps", options.steps},
                                     {"visits", options.visits},
                                     {"fit_on", options.fit_on},
                                     {"real_time", options.machine.real_time}};
  result.check_conditions(
      {{"device", options.machine.device}, {"network", options.machine.network}, {"options", conditions}},
      options.output.json);
  for (const Job& job : jobs) {
    sim::Cell& cell = result.cell(job.program, job.world);
    sim::check_program(cell, job.program, options.output.json);
    sim::place(cell, job.program, job.cluster);
  }
  const auto [opened, exit_status_if_done_by_ranks] = open_worlds(options.machine, jobs);
  if (!opened) return exit_status_if_done_by_ranks;
  const Worlds& worlds = *opened;
  nlohmann::json session = context(options.machine, worlds);
  session["options"] = conditions;
  result.begin_session(session, options.output.json);
  const int first = result.next_round();
  if (first > 0) fmt::print("compare: going on with round {}\n", first + 1);
  Rounds rounds(options, jobs, worlds);
  if (first < static_cast<int>(options.rounds)) rounds.rehearse();
  Progress progress("compare", options.time_limit_s > 0 ? options.time_limit_s - (backend::now_s() - begin_s) : 0);
  for (int round = first; round < static_cast<int>(options.rounds); ++round) {
    if (options.time_limit_s > 0 && backend::now_s() - begin_s > options.time_limit_s) {
      progress.end();
      fmt::print("compare: the time limit of {:g} s has passed after {} of {} rounds\n", options.time_limit_s, round,
                 options.rounds);
      break;
    }
    progress.begin(fmt::format("round {}/{}", round + 1, options.rounds), round, options.rounds);
    rounds.play(round, result, progress);
    see_other_runs(result.sessions.back().context);
    if (!options.output.json.empty()) sim::save_result(options.output.json, result, options.output.raw);
  }
  progress.end();
  const sim::Report report = sim::make_report(result);
  if (options.output.details) {
    fmt::print("\n{}", sim::to_console(report));
  } else {
    const bool kept = !options.output.json.empty();
    const sim::Answer answer = sim::answer_of(
        result, nullptr, fmt::format("the same command with {}--rounds {{}}", kept ? "" : "--json FILE and "));
    fmt::print("\n{}\n{}", answer.table, answer.words);
  }
  if (!options.output.csv.empty()) sim::write_text_file(options.output.csv, sim::to_csv(report));
  return 0;
}

}  // namespace bench
