#include "sim/calibrate/samples.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>

#include "sim/calibrate/alone.hpp"
#include "sim/calibrate/probe.hpp"
#include "sim/cost/profile.hpp"
#include "sim/program/memory.hpp"
#include "sim/program/transfers.hpp"
#include "sim/simulate/durations.hpp"

namespace sim {
namespace {

using Kind = CalibrationTask::Kind;
/// The times of one work in seconds, by role and instruction.
using InstructionTimes = std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<double>>;
using WorkTimes = std::map<std::string, InstructionTimes>;  // by sim::work_key

std::vector<double> together(const InstructionTimes& by_instruction) {
  std::vector<double> all;
  for (const auto& [instruction, samples] : by_instruction) all.insert(all.end(), samples.begin(), samples.end());
  return all;
}

/// All times, with the spread that one instruction has: instructions of the same work differ by where their operands
/// lie, and that isn't jitter.
std::vector<double> pooled(const InstructionTimes& by_instruction) {
  const std::vector<double> all = together(by_instruction);
  const auto count = static_cast<double>(all.size()), instructions = static_cast<double>(by_instruction.size());
  if (count <= instructions) return all;
  const double mean = mean_of(all);
  // Each instruction's own mean costs a degree of freedom.
  const double spread = std::sqrt((count - 1) / (count - instructions));
  std::vector<double> centred;
  for (const auto& [instruction, samples] : by_instruction) {
    const double own = mean_of(samples);
    for (double sample : samples) centred.push_back(mean + spread * (sample - own));
  }
  return *std::ranges::min_element(centred) < 0 ? all : centred;
}

/// The interruptions of all instructions of one work together: each alone has too few times. But what takes one of them long
/// every time is its own (its operands: numbers that are slow to compute with), and interrupts nothing.
Interruptions without_interruptions(InstructionTimes& by_instruction) {
  const double usual_s = middle_of(together(by_instruction));
  std::vector<double> all;
  std::vector<double*> from;
  Interruptions found;
  for (auto& [instruction, samples] : by_instruction) {
    if (middle_of(samples) > kInterruptedFactor * usual_s) {
      found.add(sim::without_interruptions(samples));
      continue;
    }
    for (double& sample : samples) all.push_back(sample), from.push_back(&sample);
  }
  found.add(sim::without_interruptions(all));
  for (std::size_t i = 0; i < all.size(); ++i) *from[i] = all[i];
  return found;
}

/// How far apart ranks that ran the same lie; `totals_s`: [step][rank], of `works` together.
RankSpread spread_of(const std::vector<std::vector<double>>& totals_s, const WorkTimes& works) {
  double hiccups = 0;  // s²
  for (const auto& [key, by_instruction] : works)
    for (const auto& [instruction, samples] : by_instruction) {
      Statistic statistic;
      statistic.add(samples);
      hiccups += statistic.sd_s.value_or(0) * statistic.sd_s.value_or(0);
    }
  RankSpread spread;
  for (const std::vector<double>& ranks : totals_s) {
    const double mean_s = mean_of(ranks);
    double sum = 0, pairs = 0;
    for (std::size_t r = 0; r < ranks.size(); ++r)
      for (std::size_t other = 0; other < r; ++other) sum += std::abs(ranks[r] - ranks[other]), ++pairs;
    if (pairs > 0 && mean_s > 0) spread.add({1, sum / pairs / mean_s, hiccups / (mean_s * mean_s)});
  }
  return spread;
}

/// When the ranks of one device computed, in a step.
class BusyTime {
 public:
  void add(const Role& role, const RankTimeline& times) {
    for (std::uint32_t i = 0; i < role.size(); ++i)
      if (is_computed(role.kind[i])) begins_s_.emplace(times.start_s[i], times.end_s[i] - times.start_s[i]);
  }
  /// Adds up; nothing is added afterwards.
  void settle() {
    double sum_s = 0;
    for (const auto& [begin_s, seconds] : begins_s_) parts_.push_back({begin_s, seconds, sum_s}), sum_s += seconds;
  }
  [[nodiscard]] double between(double from_s, double to_s) const { return until(to_s) - until(from_s); }

