#include "sim/program/by_kind.hpp"

#include <map>
#include <utility>
#include <vector>

#include "sim/error.hpp"

namespace sim {

Program by_kind(Program program, const Cluster& cluster) {
  if (!cluster.is_mixed()) return program;
  if (cluster.place.size() < program.ranks())
    throw ConfigError("program of {} ranks on cluster '{}', which was made for {}", program.ranks(), cluster.name,
                      cluster.place.size());
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t> works;  // work, kind → work of that kind
  std::vector<bool> used(program.works.size());
  const auto work_on = [&](std::uint32_t work, std::uint32_t kind) {
    const auto [found, is_new] = works.try_emplace({work, kind}, work);
    if (!is_new) return found->second;
    if (used[work]) {
      found->second = static_cast<std::uint32_t>(program.works.size());
      program.works.push_back(Work(program.works[work]));
    } else {
      used[work] = true;
    }
    program.works[found->second].kind = kind;
    return found->second;
  };
  std::vector<Role> roles;
  for (Role& role : program.roles) {
    std::map<std::uint32_t, std::vector<std::uint32_t>> ranks;  // by kind
    for (const std::uint32_t rank : role.ranks) ranks[cluster.kind_of(rank)].push_back(rank);
    for (auto& [kind, of_kind] : ranks) {
      Role& own = roles.emplace_back(kind == ranks.rbegin()->first ? std::move(role) : role);
      own.ranks = std::move(of_kind);
      const std::string suffix = " on " + cluster.kind(kind).name;
      if (kind > 0 && !own.name.ends_with(suffix)) own.name += suffix;
      for (std::uint32_t& work : own.work)
        if (work != kNone) work = work_on(work, kind);
    }
  }
  program.roles = std::move(roles);
  return program;
}

void check_kinds(const Program& program, const Cluster& cluster) {
  if (!cluster.is_mixed()) return;
  for (const Role& role : program.roles)
    for (const std::uint32_t work : role.work)
      for (const std::uint32_t rank : role.ranks)
        check_internal(work == kNone || program.works[work].kind == cluster.kind_of(rank),
                       "rank {} on '{}' computes what is of another kind of device: by_kind", rank,
                       cluster.device_of(rank).name);
}

}  // namespace sim
