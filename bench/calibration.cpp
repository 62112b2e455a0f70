#include "bench/calibration.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>

#include "sim/calibrate/probe.hpp"
#include "sim/cluster/world.hpp"
#include "sim/lower/lower.hpp"
#include "sim/program/memory.hpp"
#include "sim/simulate/simulate.hpp"

namespace bench {
namespace {

constexpr std::uint32_t kProbeRepeats = 4, kOverlapComputes = 16;  // of the former two are unexpected
constexpr std::int64_t kOverlapBytes = 1 << 20;
constexpr std::int64_t kSmallestTransfer = 4 << 10, kLargestTransfer = 64 << 20;

/// World, kind, collective, members, bytes.
using LinkKey = std::tuple<std::string, sim::InstructionKind, sim::CollectiveKind, std::uint32_t, std::int64_t>;

void collect_links(const Job& job, std::map<LinkKey, const Job*>& links) {
  for (const sim::Role& role : job.program.roles)
    for (std::uint32_t i = 0; i < role.size(); ++i) {
      const bool collective = role.kind[i] == sim::InstructionKind::collective;
      if (!collective && role.kind[i] != sim::InstructionKind::send) continue;
      const std::uint32_t members =
          collective ? static_cast<std::uint32_t>(job.program.groups[role.peer[i]].members[0].size()) : 2;
      const sim::CollectiveKind kind = collective ? role.collective[i] : sim::CollectiveKind::all_reduce;
      links.emplace(LinkKey{job.world, collective ? sim::InstructionKind::collective : sim::InstructionKind::send, kind,
                            members, job.program.transfer_bytes(role, i)},
                    &job);
    }
}

/// The job whose transfer is nearest in size, of the same world, kind and members: there is one.
const Job* nearest(const std::map<LinkKey, const Job*>& links, const LinkKey& to) {
  const auto apart = [&](const LinkKey& key) {
    return std::abs(std::log(static_cast<double>(std::max<std::int64_t>(std::get<4>(key), 1)) /
                             static_cast<double>(std::get<4>(to))));
  };
  const auto kind_of = [](LinkKey key) {
    std::get<4>(key) = 0;
    return key;
  };
  const std::pair<const LinkKey, const Job*>* best = nullptr;
  for (const auto& link : links)
    if (kind_of(link.first) == kind_of(to) && (!best || apart(link.first) < apart(best->first))) best = &link;
  sim::check_internal(best != nullptr, "a step of no transfer's ladder");
  return best->second;
}

}  // namespace

std::vector<CalibrationTask> calibration_tasks(const std::vector<Job>& jobs, std::uint32_t busy_ranks, bool ladder) {
  std::vector<CalibrationTask> tasks;
  std::map<std::string, std::size_t> known;  // world and program → the first of its tasks
  // Once per world and program, as many tasks as ranks may be busy; the first of them.
  const auto on_busy_ranks = [&](const Job& job, const sim::Program& program, const std::string& what) {
    const auto [entry, is_new] = known.emplace(job.world + "\n" + sim::to_text(program), tasks.size());
    for (std::uint32_t copies = 1; is_new && copies <= busy_ranks; ++copies)
      tasks.push_back({fmt::format("{} {}, {} rank{} busy", job.world, what, copies, copies > 1 ? "s" : ""), job.world,
                       program, job.cluster, copies});
    return entry->second;
  };
  std::map<LinkKey, const Job*> links;
  for (std::size_t j = 0; j < jobs.size(); ++j) {
    const Job& job = jobs[j];
    sim::Program program = sim::calibration_program(job.model, job.strategy);
    program.strategy = "calibration";  // the text of another strategy doesn't make it another program
    const std::size_t first =
        on_busy_ranks(job, program, fmt::format("ops of {} as {} plays them", job.model.text(), job.strategy.text()));
    for (std::uint32_t copies = 1; copies <= busy_ranks; ++copies) tasks[first + copies - 1].jobs.push_back(j);
    collect_links(job, links);
  }
  if (ladder)
    for (const Job& job : jobs)
      on_busy_ranks(job, sim::memory_probe(job.model), "memory, with the optimizer of " + job.model.text());
  // The ladder's steps go as the jobs' transfers of the nearest size do.
  const std::map<LinkKey, const Job*> needed = links;
  for (const auto& [key, job] : needed)
    for (std::int64_t bytes = kSmallestTransfer; bytes <= (ladder ? kLargestTransfer : kSmallestTransfer); bytes *= 4) {
      LinkKey step = key;
      std::get<4>(step) = bytes;
      if (!needed.contains(step)) links.insert_or_assign(step, nearest(needed, step));
    }
  std::set<std::string> overlapped, noted;  // worlds
  for (const auto& [key, job] : links) {
    const auto& [world, kind, collective, members, bytes] = key;
    const sim::TransferQuestion question{kind, collective, bytes, members, false};
    const std::string name(kind == sim::InstructionKind::collective ? sim::to_string(collective)
                                                                    : sim::to_string(kind));
    const bool background = job->cluster.link.engine == sim::TransferEngine::background;
    const bool rendezvous = background && kind == sim::InstructionKind::send && !job->cluster.device.asynchronous;
    tasks.push_back(
        {fmt::format("{} {} of {} bytes among {}", world, name, bytes, members), world,
         sim::transfer_probe(question, kProbeRepeats, sim::bytes_between_transfers(job->program), rendezvous),
         job->cluster, 0, question, false, rendezvous});
    if (rendezvous && noted.insert(world).second)
      tasks.push_back({fmt::format("{} compute beside notes", world), world, sim::note_probe(kProbeRepeats),
                       job->cluster, 0, question, true});
  }
  // Of a world without collectives, too: what an all_reduce takes from a core is what the transport takes for its
  // bytes.
  for (const bool collectives : {true, false})
    for (const auto& [key, job] : links) {
      const auto& [world, kind, collective, members, bytes] = key;
      if (job->cluster.link.engine != sim::TransferEngine::background) continue;
      if ((kind == sim::InstructionKind::collective) != collectives || !overlapped.insert(world).second) continue;
      const sim::TransferQuestion beside{sim::InstructionKind::collective, sim::CollectiveKind::all_reduce,
                                         kOverlapBytes, members, false};
      tasks.push_back({fmt::format("{} compute beside transfers among {}", world, members), world,
                       sim::overlap_probe(beside, kProbeRepeats, kOverlapComputes), job->cluster, 0, beside, true});
    }
  return tasks;
}

namespace {

/// By instruction: the times of one work, in seconds.
using InstructionTimes = std::map<std::uint32_t, std::vector<double>>;

std::vector<double> together(const InstructionTimes& by_instruction) {
  std::vector<double> all;
  for (const auto& [instruction, samples] : by_instruction) all.insert(all.end(), samples.begin(), samples.end());
  return all;
}

/// By instruction, the times of one work → all of them, with the spread that one instruction has: instructions of the
/// same work differ by where their operands lie, and that isn't jitter.
std::vector<double> pooled(const InstructionTimes& by_instruction) {
  const std::vector<double> all = together(by_instruction);
  std::vector<double> centred;
  const auto count = static_cast<double>(all.size()), instructions = static_cast<double>(by_instruction.size());
  if (count <= instructions) return all;
  const double mean = std::accumulate(all.begin(), all.end(), 0.0) / count;
  // Each instruction's own mean costs a degree of freedom.
  const double spread = std::sqrt((count - 1) / (count - instructions));
  for (const auto& [instruction, samples] : by_instruction) {
    const double own = std::accumulate(samples.begin(), samples.end(), 0.0) / static_cast<double>(samples.size());
    for (double sample : samples) centred.push_back(mean + spread * (sample - own));
  }
  return *std::ranges::min_element(centred) < 0 ? all : centred;
}

/// Of all instructions of one work together: each alone has too few times.
sim::Interruptions without_interruptions(InstructionTimes& by_instruction) {
  std::vector<double> all = together(by_instruction);
  const sim::Interruptions found = sim::without_interruptions(all);
  auto cleaned = all.begin();
  for (auto& [instruction, samples] : by_instruction)
    for (double& sample : samples) sample = *cleaned++;
  return found;
}

sim::Statistic statistic_of(const std::vector<double>& samples) {
  sim::Statistic statistic;
  statistic.add(samples);
  return statistic;
}

using WorkTimes = std::map<std::string, InstructionTimes>;  // by sim::work_key

/// How far apart ranks that played the same lie; `totals_s`: [step][rank], of `works` together.
sim::RankSpread spread_of(const std::vector<std::vector<double>>& totals_s, const WorkTimes& works) {
  double hiccups = 0;  // s²
  for (const auto& [key, by_instruction] : works)
    for (const auto& [instruction, samples] : by_instruction) {
      const double sd_s = statistic_of(samples).sd_s.value_or(0);
      hiccups += sd_s * sd_s;
    }
  sim::RankSpread spread;
  for (const std::vector<double>& ranks : totals_s) {
    const double mean_s = statistic_of(ranks).mean_s;
    double sum = 0, pairs = 0;
    for (std::size_t r = 0; r < ranks.size(); ++r)
      for (std::size_t other = 0; other < r; ++other) sum += std::abs(ranks[r] - ranks[other]), ++pairs;
    if (pairs > 0 && mean_s > 0) spread.add({1, sum / pairs / mean_s, hiccups / (mean_s * mean_s)});
  }
  return spread;
}

}  // namespace

std::uint32_t steps_for(double step_s, std::uint32_t least, double visit_s) {
  constexpr std::uint32_t kMost = 40;
  return std::clamp(static_cast<std::uint32_t>(visit_s / std::max(step_s, 1e-6)), least, std::max(least, kMost));
}

double shortest_step_s(const backend::RunResult& run) {
  const auto step_s = [](const backend::StepResult& step) { return step.timeline.step_s; };
  return step_s(std::ranges::min(run.steps, {}, step_s));
}

void rehearse_task(CalibrationTask& task, const Worlds& worlds, std::uint32_t most_visits,
                   std::optional<std::uint32_t> steps_of_jobs) {
  constexpr double kSecondsPerTask = 0.4, kSecondsPerVisit = 0.1, kSecondsPerLink = 0.05;
  constexpr std::uint32_t kLeastForSpread = 2;  // in one visit: else the steps' hiccups aren't known
  const double step_s = shortest_step_s(
      worlds.at(task.world)
          .run(
              {.program = task.program, .warmup_steps = 1, .steps = task.copies > 0 ? 2U : 1U, .copies = task.copies}));
  if (!task.jobs.empty()) {
    task.steps = steps_of_jobs ? std::max(*steps_of_jobs, kLeastForSpread) : steps_for(step_s, kLeastForSpread);
    task.visits = std::clamp(static_cast<std::uint32_t>(kSecondsPerTask / (task.steps * step_s)), 1U, most_visits);
    return;
  }
  const bool slow_link = task.copies == 0 && step_s > kSecondsPerVisit;  // its probe repeats the transfer itself
  if (slow_link) task.warmup_steps = 0;
  const std::uint32_t steps =
      steps_for(step_s, slow_link ? 1 : kLeastForSpread, task.copies > 0 ? kSecondsPerVisit : kSecondsPerLink);
  task.visits = std::clamp(steps / kLeastForSpread, 1U, most_visits);
  task.steps = (steps + task.visits - 1) / task.visits;
}

CalibrationSamples measure_task(const CalibrationTask& task, const Worlds& worlds) {
  const backend::RunResult result =
      worlds.at(task.world)
          .run(
              {.program = task.program, .warmup_steps = task.warmup_steps, .steps = task.steps, .copies = task.copies});
  CalibrationSamples samples;
  WorkTimes works;
  std::vector<std::vector<double>> totals_s;  // of all works, [step][rank]
  for (const backend::StepResult& step : result.steps) {
    if (task.overlap && task.question.kind == sim::InstructionKind::send) {
      for (const double note_s : sim::notes_s(task.program, step.timeline)) samples.notes.push_back(note_s);
      continue;
    }
    if (task.overlap) {
      if (const std::optional<double> share = sim::core_share(task.program, step.timeline))
        samples.core_shares.push_back(*share);
      continue;
    }
    totals_s.emplace_back(step.timeline.ranks.size(), 0);
    // With copies, every rank played the one role as rank 0.
    for (std::size_t rank = 0; rank < step.timeline.ranks.size(); ++rank) {
      sim::Timeline timeline = step.timeline;
      if (task.copies > 0) timeline.ranks = {step.timeline.ranks[rank]};
      const sim::Durations durations = sim::durations_of(task.program, timeline, task.cluster);
      const std::size_t row = task.copies > 0 ? 0 : rank;
      const sim::Role& role = task.program.roles[task.program.places()[row].role];
      for (std::uint32_t i = 0; i < role.size(); ++i) {
        if (is_computed(role.kind[i])) {
          if (task.copies == 0) continue;  // the probe's own copies only warm the caches
          works[sim::work_key(task.program.works[role.work[i]])][i].push_back(durations.seconds[row][i]);
          totals_s.back()[rank] += durations.seconds[row][i];
          samples.launches.push_back(durations.gap_s[row][i]);
          continue;
        }
        if (!sim::is_posted(role.kind[i])) continue;
        const bool receives = role.kind[i] == sim::InstructionKind::recv;
        const sim::RankTimeline& times = step.timeline.ranks[rank];
        const bool sender_first = (times.posted_s[i] < times.start_s[i]) != receives;
        LinkSamples& link = task.rendezvous && sender_first ? samples.unexpected : samples.link;
        if (role.kind[i] != sim::InstructionKind::send) link.transfers.push_back(durations.seconds[row][i]);
        (receives ? link.recv_posts : link.posts).push_back(durations.gap_s[row][i + 1]);
      }
    }
  }
  if (!task.jobs.empty()) samples.rank_spread = spread_of(totals_s, works);
  for (LinkSamples* link : {&samples.link, &samples.unexpected})
    for (std::vector<double>* times : {&link->transfers, &link->posts, &link->recv_posts})
      samples.interruptions.add(sim::without_interruptions(*times));
  sim::without_interruptions(samples.notes);
  for (auto& [key, by_instruction] : works) {
    samples.interruptions.add(without_interruptions(by_instruction));
    samples.works[key] = pooled(by_instruction);
  }
  if (task.jobs.empty()) {  // a link's or the memory's probe: not what a step is like
    samples.launches.clear();
    return samples;
  }
  const sim::Role& role = task.program.roles[0];
  for (std::uint32_t i = 0; i < role.size(); ++i)
    if (is_computed(role.kind[i])) {
      std::int64_t& largest = samples.workspaces[sim::work_key(task.program.works[role.work[i]])];
      largest = std::max(largest, result.workspace_bytes.at(0).at(i));
    }
  std::vector<double> workspaces;
  for (const sim::Work& work : task.program.works)
    workspaces.push_back(static_cast<double>(samples.workspaces[sim::work_key(work)]));
  const bool processes = sim::world_kind(task.world).processes;
  const double held = sim::held_with_reuse(role, workspaces) * (processes ? 1 : task.copies);
  for (std::size_t process = 0; process < (processes ? task.copies : 1); ++process)
    samples.process_bytes.push_back(
        std::max(0.0, static_cast<double>(result.memory.at(process).resident_peak_bytes) - held));
  return samples;
}

void add_machine(const CalibrationSamples& samples, const CalibrationTask& task, sim::Profile& profile) {
  profile.add_rank_spread(task.world, samples.rank_spread);
  profile.add_interruptions(task.world, samples.interruptions);
}

void add(const CalibrationSamples& samples, const CalibrationTask& task, sim::Profile& profile) {
  add_machine(samples, task, profile);
  for (const auto& [key, seconds] : samples.works) profile.add_op(task.world, key, task.copies, seconds);
  for (const auto& [key, bytes] : samples.workspaces) profile.add_workspace(key, bytes);
  for (std::size_t process = 0; process < samples.process_bytes.size(); ++process) {
    std::vector<double>& process_bytes = profile.process_bytes[task.world];
    if (process < process_bytes.size())  // the latest count most: a process grows with its results
      process_bytes[process] = std::midpoint(process_bytes[process], samples.process_bytes[process]);
    else
      process_bytes.push_back(samples.process_bytes[process]);
  }
  if (task.copies == 1) profile.add_launch(samples.launches);
  profile.add_link({task.world, "note", task.question.members}, 0, samples.notes);
  if (!samples.core_shares.empty()) {
    double sum = 0;
    for (double share : samples.core_shares) sum += share;
    profile.core_share[task.world] = sum / static_cast<double>(samples.core_shares.size());
  } else if (task.copies == 0 && !task.overlap) {
    const bool collective = task.question.kind == sim::InstructionKind::collective;
    const std::string kind(collective ? sim::to_string(task.question.collective)
                                      : sim::to_string(sim::InstructionKind::send));
    const auto add_link = [&](const std::string& name, const LinkSamples& link) {
      profile.add_link({task.world, name, task.question.members}, task.question.bytes, link.transfers,
                       {statistic_of(link.posts).mean_s, statistic_of(link.recv_posts).mean_s});
    };
    add_link(kind, samples.link);
    if (task.rendezvous) add_link("unexpected_send", samples.unexpected);
  }
}

}  // namespace bench
