#include "sim/program/fold.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "sim/error.hpp"
#include "sim/program/by_kind.hpp"

namespace sim {
namespace {

using Colours = std::vector<std::uint32_t>;

/// Numbers for what is equal, in the order in which it comes.
class Numbers {
 public:
  std::uint32_t of(const Colours& text) {
    return known_.try_emplace(text, static_cast<std::uint32_t>(known_.size())).first->second;
  }
  [[nodiscard]] std::size_t size() const { return known_.size(); }

 private:
  std::map<Colours, std::uint32_t> known_;
};

class Refinement {
 public:
  /// `cluster` may be null.
  Refinement(const Program& program, const Cluster* cluster)
      : program_(program), cluster_(cluster), ranks_(program.ranks()), colour_(ranks_, 0), role_of_(ranks_, 0) {
    for (std::uint32_t r = 0; r < program.roles.size(); ++r) look_through(r);
    for (const Group& group : program.groups) {
      Colours& lists = list_of_.emplace_back(ranks_, 0);
      for (std::uint32_t m = 0; m < group.members.size(); ++m)
        for (const std::uint32_t rank : group.members[m]) lists[rank] = m;
    }
    for (std::size_t l = 0; cluster != nullptr && l + 1 < cluster->levels.size(); ++l) {
      std::vector<Colours>& groups = groups_.emplace_back();
      for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
        const std::uint32_t group = cluster->group_of(cluster->place[rank].device, l);
        if (groups.size() <= group) groups.resize(group + 1);
        groups[group].push_back(rank);
      }
    }
  }

  RankClasses run() {
    std::size_t before = 0, classes = begin();
    while (before < classes) before = std::exchange(classes, refine());
    RankClasses result{.of = colour_, .first = Colours(classes, kNone), .size = Colours(classes, 0)};
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
      std::uint32_t& first = result.first[colour_[rank]];
      first = std::min(first, rank);
      ++result.size[colour_[rank]];
    }
    return result;
  }

 private:
  struct OfRole {
    std::set<std::pair<std::uint32_t, std::int32_t>> partners;  // axis, by
    std::set<std::pair<std::uint32_t, std::uint32_t>> roots;    // group, root
  };

  void look_through(std::uint32_t r) {
    const Role& role = program_.roles[r];
    for (const std::uint32_t rank : role.ranks) role_of_[rank] = r;
    OfRole& of_role = roles_.emplace_back();
    for (std::uint32_t i = 0; i < role.size(); ++i)
      if (is_message(role.kind[i]))
        of_role.partners.emplace(role.peer[i], role.by[i]);
      else if (role.kind[i] == InstructionKind::collective && has_root(role.collective[i]))
        of_role.roots.emplace(role.peer[i], role.root[i]);
  }

  /// What of a rank stays as it is. The number of classes, as of the next.
  std::size_t begin() {
    const std::vector<std::vector<Colours>> lie = how_lists_lie();
    return renumber([&](std::uint32_t rank, Colours& text) {
      const OfRole& role = roles_[role_of_[rank]];
      text = {role_of_[rank]};
      bool is_alone = false;
      for (const auto& [axis, by] : role.partners) {
        const std::uint32_t partner = program_.mesh.shifted(rank, axis, by);
        is_alone |= role_of_[partner] == role_of_[rank];
        if (cluster_ != nullptr) text.push_back(static_cast<std::uint32_t>(cluster_->level_between(rank, partner)));
      }
      for (const auto& [group, root] : role.roots) {
        const Colours& members = program_.groups[group].members[list_of_[group][rank]];
        text.push_back(root < members.size() && members[root] == rank ? 1 : 0);
      }
      for (std::uint32_t g = 0; g < list_of_.size(); ++g) {
        const Colours& members = program_.groups[g].members[list_of_[g][rank]];
        text.push_back(static_cast<std::uint32_t>(members.size()));
        for (std::size_t l = 0; l < groups_.size(); ++l) text.push_back(lie[g][l][rank]);
      }
      if (is_alone) text.push_back(rank);
    });
  }

