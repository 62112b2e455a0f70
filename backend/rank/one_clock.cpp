#include "backend/rank/one_clock.hpp"

#include <algorithm>

#include "sim/error.hpp"
#include "sim/program/collective.hpp"
#include "sim/program/transfers.hpp"

namespace backend {
namespace {

/// A rank's end of a transfer.
struct End {
  std::uint32_t rank = 0, instruction = 0;
};

/// Of each transfer the ends of those that take part, by rank.
std::vector<std::vector<End>> ends_of(const sim::Program& program, const std::vector<sim::Program::Place>& places) {
  const sim::TransferMatching matching(program);
  std::vector<std::vector<End>> ends(matching.participants.size());
  for (std::uint32_t rank = 0; rank < places.size(); ++rank) {
    const sim::Role& role = program.roles[places[rank].role];
    for (std::uint32_t i = 0; i < role.size(); ++i)
      if (is_posted(role.kind[i])) ends[matching.transfer(places[rank], rank, role, i)].push_back({rank, i});
  }
  return ends;
}

}  // namespace

ClockReading reading_of(const SharedClock& clock, const Communicator& communicator) {
  const std::vector<ClockOffset>& offsets = clock.host.offsets();
  return {.offset_s = offsets.empty() ? 0 : offsets.back().offset_s,
          .drift = clock.host.drift(),
          .error_s = clock.host.error_s(),
          .host = communicator.host_of(communicator.rank()),
          .rank = communicator.named(communicator.rank())};
}

void put_on_one_clock(std::vector<sim::RankTimeline>& timelines, const std::vector<double>& late_s) {
  const double zero_s = *std::ranges::min_element(late_s);
  for (std::size_t rank = 0; rank < timelines.size(); ++rank) {
    sim::RankTimeline& times = timelines[rank];
    const double shift_s = late_s[rank] - zero_s;
    for (auto* moments : {&times.posted_s, &times.start_s, &times.end_s, &times.issued_s})
      for (double& moment_s : *moments) moment_s += shift_s;
    times.end_of_step_s += shift_s;
  }
}

void check_order(const sim::Program& program, const std::vector<sim::RankTimeline>& timelines,
                 const std::vector<ClockReading>& readings) {
  const std::vector<sim::Program::Place> places = program.places();
  const auto role_of = [&](std::uint32_t rank) -> const sim::Role& { return program.roles[places[rank].role]; };
  const auto check = [&](const End& from, const End& to) {
    const ClockReading &theirs = readings[from.rank], &ours = readings[to.rank];
    if (theirs.host == ours.host) return;
    const double posted_s = timelines[from.rank].posted_s[from.instruction];
    const double early_s = posted_s - timelines[to.rank].end_s[to.instruction];
    const double allowed_s = theirs.error_s + ours.error_s;
    if (early_s <= allowed_s) return;
    throw sim::RunError(
        "{}, instruction {} ({}): done {:.3g} us before {} had posted it, by clocks that are known to within {:.3g} "
        "us; "
        "a host's clock is wrong",
        ours.rank, to.instruction, program.label(role_of(to.rank), to.instruction), 1e6 * early_s, theirs.rank,
        1e6 * allowed_s);
  };
  for (const std::vector<End>& ends : ends_of(program, places)) {
    const sim::Role& role = role_of(ends[0].rank);
    const std::uint32_t i = ends[0].instruction;
    if (role.kind[i] != sim::InstructionKind::collective) {
      const bool sends = role.kind[i] == sim::InstructionKind::send;
      check(ends[sends ? 0 : 1], ends[sends ? 1 : 0]);
      continue;
    }
    const auto members = static_cast<std::uint32_t>(ends.size());  // in the list's order, which is the ranks'
    sim::for_each_move(role.collective[i], members, role.root[i], [&](const sim::Move& move) {
      for (std::uint32_t member = 0; member < members; ++member)
        if (move.is_from(member) && member != move.to) check(ends[member], ends[move.to]);
    });
  }
}

}  // namespace backend
