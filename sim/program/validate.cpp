#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>

#include "sim/error.hpp"
#include "sim/program/fold.hpp"
#include "sim/program/program.hpp"
#include "sim/program/transfers.hpp"
#include "sim/program/unroll.hpp"

namespace sim {
namespace {

/// Roles cover the mesh's ranks 0…n−1 once, and messages stay on it.
void check_ranks(const Program& program) {
  const std::uint32_t ranks = program.ranks();
  if (ranks == 0) throw ConfigError("program: no ranks");
  if (ranks != program.mesh.ranks())
    throw ConfigError("program: {} ranks on a mesh of {}", ranks, program.mesh.ranks());
  const auto check_new = [&](std::vector<int>& seen, std::uint32_t rank, const char* what, const std::string& name) {
    if (rank >= ranks || seen[rank]++)
      throw ConfigError("program: rank {} of {} '{}' must be one of 0…{}, and only once", rank, what, name, ranks - 1);
  };
  std::vector<int> in_role(ranks, 0);
  for (const Role& role : program.roles)
    for (std::uint32_t rank : role.ranks) check_new(in_role, rank, "role", role.name);
  for (const Role& role : program.roles)
    for (std::uint32_t i = 0; i < role.size(); ++i) {
      if (!is_message(role.kind[i])) continue;
      const bool on_mesh = role.peer[i] < program.mesh.axes.size();
      if (const std::int64_t size = on_mesh ? program.mesh.axes[role.peer[i]].size : 0; std::abs(role.by[i]) >= size)
        throw ConfigError("program, role '{}', instruction {} ({}): {:+} along an axis of {}", role.name, i,
                          program.label(role, i), role.by[i], size);
    }
}

/// Bit i: what lies so is another piece at each coordinate of axis i. Of what is cut by rows all have room for as many.
std::uint32_t cutting_axes(const std::vector<Placement>& on) {
  std::uint32_t axes = 0;
  for (std::size_t axis = 0; axis < on.size(); ++axis)
    if (on[axis].kind != Placement::Kind::replicate && !on[axis].by_rows) axes |= 1U << axis;
  return axes;
}

/// One of a role's ranks for each place along some axes: of thousands of replicas all have the same.
class RanksApart {
 public:
  RanksApart(const Role& role, const Mesh& mesh) : role_(role), mesh_(mesh) {}
  const std::vector<std::uint32_t>& along(std::uint32_t axes) {
    std::vector<std::uint32_t>& ranks = known_[axes];
    if (!ranks.empty()) return ranks;
    std::set<std::vector<std::uint32_t>> seen;
    for (const std::uint32_t rank : role_.ranks) {
      std::vector<std::uint32_t> place;
      for (std::uint32_t axis = 0; axis < mesh_.axes.size(); ++axis)
        if ((axes >> axis & 1U) != 0) place.push_back(mesh_.coordinate(rank, axis));
      if (seen.insert(std::move(place)).second) ranks.push_back(rank);
    }
    return ranks;
  }

