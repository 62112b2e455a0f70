#include "sim/calibrate/probe.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "sim/error.hpp"
#include "sim/lower/pass/pass.hpp"

namespace sim {
namespace {

constexpr std::int64_t kFeaturesOfRow = 4000;  // 64 MB of weights
// The notification probe's lists: the first finds caches cold, the second is interrupted, the third isn't.
constexpr std::uint32_t kLists = 3, kNotified = 1, kQuiet = 2, kNotifications = 8;

/// A program that trains nothing: fill(draft, r) writes what the ranks of role r do.
template <class Fill>
Program probe_of(std::string what, const std::vector<std::vector<std::uint32_t>>& ranks,
                 const std::vector<Group>& groups, const Fill& fill) {
  Program program{.model = "none", .strategy = std::move(what), .global_batch = 1, .groups = groups};
  WorkTable works(program.works);
  NameTable names(program.names);
  for (std::uint32_t r = 0; r < ranks.size(); ++r) {
    Draft draft{.works = &works, .names = &names};
    draft.role.name = fmt::format("stage{}", r);
    draft.role.ranks = ranks[r];
    fill(draft, r);
    add_frees(draft);
    program.roles.push_back(std::move(draft).finish());
  }
  validate(program);
  return program;
}

/// The same for all members of one group.
template <class Fill>
Program collective_probe(std::string_view what, const TransferQuestion& question, const Fill& fill) {
  const std::vector<std::uint32_t> ranks = first_numbers(question.members);
  return probe_of(fmt::format("{} of {}", what, to_string(question.collective)), {ranks}, {Group{"data", {ranks}}},
                  fill);
}

/// Between roles 0 and 1; the ticket.
std::uint32_t post_message(Draft& draft, std::uint32_t own, bool sends, std::uint32_t tag, std::uint32_t tensor) {
  Instruction i{.kind = sends ? InstructionKind::send : InstructionKind::recv, .peer = 1 - own, .tag = tag};
  (sends ? i.reads : i.writes) = {tensor};
  return draft.post(i);
}

std::uint32_t add_constant(Draft& draft, const std::string& name, const TensorSpec& spec, double value) {
  return draft.role.add_tensor(name, spec, TensorClass::input, true, {Initial::Kind::constant, value, 0, 0});
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
      draft.list.push_back(
          {{.work = work, .reads = {input, weight, bias}, .writes = {add_result(draft, "y", input)}}, kNone});
  }
  /// The gradients of everything; the output's is a constant.
  void differentiate(Draft& draft) const {
    draft.list.push_back({{.work = draft.works->add({op, Pass::backward, kParameterGrads | 1}),
                           .reads = {input, input, weight},
                           .writes = {add_result(draft, "grad_x", input), add_result(draft, "grad_w", weight),
                                      add_result(draft, "grad_b", bias)}},
                          kNone});
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
  const double features = std::clamp(std::sqrt(bytes / static_cast<double>(size_of(Dtype::f32))), kFewest, kMost);
  return {draft, kRows, std::llround(features)};
}

/// A layer that a core's own cache holds: it needs nothing of the memory that transfers use.
Linear layer_in_cache(Draft& draft) {
  constexpr std::int64_t kRows = 32, kFeatures = 256;  // 0.5 MB
  return {draft, kRows, kFeatures};
}

/// Repeats alternate in direction; if `rendezvous`, also, two by two, in who comes first: the receiver, which then
/// waits, or the sender, which then computes until the message is gone.
void add_ping_pong(Draft& draft, std::uint32_t own, const TensorSpec& spec, std::uint32_t repeats, double bytes_before,
                   bool rendezvous) {
  constexpr std::uint32_t kDelay = 2, kBeside = 4;  // computes
  const Linear before = layer_of(draft, bytes_before), beside = layer_in_cache(draft);
  for (std::uint32_t k = 0; k < repeats; ++k) {
    const bool sends = k % 2 == own, unexpected = rendezvous && k % 4 >= 2;
    const std::uint32_t tag = k / 2;  // counted per direction
    const std::uint32_t buffer = draft.role.add_tensor(fmt::format("buffer{}", k), spec, TensorClass::communication);
    if (sends || unexpected) {
      const std::uint32_t source = add_constant(draft, fmt::format("source{}", k), spec, 1);
      before.compute(draft, 1);
      draft.scaled_copy(source, sends ? buffer : Linear::add_result(draft, "written", source), 1, kNone);
    }
    if (unexpected && !sends) beside.compute(draft, kDelay);
    const std::uint32_t ticket = post_message(draft, own, sends, tag, buffer);
    if (unexpected && sends) beside.compute(draft, kBeside);
    draft.wait(ticket, kNone);
  }
}

/// Adds what the role's list makes to `to`, which has it already, once more; what persists stays. By tensor of the role.
std::vector<std::uint32_t> add_again(const Role& role, std::uint32_t repeat, Role& to) {
  std::vector<std::uint32_t> now(role.tensors.size());
  std::map<std::uint32_t, std::uint32_t> storages;
  for (std::uint32_t t = 0; t < now.size(); ++t) {
    now[t] = t;
    Tensor tensor = role.tensors[t];
    if (role.storages[tensor.storage].persistent) continue;
    const auto [entry, is_new] = storages.try_emplace(tensor.storage, static_cast<std::uint32_t>(to.storages.size()));
    if (is_new) to.storages.push_back(role.storages[tensor.storage]);
    now[t] = static_cast<std::uint32_t>(to.tensors.size());
    tensor.name += fmt::format("'{}", repeat);
    tensor.storage = entry->second;
    to.tensors.push_back(std::move(tensor));
  }
  for (const auto& [before, storage] : storages) to.storages[storage].owner = now[role.storages[before].owner];
  return now;
}

/// Builds one list of `alone`.
class AloneBuilder {
 public:
  AloneBuilder(const Program& program, const std::vector<RoleAlone>& lists, std::uint32_t own, Draft& draft)
      : program_(program),
        lists_(lists),
        own_(own),
        exchanges_(lists.back().role != lists.front().role),
        role_(program.roles[lists[own].role]),
        draft_(draft) {
    draft.role.tensors = role_.tensors;
    draft.role.storages = role_.storages;
  }

