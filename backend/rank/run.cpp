#include "backend/rank/run.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "backend/machine/allocator.hpp"
#include "backend/machine/launch.hpp"
#include "backend/machine/scheduling.hpp"
#include "backend/machine/speed.hpp"
#include "backend/rank/initial.hpp"
#include "backend/train/feed.hpp"
#include "backend/train/state.hpp"
#include "sim/cluster/allowance.hpp"
#include "sim/cost/statistic.hpp"
#include "sim/error.hpp"
#include "sim/model/model.hpp"
#include "sim/program/transfers.hpp"
#include "sim/text/system_file.hpp"

namespace backend {
namespace {

/// VmHWM: the process's resident peak since it was last reset (or started, where resetting isn't permitted), without
/// what earlier programs have left and this one hasn't used.
std::int64_t resident_peak_bytes() {
  const std::optional<double> peak = sim::field_bytes("/proc/self/status", "VmHWM:");
  return peak ? static_cast<std::int64_t>(*peak) - idle_bytes() - probe_bytes() : 0;
}

/// Of each training step that was played together the mean of its losses; NaN on a rank without.
std::vector<double> mean_losses(const StepRecord& record, std::int64_t steps) {
  std::vector<double> means(static_cast<std::size_t>(steps));
  const std::size_t each = record.losses.size() / means.size();
  for (std::size_t i = 0; i < each * means.size(); ++i) means[i / each] += record.losses[i].item<double>();
  for (double& mean : means) mean /= static_cast<double>(each);
  return means;
}

/// Fills in when transfers were ready where the ranks themselves couldn't know: when the last party had posted.
void fill_ready_times(const sim::Program& program, const sim::TransferMatching& matching, sim::Timeline& timeline) {
  const std::vector<sim::Program::Place> places = program.places();
  const auto each_posted = [&](const auto& visit) {
    for (std::uint32_t rank = 0; rank < places.size(); ++rank) {
      const sim::Role& role = program.roles[places[rank].role];
      for (std::uint32_t i = 0; i < role.size(); ++i)
        if (is_posted(role.kind[i])) visit(matching.transfer(places[rank], rank, role, i), timeline.ranks[rank], i);
    }
  };
  std::vector<double> ready_s(matching.participants.size(), 0);
  each_posted([&](std::uint32_t transfer, const sim::RankTimeline& times, std::uint32_t i) {
    ready_s[transfer] = std::max(ready_s[transfer], times.posted_s[i]);
  });
  each_posted([&](std::uint32_t transfer, sim::RankTimeline& times, std::uint32_t i) {
    if (std::isnan(times.start_s[i])) times.start_s[i] = ready_s[transfer];
    // A broadcast may reach this rank before others have joined.
    times.start_s[i] = std::min(times.start_s[i], times.end_s[i]);
  });
}

/// Tags that are received in the order in which they are sent, in as few lanes as that takes.
std::vector<std::vector<std::uint32_t>> lanes_of(const std::vector<std::uint32_t>& sent,
                                                 const std::vector<std::uint32_t>& received) {
  std::map<std::uint32_t, std::size_t> place;  // by tag
  for (std::size_t at = 0; at < received.size(); ++at) place[received[at]] = at;
  std::vector<std::vector<std::uint32_t>> lanes;
  for (const std::uint32_t tag : sent) {
    const auto lane = std::ranges::find_if(
        lanes, [&](const std::vector<std::uint32_t>& tags) { return place.at(tags.back()) < place.at(tag); });
    if (lane == lanes.end())
      lanes.push_back({tag});
    else
      lane->push_back(tag);
  }
  return lanes;
}

Communicator::Channels channels_of(const sim::Program& program, std::uint32_t rank) {
  using Tags = std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<std::uint32_t>>;  // source, destination
  Tags sent, received;
  for (const sim::Role& role : program.roles)
    for (std::uint32_t i = 0; i < role.size(); ++i) {
      if (!is_message(role.kind[i])) continue;
      const bool sends = role.kind[i] == sim::InstructionKind::send;
      for (const std::uint32_t here : role.ranks)
        if (const std::uint32_t there = program.partner(role, here, i); here == rank || there == rank)
          (sends ? sent[{here, there}] : received[{there, here}]).push_back(role.tag[i]);
    }
  Communicator::Channels channels;
  for (const auto& [ends, tags] : sent) channels[ends] = lanes_of(tags, received[ends]);
  return channels;
}

/// The loss of the whole batch, from the ranks that have a loss of some of its samples each: their mean, weighted by
/// how many samples; or their sum, if the model's loss is one.
double loss_of_batch(const RunRequest& request, const std::vector<RankReport>& reports, std::uint32_t step) {
  double sum = 0, samples = 0;
  bool is_sum = false;
  const std::vector<sim::Program::Place> places = request.program.places();
  for (std::uint32_t rank = 0; rank < reports.size(); ++rank) {
    if (std::isnan(reports[rank].losses[step])) continue;
    const sim::Role& role = request.program.roles[places[rank].role];
    std::int64_t of_rank = 0, losses = 0;
    for (std::uint32_t i = 0; i < role.size(); ++i) {
      if (role.work[i] == sim::kNone) continue;
      const sim::Work& work = request.program.works[role.work[i]];
      if (!work.is_loss()) continue;
      of_rank += work.op.inputs[0].shape[0];
      is_sum = work.op.kind->is_sum;
      ++losses;
    }
    sum += reports[rank].losses[step] * static_cast<double>(is_sum ? losses : of_rank);
    samples += static_cast<double>(of_rank);
  }
  return is_sum ? sum * static_cast<double>(request.program.global_batch) / samples : sum / samples;
}

/// That a run plays, warm-up included.
std::uint32_t training_steps(const RunRequest& request) {
  return (request.warmup_steps + request.steps) * static_cast<std::uint32_t>(request.program.steps_in_list());
}

/// Names, types and shapes: what it takes to make room for the values.
nlohmann::json frame_of(const Reference::Tensors& tensors) {
  nlohmann::json frame = nlohmann::json::array();
  for (const auto& [name, tensor] : tensors)
    frame.push_back({name, static_cast<int>(tensor.scalar_type()), tensor.sizes().vec()});
  return frame;
}

Reference::Tensors room_for(const nlohmann::json& frame) {
  Reference::Tensors tensors;
  for (const nlohmann::json& entry : frame)
    tensors[entry.at(0)] =
        at::empty(entry.at(2).get<std::vector<std::int64_t>>(), static_cast<at::ScalarType>(entry.at(1).get<int>()));
  return tensors;
}

/// Between rank 0's first core and the others that the program has on its host, the mean; 0 where there are none.
double core_to_core_s(const sim::Program& program) {
  const std::uint32_t cores = ranks_here(program.ranks()) * program.threads;
  std::vector<double> seconds;
  for (std::uint32_t core = 1; core < std::min(cores, sim::usable_cores()); ++core)
    if (const double probed_s = core_to_core_probe_s(core_of_rank(core)); probed_s > 0) seconds.push_back(probed_s);
  return seconds.empty() ? 0 : sim::mean_of(seconds);
}

/// All ranks read memory and compute at once; before that, rank 0 has the machine for itself.
SpeedProbe probe_speed(Communicator& communicator, const sim::Program& program) {
  const std::uint32_t rank = communicator.rank(), ranks = program.ranks();
  SpeedProbe probe;
  communicator.begin_step();
  if (rank == 0) {
    probe.memory_alone_s = memory_probe_s(0, ranks);
    probe.core_to_core_s = core_to_core_s(program);
  }
  if (ranks > 1) {
    communicator.begin_step();
    probe.memory_together_s = memory_probe_s(rank, ranks);
  }
  probe.compute_s = compute_probe_s();
  return probe;
}

/// Of all ranks, before and after.
sim::MachineSpeed speed_of(const std::vector<RankReport>& reports) {
  std::array<sim::MachineSpeed, 2> moments;  // before, after
  for (std::size_t m = 0; m < moments.size(); ++m) {
    for (const RankReport& report : reports) {
      const auto share = 1 / static_cast<double>(reports.size());
      moments[m].compute_s += report.probes[m].compute_s * share;
      moments[m].memory_together_s += report.probes[m].memory_together_s * share;
    }
    moments[m].memory_alone_s = reports[0].probes[m].memory_alone_s;
    moments[m].core_to_core_s = reports[0].probes[m].core_to_core_s;
    if (reports.size() == 1) moments[m].memory_together_s = moments[m].memory_alone_s;
  }
  return sim::between(moments[0], moments[1]);
}

RankReport play(const RunRequest& request, Communicator& communicator, const ProgressBoard& board,
                const Dataset& dataset, std::optional<Executor>& executor) {
  const std::uint32_t rank = communicator.rank();
  const std::uint32_t steps = request.warmup_steps + request.steps;
  if (rank >= request.program.ranks()) return {};
  communicator.prepare(request.program.groups, request.program.ranks());
  const sim::Program::Place place = request.program.places()[rank];
  communicator.connect(channels_of(request.program, rank));
  board.set_labels(rank, request.program, request.program.roles[place.role]);
  executor.emplace(request.program, place, communicator, request.seed);
  if (request.verify) executor->leave_nothing_to_chance();
  const std::vector<StatePiece> pieces =
      request.training ? state_pieces(request.program, rank) : std::vector<StatePiece>();
  std::optional<Feed> feed;
  if (request.training) {
    if (const std::string& state = request.training->state; !state.empty())
      set_state(safetensors_from(state, "state"), pieces, rank, *executor);
    executor->draw_from(data_seed(request.seed, request.training->epoch, 0) +
                        static_cast<std::uint64_t>(request.training->first_sample));
    feed.emplace(*request.training, dataset, request.seed, request.program, rank, *executor);
  }
  const ProgressBoard::Participation participation(board.progress(rank));
  RankReport report;
  const auto probe = [&] {
    if (request.probe_speed && communicator.device().is_cpu())
      report.probes.push_back(probe_speed(communicator, request.program));
  };
  const std::int64_t steps_in_list = request.program.steps_in_list();
  StepRecord warmup = executor->new_record();
  // Many steps are trained, and of each only one time is kept.
  std::vector<StepRecord> records(request.training ? 0 : request.steps, warmup);
  probe();
  for (std::uint32_t s = 0; s < steps; ++s) {
    StepRecord& record = s < request.warmup_steps || feed ? warmup : records[s - request.warmup_steps];
    if (feed) feed->begin_list(s, *executor);
    if (request.graph && s == 1) executor->capture();
    // What replays keep is captured with them.
    if (request.verify && s + 1 == (request.graph ? 2 : steps)) executor->keep_gradients();
    executor->let_host_lead(request.host_leads_every > 0 &&
                            s % request.host_leads_every == request.host_leads_every - 1 && s > 0);
    executor->step(record, board.progress(rank));
    board.let_others_end(rank, request.program.ranks());
    executor->settle(record);
    const std::vector<double> losses = mean_losses(record, steps_in_list);
    report.losses.insert(report.losses.end(), losses.begin(), losses.end());
    if (feed && s >= request.warmup_steps) report.steps.push_back({.end_of_step_s = record.times.end_of_step_s});
    if (rank == 0 && request.after_step) request.after_step(s);
  }
  probe();
  const SharedClock clock = communicator.read_clock();
  report.clock = reading_of(clock, communicator);
  for (StepRecord& record : records) {
    report.late_s.push_back(clock.late_s(record.begin_s));
    sim::RankTimeline& times = record.times;
    for (auto* moments : {&times.posted_s, &times.start_s, &times.end_s, &times.issued_s})
      for (double& moment_s : *moments) moment_s *= 1 + report.clock.drift;
    times.end_of_step_s *= 1 + report.clock.drift;
    report.steps.push_back(std::move(times));
  }
  report.workspace_bytes = executor->workspace_bytes();
  report.memory = {executor->peak_bytes(), executor->allocator_peak_bytes(), resident_peak_bytes()};
  if (request.verify) report.state = executor->state();
  if (feed) report.packed = packed_state(pieces, *executor);
  return report;
}

}  // namespace

Reference share_reference(Control& control, std::optional<Reference> own) {
  Reference reference;
  if (own) {
    reference = *std::move(own);
    nlohmann::json frame{{"losses", reference.losses.size()}, {"tensors", frame_of(reference.tensors)}};
    for (const Reference::Tensors& tensors : reference.of_piece) frame["of_piece"].push_back(frame_of(tensors));
    control.broadcast(frame.dump());
  } else {
    const nlohmann::json frame = nlohmann::json::parse(control.broadcast(""));
    reference.losses.resize(frame.at("losses"));
    reference.tensors = room_for(frame.at("tensors"));
    if (const auto pieces = frame.find("of_piece"); pieces != frame.end())
      for (const nlohmann::json& of_piece : *pieces) reference.of_piece.push_back(room_for(of_piece));
  }
  const at::Tensor losses = at::tensor(reference.losses, at::kDouble);
  control.broadcast_into(losses);
  reference.losses.assign(losses.const_data_ptr<double>(), losses.const_data_ptr<double>() + losses.numel());
  const auto fill = [&](const Reference::Tensors& tensors) {
    for (const auto& [name, tensor] : tensors) control.broadcast_into(tensor.contiguous());
  };
  fill(reference.tensors);
  for (const Reference::Tensors& tensors : reference.of_piece) fill(tensors);
  return reference;
}

Reference reference_of(const RunRequest& request) {
  const sim::Program& program = request.program;
  return execute_reference(sim::load_model(program.model),
                           {program.batch_pieces(), program.microbatches, training_steps(request), request.seed,
                            program.broadcast_buffers, program.one_loss, program.daso, program.steps_in_list()});
}

void compare_state(const RunRequest& request, const Reference& reference, std::uint32_t rank, RankReport& report) {
  if (rank < request.program.ranks())
    report.compared = compare(reference, request.program.batch_piece(rank), report.state);
  report.state.clear();
}

void reset_resident_peak() {
  recycle_cached();
  std::ofstream("/proc/self/clear_refs") << 5;
}

RankReport execute(const RunRequest& request, Communicator& communicator, const ProgressBoard& board,
                   const Dataset& dataset, std::optional<Executor>& executor) {
  try {
    return play(request, communicator, board, dataset, executor);
  } catch (const c10::OutOfMemoryError& error) {
    throw sim::RunError("{}: {}", communicator.named(communicator.rank()), error.what_without_backtrace());
  }
}

RunResult merge(const RunRequest& request, std::vector<RankReport> reports, const Reference* reference) {
  const sim::Program& program = request.program;
  reports.resize(program.ranks());
  const sim::TransferMatching matching(program);
  RunResult result;
  if (std::ranges::any_of(reports, [](const RankReport& report) { return report.clock.host != 0; }))
    for (const RankReport& report : reports) result.clocks.push_back(report.clock);
  std::vector<double> losses;
  const std::uint32_t all = training_steps(request);
  for (std::uint32_t s = 0; s < all; ++s) losses.push_back(loss_of_batch(request, reports, s));
  const auto steps_in_list = static_cast<std::size_t>(program.steps_in_list());
  for (std::uint32_t s = 0; s < request.steps; ++s) {
    StepResult step;
    std::vector<double> late_s;
    for (RankReport& report : reports) {
      step.timeline.ranks.push_back(std::move(report.steps[s]));
      late_s.push_back(report.late_s.empty() ? 0 : report.late_s[s]);
    }
    if (!result.clocks.empty()) {
      put_on_one_clock(step.timeline.ranks, late_s);
      if (!request.graph && !request.training) check_order(program, step.timeline.ranks, result.clocks);
    }
    for (const sim::RankTimeline& rank : step.timeline.ranks)
      step.timeline.step_s = std::max(step.timeline.step_s, rank.end_of_step_s);
    step.loss = losses[(request.warmup_steps + s + 1) * steps_in_list - 1];
    if (!request.graph && !request.training) {
      fill_ready_times(program, matching, step.timeline);
      sim::break_down(program, step.timeline);
      sim::check(program, step.timeline);
    }
    result.steps.push_back(std::move(step));
  }
  for (RankReport& report : reports) {
    result.memory.push_back(report.memory);
    result.workspace_bytes.push_back(std::move(report.workspace_bytes));
  }
  if (!reports.empty() && !reports[0].probes.empty()) result.speed = speed_of(reports);
  if (reference != nullptr) {
    std::vector<std::vector<VerifiedTensor>> rows;
    for (RankReport& report : reports) rows.push_back(std::move(report.compared));
    result.verified = verdict(*reference, losses, rows);
  }
  result.losses = std::move(losses);
  if (request.training) {
    std::vector<std::string> packed;
    for (RankReport& report : reports) packed.push_back(std::move(report.packed));
    result.state = to_bytes(whole_state(program, packed));
  }
  return result;
}

}  // namespace backend