 private:
  struct Part {
    double begin_s, seconds, before_s;  // the latter: computed before it
  };
  [[nodiscard]] double until(double moment_s) const {
    const auto after = std::ranges::upper_bound(parts_, moment_s, {}, &Part::begin_s);
    if (after == parts_.begin()) return 0;
    const Part& last = *std::prev(after);
    return last.before_s + std::min(last.seconds, moment_s - last.begin_s);
  }
  std::multimap<double, double> begins_s_;  // with the seconds that each took
  std::vector<Part> parts_;
};

/// What the host of an asynchronous device takes, and the device where its host is ahead, in one rank's step.
class HostLane {
 public:
  HostLane(const Program& program, const Role& role, const RankTimeline& times)
      : program_(program), role_(role), times_(times) {}

  /// Of an op of the host's own: all that it takes once the device has come to it.
  [[nodiscard]] double seconds(std::uint32_t i) const {
    return (is_own(i) ? std::max(times_.end_s[i], times_.issued_s[i]) : times_.end_s[i]) - times_.start_s[i];
  }

  /// Whether all of op `i` had been issued when the device came to it. Where not, what lies between its begin and its
  /// end is the host's time as well.
  [[nodiscard]] bool is_ahead(std::uint32_t i) const {
    return times_.issued_s.empty() || is_own(i) || times_.issued_s[i] <= times_.start_s[i];
  }
  /// What it took to issue op `i`, in their order; nothing where the driver's queue may have been full: then the host
  /// waited for the device.
  [[nodiscard]] std::optional<double> issuing_s(std::uint32_t i) {
    constexpr std::uint32_t kSurelyQueued = 128;
    if (is_own(i)) return std::nullopt;
    const double begun_s = i > 0 ? times_.issued_s[i - 1] : 0;
    while (done_ < i && (!is_computed(role_.kind[done_]) || times_.end_s[done_] <= begun_s)) ++done_;
    return i - done_ < kSurelyQueued ? std::optional(times_.issued_s[i] - begun_s) : std::nullopt;
  }
  /// Between op `i` and the one before it; nothing where it wasn't issued in time.
  [[nodiscard]] std::optional<double> gap_s(std::uint32_t i) const {
    if (i == 0 || !is_computed(role_.kind[i - 1]) || is_own(i) || times_.issued_s[i] > times_.end_s[i - 1])
      return std::nullopt;
    return times_.start_s[i] - times_.end_s[i - 1];
  }

 private:
  [[nodiscard]] bool is_own(std::uint32_t i) const {
    return !times_.issued_s.empty() && program_.works[role_.work[i]].op.kind->on_host;
  }