  /// The list's beginning a few times, once with notifications of the other end in between.
  void build_notified(std::uint32_t computes) {
    std::vector<std::uint32_t> tickets;
    for (std::uint32_t repeat = 0; repeat < kLists; ++repeat) {
      std::uint32_t next = repeat == kNotified ? 0 : kNotifications;
      add_list(repeat, computes, [&](std::uint32_t computed) {
        // One's own posts are halfway between the other's.
        for (; next < kNotifications && computed >= (2 * next + own_ + 1) * computes / (2 * kNotifications + 1); ++next)
          tickets.push_back(post_signal(next % 2 == 0 ? InstructionKind::recv : InstructionKind::send, 1 - own_, next));
      });
    }
    for (std::uint32_t k = 0; k < kNotifications; ++k)
      tickets.push_back(post_signal(k % 2 == 0 ? InstructionKind::send : InstructionKind::recv, 1 - own_, k));
    wait_all(tickets);
  }

  void build(bool in_turns) {
    // What these post, its notifications included, is dealt with before anyone begins.
    std::vector<std::uint32_t> ends;
    each_other([&](std::uint32_t other) { ends.push_back(post_signal(InstructionKind::recv, other, kEnd)); });
    const bool waits = in_turns && own_ > 0, passes_on = in_turns && own_ + 1 < lists_.size();
    const std::uint32_t turn = waits ? post_signal(InstructionKind::recv, own_ - 1, kTurn) : kNone;
    std::vector<std::uint32_t> readies;
    for (const InstructionKind kind : {InstructionKind::recv, InstructionKind::send})
      each_other([&](std::uint32_t other) { readies.push_back(post_signal(kind, other, kReady)); });
    wait_all(readies);
    if (waits) draft_.wait(turn, kNone);
    for (std::uint32_t repeat = 0; repeat < lists_[own_].repeats; ++repeat)
      add_list(repeat, kNone, [](std::uint32_t) {});
    if (passes_on) draft_.wait(post_signal(InstructionKind::send, own_ + 1, kTurn), kNone);
    each_other([&](std::uint32_t other) { ends.push_back(post_signal(InstructionKind::send, other, kEnd)); });
    wait_all(ends);
    exchange();
  }

