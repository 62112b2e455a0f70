#include "sim/simulate/timeline.hpp"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "sim/error.hpp"

namespace sim {

namespace {

/// What one instruction adds to its rank's breakdown.
struct Spent {
  double compute_s = 0, exposed_communication_s = 0, bubble_s = 0;
};
void add_spent(Spent& to, const Role& role, const RankTimeline& rank, std::uint32_t i) {
  const double start = rank.start_s[i], end = rank.end_s[i];
  if (is_computed(role.kind[i])) {
    to.compute_s += end - start;
  } else if (role.kind[i] == InstructionKind::wait) {
    const double ready = std::clamp(rank.start_s[role.awaits[i]], start, end);
    to.bubble_s += ready - start;
    to.exposed_communication_s += end - ready;
  }
}
/// Of instructions [begin, end).
Spent spent(const Role& role, const RankTimeline& rank, std::uint32_t begin, std::uint32_t end) {
  Spent total;
  for (std::uint32_t i = begin; i < end; ++i) add_spent(total, role, rank, i);
  return total;
}

}  // namespace

void break_down(const Program& program, Timeline& timeline) {
  const std::vector<Program::Place> places = program.places();
  for (std::size_t r = 0; r < timeline.ranks.size(); ++r) {
    const Role& role = program.roles[places[r].role];
    RankTimeline& rank = timeline.ranks[r];
    const Spent own = spent(role, rank, 0, role.size());
    rank.compute_s = own.compute_s, rank.exposed_communication_s = own.exposed_communication_s;
    rank.bubble_s = own.bubble_s;
    rank.host_s = rank.end_of_step_s - rank.compute_s - rank.exposed_communication_s - rank.bubble_s;
    rank.bubble_s += timeline.step_s - rank.end_of_step_s;
  }
}

namespace {

/// When a rank's list is done with its first so many instructions.
double done_with(const Role& role, const RankTimeline& rank, std::uint32_t instructions) {
  const std::uint32_t last = instructions - 1;
  return is_posted(role.kind[last]) ? rank.posted_s[last] : rank.end_s[last];
}

/// The bodies from the second on, each rank's by itself: in the steady state all take as long.
StepTime time_of_bodies(const Program& program, const Timeline& timeline) {
  const std::vector<Program::Place> places = program.places();
  StepTime time;
  for (std::size_t r = 0; r < places.size(); ++r) {
    const Role& role = program.roles[places[r].role];
    const RankTimeline& rank = timeline.ranks[r];
    const std::uint32_t begin = role.next_bodies.front();
    const double rank_s = done_with(role, rank, role.body_end) - done_with(role, rank, begin);
    const Spent own = spent(role, rank, begin, role.body_end);
    const double ranks = program.ranks_of(static_cast<std::uint32_t>(r));
    time.step_s += ranks * rank_s;
    time.compute_s += ranks * own.compute_s;
    time.exposed_communication_s += ranks * own.exposed_communication_s;
    time.bubble_s += ranks * own.bubble_s;
    time.host_s += ranks * (rank_s - own.compute_s - own.exposed_communication_s - own.bubble_s);
  }
  const double steps = static_cast<double>(program.ranks()) * static_cast<double>(program.steps) *
                       static_cast<double>(program.bodies() - 1);
  for (const StepPart& part : kStepParts) time.*part.value /= steps;
  return time;
}

}  // namespace

StepTime step_time(const Program& program, const Timeline& timeline) {
  if (program.bodies() > 1) return time_of_bodies(program, timeline);
  StepTime time{.step_s = timeline.step_s};
  const double ranks = program.classes ? program.ranks() : static_cast<double>(timeline.ranks.size());
  for (std::uint32_t r = 0; r < timeline.ranks.size(); ++r) {
    const RankTimeline& rank = timeline.ranks[r];
    const double alike = program.ranks_of(r);
    time.compute_s += alike * rank.compute_s / ranks;
    time.exposed_communication_s += alike * rank.exposed_communication_s / ranks;
    time.bubble_s += alike * rank.bubble_s / ranks;
    time.host_s += alike * rank.host_s / ranks;
  }
  return time;
}

StepTime mean(const std::vector<StepTime>& times) {
  check_internal(!times.empty(), "the mean of no step times");
  StepTime result;
  for (const StepPart& part : kStepParts) {
    for (const StepTime& time : times) result.*part.value += time.*part.value;
    result.*part.value /= static_cast<double>(times.size());
  }
  return result;
}

void check(const Program& program, const Timeline& timeline) {
  const std::vector<Program::Place> places = program.places();
  check_internal(timeline.ranks.size() == places.size(), "timeline of {} ranks for a program of {}",
                 timeline.ranks.size(), places.size());
  for (std::size_t r = 0; r < places.size(); ++r) {
    const Role& role = program.roles[places[r].role];
    const RankTimeline& rank = timeline.ranks[r];
    // Sums of floating-point durations: a rounding error's room, nothing more.
    const double slack = 1e-9 * (1 + timeline.step_s);
    double lane = 0;
    for (std::uint32_t i = 0; i < role.size(); ++i) {
      const double start = rank.start_s[i], end = rank.end_s[i];
      // Spelled out, not check_internal: its arguments would be made for every instruction.
      const bool ordered = std::isfinite(start) && std::isfinite(end) && start >= 0 && end >= start;
      if (!ordered || end > timeline.step_s + slack)
        throw InternalError("rank {} instruction {} ({}) runs from {} s to {} s of {} s", r, i, program.label(role, i),
                            start, end, timeline.step_s);
      if (is_posted(role.kind[i])) {
        check_internal(rank.posted_s[i] <= start + slack,
                       "rank {} instruction {}: ready at {} s before it is posted at {} s", r, i, start,
                       rank.posted_s[i]);
      } else {
        check_internal(start >= lane - slack, "rank {} instruction {} starts at {} s, the one before ends at {} s", r,
                       i, start, lane);
        lane = end;
        if (role.kind[i] == InstructionKind::wait)
          check_internal(end >= rank.end_s[role.awaits[i]] - slack,
                         "rank {} instruction {}: the wait ends before what it waits for", r, i);
      }
    }
    check_internal(rank.end_of_step_s <= timeline.step_s + slack, "rank {} ends after the step", r);
    const double sum = rank.compute_s + rank.exposed_communication_s + rank.bubble_s + rank.host_s;
    check_internal(std::abs(sum - timeline.step_s) <= slack && rank.host_s >= -slack,
                   "rank {}: the breakdown sums to {} s of {} s", r, sum, timeline.step_s);
  }
}

std::string chrome_trace(const Program& program, const std::vector<NamedTimeline>& timelines) {
  using Json = nlohmann::json;
  constexpr double kMicro = 1e6;
  const char* const lanes[] = {"compute", "communication", "wait", "host"};  // threads 1 to 4
  Json events = Json::array();
  const std::vector<Program::Place> places = program.places();
  for (std::size_t t = 0; t < timelines.size(); ++t) {
    for (std::size_t r = 0; r < places.size(); ++r) {
      const auto pid = r * timelines.size() + t;  // predicted and measured of one rank lie side by side
      const std::string process =
          fmt::format("rank {} {}", program.rank_of(static_cast<std::uint32_t>(r)), timelines[t].name);
      events.push_back({{"ph", "M"}, {"pid", pid}, {"name", "process_name"}, {"args", {{"name", process}}}});
      events.push_back({{"ph", "M"}, {"pid", pid}, {"name", "process_sort_index"}, {"args", {{"sort_index", pid}}}});
      const Role& role = program.roles[places[r].role];
      const RankTimeline& rank = timelines[t].timeline->ranks[r];
      for (int lane = 0; lane < (rank.issued_s.empty() ? 3 : 4); ++lane)
        events.push_back(
            {{"ph", "M"}, {"pid", pid}, {"tid", lane + 1}, {"name", "thread_name"}, {"args", {{"name", lanes[lane]}}}});
      const auto event_of = [&](int lane, std::uint32_t i, std::string_view category, double begin_s, double end_s) {
        return Json{{"ph", "X"},
                    {"pid", pid},
                    {"tid", lane},
                    {"name", program.label(role, i)},
                    {"cat", category},
                    {"ts", begin_s * kMicro},
                    {"dur", (end_s - begin_s) * kMicro},
                    {"args", {{"instruction", i}}}};
      };
      for (std::uint32_t i = 0; i < rank.issued_s.size(); ++i)
        events.push_back(event_of(4, i, "issue", i > 0 ? rank.issued_s[i - 1] : 0, rank.issued_s[i]));
      for (std::uint32_t i = 0; i < role.size(); ++i) {
        const int lane = is_computed(role.kind[i]) ? 1 : is_posted(role.kind[i]) ? 2 : 3;
        Json event = event_of(lane, i, to_string(role.kind[i]), rank.start_s[i], rank.end_s[i]);
        if (role.microbatch[i] >= 0) event["args"]["microbatch"] = role.microbatch[i];
        if (is_posted(role.kind[i])) event["args"]["posted_us"] = rank.posted_s[i] * kMicro;
        events.push_back(std::move(event));
      }
    }
  }
  return Json{
      {"displayTimeUnit", "ms"},
      {"otherData", {{"model", program.model}, {"strategy", program.strategy}, {"format", "paragauge-trace-1"}}},
      {"traceEvents", std::move(events)}}
      .dump();
}

}  // namespace sim