  /// How many members of a rank's list are in its group of the cluster: [group][level][rank]. What Cluster::spread says
  /// of a list follows from all of its members'.
  [[nodiscard]] std::vector<std::vector<Colours>> how_lists_lie() const {
    std::vector<std::vector<Colours>> lie;
    for (const Group& group : program_.groups) {
      std::vector<Colours>& of_group = lie.emplace_back(groups_.size(), Colours(ranks_, 0));
      for (std::size_t l = 0; l < groups_.size(); ++l)
        for (const Colours& members : group.members) {
          std::map<std::uint32_t, std::uint32_t> here;
          for (const std::uint32_t rank : members) ++here[group_of(rank, l)];
          for (const std::uint32_t rank : members) of_group[l][rank] = here[group_of(rank, l)];
        }
    }
    return lie;
  }
  [[nodiscard]] std::uint32_t group_of(std::uint32_t rank, std::size_t level) const {
    return cluster_->group_of(cluster_->place[rank].device, level);
  }

  std::size_t refine() {
    std::vector<Colours> lists, groups;  // [group of the program][list], [level][group of the cluster]
    for (const Group& group : program_.groups)
      number(group.members, lists.emplace_back(), [](Colours& /*in_order*/) {});
    for (const std::vector<Colours>& of_level : groups_)
      number(of_level, groups.emplace_back(), [](Colours& of_ranks) { std::ranges::sort(of_ranks); });
    return renumber([&, before = colour_](std::uint32_t rank, Colours& text) {
      text = {before[rank]};
      for (const auto& [axis, by] : roles_[role_of_[rank]].partners)
        text.push_back(before[program_.mesh.shifted(rank, axis, by)]);
      for (std::size_t g = 0; g < lists.size(); ++g) text.push_back(lists[g][list_of_[g][rank]]);
      for (std::size_t l = 0; l < groups.size(); ++l) text.push_back(groups[l][group_of(rank, l)]);
    });
  }
  /// Sets with ranks of the same colours get the same number.
  template <class Arrange>
  void number(const std::vector<Colours>& sets, Colours& numbers, const Arrange& arrange) const {
    Numbers known;
    for (const Colours& ranks : sets) {
      Colours text;
      for (const std::uint32_t rank : ranks) text.push_back(colour_[rank]);
      arrange(text);
      numbers.push_back(known.of(text));
    }
  }
  template <class TextOf>
  std::size_t renumber(const TextOf& text_of) {
    Numbers known;
    Colours text;
    for (std::uint32_t rank = 0; rank < ranks_; ++rank) {
      text_of(rank, text);
      colour_[rank] = known.of(text);
    }
    return known.size();
  }

  const Program& program_;
  const Cluster* cluster_;
  const std::uint32_t ranks_;
  Colours colour_, role_of_;  // by rank
  std::vector<OfRole> roles_;
  std::vector<Colours> list_of_;              // [group][rank] → member list
  std::vector<std::vector<Colours>> groups_;  // [level][group of the cluster] → ranks
};

Program folded(Program program, const Cluster* cluster) {
  program.classes.reset();
  RankClasses classes = Refinement(program, cluster).run();
  if (classes.first.size() < program.ranks()) program.classes = std::move(classes);
  return program;
}

}  // namespace

Program fold(Program program, const Cluster& cluster) {
  const std::uint32_t ranks = program.ranks();
  if (cluster.place.size() < ranks)
    throw ConfigError("program of {} ranks on cluster '{}', which was made for {}", ranks, cluster.name,
                      cluster.place.size());
  program = by_kind(std::move(program), cluster);
  std::set<std::uint32_t> devices;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) devices.insert(cluster.place[rank].device);
  if (devices.size() < ranks || cluster.one_host_thread) return program;
  return folded(std::move(program), &cluster);
}

Program fold_many(Program program, const Cluster& cluster) {
  program = by_kind(std::move(program), cluster);
  constexpr std::size_t kMostInstructions = 100'000;
  std::size_t instructions = 0;
  for (const Role& role : program.roles) instructions += role.size() * role.ranks.size();
  if (program.ranks() <= kMostUnfolded || instructions <= kMostInstructions) return program;
  return fold(std::move(program), cluster);
}

Program fold(Program program) { return folded(std::move(program), nullptr); }

}  // namespace sim