 private:
  enum Signal : std::uint32_t { kReady, kTurn, kEnd, kSignals };
  /// Of the program, by direction, role and tag.
  using Message = std::tuple<InstructionKind, std::uint32_t, std::uint32_t>;

  template <class Visit>
  void each_other(const Visit& visit) const {
    for (std::uint32_t other = 0; other < lists_.size(); ++other)
      if (other != own_) visit(other);
  }
  void wait_all(const std::vector<std::uint32_t>& tickets) {
    for (const std::uint32_t ticket : tickets) draft_.wait(ticket, kNone);
  }
  std::uint32_t post(InstructionKind kind, std::uint32_t peer, std::uint32_t tag, std::uint32_t tensor) {
    Instruction i{.kind = kind, .peer = peer, .tag = tag};
    (kind == InstructionKind::send ? i.reads : i.writes) = {tensor};
    return draft_.post(i);
  }
  std::uint32_t post_signal(InstructionKind kind, std::uint32_t peer, std::uint32_t signal) {
    const TensorSpec spec{Dtype::f32, {1}};
    return post(kind, peer, signal, add_constant(draft_, fmt::format("signal{}", draft_.role.tensors.size()), spec, 1));
  }

  /// Up to so many computed instructions; after each, after(how many).
  template <class After>
  void add_list(std::uint32_t repeat, std::uint32_t most, const After& after) {
    std::uint32_t computed = 0;
    const std::vector<std::uint32_t> now = repeat > 0 ? add_again(role_, repeat, draft_.role)
                                                      : first_numbers(static_cast<std::uint32_t>(role_.tensors.size()));
    for (std::uint32_t i = 0; i < role_.size() && computed < most; ++i) {
      Instruction instruction = role_.at(i);
      instruction.frees.clear();
      if (instruction.node != kNone) instruction.node = draft_.names->add(program_.names[instruction.node]);
      if (is_computed(instruction.kind)) {
        instruction.work = draft_.works->add(program_.works[instruction.work]);
        for (auto* operands : {&instruction.reads, &instruction.writes})
          for (std::uint32_t& tensor : *operands) tensor = now[tensor];
        draft_.list.push_back({std::move(instruction), kNone});
        after(++computed);
      } else if (instruction.kind == InstructionKind::wait && role_.kind[instruction.awaits] == InstructionKind::recv) {
        const std::uint32_t tensor = now[role_.writes(instruction.awaits)[0]];
        to_itself(kept(instruction.awaits, tensor), tensor, instruction);
      } else if (instruction.kind == InstructionKind::send || instruction.kind == InstructionKind::collective) {
        const std::uint32_t tensor = now[instruction.reads[0]];
        to_itself(tensor, kept(i, tensor), instruction);
      }
    }
  }

  /// Where what posted instruction `i` moves, like `tensor`, comes from or goes to.
  std::uint32_t kept(std::uint32_t i, std::uint32_t tensor) {
    const TensorSpec spec = draft_.role.tensors[tensor].spec;
    const auto find_or_add = [&](auto& known, const auto& key) {
      const auto [entry, is_new] = known.try_emplace(key);
      if (is_new)
        entry->second = draft_.role.add_tensor(fmt::format("message{}", draft_.role.tensors.size()), spec,
                                               TensorClass::communication, true, {Initial::Kind::uniform, 0, 0.01, 0});
      return entry->second;
    };
    if (exchanges_ && role_.kind[i] != InstructionKind::collective)
      return find_or_add(messages_, Message{role_.kind[i], role_.peer[i], role_.tag[i]});
    const bool receives = role_.kind[i] == InstructionKind::recv;
    constexpr std::uint32_t kDifferent = 8;  // messages of one shape with other numbers
    return find_or_add(random_, fmt::format("{} {}", receives ? to_itself_ % kDifferent : kDifferent, to_string(spec)));
  }

