#include "sim/calibrate/alone.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "sim/calibrate/make_probe.hpp"
#include "sim/error.hpp"

namespace sim {
namespace {

// The notification probe's lists: the first finds caches cold, the second is interrupted, the third isn't.
constexpr std::uint32_t kLists = 3, kNotified = 1, kQuiet = 2, kNotifications = 8;

// Bounds of first numbers. Adam divides by a gradient's size, plus 1e-8; zeros would be NaN where a network does so.
constexpr double kMovesNothing = 1e-15, kRandom = 0.01;

/// Prepares another repetition of the list: adds copies of the role's tensors to `to`, except of persistent ones, and
/// returns which tensor each has become.
std::vector<std::uint32_t> add_again(const Role& role, std::uint32_t repeat, Role& to) {
  std::vector<std::uint32_t> now(role.tensors.size());
  std::map<std::uint32_t, std::uint32_t> storages;
  for (std::uint32_t t = 0; t < now.size(); ++t) {
    now[t] = t;
    Tensor tensor = role.tensors[t];  // no piece: those are persistent
    if (role.storages[tensor.storage].persistent) continue;
    const auto [entry, is_new] = storages.try_emplace(tensor.storage, static_cast<std::uint32_t>(to.storages.size()));
    if (is_new) to.storages.push_back(role.storages[tensor.storage]);
    now[t] = static_cast<std::uint32_t>(to.tensors.size());
    tensor.name += fmt::format("~{}", repeat);  // unroll's are x'1
    tensor.along = kNone;                       // another mesh
    tensor.storage = entry->second;
    to.tensors.push_back(std::move(tensor));
  }
  for (const auto& [before, storage] : storages) to.storages[storage].owner = now[role.storages[before].owner];
  return now;
}

/// A block that a role gets in a collective, and what another role, or itself, gives for it.
struct Share {
  std::uint32_t to = 0, instruction = 0, block = 0;              // role, its collective, block of what that writes
  std::uint32_t from = 0, from_instruction = 0, from_block = 0;  // of what that reads
};

/// What the first ranks of all roles get in collectives that don't work in place, in a fixed order.
std::vector<Share> shares_of(const Program& program) {
  const std::vector<Program::Place> places = program.places();
  std::vector<std::vector<std::vector<std::uint32_t>>> posted;  // [role][group]: its collectives in their order
  for (const Role& role : program.roles) {
    posted.emplace_back(program.groups.size());
    for (std::uint32_t i = 0; i < role.size(); ++i)
      if (role.kind[i] == InstructionKind::collective) posted.back()[role.peer[i]].push_back(i);
  }
  std::vector<Share> shares;
  for (std::uint32_t r = 0; r < program.roles.size(); ++r)
    for (std::uint32_t group = 0; group < program.groups.size(); ++group)
      for (std::size_t k = 0; k < posted[r][group].size(); ++k) {
        const Role& role = program.roles[r];
        const std::uint32_t i = posted[r][group][k];
        if (works_in_place(role.collective[i]) && (!role.reads(i).empty() || role.writes(i).empty())) continue;
        const auto& lists = program.groups[group].members;
        const auto list = std::ranges::find_if(
            lists, [&](const auto& members) { return std::ranges::find(members, role.ranks[0]) != members.end(); });
        const auto me = static_cast<std::uint32_t>(std::ranges::find(*list, role.ranks[0]) - list->begin());
        for_each_move(role.collective[i], static_cast<std::uint32_t>(list->size()), role.root[i],
                      [&](const Move& move) {
                        if (move.to != me) return;
                        const std::uint32_t from = move.from == kEveryone ? r : places[(*list)[move.from]].role;
                        shares.push_back({r, i, move.block, from, posted[from][group].at(k), move.from_block});
                      });
      }
  return shares;
}

}  // namespace

bool roles_share(const Program& program) { return !shares_of(program).empty(); }

namespace {

/// Builds one list of `alone`.
class AloneBuilder {
 public:
  AloneBuilder(const Program& program, const std::vector<RoleAlone>& lists, std::uint32_t own, Draft& draft)
      : program_(program),
        lists_(lists),
        own_(own),
        exchanges_(lists.back().role != lists.front().role),
        role_(program.roles[lists[own].role]),
        places_(program.places()),
        draft_(draft) {
    if (exchanges_) shares_ = shares_of(program);
    draft.role.tensors = role_.tensors;
    // Pieces of something on another mesh; here each rank has samples of its own.
    std::int64_t ranks = 0;
    for (const RoleAlone& list : lists) ranks += static_cast<std::int64_t>(list.ranks.size());
    for (Tensor& tensor : draft.role.tensors) {
      const bool is_batch =
          tensor.initial.kind == Initial::Kind::model_input || tensor.initial.kind == Initial::Kind::model_target;
      // Of a part of a unit nobody reads the values but the update; they count where ops do (a pooling's branches).
      if (tensor.unit != kNone && !tensor.on.empty()) {
        tensor.initial = first_value(role_.units[tensor.unit]);
        tensor.unit = kNone;
      }
      if (tensor.initial.runs != nullptr && tensor.whole.size() == 1) {  // where a rank's part of a vocabulary begins
        const Range mine = program.piece_of(tensor, role_.ranks[0]).at(0);
        tensor.initial.runs = part_of(*tensor.initial.runs, mine.begin, mine.size);
      }
      tensor.on.assign(is_batch ? 1 : 0, shard(0));
      tensor.along = kNone;
      tensor.whole = is_batch ? tensor.spec.shape : Shape();
      if (is_batch) tensor.whole[0] *= ranks;
    }
    draft.role.units = role_.units;
    for (ParameterUnit& unit : draft.role.units)
      for (ParameterUnit::Part& part : unit.parts) {
        if (part.on.empty()) continue;
        const auto mine = piece(part.whole.shape, part.on, program.mesh, role_.ranks[0]);
        for (std::size_t dim = 0; mine && dim < mine->size(); ++dim) part.whole.shape[dim] = mine->at(dim).size;
        if (std::ranges::any_of(part.on, &Placement::by_rows))
          part.whole = {part.whole.dtype, {program.elements_of(part, role_.ranks[0])}};
        part.on.clear();
      }
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
    // Posted before anyone begins, so that nobody is notified of them in the middle of a list.
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
  /// A message of the program, by direction, role and tag.
  using Message = std::tuple<InstructionKind, std::uint32_t, std::uint32_t>;

  template <class Visit>
  void each_other(const Visit& visit) const {
    for (std::uint32_t other = 0; other < lists_.size(); ++other)
      if (other != own_) visit(other);
  }
  void wait_all(const std::vector<std::uint32_t>& tickets) {
    for (const std::uint32_t ticket : tickets) draft_.wait(ticket, kNone);
  }
  /// The distance from this list's ranks to another's.
  [[nodiscard]] std::int32_t distance(std::uint32_t other) const {
    return static_cast<std::int32_t>(lists_[other].ranks[0]) - static_cast<std::int32_t>(lists_[own_].ranks[0]);
  }
  std::uint32_t post_signal(InstructionKind kind, std::uint32_t other, std::uint32_t signal) {
    const TensorSpec spec{Dtype::f32, {1}};
    return post_message(draft_, kind, distance(other), signal,
                        add_constant(draft_, fmt::format("signal{}", draft_.role.tensors.size()), spec, 1));
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
        draft_.list.push_back(std::move(instruction));
        after(++computed);
      } else if (instruction.kind == InstructionKind::wait && role_.kind[role_.awaits[i]] == InstructionKind::recv) {
        const std::uint32_t tensor = now[role_.writes(role_.awaits[i])[0]];
        to_itself(kept(role_.awaits[i], tensor), tensor, instruction);
      } else if (instruction.kind == InstructionKind::send || instruction.kind == InstructionKind::collective) {
        for (std::uint32_t k = 0; k < instruction.reads.size(); ++k)
          to_itself(now[instruction.reads[k]], given(i, k), instruction);
        for (std::uint32_t k = 0; k < instruction.writes.size(); ++k)
          if (std::ranges::find(instruction.reads, instruction.writes[k]) == instruction.reads.end())
            to_itself(gotten(i, k), now[instruction.writes[k]], instruction);
      }
    }
  }

