#include "sim/cost/cost_model.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>

#include "sim/error.hpp"

namespace sim {

CostModelKind analytic_cost_model();
CostModelKind fitted_cost_model();
CostModelKind profiled_cost_model();

const Table<CostModelKind>& cost_model_table() {
  static const std::array kinds{analytic_cost_model(), fitted_cost_model(), profiled_cost_model()};
  static const Table<CostModelKind> table("cost model", kinds);
  return table;
}

namespace {

/// Among how many a role's ranks transfer (the largest group), and whether any of them over a node's border.
struct Reach {
  std::uint32_t members = 2;
  bool across_nodes = false;
};

std::uint32_t node_of(const Cluster& cluster, std::uint32_t rank) {
  if (rank >= cluster.place.size())
    throw ConfigError("rank {} of the program has no place on cluster '{}' of {} ranks", rank, cluster.name,
                      cluster.place.size());
  return cluster.place[rank].node;
}

Reach reach_of_pair(const Role& role, const Role& peer, const Cluster& cluster) {
  Reach reach;
  for (std::size_t replica = 0; replica < role.ranks.size(); ++replica)
    reach.across_nodes |= node_of(cluster, role.ranks[replica]) != node_of(cluster, peer.ranks.at(replica));
  return reach;
}

Reach reach_of_group(const std::vector<bool>& in_role, const Group& group, const Cluster& cluster) {
  Reach reach{.members = 0};
  for (const std::vector<std::uint32_t>& members : group.members) {
    if (std::ranges::none_of(members, [&](std::uint32_t rank) { return in_role.at(rank); })) continue;
    reach.members = std::max(reach.members, static_cast<std::uint32_t>(members.size()));
    for (std::uint32_t rank : members) reach.across_nodes |= node_of(cluster, rank) != node_of(cluster, members[0]);
  }
  return reach;
}

}  // namespace

Prices price(const Program& program, const CostModel& model, const Cluster& cluster) {
  Prices prices;
  std::vector<ComputeCost> costs;
  for (const Work& work : program.works) {
    costs.push_back(model.compute(work));
    prices.busy_levels = std::max(prices.busy_levels, static_cast<std::uint32_t>(costs.back().busy_s.size()));
  }
  for (const ComputeCost& cost : costs) {
    prices.knowledge.push_back(cost.knowledge);
    prices.workspace_bytes.push_back(cost.workspace_bytes);
    prices.jitter.push_back(cost.jitter);
    for (std::size_t level = 0; level < prices.busy_levels; ++level)
      prices.work_s.push_back(cost.busy_s.at(std::min(level, cost.busy_s.size() - 1)));
  }

  std::map<std::tuple<InstructionKind, CollectiveKind, std::int64_t, std::uint32_t, bool>, std::uint32_t> known;
  for (const Role& role : program.roles) {
    std::vector<bool> in_role(program.ranks());
    for (std::uint32_t rank : role.ranks) in_role.at(rank) = true;
    std::map<std::pair<bool, std::uint32_t>, Reach> reaches;  // by (is collective, group or peer role)
    std::vector<std::uint32_t>& transfer_of = prices.transfer_of.emplace_back(role.size(), kNone);
    for (std::uint32_t i = 0; i < role.size(); ++i) {
      const bool collective = role.kind[i] == InstructionKind::collective;
      if (!collective && role.kind[i] != InstructionKind::send && role.kind[i] != InstructionKind::recv) continue;
      const std::uint32_t peer = role.peer[i];
      const auto [reach, is_new] = reaches.try_emplace({collective, peer});
      if (is_new)
        reach->second = collective ? reach_of_group(in_role, program.groups.at(peer), cluster)
                                   : reach_of_pair(role, program.roles.at(peer), cluster);
      const TransferQuestion question{.kind = collective ? InstructionKind::collective : InstructionKind::send,
                                      .collective = collective ? role.collective[i] : CollectiveKind::all_reduce,
                                      .bytes = program.transfer_bytes(role, i),
                                      .members = reach->second.members,
                                      .across_nodes = reach->second.across_nodes};
      const auto [entry, is_first] = known.try_emplace(
          {question.kind, question.collective, question.bytes, question.members, question.across_nodes},
          prices.transfers.size());
      // A group of one has nobody to talk to.
      if (is_first) prices.transfers.push_back(question.members > 1 ? model.transfer(question) : TransferCost{});
      transfer_of[i] = entry->second;
    }
  }
  prices.launch_s = model.launch_s();
  prices.rank_jitter = model.rank_jitter();
  return prices;
}

}  // namespace sim