 private:
  const Role& role_;
  const Mesh& mesh_;
  std::map<std::uint32_t, std::vector<std::uint32_t>> known_;  // by axes
};

/// A unit's tensor is flat, and large enough for what the ranks have of its parameters.
void check_unit(const Program& program, const Role& role, const Tensor& tensor, RanksApart& ranks) {
  if (tensor.unit >= role.units.size())
    throw ConfigError("program: '{}' has unit {} of {}", tensor.name, tensor.unit, role.units.size());
  const ParameterUnit& unit = role.units[tensor.unit];
  std::uint32_t axes = 0;
  for (const ParameterUnit::Part& part : unit.parts) {
    if (part.whole.dtype != tensor.spec.dtype && !is_half(tensor.spec.dtype))
      throw ConfigError("program: '{}' of unit '{}' is {}, but '{}' is {}", part.name, unit.name,
                        to_string(part.whole.dtype), tensor.name, to_string(tensor.spec.dtype));
    if (!part.on.empty() && part.on.size() != program.mesh.axes.size())
      throw ConfigError("program: {} has {} placements on a mesh of {} axes", part.name, part.on.size(),
                        program.mesh.axes.size());
    if (std::ranges::count_if(part.on, &Placement::by_rows) > 1)
      throw ConfigError("program: '{}' of unit '{}' is cut by rows along two axes: {}", part.name, unit.name,
                        placements_text(part.on));
    axes |= cutting_axes(part.on);
  }
  for (const std::uint32_t rank : ranks.along(axes)) {
    std::int64_t elements = 0;
    for (const ParameterUnit::Part& part : unit.parts) elements += program.elements_of(part, rank);
    const Shape& whole = tensor.on.empty() ? tensor.spec.shape : tensor.whole;
    if (whole.size() != 1 || whole[0] < elements)
      throw ConfigError("program: '{}' of rank {} is [{}], but its unit '{}' has {} elements", tensor.name, rank,
                        fmt::join(whole, ","), unit.name, elements);
  }
}

/// Every coordinate's part lies in the storage.
void check_along(const Program& program, const Role& role, const Tensor& tensor) {
  if (tensor.along >= program.mesh.axes.size())
    throw ConfigError("program: '{}' lies along axis {} of {}", tensor.name, tensor.along, program.mesh.axes.size());
  const Axis& axis = program.mesh.axes[tensor.along];
  if ((role.storages[tensor.storage].bytes - tensor.offset_bytes) / std::max<std::int64_t>(1, tensor.spec.bytes()) <
      axis.size)
    throw ConfigError("program: {} parts of '{}' along {} reach beyond its storage", axis.size, tensor.name, axis.name);
}

/// The batch, and what is a piece of something larger, can be cut so, and the ranks have such pieces.
void check_pieces(const Program& program) {
  const auto check_axes = [](const Program& of, const std::vector<Placement>& placements, const std::string& what) {
    if (placements.size() != of.mesh.axes.size())
      throw ConfigError("program: {} has {} placements on a mesh of {} axes", what, placements.size(),
                        of.mesh.axes.size());
  };
  if (!program.rows.empty()) check_axes(program, program.rows, "the batch");
  if (const std::size_t pieces = program.batch_pieces().size(); program.daso && pieces % program.daso->local != 0)
    throw ConfigError("program: {} pieces of the batch for nodes of {} ranks", pieces, program.daso->local);
  for (const Role& role : program.roles) {
    RanksApart ranks(role, program.mesh);
    for (const Tensor& tensor : role.tensors) {
      if (tensor.unit != kNone) check_unit(program, role, tensor, ranks);
      if (tensor.along != kNone) check_along(program, role, tensor);
      if (tensor.on.empty()) continue;
      check_axes(program, tensor.on, tensor.name);
      if (std::ranges::any_of(tensor.on, &Placement::by_rows))
        throw ConfigError("program: '{}' is {}; only parameters of units are cut by rows", tensor.name,
                          placements_text(tensor.on));
      for (const std::uint32_t rank : ranks.along(cutting_axes(tensor.on))) {
        const auto ranges = piece(tensor.whole, tensor.on, program.mesh, rank);
        const bool fits = ranges && ranges->size() == tensor.spec.shape.size() &&
                          std::ranges::equal(*ranges, tensor.spec.shape, {}, &Range::size);
        if (!fits)
          throw ConfigError("program: '{}' of rank {} is {}, which isn't its piece of [{}]", tensor.name, rank,
                            to_string(tensor.spec), fmt::join(tensor.whole, ","));
      }
    }
  }
}

/// One role's list: operands exist, nothing is read before it is written or after it is freed, what an op changes in
/// place is listed, every post is awaited once, all is freed at the end. What may be read and what is in use is known
/// byte by byte, of one of its ranks. Where a body has several training steps, what was freed may begin again. A body is
/// played twice: if it leaves what it has found both times, it always does.
class LifetimeCheck {
 public:
  /// `changed_reads`: OpInstance::changed_reads of each work.
  LifetimeCheck(const Program& program, const Role& role, std::uint32_t rank,
                const std::vector<std::vector<std::uint32_t>>& changed_reads)
      : program_(program),
        role_(role),
        rank_(rank),
        changed_reads_(changed_reads),
        state_(role.storages.size()),
        carried_(role.storages.size()),
        full_(role.storages.size()),
        open_(role.tickets(), kNone) {}

