#include <algorithm>
#include <deque>
#include <map>
#include <tuple>

#include "sim/error.hpp"
#include "sim/program/program.hpp"

namespace sim {
namespace {

/// Roles cover ranks 0…n−1 once, groups name ranks once, peers have as many replicas.
void check_ranks(const Program& program) {
  const std::uint32_t ranks = program.ranks();
  if (ranks == 0) throw ConfigError("program: no ranks");
  std::vector<int> seen(ranks, 0);
  for (const Role& role : program.roles)
    for (std::uint32_t rank : role.ranks)
      if (rank >= ranks || seen[rank]++)
        throw ConfigError("program: rank {} of role '{}' must be one of 0…{}, and only once", rank, role.name,
                          ranks - 1);
  for (const Group& group : program.groups) {
    std::vector<int> in_group(ranks, 0);
    for (const auto& members : group.members) {
      if (members.empty()) throw ConfigError("program: group '{}' has an empty member list", group.name);
      for (std::uint32_t rank : members)
        if (rank >= ranks || in_group[rank]++)
          throw ConfigError("program: rank {} of group '{}' must be one of 0…{}, and only once", rank, group.name,
                            ranks - 1);
    }
  }
}

/// One role's list: operands exist, nothing is read before it is written or after it is freed, every post is awaited
/// once, all is freed at the end.
class LifetimeCheck {
 public:
  LifetimeCheck(const Program& program, const Role& role)
      : program_(program),
        role_(role),
        state_(role.storages.size()),
        written_(role.tensors.size()),
        covered_(role.storages.size()),
        busy_(role.storages.size()) {}

  void run() {
    for (std::uint32_t s = 0; s < role_.storages.size(); ++s)
      if (role_.storages[s].persistent) state_[s] = State::live;
    for (i_ = 0; i_ < role_.size(); ++i_) {
      if (role_.kind[i_] == InstructionKind::wait) await();
      for (std::uint32_t t : role_.reads(i_)) read(t);
      for (std::uint32_t t : role_.writes(i_)) write(t);
      if (is_posted(role_.kind[i_])) post();
      for (std::uint32_t s : role_.frees(i_)) free(s);
    }
    i_ = role_.size() - 1;
    if (role_.size() == 0) return;
    for (std::uint32_t i = 0; i < role_.size(); ++i)
      if (is_posted(role_.kind[i]) && !awaited_.contains(i))
        fail("instruction {} ({}) is never waited for", i, program_.label(role_, i));
    for (std::uint32_t s = 0; s < role_.storages.size(); ++s)
      if (!role_.storages[s].persistent && state_[s] == State::live) fail("'{}' is never freed", name(s));
  }

 private:
  enum class State : std::uint8_t { unborn, live, freed };

  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> text, Args&&... args) const {
    throw ConfigError("program, role '{}' (rank {}), instruction {} ({}): {}", role_.name,
                      role_.ranks.empty() ? 0 : role_.ranks[0], i_, program_.label(role_, i_),
                      fmt::format(text, std::forward<Args>(args)...));
  }
  [[nodiscard]] const std::string& name(std::uint32_t storage) const {
    return role_.tensors[role_.storages[storage].owner].name;
  }