  /// The tensor, shaped like `tensor`, that stands for the other end of posted instruction `i`.
  std::uint32_t kept(std::uint32_t i, std::uint32_t tensor) {
    const TensorSpec spec = draft_.role.tensors[tensor].spec;
    const auto find_or_add = [&](auto& known, const auto& key) {
      const auto [entry, is_new] = known.try_emplace(key);
      if (is_new) entry->second = add_message("message", i, tensor);
      return entry->second;
    };
    if (exchanges_ && role_.kind[i] != InstructionKind::collective)
      if (const std::uint32_t other = places_[program_.partner(role_, role_.ranks[0], i)].role; other != own_)
        return find_or_add(messages_, Message{role_.kind[i], other, role_.tag[i]});
    const bool receives = role_.kind[i] == InstructionKind::recv;
    constexpr std::uint32_t kDifferent = 8;  // messages of one shape with other numbers
    return find_or_add(
        random_, fmt::format("{} {} {}", receives ? to_itself_ % kDifferent : kDifferent, to_string(spec), unit_of(i)));
  }

  /// Of most of a unit's elements.
  [[nodiscard]] static Initial first_value(const ParameterUnit& unit) {
    const auto size = [](const ParameterUnit::Part& part) { return part.whole.elements(); };
    return std::ranges::max_element(unit.parts, {}, size)->initial;
  }
  /// What stands for `tensor` at the other end of posted instruction `i`. It brings weights where it gathers a unit: ops
  /// take other times for other values (a pooling's branches). So do ops whose weights an update has moved by random
  /// numbers: what another role sends from the second step on is so small in the first that none is moved.
  std::uint32_t add_message(std::string_view name, std::uint32_t i, std::uint32_t tensor) {
    const TensorSpec spec = draft_.role.tensors[tensor].spec;
    const std::uint32_t unit = unit_of(i);
    const std::uint32_t id = draft_.role.add_tensor(
        fmt::format("{}{}", name, draft_.role.tensors.size()), spec, TensorClass::communication, true,
        unit == kNone ? Initial{Initial::Kind::uniform, 0, exchanges_ ? kMovesNothing : kRandom}
                      : first_value(role_.units[unit]));
    if (unit == kNone) return id;
    std::int64_t elements = 0;
    bool is_flat = true;
    for (const ParameterUnit::Part& part : role_.units[unit].parts) {
      elements += program_.elements_of(part, role_.ranks[0]);
      is_flat &= std::ranges::none_of(part.on, &Placement::by_rows);
    }
    if (is_flat && elements <= spec.elements()) draft_.role.tensors[id].unit = unit;
    return id;
  }
  /// The unit that a collective gathers; kNone: none.
  [[nodiscard]] std::uint32_t unit_of(std::uint32_t i) const {
    if (role_.kind[i] == InstructionKind::collective && role_.collective[i] == CollectiveKind::all_gather)
      for (std::uint32_t u = 0; u < role_.units.size(); ++u)
        if (role_.node[i] != kNone && role_.units[u].name == program_.names[role_.node[i]]) return u;
    return kNone;
  }