  const Program& program_;
  const Role& role_;
  const RankTimeline& times_;
  std::uint32_t done_ = 0;  // by the device, when the last instruction that was asked for began to be issued
};

/// Ranks that waited for nobody. Where they ran different lists, what others mostly left alone doesn't count: as in the
/// simulator, ops slow each other down, and nothing else does.
void collect_ops(const CalibrationTask& task, std::span<const Timeline> steps, CalibrationSamples& samples) {
  constexpr double kMostly = 0.5;
  const std::vector<Program::Place> places = task.program.places();
  const bool is_one_list = task.program.roles.size() == 1, is_beside = !is_one_list && !task.in_turns;
  WorkTimes works, at_most;  // the latter: where the host wasn't ahead
  std::vector<double> gaps;
  std::vector<std::vector<double>> totals_s;  // of all works, [step][rank]
  for (const Timeline& step : steps) {
    totals_s.emplace_back();
    const Durations durations = durations_of(task.program, step, task.cluster);
    std::map<std::uint32_t, BusyTime> busy;  // by device
    for (std::uint32_t rank = 0; rank < places.size() && is_beside; ++rank)
      busy[task.cluster.place[rank].device].add(task.program.roles[places[rank].role], step.ranks[rank]);
    for (auto& [device, time] : busy) time.settle();
    for (std::uint32_t rank = 0; rank < places.size(); ++rank) {
      const Role& role = task.program.roles[places[rank].role];
      const RankTimeline& times = step.ranks[rank];
      HostLane host(task.program, role, times);
      double& total_s = totals_s.back().emplace_back(0);
      for (std::uint32_t i = 0; i < role.size(); ++i) {
        if (!is_computed(role.kind[i])) continue;
        const double seconds = durations.seconds[rank][i];
        if (!std::ranges::all_of(busy, [&](const auto& device) {
              return device.second.between(times.start_s[i], times.end_s[i]) >= kMostly * seconds;
            }))
          continue;
        const std::string key = work_key(task.program.works[role.work[i]]);
        (host.is_ahead(i) ? works : at_most)[key][{places[rank].role, i}].push_back(host.seconds(i));
        total_s += seconds;
        if (task.kind != Kind::ops) continue;
        if (times.issued_s.empty()) {
          samples.launches.push_back(durations.host_s[rank][i]);
          continue;
        }
        if (const std::optional<double> issuing_s = host.issuing_s(i)) {
          samples.launches.push_back(*issuing_s);
          samples.issues[key].push_back(*issuing_s);
        }
        if (const std::optional<double> gap_s = host.gap_s(i)) gaps.push_back(*gap_s);
      }
    }
  }
  works.merge(at_most);  // only works that are in no other sample
  if (!gaps.empty()) {   // the median: where a device was held back (backend/rank/execute.hpp), that is in one
    Statistic all;
    all.add(gaps);
    samples.gaps.push_back(all.median_s);
  }
  if (task.kind != Kind::memory && is_one_list) samples.rank_spread = spread_of(totals_s, works);
  for (auto& [key, by_instruction] : works) {
    samples.interruptions.add(without_interruptions(by_instruction));
    if (task.kind != Kind::pace) samples.works[key] = pooled(by_instruction);
  }
}

/// Ranks that were ready and then got their shared device, in a step.
class Turns {
 public:
  Turns(const CalibrationTask& task, const std::vector<Program::Place>& places, const TransferMatching& matching,
        const Timeline& step)
      : task_(task) {
    std::vector<double> done_s(matching.participants.size(), std::numeric_limits<double>::infinity());
    const auto each = [&](InstructionKind kind, const auto& visit) {
      for (std::uint32_t rank = 0; rank < places.size(); ++rank) {
        const Role& role = task.program.roles[places[rank].role];
        for (std::uint32_t i = 0; i < role.size(); ++i)
          if (role.kind[i] == kind) visit(rank, role, i);
      }
    };
    const auto done = [&](std::uint32_t rank, const Role& role, std::uint32_t i) -> double& {
      return done_s[matching.transfer(places[rank], rank, role, i)];
    };
    each(InstructionKind::collective, [&](std::uint32_t rank, const Role& role, std::uint32_t i) {
      done(rank, role, i) = std::min(done(rank, role, i), step.ranks[rank].end_s[i]);
    });
    for (std::uint32_t rank = 0; rank < places.size(); ++rank)
      if (!step.ranks[rank].start_s.empty()) turns_.push_back({rank, 0, step.ranks[rank].start_s[0]});
    each(InstructionKind::wait, [&](std::uint32_t rank, const Role& role, std::uint32_t i) {
      turns_.push_back({rank, done(rank, role, role.awaits[i]), step.ranks[rank].end_s[i]});
    });
  }

  /// When the next has the device of this rank, who was ready at the post already; infinity: nobody was.
  [[nodiscard]] double next_s(std::uint32_t rank, double posted_s, double waits_s) const {
    double next_s = std::numeric_limits<double>::infinity();
    for (const auto& [other, ready_s, begun_s] : turns_)
      if (other != rank && task_.cluster.place[other].device == task_.cluster.place[rank].device &&
          ready_s <= posted_s && begun_s >= waits_s)
        next_s = std::min(next_s, begun_s);
    return next_s;
  }