  void read(std::uint32_t t) const {
    const Tensor& tensor = role_.tensors[t];
    if (state_[tensor.storage] == State::freed) fail("reads '{}' after it was freed", tensor.name);
    if (state_[tensor.storage] == State::unborn || !has_value(t)) fail("reads '{}' before it was written", tensor.name);
    if (const Busy& busy = busy_[tensor.storage]; busy.writers > 0)
      fail("reads '{}' before the transfer into it was waited for", tensor.name);
  }
  /// A tensor has a value when it was written itself, or its storage was written in full (as a whole, or slice by
  /// slice), or is persistent.
  [[nodiscard]] bool has_value(std::uint32_t t) const {
    const std::uint32_t s = role_.tensors[t].storage;
    return role_.storages[s].persistent || written_[t] || covered_[s] >= role_.storages[s].bytes;
  }
  void write(std::uint32_t t) {
    const Tensor& tensor = role_.tensors[t];
    if (state_[tensor.storage] == State::freed) fail("writes '{}' after it was freed", tensor.name);
    if (busy_[tensor.storage].readers + busy_[tensor.storage].writers > 0)
      fail("writes '{}' while a transfer uses it", tensor.name);
    state_[tensor.storage] = State::live;
    if (std::int64_t& covered = covered_[tensor.storage];
        !written_[t] && covered < role_.storages[tensor.storage].bytes)
      covered += tensor.spec.bytes();
    written_[t] = true;
  }
  void post() {
    for (std::uint32_t t : role_.reads(i_)) ++busy_[role_.tensors[t].storage].readers;
    for (std::uint32_t t : role_.writes(i_)) ++busy_[role_.tensors[t].storage].writers;
  }
  void await() {
    const std::uint32_t posted = role_.awaits[i_];
    if (posted >= i_ || !is_posted(role_.kind[posted]))
      throw ConfigError(
          "program, role '{}' (rank {}), instruction {}: waits for {}, which is no earlier send, recv or collective",
          role_.name, role_.ranks.empty() ? 0 : role_.ranks[0], i_, posted);
    if (!awaited_.emplace(posted, i_).second) fail("instruction {} has been waited for already", posted);
    for (std::uint32_t t : role_.reads(posted)) --busy_[role_.tensors[t].storage].readers;
    for (std::uint32_t t : role_.writes(posted)) --busy_[role_.tensors[t].storage].writers;
  }
  void free(std::uint32_t s) {
    if (role_.storages[s].persistent) fail("frees '{}', which is persistent", name(s));
    if (state_[s] == State::unborn) fail("frees '{}' before it was written", name(s));
    if (state_[s] == State::freed) fail("frees '{}' a second time", name(s));
    if (busy_[s].readers + busy_[s].writers > 0) fail("frees '{}' while a transfer uses it", name(s));
    state_[s] = State::freed;
  }

  struct Busy {
    int readers = 0, writers = 0;
  };
  const Program& program_;
  const Role& role_;
  std::uint32_t i_ = 0;
  std::vector<State> state_;
  std::vector<bool> written_;
  std::vector<std::int64_t> covered_;  // bytes written per storage; slices don't overlap
  std::vector<Busy> busy_;
  std::map<std::uint32_t, std::uint32_t> awaited_;
};

/// Plays posts and waits of all ranks with the strictest transport: a send is done only once its receive is posted.
class TransferCheck {
 public:
  explicit TransferCheck(const Program& program)
      : program_(program),
        places_(program.places()),
        position_(places_.size(), 0),
        ticket_(places_.size()),
        joined_(program.groups.size()) {
    for (std::uint32_t g = 0; g < program.groups.size(); ++g) {
      joined_[g].resize(places_.size(), {kNone, 0});
      for (std::uint32_t m = 0; m < program.groups[g].members.size(); ++m)
        for (std::uint32_t rank : program.groups[g].members[m]) joined_[g][rank].list = m;
    }
    for (std::uint32_t r = 0; r < places_.size(); ++r) ticket_[r].assign(role(r).size(), kNone);
  }

  void run() {
    for (std::uint32_t r = 0; r < places_.size(); ++r) ready_.push_back(r);
    while (!ready_.empty()) {
      const std::uint32_t r = ready_.front();
      ready_.pop_front();
      advance(r);
    }
    for (std::uint32_t r = 0; r < places_.size(); ++r)
      if (position_[r] < role(r).size()) report_deadlock(r);
    for (const auto& [key, transfer] : pairs_)
      if (!transfers_[transfer].done()) throw ConfigError("program: {} has no partner", transfers_[transfer].first);
  }

 private:
  struct Transfer {
    std::uint32_t parties = 0, posted = 0;
    std::int64_t bytes = 0;
    CollectiveKind kind = CollectiveKind::all_reduce;
    std::uint32_t root = 0;
    bool sent = false, received = false;
    std::string first;                    // who posted first, for messages
    std::vector<std::uint32_t> sleepers;  // ranks that wait for it
    [[nodiscard]] bool done() const { return posted == parties; }
  };
  struct Member {
    std::uint32_t list = kNone, posted = 0;  // member list of the rank, collectives posted so far
  };

  [[nodiscard]] const Role& role(std::uint32_t rank) const { return program_.roles[places_[rank].role]; }
  [[nodiscard]] std::string at(std::uint32_t rank, std::uint32_t i) const {
    return fmt::format("rank {} instruction {} ({})", rank, i, program_.label(role(rank), i));
  }

