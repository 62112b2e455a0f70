#include "sim/calibrate/tasks.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

#include "sim/calibrate/alone.hpp"
#include "sim/calibrate/conditions.hpp"
#include "sim/calibrate/make_probe.hpp"
#include "sim/calibrate/probe.hpp"
#include "sim/cost/profile.hpp"

namespace sim {
namespace {

using Kind = CalibrationTask::Kind;

constexpr std::uint32_t kProbeRepeats = 4, kOverlapComputes = 16;  // half of the former are unexpected
/// A step begins after a rest, from which an idle core is woken late: the first of 4 transfers of 256 KiB makes their mean
/// 1.3 times that of 16, and of a training step's, which come after some computing.
constexpr std::uint32_t kProbeRepeatsOfSmall = 16;
constexpr std::int64_t kSmallTransfer = 256 << 10;
constexpr std::int64_t kOverlapBytes = 1 << 20;
constexpr std::int64_t kSmallestTransfer = 4 << 10, kLargestTransfer = 64 << 20;

/// How many ranks find devices for themselves: a core for each of their threads.
std::uint32_t seats_in(const Job& job) { return job.cluster.devices() / job.program.threads; }

/// Answers nothing and keeps what a forecast asks.
class Questions final : public CostModel {
 public:
  [[nodiscard]] ComputeCost compute(const Work& /*work*/) const override { return {{0.0}}; }
  [[nodiscard]] TransferCost transfer(const TransferQuestion& question) const override {
    asked.push_back(question);
    return {};
  }
  [[nodiscard]] double launch_s(std::uint32_t /*kind*/) const override { return 0; }
  mutable std::vector<TransferQuestion> asked;
};

std::vector<TransferQuestion> questions_of(const Job& job) {
  const Questions questions;
  costs_of(job.program, questions, job.cluster);
  std::ranges::sort(questions.asked, {},
                    [](const TransferQuestion& q) { return std::tuple(q.kind, q.collective, q.members, q.bytes); });
  return questions.asked;
}

/// A power of two.
double rounded(double bytes) {
  constexpr double kLeast = 16 << 10, kMost = 64 << 20;  // what a probe can tell apart
  return std::exp2(std::round(std::log2(std::clamp(bytes, kLeast, kMost))));
}

/// Bytes up to a power of two, so that jobs of the same kinds of layers, which move about as much between their
/// transfers, share a probe.
BetweenTransfers rounded_between(const Job& job, const TransferQuestion& question) {
  constexpr double kLeastSinceWritten = 1e5;  // fewer are in a core's own caches with what was written
  BetweenTransfers between = question.kind == InstructionKind::collective
                                 ? between_collectives(job.program, job.cluster, question.collective)
                                 : between_transfers(job.program);
  between.bytes = rounded(between.bytes);
  double& since_written = between.bytes_since_written;
  since_written = since_written < kLeastSinceWritten ? 0 : rounded(since_written);
  if (between.bytes_until_rewritten) between.bytes_until_rewritten = rounded(*between.bytes_until_rewritten);
  return between;
}

std::string ranks_busy(std::uint32_t ranks) { return fmt::format("{} rank{} busy", ranks, ranks > 1 ? "s" : ""); }

/// What each role's list takes alone, by the data sheet.
std::vector<double> seconds_of_roles(const Job& job) {
  const std::unique_ptr<CostModel> sheet = make_cost_model("analytic", job.cluster);
  std::vector<double> seconds;
  for (const Role& role : job.program.roles) {
    double& of_role = seconds.emplace_back(0);
    for (std::uint32_t i = 0; i < role.size(); ++i)
      if (is_computed(role.kind[i])) of_role += sheet->compute(job.program.works[role.work[i]]).busy_s[0];
  }
  return seconds;
}

std::uint32_t longest_of(const std::vector<double>& seconds) {
  return static_cast<std::uint32_t>(std::ranges::max_element(seconds) - seconds.begin());
}

/// The lists of all roles, the shorter ones so often that the longest is never alone; on all their ranks, or on one
/// each where some have more than others.
std::vector<RoleAlone> all_at_once(const Job& job, const std::vector<double>& seconds) {
  // A data sheet knows little of a max pool; of a long list's many ops it knows the sum better, and margin costs time.
  constexpr double kShort_s = 0.02, kMarginOfShort = 2.5, kMargin = 1.5, kMost = 16;
  const std::uint32_t longest = longest_of(seconds);
  const double margin = seconds[longest] < kShort_s ? kMarginOfShort : kMargin;
  const std::vector<Role>& roles = job.program.roles;
  const bool alike =
      std::ranges::all_of(roles, [&](const Role& role) { return role.ranks.size() == roles[0].ranks.size(); });
  std::vector<RoleAlone> lists;
  for (std::uint32_t r = 0; r < seconds.size(); ++r)
    lists.push_back({r, alike ? roles[r].ranks : std::vector{r},
                     r == longest ? 1
                                  : static_cast<std::uint32_t>(std::ceil(
                                        std::min(margin * seconds[longest] / std::max(seconds[r], 1e-9), kMost)))});
  return lists;
}

struct TaskList {
  /// `job`: whose costs these are. `of` tells tasks with the same program apart. Ranks have as many threads as the
  /// job's.
  void add(CalibrationTask task, std::uint32_t threads, std::optional<std::size_t> job, std::string_view of = "") {
    task.program.set_threads(threads);
    std::vector<RankPlace>& place = task.cluster.place;
    while (place.size() < task.ranks())  // more ranks than the job has
      place.push_back({.device = static_cast<std::uint32_t>(place.size()) * threads % task.cluster.devices()});
    task.id = content_id(fmt::format("{}\n{}\n{}", task.world, of, to_text(task.program)));
    const auto [entry, is_new] = known.emplace(task.id, list.size());
    if (is_new) list.push_back(std::move(task));
    std::vector<std::size_t>& jobs = list[entry->second].jobs;
    if (job && (jobs.empty() || jobs.back() != *job)) jobs.push_back(*job);
  }
  std::vector<CalibrationTask> list;
  std::map<std::string, std::size_t> known;  // by id
};

void add_ops(TaskList& tasks, const Job& job, std::size_t j, const CalibrationScope& scope, std::uint32_t busy) {
  const std::vector<Role>& roles = job.program.roles;
  const std::uint32_t ranks = job.program.ranks(), devices = seats_in(job);
  const bool share_cores =
      scope.busy_ranks == 0 && ranks > devices && job.cluster.scheduling == Scheduling::run_until_wait;
  const bool at_once = scope.busy_ranks == 0 && ranks <= devices && roles.size() > 1;
  const bool turns_at_once = share_cores && roles.size() > 1 && roles_share(job.program);
  const auto add = [&](Kind kind, const std::vector<RoleAlone>& lists, bool in_turns) {
    CalibrationTask task{.kind = kind,
                         .world = job.world,
                         .program = alone(job.program, lists, in_turns),
                         .cluster = job.cluster,
                         .in_turns = in_turns};
    task.label = fmt::format("{} ops of {} as {} of {} runs them, {}", job.world, job.model.text(),
                             lists.size() > 1 ? "every role" : roles[lists[0].role].name, job.strategy.text(),
                             ranks_busy(in_turns ? 1 : task.ranks()));
    tasks.add(std::move(task), job.program.threads, j, fmt::format("{} {}", job.model.text(), kind == Kind::pace));
  };
  std::vector<RoleAlone> each;
  for (std::uint32_t r = 0; r < roles.size(); ++r) each.push_back({r, {r}});
  add(Kind::ops, each, /*in_turns=*/roles.size() > 1);
  for (std::uint32_t level = 2; level <= busy; ++level)
    for (std::uint32_t r = 0; r < roles.size() && !((at_once || turns_at_once) && level == busy); ++r)
      add(Kind::ops, {{r, first_numbers(share_cores && level == busy ? ranks : level)}}, /*in_turns=*/false);
  if (!at_once && !turns_at_once) return;
  const std::vector<double> seconds = seconds_of_roles(job);
  add(Kind::ops, all_at_once(job, seconds), /*in_turns=*/false);
  if (turns_at_once) return;
  add(Kind::pace, {{longest_of(seconds), first_numbers(busy)}}, /*in_turns=*/false);
}

void add_memory(TaskList& tasks, const Job& job, std::uint32_t busy) {
  for (std::uint32_t ranks = 1; ranks <= busy; ++ranks)
    tasks.add({.kind = Kind::memory,
               .label = fmt::format("{} memory, with the optimizer of {}, {}", job.world, job.model.text(),
                                    ranks_busy(ranks)),
               .world = job.world,
               .program = memory_probe(job.model, ranks),
               .cluster = job.cluster},
              job.program.threads, std::nullopt);
}

/// The ranks of a mesh that differ from its first on these axes only.
struct Seats {
  Mesh mesh;
  std::uint32_t axes = 0;
  [[nodiscard]] std::vector<std::uint32_t> ranks() const { return mesh.members(0, axes); }
};
/// Ranks that are as far from each other as the question's: of each host the first few. Nothing where the members lie
/// otherwise than as many on each of several hosts, or the job hasn't such ranks.
std::optional<Seats> seats_on_hosts(const TransferQuestion& question, const Job& job) {
  constexpr std::uint32_t kHost = 1, kInner = 4;  // bits of the axes
  if (question.spread.size() != 2 || job.cluster.node_level != 0) return std::nullopt;
  const std::uint32_t of_each = question.spread[0], hosts = question.spread[1];
  std::uint32_t ranks = 0;  // of a host
  while (ranks < job.program.ranks() && job.cluster.node_of(ranks) == 0) ++ranks;
  if (of_each * hosts != question.members || ranks % of_each != 0 || hosts * ranks > job.program.ranks())
    return std::nullopt;
  return Seats{{{{"host", hosts}, {"other", ranks / of_each}, {"inner", of_each}}}, kHost | kInner};
}

/// Where a question is asked. Nothing: nowhere.
std::optional<Seats> seats_of(const TransferQuestion& question, const Job& job,
                              const std::vector<std::string>& devices_of_groups) {
  if (!question.spread.empty()) return seats_on_hosts(question, job);
  if (question.devices.empty()) return Seats{row_of(question.members), 1};
  const auto group = std::ranges::find(devices_of_groups, question.devices) - devices_of_groups.begin();
  return Seats{job.program.mesh, job.program.groups[static_cast<std::size_t>(group)].axes};
}

bool share_a_device(const std::vector<std::uint32_t>& ranks, const Cluster& cluster) {
  std::set<std::uint32_t> devices;
  return std::ranges::any_of(ranks,
                             [&](std::uint32_t rank) { return !devices.insert(cluster.place.at(rank).device).second; });
}

void add_transfers(TaskList& tasks, const Job& job, std::size_t j, bool other_sizes) {
  std::map<TransferQuestion, std::map<std::int64_t, bool>> sizes;  // by question but for its bytes: own?
  for (const TransferQuestion& question : questions_of(job)) {
    TransferQuestion of_no_size = question;
    of_no_size.bytes = 0;
    std::map<std::int64_t, bool>& of_kind = sizes[of_no_size];
    of_kind[question.bytes] = of_kind[kSmallestTransfer] = true;  // the smallest tells what doesn't depend on the size
    for (std::int64_t bytes = kSmallestTransfer; other_sizes && bytes <= kLargestTransfer; bytes *= 4)
      of_kind.try_emplace(bytes, false);
  }
  const std::vector<std::string> devices = devices_of_groups(job.program, job.cluster);
  for (const auto& [question, of_kind] : sizes) {
    const std::optional<Seats> seats = seats_of(question, job, devices);
    if (!seats) continue;  // the data sheet's
    BetweenTransfers of_kind_between = rounded_between(job, question);
    // Of members that share cores a transfer takes all of these already.
    if (share_a_device(seats->ranks(), job.cluster)) of_kind_between.computes_beside = false;
    for (const auto& [bytes, own] : of_kind) {
      CalibrationTask task{.kind = Kind::transfers, .world = job.world, .cluster = job.cluster, .question = question};
      task.question.bytes = bytes;
      BetweenTransfers between = of_kind_between;
      if (bytes > kLargestTransfer) between.bytes_until_rewritten.reset();  // no cache holds it
      std::string when = between.bytes_since_written > 0
                             ? fmt::format(", {:.0f} since it was written", between.bytes_since_written / 1e3)
                             : "";
      if (between.bytes_until_rewritten)
        when += fmt::format(", {:.0f} until it is again", *between.bytes_until_rewritten / 1e3);
      if (between.computes_beside) when += ", and beside compute";
      const std::uint32_t repeats = bytes <= kSmallTransfer ? kProbeRepeatsOfSmall : kProbeRepeats;
      task.label =
          fmt::format("{} {} of {} bytes among {}{}, {:.0f} kB{} before each{}", job.world,
                      link_key(job.world, question).kind, bytes, question.members,
                      (question.devices.empty() ? "" : " on cores " + question.devices) +
                          (question.own_in_place ? " whose own is in place" : "") +
                          (question.spread.empty() ? "" : " over " + job.cluster.levels.back().name),
                      between.bytes / 1e3,
                      between.kinds.empty() ? "" : fmt::format(" and {}", fmt::join(between.kinds, ", ")), when);
      task.program =
          on_ranks(transfer_probe(task.question, repeats, between, task.has_unexpected()), seats->mesh, seats->axes);
      tasks.add(std::move(task), job.program.threads, own ? std::optional(j) : std::nullopt);
    }
  }
}

/// Adds probes of pairs of ranks with a core each: what the transport takes of a core for its bytes doesn't depend on
/// how many take part, nor on whether they are of a collective. What a notification takes depends on the ops that it
/// interrupts.
void add_what_transfers_take(TaskList& tasks, const Job& job, std::size_t j) {
  const std::vector<TransferQuestion> questions = questions_of(job);
  if (questions.empty() || job.cluster.link().engine != TransferEngine::background) return;
  CalibrationTask task{.kind = Kind::core_share,
                       .label = fmt::format("{} compute beside transfers", job.world),
                       .world = job.world,
                       .cluster = job.cluster,
                       .question = {InstructionKind::collective, CollectiveKind::all_reduce, kOverlapBytes, 2}};
  task.program = overlap_probe(task.question, kProbeRepeats, kOverlapComputes);
  if (task.shares_devices()) return;
  tasks.add(task, job.program.threads, j);
  const bool sends =
      std::ranges::any_of(questions, [](const TransferQuestion& q) { return q.kind == InstructionKind::send; });
  if (!sends || job.cluster.link().transport != Transport::notify) return;
  task.kind = Kind::notification;
  task.label = fmt::format("{} ops of {} beside notifications", job.world, job.model.text());
  task.question.kind = InstructionKind::send;
  task.program = notification_probe(job.program, longest_of(seconds_of_roles(job)));
  tasks.add(task, job.program.threads, j);
}

}  // namespace

std::uint32_t CalibrationTask::busy_devices() const { return in_turns ? 1 : std::min(ranks(), cluster.devices()); }

bool CalibrationTask::shares_devices() const {
  std::vector<std::uint32_t> busy;  // ranks
  for (const Role& role : program.roles)
    if (role.size() > 0) busy.insert(busy.end(), role.ranks.begin(), role.ranks.end());
  return share_a_device(busy, cluster);
}

bool CalibrationTask::has_unexpected() const {
  return kind == Kind::transfers && question.kind == InstructionKind::send &&
         cluster.link().transport == Transport::notify;
}

std::vector<CalibrationTask> calibration_tasks(const std::vector<Job>& jobs, const CalibrationScope& scope) {
  const auto busy = [&](const Job& job) {
    if (scope.busy_ranks == 0) return std::min(job.program.ranks(), seats_in(job));
    // Ranks of one thread may share a core.
    return job.program.threads == 1 ? scope.busy_ranks : std::min(scope.busy_ranks, seats_in(job));
  };
  TaskList tasks;
  for (std::size_t j = 0; j < jobs.size(); ++j) add_ops(tasks, jobs[j], j, scope, busy(jobs[j]));
  for (std::size_t j = 0; scope.other_sizes && j < jobs.size(); ++j) add_memory(tasks, jobs[j], busy(jobs[j]));
  for (std::size_t j = 0; j < jobs.size(); ++j) add_transfers(tasks, jobs[j], j, scope.other_sizes);
  for (std::size_t j = 0; j < jobs.size(); ++j) add_what_transfers_take(tasks, jobs[j], j);
  return std::move(tasks.list);
}

}  // namespace sim