  void run() {
    for (std::uint32_t s = 0; s < role_.storages.size(); ++s)
      if (role_.storages[s].persistent) {
        state_[s] = State::live;
        full_[s] = true;
      }
    if (role_.has_sections()) {
      play(0, role_.body_begin);
      for (int body = 0; body < 2; ++body) {
        const std::vector<State> found = state_;
        const std::vector<std::uint32_t> found_open = open_;
        play(role_.body_begin, std::min(role_.body_end, role_.size()));
        check_left(found, found_open);
      }
    }
    play(role_.has_sections() ? role_.body_end : 0, role_.size());
    i_ = role_.size() - 1;
    if (role_.size() == 0) return;
    for (const std::uint32_t posted : open_)
      if (posted != kNone) fail("instruction {} ({}) is never waited for", posted, program_.label(role_, posted));
    for (std::uint32_t s = 0; s < role_.storages.size(); ++s)
      if (!role_.storages[s].persistent && state_[s] == State::live) fail("'{}' is never freed", name(s));
  }

 private:
  enum class State : std::uint8_t { unborn, live, freed };
  struct Bytes {
    std::uint32_t storage;
    std::int64_t begin, end;
  };
  /// What a transfer in flight reads or writes.
  struct Use {
    Bytes bytes;
    std::uint32_t posted;
    bool writes;
    friend bool operator<(const Use& a, const Use& b) {
      return std::tie(a.bytes.storage, a.bytes.begin, a.posted, a.writes) <
             std::tie(b.bytes.storage, b.bytes.begin, b.posted, b.writes);
    }
  };

  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> text, Args&&... args) const {
    throw ConfigError("program, role '{}' (rank {}), instruction {} ({}): {}", role_.name, rank_, i_,
                      program_.label(role_, i_), fmt::format(text, std::forward<Args>(args)...));
  }
  [[nodiscard]] const std::string& name(std::uint32_t storage) const {
    return role_.tensors[role_.storages[storage].owner].name;
  }
  [[nodiscard]] Bytes bytes_of(std::uint32_t t) const {
    const Tensor& tensor = role_.tensors[t];
    const std::int64_t begin = program_.offset_bytes(tensor, rank_);
    return {tensor.storage, begin, begin + tensor.spec.bytes()};
  }

  /// A section. What earlier ones have freed may be written again, and what they have left once it is freed.
  void play(std::uint32_t begin, std::uint32_t end) {
    for (std::uint32_t s = 0; s < state_.size(); ++s) {
      if (state_[s] == State::freed) state_[s] = State::unborn;
      carried_[s] = state_[s] == State::live;
    }
    for (i_ = begin; i_ < end; ++i_) {
      if (role_.kind[i_] == InstructionKind::wait) await();
      for (std::uint32_t t : role_.reads(i_)) read(t);
      if (role_.work[i_] != kNone) check_changed();
      for (std::uint32_t t : role_.writes(i_)) write(t);
      if (is_posted(role_.kind[i_])) post();
      for (std::uint32_t s : role_.frees(i_)) free(s);
    }
  }
  /// The body leaves the tickets open and the storages alive that it has found so.
  void check_left(const std::vector<State>& found, const std::vector<std::uint32_t>& found_open) {
    i_ = std::min(role_.body_end, role_.size()) - 1;
    for (std::uint32_t t = 0; t < open_.size(); ++t)
      if ((open_[t] == kNone) != (found_open[t] == kNone))
        fail("the body finds t{} {} and leaves it {}", t, found_open[t] == kNone ? "closed" : "open",
             open_[t] == kNone ? "closed" : "open");
    for (std::uint32_t s = 0; s < state_.size(); ++s)
      if ((state_[s] == State::live) != (found[s] == State::live))
        fail("the body {} '{}', which {} when it began", state_[s] == State::live ? "leaves" : "frees", name(s),
             found[s] == State::live ? "was there" : "wasn't there");
  }