  [[nodiscard]] bool is_shared(std::uint32_t i) const {
    return std::ranges::any_of(shares_, [&](const Share& share) {
      return (share.to == own_ && share.instruction == i) || (share.from == own_ && share.from_instruction == i);
    });
  }
  /// What stands for operand `k` of posted instruction `i`, to be read or written by the others.
  std::uint32_t given(std::uint32_t i, std::uint32_t k) { return shared(i, k, role_.reads(i)[k], given_); }
  std::uint32_t gotten(std::uint32_t i, std::uint32_t k) { return shared(i, k, role_.writes(i)[k], gotten_); }
  using Operands = std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t>;
  std::uint32_t shared(std::uint32_t i, std::uint32_t k, std::uint32_t tensor, Operands& known) {
    if (!is_shared(i)) return kept(i, tensor);
    const auto [entry, is_new] = known.try_emplace({i, k});
    if (is_new) entry->second = add_message("share", i, tensor);
    return entry->second;
  }
  /// A block of an operand: one of several tensors, or a part of one.
  std::uint32_t block_of(std::uint32_t i, std::uint32_t block, bool given_one, std::int64_t bytes) {
    const std::size_t operands = given_one ? role_.reads(i).size() : role_.writes(i).size();
    const std::uint32_t k = operands > 1 ? block : 0, tensor = given_one ? given(i, k) : gotten(i, k);
    const TensorSpec spec = draft_.role.tensors[tensor].spec;
    const TensorSpec part{spec.dtype, {bytes / size_of(spec.dtype)}};
    return draft_.role.add_view(fmt::format("block{}", draft_.role.tensors.size()), part, tensor,
                                operands > 1 || spec.bytes() == bytes ? 0 : block * bytes);
  }
  /// The bytes of a block that a role gets.
  [[nodiscard]] std::int64_t bytes_of(const Share& share) const {
    const Role& to = program_.roles[share.to];
    const auto writes = to.writes(share.instruction);
    const std::int64_t bytes = to.tensors[writes[writes.size() > 1 ? share.block : 0]].spec.bytes();
    if (writes.size() > 1) return bytes;
    const std::size_t members = program_.groups[to.peer[share.instruction]].members[0].size();
    const bool is_cut =
        operands_of(to.collective[share.instruction], is_root(to, share.instruction)).writes == Moved::parts;
    return is_cut ? bytes / static_cast<std::int64_t>(members) : bytes;
  }
  [[nodiscard]] bool is_root(const Role& role, std::uint32_t i) const {
    for (const auto& members : program_.groups[role.peer[i]].members)
      if (members[std::min<std::size_t>(role.root[i], members.size() - 1)] == role.ranks[0]) return true;
    return false;
  }