 private:
  struct Turn {
    std::uint32_t rank;
    double ready_s, begun_s;
  };
  const CalibrationTask& task_;
  std::vector<Turn> turns_;
};

void collect_transfers(const CalibrationTask& task, std::span<const Timeline> steps, CalibrationSamples& samples) {
  const std::vector<Program::Place> places = task.program.places();
  const TransferMatching matching(task.program);
  // Of ranks that share a device, only the first to go on has seen the collective alone: the others waited for the
  // device, too.
  const bool first_only = task.shares_devices() && task.question.kind == InstructionKind::collective;
  for (const Timeline& step : steps) {
    const Durations durations = durations_of(task.program, step, task.cluster);
    std::vector<double> first_s(matching.participants.size(), std::numeric_limits<double>::infinity());
    std::optional<Turns> turns;
    if (first_only) turns.emplace(task, places, matching, step);
    for (std::uint32_t rank = 0; rank < places.size(); ++rank) {
      const Role& role = task.program.roles[places[rank].role];
      const RankTimeline& times = step.ranks[rank];
      for (std::uint32_t i = 0; i < role.size(); ++i) {
        if (!is_posted(role.kind[i])) continue;
        if (role.kind[i] == InstructionKind::collective && !is_waited_for_at_once(role, i)) continue;
        const bool receives = role.kind[i] == InstructionKind::recv;
        const bool sender_first = (times.posted_s[i] < times.start_s[i]) != receives;
        LinkSamples& link = task.has_unexpected() && sender_first ? samples.unexpected : samples.link;
        double& first = first_s[matching.transfer(places[rank], rank, role, i)];
        // Both ends of a message see it; the receiver knows when it was there.
        if (role.kind[i] != InstructionKind::send) {
          first = std::min(first, durations.seconds[rank][i]);
          if (!first_only) link.transfers.push_back(durations.seconds[rank][i]);
        }
        (receives ? link.recv_overheads : link.send_overheads).push_back(durations.host_s[rank][i + 1]);
        if (!first_only) continue;
        // Whoever is ready has the core as soon as this rank waits and the transport's threads are done.
        const double posted_s = times.posted_s[i],
                     next_s = turns->next_s(rank, posted_s, posted_s + durations.host_s[rank][i + 1]);
        if (next_s < times.start_s[i]) link.engaged.push_back(next_s - posted_s);
      }
    }
    if (first_only)  // those that were waited for at once
      std::ranges::copy_if(first_s, std::back_inserter(samples.link.transfers),
                           [](double seconds) { return std::isfinite(seconds); });
    if (task.question.kind == InstructionKind::collective) {
      if (const std::optional<double> taken = core_time(task.program, step)) samples.link.core_times.push_back(*taken);
      const std::vector<std::vector<double>> rewritings = rewriting_times(task.program, step);
      samples.link.rewritings.resize(rewritings.size());
      for (std::size_t rank = 0; rank < rewritings.size(); ++rank)
        samples.link.rewritings[rank].insert(samples.link.rewritings[rank].end(), rewritings[rank].begin(),
                                             rewritings[rank].end());
    }
  }
  // Ranks that share a device wait for each other, and that is not late.
  if (task.shares_devices()) return;
  for (LinkSamples* link : {&samples.link, &samples.unexpected}) {
    samples.late_transfers.count += static_cast<std::int64_t>(link->transfers.size());
    for (std::vector<double>* times : {&link->transfers, &link->send_overheads, &link->recv_overheads})
      samples.late_transfers.lost_s += sim::without_interruptions(*times).lost_s;
  }
}

void add_how_the_machine_is(const CalibrationSamples& samples, const CalibrationTask& task, Profile& profile) {
  profile.add_rank_spread(task.world, samples.rank_spread);
  profile.add_interruptions(task.world, samples.interruptions);
  profile.add_late_transfers(task.world, samples.late_transfers);
}

}  // namespace

double rewriting_s(const LinkSamples& link) {
  double sum_s = 0;
  for (const std::vector<double>& of_rank : link.rewritings)
    if (!of_rank.empty()) sum_s += std::max(0.0, middle_of(of_rank));
  return link.rewritings.empty() ? 0 : sum_s / static_cast<double>(link.rewritings.size());
}

CalibrationSamples samples_of(const CalibrationTask& task, std::span<const Timeline> steps) {
  CalibrationSamples samples;
  switch (task.kind) {
    case Kind::ops:
    case Kind::pace:
    case Kind::memory:
      collect_ops(task, steps, samples);
      break;
    case Kind::transfers:
      collect_transfers(task, steps, samples);
      break;
    case Kind::notification:
      for (const Timeline& step : steps)
        for (const double seconds : notification_times(task.program, step)) samples.notifications.push_back(seconds);
      sim::without_interruptions(samples.notifications);
      break;
    case Kind::core_share:
      for (const Timeline& step : steps)
        if (const std::optional<double> share = core_share(task.program, step)) samples.core_shares.push_back(*share);
      break;
  }
  return samples;
}

void add_memory(const CalibrationTask& task, std::span<const std::vector<std::int64_t>> workspace_bytes,
                std::span<const std::int64_t> resident_peak_bytes, CalibrationSamples& samples) {
  const std::vector<Program::Place> places = task.program.places();
  for (std::uint32_t rank = 0; rank < places.size(); ++rank) {
    const Role& role = task.program.roles[places[rank].role];
    for (std::uint32_t i = 0; i < role.size(); ++i)
      if (is_computed(role.kind[i])) {
        std::int64_t& largest = samples.workspaces[work_key(task.program.works[role.work[i]])];
        largest = std::max(largest, workspace_bytes[rank][i]);
      }
  }
  std::vector<double> of_works;
  for (const Work& work : task.program.works)
    of_works.push_back(static_cast<double>(samples.workspaces[work_key(work)]));
  samples.process_bytes.assign(resident_peak_bytes.begin(), resident_peak_bytes.end());
  for (std::uint32_t rank = 0; rank < places.size(); ++rank)
    samples.process_bytes[rank % resident_peak_bytes.size()] -=
        memory_with_reuse(task.program.roles[places[rank].role], of_works);
  for (double& bytes : samples.process_bytes) bytes = std::max(bytes, 0.0);
}

std::optional<double> seconds_of(const CalibrationTask& task, const CalibrationSamples& samples) {
  if (task.kind != Kind::ops) return std::nullopt;
  double sum = 0;
  for (const Role& role : task.program.roles)
    for (std::uint32_t i = 0; i < role.size(); ++i) {
      if (!is_computed(role.kind[i])) continue;
      const auto found = samples.works.find(work_key(task.program.works[role.work[i]]));
      if (found == samples.works.end() || found->second.empty()) return std::nullopt;
      sum += mean_of(found->second) * static_cast<double>(role.ranks.size());
    }
  return sum / task.ranks();
}

void add(const CalibrationSamples& samples, const CalibrationTask& task, Profile& profile) {
  add_how_the_machine_is(samples, task, profile);
  for (const auto& [key, seconds] : samples.works) profile.add_op(task.world, key, task.busy_devices(), seconds);
  for (const auto& [key, bytes] : samples.workspaces) profile.add_workspace(key, bytes);
  if (!samples.process_bytes.empty()) profile.add_process_bytes(task.world, samples.process_bytes);
  if (task.busy_devices() == 1) {
    profile.add_launch(samples.launches);
    for (const auto& [key, seconds] : samples.issues) profile.add_issue(key, seconds);
    profile.add_gap(samples.gaps);
  }
  if (!samples.core_shares.empty()) profile.add_core_share(task.world, mean_of(samples.core_shares));
  const auto add_link = [&](const LinkKey& key, const LinkSamples& link) {
    profile.add_link(key, task.question.bytes, link.transfers,
                     {mean_of(link.send_overheads), mean_of(link.recv_overheads), mean_of(link.engaged),
                      rewriting_s(link), mean_of(link.core_times)});
  };
  const LinkKey key = link_key(task.world, task.question);
  // On a busy machine it may be that no receiver was first.
  add_link(key, samples.link.transfers.empty() ? samples.unexpected : samples.link);
  add_link({key.world, "unexpected_send", key.members, {}, key.spread}, samples.unexpected);
  if (!samples.notifications.empty())
    profile.add_link({key.world, "note", key.members}, 0, std::vector{std::max(0.0, mean_of(samples.notifications))});
}

void add_for_job(const CalibrationSamples& samples, const CalibrationTask& task, const std::vector<Job>& jobs,
                 std::size_t j, Profile& profile) {
  const auto is_alike = [&](std::size_t other) {
    return jobs[other].world == jobs[j].world && jobs[other].program.ranks() == jobs[j].program.ranks() &&
           jobs[other].program.threads == jobs[j].program.threads;
  };
  if (std::ranges::find(task.jobs, j) != task.jobs.end())
    add(samples, task, profile);
  else if (std::ranges::any_of(task.jobs, is_alike))
    add_how_the_machine_is(samples, task, profile);
}

}  // namespace sim