  void read(std::uint32_t t) const {
    const Tensor& tensor = role_.tensors[t];
    if (state_[tensor.storage] == State::freed) fail("reads '{}' after it was freed", tensor.name);
    if (state_[tensor.storage] == State::unborn || !has_value(t)) fail("reads '{}' before it was written", tensor.name);
    if (in_flight(bytes_of(t), /*writes_only=*/true))
      fail("reads '{}' before the transfer into it was waited for", tensor.name);
  }
  /// A tensor has a value when every byte of it was written, or its storage is persistent.
  [[nodiscard]] bool has_value(std::uint32_t t) const {
    if (full_[role_.tensors[t].storage]) return true;
    const auto parts = parts_.find(role_.tensors[t].storage);
    if (parts == parts_.end()) return false;
    const Bytes bytes = bytes_of(t);
    const auto after = parts->second.upper_bound(bytes.begin);
    return after != parts->second.begin() && std::prev(after)->second >= bytes.end;
  }
  void write(std::uint32_t t) {
    const Tensor& tensor = role_.tensors[t];
    const std::uint32_t s = tensor.storage;
    if (state_[s] == State::freed) fail("writes '{}' after it was freed", tensor.name);
    if (in_flight(bytes_of(t), /*writes_only=*/false)) fail("writes '{}' while a transfer uses it", tensor.name);
    state_[s] = State::live;
    if (!full_[s]) cover(bytes_of(t));
  }
  void cover(Bytes bytes) {
    const std::int64_t whole = role_.storages[bytes.storage].bytes;
    if (bytes.end - bytes.begin < whole) {
      std::map<std::int64_t, std::int64_t>& parts = parts_[bytes.storage];  // begin → end, apart from each other
      auto part = parts.upper_bound(bytes.begin);
      if (part != parts.begin() && std::prev(part)->second >= bytes.begin) --part;
      for (; part != parts.end() && part->first <= bytes.end; part = parts.erase(part)) {
        bytes.begin = std::min(bytes.begin, part->first);
        bytes.end = std::max(bytes.end, part->second);
      }
      parts.emplace(bytes.begin, bytes.end);
      if (bytes.end - bytes.begin < whole) return;
    }
    full_[bytes.storage] = true;
    parts_.erase(bytes.storage);
  }
  void check_changed() const {
    const std::span<const std::uint32_t> reads = role_.reads(i_), writes = role_.writes(i_);
    for (std::uint32_t place : changed_reads_[role_.work[i_]]) {
      if (place >= reads.size()) continue;
      const Bytes changed = bytes_of(reads[place]);
      const bool listed = std::ranges::any_of(writes, [&](std::uint32_t t) {
        const Bytes bytes = bytes_of(t);
        return bytes.storage == changed.storage && bytes.begin <= changed.begin && bytes.end >= changed.end;
      });
      if (!listed) fail("changes '{}' in place, so it must write it, too", role_.tensors[reads[place]].name);
    }
  }