  void to_itself(std::uint32_t from, std::uint32_t to, const Instruction& where) {
    const std::uint32_t tag = to_itself_++;
    Instruction recv{.kind = InstructionKind::recv, .node = where.node, .microbatch = where.microbatch, .peer = 0};
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
      const auto& [kind, other, tag] = message;
      tickets.push_back(post_message(draft_, kind, distance(other), kSignals + tag, tensor));
    }
    std::uint32_t next = kSignals;  // tags are small: worlds keep a list of them
    for (const Role& role : program_.roles)
      for (const std::uint32_t tag : role.tag) next = std::max(next, kSignals + tag + 1);
    for (std::uint32_t s = 0; s < shares_.size(); ++s) {
      const Share& share = shares_[s];
      if (share.to != own_ && share.from != own_) continue;
      const std::int64_t bytes = bytes_of(share);
      const std::uint32_t from = share.from == own_ ? block_of(share.from_instruction, share.from_block, true, bytes)
                                                    : kNone,
                          to = share.to == own_ ? block_of(share.instruction, share.block, false, bytes) : kNone;
      if (to == kNone)
        tickets.push_back(post_message(draft_, InstructionKind::send, distance(share.to), next + s, from));
      else if (from == kNone)
        tickets.push_back(post_message(draft_, InstructionKind::recv, distance(share.from), next + s, to));
      else
        to_itself(from, to, {});
    }
    wait_all(tickets);
  }

  const Program& program_;
  const std::vector<RoleAlone>& lists_;
  const std::uint32_t own_;  // in `lists_`
  const bool exchanges_;     // what the roles have sent
  const Role& role_;
  const std::vector<Program::Place> places_;  // of the program
  Draft& draft_;
  std::uint32_t to_itself_ = 0;
  std::map<Message, std::uint32_t> messages_;    // tensors
  std::map<std::string, std::uint32_t> random_;  // where nobody sends them
  std::vector<Share> shares_;
  Operands given_, gotten_;  // of shared collectives: tensors
};

}  // namespace

Program alone(const Program& program, const std::vector<RoleAlone>& lists, bool in_turns) {
  std::vector<std::vector<std::uint32_t>> ranks;
  std::uint32_t all = 0;
  for (const RoleAlone& list : lists) {
    check_internal(lists.size() == 1 || list.role == ranks.size(), "role {} comes as list {}", list.role, ranks.size());
    ranks.push_back(list.ranks);
    all += static_cast<std::uint32_t>(list.ranks.size());
  }
  // Not the strategy's text: two strategies with the same lists share a calibration.
  Program result = make_probe("calibration", row_of(all), 0, ranks, [&](Draft& draft, std::uint32_t own) {
    AloneBuilder(program, lists, own, draft).build(in_turns);
  });
  result.model = program.model;
  result.global_batch = program.global_batch;
  result.set_threads(program.threads);
  return result;
}

Program notification_probe(const Program& program, std::uint32_t role) {
  const std::vector<RoleAlone> lists = {{role, {0}}, {role, {1}}};
  constexpr std::uint32_t kMost = 64;  // the rest of a long list says no more
  const auto computes =
      std::min(kMost, static_cast<std::uint32_t>(std::ranges::count_if(program.roles[role].kind, is_computed)));
  Program result = make_probe("notification probe", row_of(2), 0, {{0}, {1}}, [&](Draft& draft, std::uint32_t own) {
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
      if (is_posted(other.kind.at(i)) && other.by[i] != 0) moments_s.push_back(timeline.ranks[from].posted_s[i]);
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

}  // namespace sim
