#include "sim/calibrate/probe.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "sim/calibrate/make_probe.hpp"
#include "sim/cost/statistic.hpp"
#include "sim/error.hpp"
#include "sim/program/given.hpp"

namespace sim {
namespace {

constexpr std::int64_t kFeaturesOfRow = 4000;   // 64 MB of weights
constexpr std::string_view kUnread = "unread";  // by other ranks
// Of collectives beside compute.
constexpr std::int64_t kSmallBeside = 1 << 20;
constexpr std::uint32_t kRepeatsOfSmallBeside = 24, kComputesBeside = 6, kComputesOfLate = 4;

/// Writes the members in a row: fill(draft, is_first) writes what each does. The first, the root of a kind that has one,
/// is in a role of its own where it does something else than the others.
template <class Fill>
Program collective_probe(const TransferQuestion& question, const Fill& fill, bool is_first_apart = false) {
  const bool all_alike =
      !is_first_apart && operands_of(question.collective, /*is_root=*/true) == operands_of(question.collective, false);
  std::vector<std::vector<std::uint32_t>> roles(all_alike || question.members == 1 ? 1 : 2);
  for (std::uint32_t rank = 0; rank < question.members; ++rank) roles[rank == 0 ? 0 : roles.size() - 1].push_back(rank);
  return make_probe(fmt::format("probe of {}", to_string(question.collective)), row_of(question.members), 1, roles,
                    [&](Draft& draft, std::uint32_t role) { fill(draft, /*is_first=*/role == 0); });
}

/// nccl-tests' size s is the whole array, which members of some kinds have or get a part of: f32, whole parts.
TensorSpec collective_spec(const TransferQuestion& question, Moved moved) {
  const std::int64_t elements = (question.bytes + 3) / 4, members = question.members;
  const CollectiveOperands of_root = operands_of(question.collective, /*is_root=*/true);
  const bool is_in_parts = of_root.reads == Moved::parts || of_root.writes == Moved::parts;
  if (!is_in_parts) return {Dtype::f32, {elements}};
  const std::int64_t of_part = (elements + members - 1) / members;
  return {Dtype::f32, {moved == Moved::parts ? of_part * members : of_part}};
}

/// A linear layer of `features` inputs and outputs.
struct Linear {
  Linear(Draft& draft, std::int64_t rows, std::int64_t features, Dtype dtype = Dtype::f32)
      : input(add_constant(draft, name(draft, "x"), {dtype, {rows, features}}, 1)),
        weight(add_constant(draft, name(draft, "w"), {dtype, {features, features}}, 0.01)),
        bias(add_constant(draft, name(draft, "b"), {dtype, {features}}, 0)) {
    const OpKind& kind = op_table().at("linear");
    op = {&kind,
          complete_attributes(kind, {{"out_features", static_cast<double>(features)}}, "the probe"),
          {draft.role.tensors[input].spec}};
  }
  void compute(Draft& draft, std::uint32_t times) const {
    const std::uint32_t work = draft.works->add({op, Pass::forward, 0});
    for (std::uint32_t k = 0; k < times; ++k)
      draft.list.push_back({.work = work, .reads = {input, weight, bias}, .writes = {add_result(draft, "y", input)}});
  }
  /// The gradients of everything; the output's is a constant.
  void differentiate(Draft& draft) const {
    draft.list.push_back({.work = draft.works->add({op, Pass::backward, kParameterGrads | 1}),
                          .reads = {input, input, weight},
                          .writes = {add_result(draft, "grad_x", input), add_result(draft, "grad_w", weight),
                                     add_result(draft, "grad_b", bias)}});
  }
  static std::uint32_t add_result(Draft& draft, std::string_view what, std::uint32_t like) {
    return draft.role.add_tensor(name(draft, what), draft.role.tensors[like].spec, TensorClass::activation);
  }
  static std::string name(const Draft& draft, std::string_view what) {
    return fmt::format("{}{}", what, draft.role.tensors.size());
  }
  std::uint32_t input, weight, bias;
  OpInstance op;
};

/// What is computed before a transfer, up to a few ms: a linear layer whose weights are these bytes.
Linear layer_of(Draft& draft, double bytes) {
  constexpr std::int64_t kRows = 4;
  constexpr double kFewest = 64, kMost = 3072;  // features
  const double features =
      std::clamp(std::sqrt(std::max(bytes, 0.0) / static_cast<double>(size_of(Dtype::f32))), kFewest, kMost);
  return {draft, kRows, std::llround(features)};
}

/// A layer that a core's own cache holds: it needs nothing of the memory that transfers use.
Linear layer_in_cache(Draft& draft) {
  constexpr std::int64_t kRows = 32, kFeatures = 256;  // 0.5 MB
  return {draft, kRows, kFeatures};
}

/// Plays a layer, and returns its output.
std::uint32_t add_forward(Draft& draft, std::string_view kind_name, const Attributes& given, std::uint32_t input) {
  const OpKind& kind = op_table().at(kind_name);
  const OpInstance op{&kind, complete_attributes(kind, given, "the probe"), {draft.role.tensors[input].spec}};
  const Signature signature = op.signature();
  const auto name = [&](std::string_view what) { return fmt::format("{}{}", what, draft.role.tensors.size()); };
  const auto result = [&](const TensorSpec& spec) {
    return draft.role.add_tensor(name(kind_name), spec, TensorClass::activation);
  };
  Instruction i{
      .work = draft.works->add({op, Pass::forward, 0}), .reads = {input}, .writes = {result(signature.output)}};
  for (const ParameterSpec& parameter : signature.parameters)
    i.reads.push_back(add_constant(draft, name(parameter.name), parameter.spec, 0.1));
  for (const SavedSpec& saved : signature.saved) i.writes.push_back(result(saved.spec));
  for (const BufferSpec& buffer : signature.buffers) {
    const std::uint32_t tensor = add_constant(draft, name(buffer.name), buffer.spec, buffer.initial_value);
    i.reads.push_back(tensor);
    i.writes.push_back(tensor);
  }
  const std::uint32_t output = i.writes[0];
  draft.list.push_back(std::move(i));
  return output;
}

/// Layers on small images, some microseconds each: whose code isn't the linear layer's that a probe has anyway.
struct OtherCode {
  std::string_view kind;
  Attributes attributes;
};
const std::array<OtherCode, 6>& other_code() {
  static const std::array<OtherCode, 6> kLayers{{{"conv2d", {{"out_channels", 8}, {"kernel_size", 3}, {"padding", 1}}},
                                                 {"batch_norm", {}},
                                                 {"relu", {}},
                                                 {"max_pool", {{"kernel_size", 2}}},
                                                 {"adaptive_avg_pool", {{"output_size", 2}}},
                                                 {"softmax", {}}}};
  return kLayers;
}

/// Plays those of these kinds, one behind the other as a network has them.
void add_other_code(Draft& draft, const std::vector<std::string_view>& kinds) {
  std::uint32_t x = kNone;
  for (const OtherCode& layer : other_code()) {
    if (std::ranges::find(kinds, layer.kind) == kinds.end()) continue;
    if (x == kNone)
      x = add_constant(draft, fmt::format("image{}", draft.role.tensors.size()), {Dtype::f32, {4, 8, 12, 12}}, 1);
    x = add_forward(draft, layer.kind, layer.attributes, x);
  }
}

/// Repeats alternate in direction; if `rendezvous`, also, two by two, in who comes first: the receiver, which then
/// waits, or the sender, which then computes until the message is gone.
void add_ping_pong(Draft& draft, std::uint32_t own, const TensorSpec& spec, std::uint32_t repeats,
                   const BetweenTransfers& between, bool rendezvous) {
  constexpr std::uint32_t kDelay = 2, kBeside = 4;  // computes
  const Linear before = layer_of(draft, between.bytes), beside = layer_in_cache(draft);
  for (std::uint32_t k = 0; k < repeats; ++k) {
    const bool sends = k % 2 == own, unexpected = rendezvous && k % 4 >= 2;
    const std::uint32_t tag = k / 2;  // counted per direction
    const std::uint32_t buffer = draft.role.add_tensor(fmt::format("buffer{}", k), spec, TensorClass::communication);
    if (sends || unexpected) {
      const std::uint32_t source = add_constant(draft, fmt::format("source{}", k), spec, 1);
      before.compute(draft, 1);
      add_other_code(draft, between.kinds);
      draft.scaled_copy(source, sends ? buffer : Linear::add_result(draft, "written", source), 1, kNone);
    }
    if (unexpected && !sends) beside.compute(draft, kDelay);
    const std::uint32_t ticket =
        post_message(draft, sends ? InstructionKind::send : InstructionKind::recv, own == 0 ? 1 : -1, tag, buffer);
    if (unexpected && sends) beside.compute(draft, kBeside);
    draft.wait(ticket, kNone);
  }
}

}  // namespace

Program overlap_probe(const TransferQuestion& question, std::uint32_t repeats, std::uint32_t computes) {
  check_internal(question.kind == InstructionKind::collective, "an overlap probe of '{}'", to_string(question.kind));
  const TensorSpec spec{Dtype::f32, {(question.bytes + 3) / 4}};
  return collective_probe(question, [&](Draft& draft, bool /*is_first*/) {
    const Linear linear = layer_in_cache(draft);
    const std::uint32_t source = add_constant(draft, "source", spec, 1),
                        buffer = add_constant(draft, "buffer", spec, 0);
    for (std::uint32_t k = 0; k < repeats; ++k) {
      draft.scaled_copy(source, buffer, 1, kNone);
      const std::uint32_t ticket = draft.post_collective(question.collective, 0, buffer, kNone);
      linear.compute(draft, computes);
      draft.wait(ticket, kNone);
      linear.compute(draft, computes);
    }
  });
}

std::vector<std::vector<double>> rewriting_times(const Program& probe, const Timeline& timeline) {
  std::vector<std::vector<double>> seconds(timeline.ranks.size());
  for (const Role& role : probe.roles) {
    std::vector<bool> is_given(role.tensors.size());
    for (std::uint32_t i = 0; i < role.size(); ++i)
      for (const std::uint32_t tensor : role.reads(i))
        is_given[tensor] = is_given[tensor] || role.kind[i] == InstructionKind::collective;
    for (const std::uint32_t rank : role.ranks) {
      const RankTimeline& times = timeline.ranks[rank];
      std::optional<double> given_s, unread_s;  // how long the last writing took
      for (std::uint32_t i = 0; i < role.size(); ++i) {
        if (is_computed(role.kind[i]))
          for (const std::uint32_t tensor : role.writes(i)) {
            if (is_given[tensor]) given_s = times.end_s[i] - times.start_s[i];
            if (role.tensors[tensor].name.starts_with(kUnread)) unread_s = times.end_s[i] - times.start_s[i];
          }
        if (role.kind[i] == InstructionKind::collective && given_s && unread_s)
          seconds[rank].push_back(*given_s - *unread_s);
      }
    }
  }
  return seconds;
}

bool is_waited_for_at_once(const Role& role, std::uint32_t i) {
  return i + 1 < role.size() && role.kind[i + 1] == InstructionKind::wait && role.awaits[i + 1] == i;
}

std::optional<double> core_time(const Program& probe, const Timeline& timeline) {
  double taken_s = 0, alone_s = 0;
  for (const Role& role : probe.roles)
    for (const std::uint32_t rank : role.ranks) {
      const RankTimeline& times = timeline.ranks[rank];
      std::vector<double> transfers, computed, repeats;
      std::optional<double> waited_s, posted_s;  // the last of either part
      for (std::uint32_t i = 0; i < role.size(); ++i) {
        if (role.kind[i] != InstructionKind::collective) continue;
        if (waited_s) computed.push_back(times.posted_s[i] - *waited_s);
        waited_s.reset();
        if (is_waited_for_at_once(role, i)) {
          transfers.push_back(times.end_s[i] - times.start_s[i]);
          waited_s = times.end_s[i + 1];
          continue;
        }
        if (posted_s) repeats.push_back(times.posted_s[i] - *posted_s);
        posted_s = times.posted_s[i];
      }
      if (repeats.empty() || computed.size() < 2) continue;
      computed.pop_back();  // the late member's
      for (std::vector<double>* seconds : {&transfers, &computed, &repeats}) without_interruptions(*seconds);
      taken_s += std::max(0.0, mean_of(repeats) - mean_of(computed));
      alone_s += mean_of(transfers);
    }
  return alone_s > 0 ? std::optional(taken_s / alone_s) : std::nullopt;
}

std::optional<double> core_share(const Program& probe, const Timeline& timeline) {
  struct Begun {
    double seconds, inside_s;  // in all, and while the transfer ran
  };
  std::vector<Begun> beside;
  double alone_s = 0, alone = 0;
  const Role& role = probe.roles.at(0);
  for (const RankTimeline& rank : timeline.ranks) {
    double begin_s = 0, end_s = 0;  // of the latest transfer
    bool waited = true;
    for (std::uint32_t i = 0; i < role.size(); ++i) {
      if (role.kind[i] == InstructionKind::collective) begin_s = rank.start_s[i], end_s = rank.end_s[i], waited = false;
      if (role.kind[i] == InstructionKind::wait) waited = true;
      if (role.kind[i] != InstructionKind::compute) continue;
      const double seconds = rank.end_s[i] - rank.start_s[i];
      if (waited)
        alone_s += seconds, ++alone;
      else if (rank.start_s[i] >= begin_s && rank.start_s[i] < end_s)
        beside.push_back({seconds, std::min(seconds, end_s - rank.start_s[i])});
    }
  }
  if (alone < 1 || !(alone_s > 0)) return std::nullopt;
  const double mean_s = alone_s / alone;
  double inside_s = 0, work_s = 0;  // what passed, and what would have sufficed alone
  for (const Begun& compute : beside) {
    inside_s += compute.inside_s;
    work_s += std::max(0.0, mean_s - (compute.seconds - compute.inside_s));
  }
  if (inside_s < mean_s) return std::nullopt;
  return std::clamp(1 - work_s / inside_s, 0.0, 1.0);
}

Program memory_probe(const Model& model, std::uint32_t ranks) {
  constexpr std::int64_t kSmall = 3 << 15, kLargestUpdate = 3 << 21;  // elements
  constexpr int kRepeats = 4, kRepeatsOfSmall = 16;
  return make_probe("probe of memory", row_of(ranks), 0, {first_numbers(ranks)}, [&](Draft& draft, std::uint32_t) {
    std::vector<Updated> updated;
    // The largest first: what is first finds its code cold, which costs the smallest many times its own time. Few
    // parameters have 3·2^k elements: a profile holds what the probe and what a model's step says of a size as one.
    for (const std::int64_t elements : {3LL << 23, 3LL << 21, 3LL << 18, 3LL << 15, 3LL << 10, 3LL << 5}) {
      const TensorSpec spec{model.dtype, {elements}};
      const std::uint32_t from = add_constant(draft, fmt::format("from{}", elements), spec, 1),
                          to = add_constant(draft, fmt::format("to{}", elements), spec, 1);
      if (elements <= kLargestUpdate)
        updated.push_back({draft.names->add(fmt::format("parameter{}", elements)),
                           add_constant(draft, fmt::format("weight{}", elements), spec, 1),
                           add_constant(draft, fmt::format("gradient{}", elements), spec, 1)});
      for (int k = 0; k < (elements <= kSmall ? kRepeatsOfSmall : kRepeats); ++k) {
        const Work add{{&op_table().at("accumulate"), {}, {spec, spec}}, Pass::forward, 0};
        draft.list.push_back({.work = draft.works->add(add), .reads = {to, from}, .writes = {to}});
        draft.scaled_copy(from, to, 1, kNone);
      }
    }
    for (const Updated& parameter : updated) add_update(draft, model.optimizer, kNone, {parameter});
    const Linear row(draft, 1, kFeaturesOfRow, model.dtype);
    for (int k = 0; k < kRepeats; ++k) {
      row.compute(draft, 1);
      row.differentiate(draft);
    }
  });
}

Program on_ranks(Program probe, const Mesh& mesh, std::uint32_t axes) {
  const std::vector<std::uint32_t> members = mesh.members(0, axes);
  check_internal(members.size() == probe.ranks(), "{} ranks for a probe of {}", members.size(), probe.ranks());
  probe.mesh = mesh;
  if (!probe.groups.empty()) probe.groups = {Group("data", axes, mesh)};
  for (Role& role : probe.roles) {
    for (std::uint32_t& rank : role.ranks) rank = members[rank];
    for (Tensor& tensor : role.tensors) {
      if (tensor.along == kNone) continue;
      check_internal(std::has_single_bit(axes), "a member's own part by several axes");
      tensor.along = static_cast<std::uint32_t>(std::countr_zero(axes));
    }
  }
  Role others;
  others.name = "others";
  for (std::uint32_t rank = 0; rank < mesh.ranks(); ++rank)
    if (std::ranges::find(members, rank) == members.end()) others.ranks.push_back(rank);
  if (!others.ranks.empty()) probe.roles.push_back(std::move(others));
  validate(probe);
  return probe;
}

namespace {

/// The bytes that a role's ops move, by transfer.
double bytes_between(const Program& program, const Role& role) {
  double bytes = 0, transfers = 0;
  for (std::uint32_t i = 0; i < role.size(); ++i) {
    if (is_posted(role.kind[i])) ++transfers;
    if (is_computed(role.kind[i])) bytes += program.works[role.work[i]].demand().bytes;
  }
  return transfers > 0 ? bytes / transfers : 0;
}

/// Whether a rank computes between a collective's post and its wait.
bool computes_until_wait(const Role& role, std::uint32_t posted) {
  for (std::uint32_t i = posted + 1; i < role.size(); ++i) {
    if (role.kind[i] == InstructionKind::wait && role.awaits[i] == posted) return false;
    if (is_computed(role.kind[i])) return true;
  }
  return true;
}

/// Values that count as many times as bytes have them.
class Weighted {
 public:
  void add(double value, double bytes) { bytes_[value] += bytes, sum_ += bytes; }
  /// Half of the bytes have less.
  [[nodiscard]] std::optional<double> median() const {
    double so_far = 0;
    for (const auto& [value, bytes] : bytes_)
      if ((so_far += bytes) >= sum_ / 2) return value;
    return std::nullopt;
  }