  [[nodiscard]] bool in_flight(const Bytes& bytes, bool writes_only) const {
    for (auto use = uses_.lower_bound({{bytes.storage, 0, 0}, 0, false});
         use != uses_.end() && use->bytes.storage == bytes.storage && use->bytes.begin < bytes.end; ++use)
      if (use->bytes.end > bytes.begin && (use->writes || !writes_only)) return true;
    return false;
  }
  void post() {
    const InstructionKind kind = role_.kind[i_];
    const bool is_collective = kind == InstructionKind::collective;
    const bool in_place = is_collective && works_in_place(role_.collective[i_]);
    const bool only_gets = kind == InstructionKind::recv ||
                           (in_place && role_.collective[i_] == CollectiveKind::broadcast && role_.reads(i_).empty());
    if ((!is_collective || in_place) && (role_.reads(i_).size() != (only_gets ? 0 : 1) ||
                                         role_.writes(i_).size() != (kind == InstructionKind::send ? 0 : 1)))
      fail("must move one tensor");
    if (in_place && !only_gets && role_.reads(i_)[0] != role_.writes(i_)[0])
      fail("reads '{}' and writes '{}', but works in place", role_.tensors[role_.reads(i_)[0]].name,
           role_.tensors[role_.writes(i_)[0]].name);
    const bool may_be_same = is_collective && operands_of(role_.collective[i_], /*is_root=*/true).in_place;
    for (const std::uint32_t read : role_.reads(i_))
      for (const std::uint32_t written : role_.writes(i_)) {
        const Bytes from = bytes_of(read), to = bytes_of(written);
        if ((read != written || !may_be_same) && from.storage == to.storage && from.begin < to.end &&
            to.begin < from.end && !is_own_block(read, written))
          fail("reads '{}' and writes '{}', which overlap", role_.tensors[read].name, role_.tensors[written].name);
      }
    for (std::uint32_t t : role_.reads(i_)) uses_.insert({bytes_of(t), i_, false});
    for (std::uint32_t t : role_.writes(i_)) uses_.insert({bytes_of(t), i_, true});
    std::uint32_t& opened = open_[role_.ticket[i_]];
    if (opened != kNone) fail("opens t{}, which instruction {} has opened already", role_.ticket[i_], opened);
    opened = i_;
  }
  /// Each gives of what is gathered its own block, where that goes to.
  [[nodiscard]] bool is_own_block(std::uint32_t read, std::uint32_t written) const {
    if (role_.collective[i_] != CollectiveKind::all_gather || role_.writes(i_).size() != 1) return false;
    if (role_.ranks.size() > 1 && role_.tensors[read].along == kNone) return false;  // one of them at most
    const Bytes from = bytes_of(read), to = bytes_of(written);
    for (const auto& members : program_.groups.at(role_.peer[i_]).members)
      if (const auto me = std::ranges::find(members, rank_); me != members.end())
        return from.begin == to.begin + (me - members.begin()) * (from.end - from.begin);
    return false;
  }
  void await() {
    const std::uint32_t ticket = role_.ticket[i_];
    const std::uint32_t posted = ticket < open_.size() ? std::exchange(open_[ticket], kNone) : kNone;
    if (posted == kNone) fail("no send, recv or collective in flight has opened t{}", ticket);
    for (std::uint32_t t : role_.reads(posted)) uses_.erase({bytes_of(t), posted, false});
    for (std::uint32_t t : role_.writes(posted)) uses_.erase({bytes_of(t), posted, true});
  }
  void free(std::uint32_t s) {
    if (role_.storages[s].persistent) fail("frees '{}', which is persistent", name(s));
    if (state_[s] == State::unborn) fail("frees '{}' before it was written", name(s));
    if (state_[s] == State::freed) fail("frees '{}' a second time", name(s));
    if (in_flight({s, 0, role_.storages[s].bytes}, /*writes_only=*/false))
      fail("frees '{}' while a transfer uses it", name(s));
    // Several steps in one list: the next one makes it anew.
    state_[s] = carried_[s] || program_.steps > 1 ? State::unborn : State::freed;
    carried_[s] = false;
    full_[s] = false;
    parts_.erase(s);
  }

  const Program& program_;
  const Role& role_;
  const std::uint32_t rank_;
  const std::vector<std::vector<std::uint32_t>>& changed_reads_;
  std::uint32_t i_ = 0;
  std::vector<State> state_;   // by storage
  std::vector<bool> carried_;  // by storage: alive since before this section
  std::vector<bool> full_;     // by storage: every byte has a value
  std::unordered_map<std::uint32_t, std::map<std::int64_t, std::int64_t>> parts_;  // else: the bytes that have
  std::set<Use> uses_;                                                             // of the transfers in flight
  std::vector<std::uint32_t> open_;                                                // by ticket: who opened it
};

/// Plays posts and waits of all ranks (of those that play) with the strictest transport: a send is done only once its
/// receive is posted.
class TransferCheck {
 public:
  explicit TransferCheck(const Program& program)
      : program_(program),
        matching_(program),
        places_(program.places()),
        position_(places_.size(), 0),
        transfers_(matching_.participants.size()) {
    for (const Role& list : program.roles) {
      std::vector<std::uint32_t>& steps = steps_.emplace_back();
      for (std::uint32_t i = 0; i < list.size(); ++i)
        if (is_posted(list.kind[i]) || list.kind[i] == InstructionKind::wait) steps.push_back(i);
    }
  }

  void run() {
    for (std::uint32_t r = 0; r < places_.size(); ++r) ready_.push_back(r);
    while (!ready_.empty()) {
      const std::uint32_t r = ready_.front();
      ready_.pop_front();
      advance(r);
    }
    for (std::uint32_t r = 0; r < places_.size(); ++r)
      if (position_[r] < steps(r).size()) report_deadlock(r);
  }