  void to_itself(std::uint32_t from, std::uint32_t to, const Instruction& where) {
    const std::uint32_t tag = to_itself_++;
    Instruction recv{.kind = InstructionKind::recv, .node = where.node, .microbatch = where.microbatch, .peer = own_};
    recv.tag = tag;
    Instruction send = recv;
    send.kind = InstructionKind::send;
    recv.writes = {to};
    send.reads = {from};
    const std::uint32_t received = draft_.post(recv), sent = draft_.post(send);
    draft_.wait(received, where.node, where.microbatch);
    draft_.wait(sent, where.node, where.microbatch);
  }

  /// Once all lists are done: what was sent goes to where it is received in the next step.
  void exchange() {
    std::vector<std::uint32_t> tickets;
    for (const auto& [message, tensor] : messages_) {
      const auto& [kind, peer, tag] = message;
      tickets.push_back(post(kind, peer, kSignals + tag, tensor));
    }
    wait_all(tickets);
  }

  const Program& program_;
  const std::vector<RoleAlone>& lists_;
  const std::uint32_t own_;  // in `lists_`
  const bool exchanges_;     // what the roles have sent
  const Role& role_;
  Draft& draft_;
  std::uint32_t to_itself_ = 0;
  std::map<Message, std::uint32_t> messages_;    // tensors
  std::map<std::string, std::uint32_t> random_;  // where nobody sends them
};

}  // namespace

std::vector<std::uint32_t> first_numbers(std::uint32_t count) {
  std::vector<std::uint32_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

Program alone(const Program& program, const std::vector<RoleAlone>& lists, bool in_turns) {
  std::vector<std::vector<std::uint32_t>> ranks;
  for (const RoleAlone& list : lists) {
    check_internal(lists.size() == 1 || list.role == ranks.size(), "role {} comes as list {}", list.role, ranks.size());
    ranks.push_back(list.ranks);
  }
  // The text of another strategy doesn't make it another program.
  Program result = probe_of("calibration", ranks, {}, [&](Draft& draft, std::uint32_t own) {
    AloneBuilder(program, lists, own, draft).build(in_turns);
  });
  result.model = program.model;
  result.global_batch = program.global_batch;
  return result;
}

Program overlap_probe(const TransferQuestion& question, std::uint32_t repeats, std::uint32_t computes) {
  check_internal(question.kind == InstructionKind::collective, "an overlap probe of '{}'", to_string(question.kind));
  const TensorSpec spec{Dtype::f32, {(question.bytes + 3) / 4}};
  return collective_probe("overlap probe", question, [&](Draft& draft, std::uint32_t /*role*/) {
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

Program notification_probe(const Program& program, std::uint32_t role) {
  const std::vector<RoleAlone> lists = {{role, {0}}, {role, {1}}};
  constexpr std::uint32_t kMost = 64;  // the rest of a long list says no more
  const auto computes =
      std::min(kMost, static_cast<std::uint32_t>(std::ranges::count_if(program.roles[role].kind, is_computed)));
  Program result = probe_of("notification probe", {{0}, {1}}, {}, [&](Draft& draft, std::uint32_t own) {
    AloneBuilder(program, lists, own, draft).build_notified(computes);
  });
  result.model = program.model;
  result.global_batch = program.global_batch;
  return result;
}

std::vector<double> notification_times(const Program& probe, const Timeline& timeline) {
  constexpr double kLate_s = 50e-6;  // at most until the other's core handles it
  std::vector<double> seconds;
  for (std::uint32_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    const std::uint32_t from = 1 - rank;
    const Role &own = probe.roles.at(rank), &other = probe.roles.at(from);
    std::vector<double> moments_s;
    for (std::uint32_t i = 0; moments_s.size() < kNotifications; ++i)
      if (is_posted(other.kind.at(i)) && other.peer[i] == rank) moments_s.push_back(timeline.ranks[from].posted_s[i]);
    std::vector<std::uint32_t> computes;
    for (std::uint32_t i = 0; i < own.size(); ++i)
      if (is_computed(own.kind[i])) computes.push_back(i);
    const std::size_t of_list = computes.size() / kLists;
    const RankTimeline& times = timeline.ranks[rank];
    std::set<double> hits_s;  // moments at which an op ran
    for (std::size_t k = kNotified * of_list; k < (kNotified + 1) * of_list; ++k)
      for (const double moment_s : moments_s)
        if (times.start_s[computes[k]] <= moment_s && moment_s < times.end_s[computes[k]]) hits_s.insert(moment_s);
    double lost_s = 0;
    for (std::size_t k = 0; k < of_list; ++k) {
      const std::uint32_t notified = computes[kNotified * of_list + k], quiet = computes[kQuiet * of_list + k];
      if (std::ranges::any_of(hits_s, [&](double moment_s) {
            return times.start_s[notified] < moment_s + kLate_s && times.end_s[notified] > moment_s;
          }))
        lost_s += times.end_s[notified] - times.start_s[notified] - (times.end_s[quiet] - times.start_s[quiet]);
    }
    if (!hits_s.empty()) seconds.push_back(lost_s / static_cast<double>(hits_s.size()));
  }
  return seconds;
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
  return probe_of("probe of memory", {first_numbers(ranks)}, {}, [&](Draft& draft, std::uint32_t /*role*/) {
    // The largest first: what is first finds its code cold, which costs the smallest many times its own time. Few
    // parameters have 3·2^k elements: a profile holds what the probe and what a model's step says of a size as one.
    for (const std::int64_t elements : {3LL << 23, 3LL << 21, 3LL << 18, 3LL << 15, 3LL << 10, 3LL << 5}) {
      const TensorSpec spec{model.dtype, {elements}};
      const std::uint32_t from = add_constant(draft, fmt::format("from{}", elements), spec, 1),
                          to = add_constant(draft, fmt::format("to{}", elements), spec, 1);
      if (elements <= kLargestUpdate)
        draft.parameters.push_back({fmt::format("parameter{}", elements), kNone,
                                    add_constant(draft, fmt::format("weight{}", elements), spec, 1),
                                    add_constant(draft, fmt::format("gradient{}", elements), spec, 1)});
      for (int k = 0; k < (elements <= kSmall ? kRepeatsOfSmall : kRepeats); ++k) {
        const Work add{{&op_table().at("accumulate"), {}, {spec, spec}}, Pass::forward, 0};
        draft.list.push_back({{.work = draft.works->add(add), .reads = {to, from}, .writes = {to}}, kNone});
        draft.scaled_copy(from, to, 1, kNone);
      }
    }
    add_updates(draft, model);
    const Linear row(draft, 1, kFeaturesOfRow, model.dtype);
    for (int k = 0; k < kRepeats; ++k) {
      row.compute(draft, 1);
      row.differentiate(draft);
    }
  });
}

double bytes_between_transfers(const Program& program) {
  double most = 0;
  for (const Role& role : program.roles) {
    double bytes = 0, transfers = 0;
    for (std::uint32_t i = 0; i < role.size(); ++i)
      if (is_computed(role.kind[i]))
        bytes += program.works[role.work[i]].demand().bytes;
      else if (role.kind[i] != InstructionKind::wait)
        ++transfers;
    if (transfers > 0) most = std::max(most, bytes / transfers);
  }
  return most;
}

Program transfer_probe(const TransferQuestion& question, std::uint32_t repeats, double bytes_before, bool rendezvous) {
  const TensorSpec spec{Dtype::f32, {(question.bytes + 3) / 4}};
  if (question.kind != InstructionKind::collective)
    return probe_of("probe of send", {{0}, {1}}, {}, [&](Draft& draft, std::uint32_t own) {
      add_ping_pong(draft, own, spec, repeats, bytes_before, rendezvous);
    });
  return collective_probe("probe", question, [&](Draft& draft, std::uint32_t /*role*/) {
    const Linear before = layer_of(draft, bytes_before);
    for (std::uint32_t k = 0; k < repeats; ++k) {
      const std::uint32_t source = add_constant(draft, fmt::format("source{}", k), spec, 1);
      const std::uint32_t buffer = draft.role.add_tensor(fmt::format("buffer{}", k), spec, TensorClass::communication,
                                                         true, {Initial::Kind::constant, 0, 0, 0});
      before.compute(draft, 1);
      draft.scaled_copy(source, buffer, 1, kNone);
      draft.wait(draft.post_collective(question.collective, 0, buffer, kNone), kNone);
    }
  });
}

}  // namespace sim
