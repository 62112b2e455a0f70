#include "sim/program/unroll.hpp"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/error.hpp"

namespace sim {
namespace {

/// One role's list as it grows.
class Unrolled {
 public:
  Unrolled(const Role& role, std::uint32_t tags)
      : role_(role), tags_(tags), lives_(role.storages.size()), tensors_of_(role.storages.size()) {
    list_.name = role.name;
    list_.ranks = role.ranks;
    list_.tensors = role.tensors;
    list_.storages = role.storages;
    list_.units = role.units;
    for (std::uint32_t t = 0; t < role.tensors.size(); ++t) {
      now_.push_back(t);
      tensors_of_[role.tensors[t].storage].push_back(t);
    }
  }

  Role play(std::uint32_t bodies) && {
    std::uint32_t body = 0;
    role_.play(bodies, [&](std::uint32_t i) {
      if (i == role_.body_begin) begin_body(body++);
      if (i == role_.body_end && list_.body_end == kNone) list_.body_end = list_.size();
      add(i);
    });
    if (list_.body_end == kNone) list_.body_end = list_.size();
    return std::move(list_);
  }

 private:
  void begin_body(std::uint32_t body) {
    if (body == 0)
      list_.body_begin = list_.size();
    else
      list_.next_bodies.push_back(list_.size());
  }

  void add(std::uint32_t i) {
    Instruction instruction = role_.at(i);
    if (is_message(instruction.kind))
      instruction.tag += tags_ * times_[{instruction.kind, instruction.peer, instruction.by, instruction.tag}]++;
    for (const std::uint32_t t : instruction.writes)
      if (Life& life = lives_[role_.tensors[t].storage]; life.ended) begin_again(role_.tensors[t].storage, life);
    for (std::uint32_t& t : instruction.reads) t = now_[t];
    for (std::uint32_t& t : instruction.writes) t = now_[t];
    for (std::uint32_t& s : instruction.frees) {
      lives_[s].ended = true;
      s = list_.tensors[now_[role_.storages[s].owner]].storage;
    }
    list_.add(instruction);
  }

  struct Life {
    std::uint32_t times = 0;  // that it has begun again
    bool ended = false;
  };
  /// With all of its tensors.
  void begin_again(std::uint32_t storage, Life& life) {
    life.ended = false;
    ++life.times;
    const auto again = static_cast<std::uint32_t>(list_.storages.size());
    list_.storages.push_back(role_.storages[storage]);
    for (const std::uint32_t t : tensors_of_[storage]) {
      now_[t] = static_cast<std::uint32_t>(list_.tensors.size());
      if (role_.storages[storage].owner == t) list_.storages[again].owner = now_[t];
      Tensor& tensor = list_.tensors.emplace_back(role_.tensors[t]);
      tensor.name += fmt::format("'{}", life.times);
      tensor.storage = again;
    }
  }

  const Role& role_;
  const std::uint32_t tags_;  // that the program uses
  Role list_;
  std::vector<Life> lives_;                             // by storage of the role
  std::vector<std::vector<std::uint32_t>> tensors_of_;  // by storage of the role
  std::vector<std::uint32_t> now_;                      // by tensor of the role: what it is in the list
  std::map<std::tuple<InstructionKind, std::uint32_t, std::int32_t, std::uint32_t>, std::uint32_t>
      times_;  // of a message
};

}  // namespace

Program unroll(const Program& program, std::uint32_t bodies) {
  check_internal(bodies > 1, "{} bodies can't be told from a periodic program", bodies);
  std::uint32_t tags = 0;
  for (const Role& role : program.roles)
    for (const std::uint32_t tag : role.tag) tags = std::max(tags, tag + 1);
  Program flat = program;
  for (Role& role : flat.roles) role = Unrolled(role, tags).play(bodies);
  return flat;
}

}  // namespace sim