 private:
  struct Post {
    std::uint32_t rank = 0, instruction = 0;
  };
  struct Transfer {
    std::uint32_t posted = 0;                 // participants
    std::uint32_t rank = 0, instruction = 0;  // the first of them
    bool sent = false, received = false;
    std::vector<std::uint32_t> sleepers;  // ranks that wait for it
    std::vector<Post> posts;              // of a collective that doesn't work in place, in the members' order
  };

  [[nodiscard]] const Role& role(std::uint32_t rank) const { return program_.roles[places_[rank].role]; }
  [[nodiscard]] const std::vector<std::uint32_t>& steps(std::uint32_t rank) const { return steps_[places_[rank].role]; }
  [[nodiscard]] std::string at(std::uint32_t rank, std::uint32_t i) const {
    return fmt::format("rank {} instruction {} ({})", program_.rank_of(rank), i, program_.label(role(rank), i));
  }
  [[nodiscard]] std::uint32_t id(std::uint32_t rank, std::uint32_t i) const {
    return matching_.transfer(places_[rank], rank, role(rank), i);
  }

  void advance(std::uint32_t rank) {
    const Role& list = role(rank);
    for (std::uint32_t& position = position_[rank]; position < steps(rank).size(); ++position) {
      const std::uint32_t i = steps(rank)[position];
      if (is_posted(list.kind[i])) {
        post(rank, i);
      } else {
        const std::uint32_t awaited = id(rank, list.awaits[i]);
        if (transfers_[awaited].posted < matching_.participants[awaited]) {
          transfers_[awaited].sleepers.push_back(rank);
          return;
        }
      }
    }
  }

  void post(std::uint32_t rank, std::uint32_t i) {
    const Role& list = role(rank);
    const bool collective = list.kind[i] == InstructionKind::collective;
    if (collective) check_member(rank, i);
    const std::uint32_t transfer_id = id(rank, i);
    Transfer& transfer = transfers_[transfer_id];
    if (!collective) {
      bool& side = list.kind[i] == InstructionKind::send ? transfer.sent : transfer.received;
      if (side) throw ConfigError("program: {} repeats tag {} of the same pair", at(rank, i), list.tag[i]);
      side = true;
    }
    if (transfer.posted == 0) {
      transfer.rank = rank;
      transfer.instruction = i;
    } else {
      check_alike(rank, i, transfer.rank, transfer.instruction);
    }
    if (collective && !works_in_place(list.collective[i])) check_operands(rank, i, transfer);
    if (++transfer.posted == matching_.participants[transfer_id]) {
      if (!transfer.posts.empty()) check_moves(transfer);
      ready_.insert(ready_.end(), transfer.sleepers.begin(), transfer.sleepers.end());
      transfer.sleepers.clear();
    }
  }

  [[nodiscard]] const std::vector<std::uint32_t>& members_of(std::uint32_t rank, std::uint32_t i) const {
    const std::uint32_t group = role(rank).peer[i];
    return program_.groups[group].members[matching_.list_of[group][rank]];
  }

  void check_member(std::uint32_t rank, std::uint32_t i) const {
    const Role& list = role(rank);
    const Group& group = program_.groups[list.peer[i]];
    const std::uint32_t member_list = matching_.list_of[list.peer[i]][rank];
    if (member_list == kNone) throw ConfigError("program: {}: the rank isn't in group '{}'", at(rank, i), group.name);
    if (const std::size_t size = group.members[member_list].size(); list.root[i] >= size)
      throw ConfigError("program: {}: root {} of {} members", at(rank, i), list.root[i], size);
    const std::vector<std::uint32_t>& members = group.members[member_list];
    if (list.reads(i).empty() && has_root(list.collective[i]) && program_.player_of(members[list.root[i]]) == rank)
      throw ConfigError("program: {}: the root gives nothing", at(rank, i));
    if (list.reduction[i] == Reduction::mean && moved_dtype(list, i) == Dtype::i64)
      throw ConfigError("program: {}: a mean of integers", at(rank, i));
  }