 private:
  std::map<double, double> bytes_;
  double sum_ = 0;
};

}  // namespace

BetweenTransfers between_transfers(const Program& program) {
  BetweenTransfers between;
  for (const Role& role : program.roles) between.bytes = std::max(between.bytes, bytes_between(program, role));
  for (const OtherCode& layer : other_code())
    if (std::ranges::any_of(program.works, [&](const Work& work) {
          return work.op.body != nullptr || work.op.kind->name == layer.kind;
        }))
      between.kinds.push_back(layer.kind);
  return between;
}

BetweenTransfers between_collectives(const Program& program, const Cluster& cluster, CollectiveKind kind) {
  BetweenTransfers between = between_transfers(program);
  Weighted since, until;
  double updated = 0, rewritten = 0, beside = 0, all = 0;  // bytes
  for (const Role& role : program.roles) {
    const std::vector<std::optional<GivenMemory>> given = given_by(program, role);
    for (std::uint32_t i = 0; i < role.size(); ++i) {
      if (!given[i] || role.collective[i] != kind) continue;
      const auto bytes = static_cast<double>(program.transfer_bytes(role, i));
      all += bytes;
      if (computes_until_wait(role, i)) beside += bytes;
      if (given[i]->since_written) since.add(*given[i]->since_written, bytes);
      if (!waits_to_rewrite(program, role, *given[i], cluster)) continue;
      until.add(*given[i]->until_written, bytes);
      rewritten += bytes;
      if (role.kind[given[i]->writer] != InstructionKind::update) continue;
      updated += bytes;
      const OpInstance& optimizer = program.works[role.work[given[i]->writer]].op;
      between.updated_by = {optimizer.kind, optimizer.attributes, {}};
    }
  }
  if (updated < rewritten / 2) between.updated_by.reset();
  between.computes_beside =
      cluster.link().engine == TransferEngine::background && !cluster.device.asynchronous && beside > all / 2;
  between.bytes_since_written = since.median().value_or(0);
  if (cluster.link().engine == TransferEngine::receiver) between.bytes_until_rewritten = until.median();
  return between;
}

namespace {

/// In how many buffers a probe gives: one is written `ahead` repeats before it is given.
struct BufferTurns {
  std::uint32_t count = 1, ahead = 0;
  double bytes_after = 0;  // that are moved between the writing and the transfer of one repeat