  void advance(std::uint32_t rank) {
    const Role& list = role(rank);
    for (std::uint32_t& i = position_[rank]; i < list.size(); ++i) {
      if (is_posted(list.kind[i])) {
        post(rank, i);
      } else if (list.kind[i] == InstructionKind::wait) {
        Transfer& transfer = transfers_[ticket_[rank][list.awaits[i]]];
        if (!transfer.done()) {
          transfer.sleepers.push_back(rank);
          return;
        }
      }
    }
  }

  void post(std::uint32_t rank, std::uint32_t i) {
    const Role& list = role(rank);
    const std::uint32_t id = list.kind[i] == InstructionKind::collective ? join(rank, i) : pair(rank, i);
    ticket_[rank][i] = id;
    Transfer& transfer = transfers_[id];
    if (transfer.bytes != program_.transfer_bytes(list, i))
      throw ConfigError("program: {} moves {} bytes, its partner {} moves {}", at(rank, i),
                        program_.transfer_bytes(list, i), transfer.first, transfer.bytes);
    if (++transfer.posted == transfer.parties) {
      for (std::uint32_t sleeper : transfer.sleepers) ready_.push_back(sleeper);
      transfer.sleepers.clear();
    }
  }

  std::uint32_t pair(std::uint32_t rank, std::uint32_t i) {
    const Role& list = role(rank);
    const Role& other = program_.roles[list.peer[i]];
    const std::uint32_t replica = places_[rank].replica;
    if (replica >= other.ranks.size())
      throw ConfigError("program: {} has no partner: role '{}' has {} ranks", at(rank, i), other.name,
                        other.ranks.size());
    const std::uint32_t peer = other.ranks[replica];
    const bool sends = list.kind[i] == InstructionKind::send;
    const auto key = sends ? std::tuple(rank, peer, list.tag[i]) : std::tuple(peer, rank, list.tag[i]);
    const auto [entry, is_new] = pairs_.emplace(key, static_cast<std::uint32_t>(transfers_.size()));
    if (is_new) transfers_.push_back({2, 0, program_.transfer_bytes(list, i), {}, 0, false, false, at(rank, i), {}});
    bool& side = sends ? transfers_[entry->second].sent : transfers_[entry->second].received;
    if (side) throw ConfigError("program: {} repeats tag {} of the same pair", at(rank, i), list.tag[i]);
    side = true;
    return entry->second;
  }

  std::uint32_t join(std::uint32_t rank, std::uint32_t i) {
    const Role& list = role(rank);
    const std::uint32_t group = list.peer[i];
    Member& member = joined_[group][rank];
    if (member.list == kNone)
      throw ConfigError("program: {}: the rank isn't in group '{}'", at(rank, i), program_.groups[group].name);
    const auto members = static_cast<std::uint32_t>(program_.groups[group].members[member.list].size());
    if (list.root[i] >= members)
      throw ConfigError("program: {}: root {} of {} members", at(rank, i), list.root[i], members);
    const auto [entry, is_new] = collectives_.emplace(std::tuple(group, member.list, member.posted++),
                                                      static_cast<std::uint32_t>(transfers_.size()));
    if (is_new)
      transfers_.push_back({members,
                            0,
                            program_.transfer_bytes(list, i),
                            list.collective[i],
                            list.root[i],
                            false,
                            false,
                            at(rank, i),
                            {}});
    const Transfer& transfer = transfers_[entry->second];
    if (transfer.kind != list.collective[i] || transfer.root != list.root[i])
      throw ConfigError("program: collectives of group '{}' come in different order: {} meets {}",
                        program_.groups[group].name, at(rank, i), transfer.first);
    return entry->second;
  }

  [[noreturn]] void report_deadlock(std::uint32_t rank) const {
    std::string others;
    for (std::uint32_t r = rank + 1; r < places_.size() && others.size() < 300; ++r)
      if (position_[r] < role(r).size()) others += "; " + at(r, position_[r]);
    throw ConfigError("program: deadlock: {} never ends{}", at(rank, position_[rank]), others);
  }

  const Program& program_;
  std::vector<Program::Place> places_;
  std::vector<std::uint32_t> position_;
  std::vector<std::vector<std::uint32_t>> ticket_;  // [rank][instruction] → transfer
  std::vector<std::vector<Member>> joined_;         // [group][rank]
  std::deque<std::uint32_t> ready_;
  std::vector<Transfer> transfers_;
  std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, std::uint32_t> pairs_, collectives_;
};

}  // namespace

void validate(const Program& program) {
  check_ranks(program);
  for (const Role& role : program.roles) LifetimeCheck(program, role).run();
  TransferCheck(program).run();
}

}  // namespace sim