  /// Checks that there are as many tensors as the kind asks for (operands_of).
  void check_operands(std::uint32_t rank, std::uint32_t i, Transfer& transfer) const {
    const Role& list = role(rank);
    const std::vector<std::uint32_t>& members = members_of(rank, i);
    const auto is_mine = [&](std::uint32_t member) { return program_.player_of(member) == rank; };
    const auto place = static_cast<std::size_t>(std::ranges::find_if(members, is_mine) - members.begin());
    const CollectiveOperands operands = operands_of(list.collective[i], place == list.root[i]);
    const auto check = [&](Moved moved, std::span<const std::uint32_t> tensors, std::string_view does) {
      const bool one_of_parts =
          tensors.size() == 1 &&
          list.tensors[tensors[0]].spec.elements() % static_cast<std::int64_t>(members.size()) == 0;
      const bool fits = moved == Moved::parts ? one_of_parts || tensors.size() == members.size()
                                              : tensors.size() == (moved == Moved::array ? 1U : 0U);
      if (!fits)
        throw ConfigError("program: {} {} tensors: {}; allowed: {}", at(rank, i), does, tensors.size(),
                          moved == Moved::array ? "1"
                          : moved == Moved::parts
                              ? fmt::format("{0}, one for each member, or 1 that {0} divides", members.size())
                              : "none");
    };
    check(operands.reads, list.reads(i), "reads");
    check(operands.writes, list.writes(i), "writes");
    if (operands.in_place && list.reads(i)[0] != list.writes(i)[0])
      throw ConfigError("program: {} reads '{}' and writes '{}', but works in place", at(rank, i),
                        list.tensors[list.reads(i)[0]].name, list.tensors[list.writes(i)[0]].name);
    transfer.posts.resize(members.size());
    for (std::size_t k = place; k < members.size(); ++k)
      if (is_mine(members[k])) transfer.posts[k] = {rank, i};
  }

  /// What is given is as large as what is asked for.
  void check_moves(const Transfer& transfer) const {
    const Post& first = transfer.posts[0];
    const auto n = static_cast<std::uint32_t>(transfer.posts.size());
    const auto bytes = [&](std::uint32_t member, bool reads, std::uint32_t block) {
      const Post& post = transfer.posts[member];
      const Role& list = role(post.rank);
      const auto tensors = reads ? list.reads(post.instruction) : list.writes(post.instruction);
      const CollectiveOperands operands =
          operands_of(list.collective[post.instruction], member == list.root[post.instruction]);
      const bool is_cut = (reads ? operands.reads : operands.writes) == Moved::parts && tensors.size() == 1;
      return list.tensors[tensors[is_cut ? 0 : block]].spec.bytes() / (is_cut ? n : 1);
    };
    const Role& list = role(first.rank);
    // Of many that do the same with one tensor each, two are as all: else it is n^2 moves.
    const bool are_alike =
        !has_root(list.collective[first.instruction]) && list.reads(first.instruction).size() == 1 &&
        list.writes(first.instruction).size() == 1 && std::ranges::all_of(transfer.posts, [&](const Post& post) {
          return post.instruction == first.instruction && places_[post.rank].role == places_[first.rank].role;
        });
    const std::uint32_t checked = are_alike ? std::min(n, 2U) : n;
    for_each_move(list.collective[first.instruction], checked, list.root[first.instruction], [&](const Move& move) {
      const std::int64_t wanted = bytes(move.to, /*reads=*/false, move.block);
      const auto [first_from, last_from] =
          move.from == kEveryone ? std::pair(0U, checked - 1) : std::pair(move.from, move.from);
      for (std::uint32_t from = first_from; from <= last_from; ++from) {
        const std::int64_t given = bytes(from, /*reads=*/true, move.from_block);
        if (given != wanted)
          throw ConfigError("program: {} gives {} bytes to {}, which expects {}",
                            at(transfer.posts[from].rank, transfer.posts[from].instruction), given,
                            at(transfer.posts[move.to].rank, transfer.posts[move.to].instruction), wanted);
      }
    });
  }