  /// `written`: what a repeat moves in order to write.
  BufferTurns(const BetweenTransfers& between, double written) {
    const auto repeats = [&](double bytes) {
      constexpr double kMost = 12;
      const double each = std::max({between.bytes, written, 1.0});
      return static_cast<std::uint32_t>(std::lround(std::clamp(bytes / each, 0.0, kMost)));
    };
    ahead = repeats(between.bytes_since_written);
    if (ahead == 0) bytes_after = between.bytes_since_written;
    // What is in flight beside compute isn't written.
    count = ahead + std::max(between.computes_beside ? 2U : 1U, repeats(between.bytes_until_rewritten.value_or(0)));
  }
};

/// The operands of one of a probe's transfers.
struct GivenInTurn {
  std::vector<std::uint32_t> reads, writes;
};
/// Of so many that follow each other. What they give is in `turns` buffers; what they get is in one, unless a part of it
/// is what they give, or two are in flight at a time.
std::vector<GivenInTurn> given_in_turn(Draft& draft, const TransferQuestion& question, bool is_root,
                                       std::uint32_t turns, bool two_in_flight) {
  const CollectiveOperands operands = operands_of(question.collective, is_root);
  const auto buffers = [&](Moved moved, std::string_view name) {
    std::vector<std::uint32_t> tensors;
    if (moved != Moved::nothing)
      tensors.push_back(draft.role.add_tensor(fmt::format("{}{}", name, draft.role.tensors.size()),
                                              collective_spec(question, moved), TensorClass::communication, true,
                                              {Initial::Kind::constant, 0}));
    return tensors;
  };
  const bool is_in_result = question.own_in_place && operands.reads == Moved::array && operands.writes == Moved::parts;
  std::vector<GivenInTurn> in_turn(turns);
  for (std::uint32_t t = 0; t < turns; ++t) {
    auto& [reads, writes] = in_turn[t];
    if (!operands.in_place)
      writes = t > 0 && !is_in_result && !two_in_flight ? in_turn[0].writes : buffers(operands.writes, "result");
    if (is_in_result) {
      reads = {draft.role.add_own_view(fmt::format("own{}", t), collective_spec(question, operands.reads), writes.at(0),
                                       /*axis=*/0)};
    } else {
      reads = buffers(operands.reads, "buffer");
    }
    if (operands.in_place) writes = reads;
  }
  return in_turn;
}

Program probe_of_collective(const TransferQuestion& question, std::uint32_t repeats, const BetweenTransfers& between) {
  const TensorSpec whole{Dtype::f32, {(question.bytes + 3) / 4}};
  const double of_writer =
      between.updated_by
          ? OpInstance{between.updated_by->kind, between.updated_by->attributes, {whole}}.demand(Pass::update, 0).bytes
          : 2.0 * static_cast<double>(whole.bytes());
  const BufferTurns turns(between, between.bytes_until_rewritten ? 2 * of_writer : of_writer);
  repeats = (repeats + turns.count - 1) / turns.count * turns.count;
  std::uint32_t repeats_beside = 0;
  if (between.computes_beside)
    repeats_beside = question.bytes <= kSmallBeside ? std::max(repeats, kRepeatsOfSmallBeside) : repeats;
  const auto fill = [&](Draft& draft, bool is_first) {
    const std::vector<GivenInTurn> in_turn =
        given_in_turn(draft, question, is_first, turns.count, between.computes_beside);
    const bool gives = !in_turn[0].reads.empty();
    const TensorSpec spec = gives ? draft.role.tensors[in_turn[0].reads[0]].spec : TensorSpec();
    const std::uint32_t source = gives ? add_constant(draft, "source", spec, 0) : kNone;
    std::vector<std::uint32_t> unread;
    for (std::uint32_t t = 0; t < turns.count && between.bytes_until_rewritten && gives; ++t)
      unread.push_back(add_constant(draft, fmt::format("{}{}", kUnread, t), spec, 0));
    std::map<std::uint32_t, Instruction> updates;  // of a tensor; its states are made once
    const auto write = [&](std::uint32_t tensor) {
      if (!between.updated_by) return draft.scaled_copy(source, tensor, 1, kNone);
      if (const auto known = updates.find(tensor); known != updates.end()) return draft.list.push_back(known->second);
      const std::uint32_t label = draft.names->add(draft.role.tensors[tensor].name);
      add_update(draft, *between.updated_by, kNone, {{label, tensor, source}});
      updates[tensor] = draft.list.back();
    };
    // What a step's transfers don't have between them.
    const double more = (unread.empty() ? 0 : of_writer) + (between.updated_by ? of_writer : 0);
    const Linear before = layer_of(draft, between.bytes - turns.bytes_after - more);
    const std::optional<Linear> after =
        turns.bytes_after > 0 ? std::optional<Linear>(layer_of(draft, turns.bytes_after)) : std::nullopt;
    const std::optional<Linear> cached = between.computes_beside ? std::optional(layer_in_cache(draft)) : std::nullopt;
    std::uint32_t in_flight = kNone;
    for (std::uint32_t k = 0; k < repeats + repeats_beside; ++k) {
      const std::uint32_t written = (k + turns.ahead) % turns.count;
      if (cached) cached->compute(draft, kComputesBeside + (is_first && k == repeats ? kComputesOfLate : 0));
      before.compute(draft, 1);
      if (!after) add_other_code(draft, between.kinds);
      if (!unread.empty() && k % 2 == 0) write(unread[written]);
      if (gives) write(in_turn[written].reads[0]);
      if (!unread.empty() && k % 2 == 1) write(unread[written]);
      if (after) {
        after->compute(draft, 1);
        add_other_code(draft, between.kinds);
      }
      const auto& [reads, writes] = in_turn[k % turns.count];
      const std::uint32_t posted = draft.post_collective(question.collective, 0, /*root=*/0, reads, writes, kNone);
      if (in_flight != kNone) draft.wait(in_flight, kNone);
      if (k < repeats)
        draft.wait(posted, kNone);
      else
        in_flight = posted;
    }
    if (in_flight != kNone) draft.wait(in_flight, kNone);
  };
  return collective_probe(question, fill, /*is_first_apart=*/between.computes_beside);
}

}  // namespace

Program transfer_probe(const TransferQuestion& question, std::uint32_t repeats, const BetweenTransfers& between,
                       bool rendezvous) {
  if (question.kind == InstructionKind::collective) return probe_of_collective(question, repeats, between);
  const TensorSpec spec{Dtype::f32, {(question.bytes + 3) / 4}};
  return make_probe("probe of send", row_of(2), 0, {{0}, {1}}, [&](Draft& draft, std::uint32_t own) {
    add_ping_pong(draft, own, spec, repeats, between, rendezvous);
  });
}

}  // namespace sim