  /// Two ends of one transfer must mean the same tensor: kind, root, label and microbatch, bytes, dtype.
  void check_alike(std::uint32_t rank, std::uint32_t i, std::uint32_t first_rank, std::uint32_t first_i) const {
    const Role &list = role(rank), &first = role(first_rank);
    if (&list == &first && i == first_i) return;
    const bool same_label =
        list.microbatch[i] == first.microbatch[first_i] && same_name(list.node[i], first.node[first_i]);
    if (is_message(list.kind[i])) {
      if (!same_label)
        throw ConfigError("program: {} and {} are one transfer, but name different tensors", at(rank, i),
                          at(first_rank, first_i));
    } else if (list.collective[i] != first.collective[first_i] || !same_label) {
      throw ConfigError("program: collectives of group '{}' come in different order: {} meets {}",
                        program_.groups[list.peer[i]].name, at(rank, i), at(first_rank, first_i));
    } else if (list.reduction[i] != first.reduction[first_i]) {
      throw ConfigError("program: {} makes a {}, its partner {} a {}", at(rank, i), to_string(list.reduction[i]),
                        at(first_rank, first_i), to_string(first.reduction[first_i]));
    } else if (list.root[i] != first.root[first_i]) {
      throw ConfigError("program: {} has root {}, its partner {} has root {}", at(rank, i), list.root[i],
                        at(first_rank, first_i), first.root[first_i]);
    }
    const std::int64_t bytes = program_.transfer_bytes(list, i), first_bytes = program_.transfer_bytes(first, first_i);
    const bool moves_parts = list.kind[i] == InstructionKind::collective &&
                             !works_in_place(list.collective[i]);  // check_moves looks at these
    if (bytes != first_bytes && !moves_parts)
      throw ConfigError("program: {} moves {} bytes, its partner {} moves {}", at(rank, i), bytes,
                        at(first_rank, first_i), first_bytes);
    const Dtype dtype = moved_dtype(list, i), first_dtype = moved_dtype(first, first_i);
    if (dtype != first_dtype)
      throw ConfigError("program: {} moves {}, its partner {} moves {}", at(rank, i), to_string(dtype),
                        at(first_rank, first_i), to_string(first_dtype));
  }
  [[nodiscard]] bool same_name(std::uint32_t a, std::uint32_t b) const {
    return a == b || (a != kNone && b != kNone && program_.names[a] == program_.names[b]);
  }
  [[nodiscard]] static Dtype moved_dtype(const Role& list, std::uint32_t i) {
    return list.tensors[(list.reads(i).empty() ? list.writes(i) : list.reads(i))[0]].spec.dtype;
  }

  [[noreturn]] void report_deadlock(std::uint32_t rank) const {
    std::string others;
    for (std::uint32_t r = rank + 1; r < places_.size() && others.size() < 300; ++r)
      if (position_[r] < steps(r).size()) others += "; " + at(r, steps(r)[position_[r]]);
    throw ConfigError("program: deadlock: {} never ends{}", at(rank, steps(rank)[position_[rank]]), others);
  }

  const Program& program_;
  const TransferMatching matching_;
  std::vector<Program::Place> places_;
  std::vector<std::vector<std::uint32_t>> steps_;  // by role: its posts and waits
  std::vector<std::uint32_t> position_;            // by rank: which of them comes next
  std::vector<Transfer> transfers_;
  std::deque<std::uint32_t> ready_;
};

/// Of many ranks those of a class find the same, or the same mistake: one of each plays.
void check_transfers(const Program& program) {
  const bool are_alike = program.roles.size() < program.ranks();
  if (are_alike && program.ranks() > kMostUnfolded && !program.classes)
    TransferCheck(fold(program)).run();
  else
    TransferCheck(program).run();
}

}  // namespace

void validate(const Program& program) {
  check_ranks(program);
  check_pieces(program);
  std::vector<std::vector<std::uint32_t>> changed_reads;
  for (const Work& work : program.works) changed_reads.push_back(work.op.changed_reads(work.pass));
  for (const Role& role : program.roles) {
    LifetimeCheck(program, role, role.ranks.empty() ? 0 : role.ranks.front(), changed_reads).run();
    // Of ranks that have other parts of the same tensors the last is as the others between.
    if (role.ranks.size() > 1 && std::ranges::any_of(role.tensors, [](const Tensor& t) { return t.along != kNone; }))
      LifetimeCheck(program, role, role.ranks.back(), changed_reads).run();
  }
  if (program.is_periodic())
    check_transfers(unroll(program, 2));
  else
    check_transfers(program);
}

}  // namespace sim
