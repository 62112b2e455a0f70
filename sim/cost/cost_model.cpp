#include "sim/cost/cost_model.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <set>

#include "sim/cost/roofline.hpp"
#include "sim/error.hpp"
#include "sim/program/by_kind.hpp"
#include "sim/program/given.hpp"
#include "sim/program/transfers.hpp"

namespace sim {

const Table<CostModelKind>& cost_model_table() {
  static const std::array kinds{analytic_cost_model(), fitted_cost_model(), profiled_cost_model()};
  static const Table<CostModelKind> table("cost model", kinds);
  return table;
}

std::unique_ptr<CostModel> make_cost_model(std::string_view name, const Cluster& cluster, const Profile* profile) {
  return cost_model_table().at(name).make(cluster, profile);
}

namespace {

/// Empty where all are in one group of the innermost level.
std::vector<std::uint32_t> far_spread(const Cluster& cluster, std::span<const std::uint32_t> ranks) {
  if (cluster.levels.size() == 1) return {};
  std::vector<std::uint32_t> spread = cluster.spread(ranks);
  if (spread.size() == 1) spread.clear();
  return spread;
}

/// How the lists of every group of a program lie, of alike ones the first: [group][list].
std::vector<std::vector<std::vector<std::uint32_t>>> spreads_of(const Program& program, const Cluster& cluster,
                                                                const TransferMatching& matching) {
  std::vector<std::vector<std::vector<std::uint32_t>>> spreads(program.groups.size());
  for (std::size_t g = 0; g < spreads.size(); ++g) {
    spreads[g].resize(program.groups[g].members.size());
    for (const std::uint32_t list : std::set(matching.list_of[g].begin(), matching.list_of[g].end()))
      if (list != kNone) spreads[g][list] = far_spread(cluster, program.groups[g].members[list]);
  }
  return spreads;
}

/// "0 0, 1 1": the members' devices, list by list, numbered as they come.
std::string devices_of(const std::vector<std::uint32_t>& members, const Cluster& cluster) {
  std::map<std::uint32_t, std::size_t> numbers;  // by device
  std::vector<std::size_t> of_members;
  for (const std::uint32_t rank : members)
    of_members.push_back(numbers.try_emplace(cluster.place[rank].device, numbers.size()).first->second);
  return fmt::format("{}", fmt::join(of_members, " "));
}

/// "broadcast among 2", "send over network": the level on which they meet, where it isn't the innermost.
std::string name_of(const TransferQuestion& question, const Cluster& cluster) {
  const bool collective = question.kind == InstructionKind::collective;
  return fmt::format("{}{}{}", collective ? to_string(question.collective) : to_string(question.kind),
                     collective ? fmt::format(" among {}", question.members) : "",
                     question.spread.empty() ? "" : " over " + cluster.levels.at(question.spread.size() - 1).name);
}

/// But for its bytes and devices.
TransferQuestion question_of(const Program& program, const Role& role, std::uint32_t i, std::uint32_t player,
                             const TransferMatching& matching, const Cluster& cluster,
                             const std::vector<std::vector<std::vector<std::uint32_t>>>& spreads) {
  TransferQuestion question;
  if (role.kind[i] == InstructionKind::collective) {
    const Group& group = program.groups.at(role.peer[i]);
    const std::uint32_t list = matching.list_of[role.peer[i]][player];
    question.kind = InstructionKind::collective;
    question.collective = role.collective[i];
    question.members = static_cast<std::uint32_t>(group.members[list].size());
    question.spread = spreads[role.peer[i]][list];
    question.own_in_place = question.spread.empty() && role.has_own_in_place(i);
  } else {
    const std::uint32_t rank = program.rank_of(player);
    question.spread = far_spread(cluster, std::array{rank, program.partner(role, rank, i)});
  }
  return question;
}

/// Every transfer by itself: members of one role may be in lists of different sizes, and some on one node only.
void cost_transfers(const Program& program, const CostModel& model, const Cluster& cluster, Costs& costs) {
  const TransferMatching matching(program);
  costs.transfer_of.assign(matching.participants.size(), kNone);
  const std::vector<Program::Place> places = program.places();
  struct Post {  // a transfer's first
    const Role* role = nullptr;
    std::uint32_t instruction = 0, player = 0;
    std::int64_t bytes = 0;  // the most of all its posts: of a gather only the root has them all
  };
  std::vector<Post> posts(matching.participants.size());
  for (std::uint32_t player = 0; player < places.size(); ++player) {
    const Role& role = program.roles[places[player].role];
    for (std::uint32_t i = 0; i < role.size(); ++i) {
      if (!is_posted(role.kind[i])) continue;
      Post& post = posts[matching.transfer(places[player], player, role, i)];
      if (post.role == &role && post.instruction == i) continue;  // of the same role: as many bytes
      if (post.role == nullptr) post = {&role, i, player};
      post.bytes = std::max(post.bytes, program.transfer_bytes(role, i));
    }
  }
  const std::vector<std::string> devices = devices_of_groups(program, cluster);
  const auto spreads = spreads_of(program, cluster, matching);
  std::map<TransferQuestion, std::uint32_t> known;
  for (std::size_t transfer = 0; transfer < posts.size(); ++transfer) {
    const Post& post = posts[transfer];
    if (post.role == nullptr) continue;
    TransferQuestion question =
        question_of(program, *post.role, post.instruction, post.player, matching, cluster, spreads);
    question.bytes = post.bytes;
    if (question.kind == InstructionKind::collective) question.devices = devices[post.role->peer[post.instruction]];
    const auto [entry, is_first] = known.try_emplace(question, costs.transfers.size());
    // A group of one has nobody to talk to.
    if (is_first) {
      costs.transfers.push_back(question.members > 1 ? model.transfer(question) : TransferCost{});
      costs.transfer_names.push_back(name_of(question, cluster));
      costs.transfer_counts.push_back(0);
    }
    costs.transfer_counts[entry->second] += matching.times[transfer];
    costs.transfer_of[transfer] = entry->second;
  }
  if (std::ranges::none_of(costs.transfers, [](const TransferCost& cost) { return cost.rewriting_s > 0; })) return;
  costs.rewritten.resize(posts.size());
  std::vector<std::vector<std::uint32_t>> waiting(program.roles.size());  // for what each role gives: instructions
  for (std::size_t r = 0; r < waiting.size(); ++r) {
    const Role& role = program.roles[r];
    const std::vector<std::optional<GivenMemory>> given = given_by(program, role);
    for (std::uint32_t i = 0; i < role.size(); ++i)
      if (given[i] && waits_to_rewrite(program, role, *given[i], cluster)) waiting[r].push_back(i);
  }
  for (std::uint32_t player = 0; player < places.size(); ++player)
    for (const std::uint32_t i : waiting[places[player].role])
      costs.rewritten[matching.transfer(places[player], player, program.roles[places[player].role], i)] = true;
}

}  // namespace

Work measured_as(Work work, const Device& device) {
  if (!device.asynchronous && !is_autocast(work.op.precision)) work.op.precision = Precision::f32;
  return work;
}

bool waits_to_rewrite(const Program& program, const Role& role, const GivenMemory& given, const Cluster& cluster) {
  if (!given.until_written) return false;
  if (!is_computed(role.kind[given.writer])) return true;
  const Work& work = program.works[role.work[given.writer]];
  const KernelTime kernels = kernels_together(work, cluster.kind(work.kind));
  return kernels.traffic_s + kernels.reorder_s > kernels.arithmetic_s;
}

bool is_on_host(const Work& work, const Device& device) { return device.asynchronous && work.op.kind->on_host; }

// Ranks that copy by themselves share their devices in the simulator as it is.
std::vector<std::string> devices_of_groups(const Program& program, const Cluster& cluster) {
  std::vector<std::string> devices(program.groups.size());
  std::set<std::uint32_t> used;
  for (std::uint32_t rank = 0, all = program.ranks(); rank < all; ++rank) {
    if (rank >= cluster.place.size())
      throw ConfigError("rank {} of the program has no place on cluster '{}' of {} ranks", rank, cluster.name,
                        cluster.place.size());
    used.insert(cluster.place[rank].device);
  }
  if (used.size() == program.ranks() || cluster.link().engine != TransferEngine::background) return devices;
  for (std::size_t g = 0; g < devices.size(); ++g) {
    const std::vector<std::vector<std::uint32_t>>& lists = program.groups[g].members;
    std::vector<std::uint32_t> alone(lists[0].size());
    std::iota(alone.begin(), alone.end(), 0);
    const std::string here = devices_of(lists[0], cluster);
    if (here != devices_of(alone, cluster)) devices[g] = here;
  }
  return devices;
}

Costs costs_of(const Program& program, const CostModel& model, const Cluster& cluster) {
  check_kinds(program, cluster);
  Costs costs;
  std::vector<ComputeCost> of_work;
  for (const Work& work : program.works) {
    of_work.push_back(model.compute(work));
    costs.busy_levels = std::max(costs.busy_levels, static_cast<std::uint32_t>(of_work.back().busy_s.size()));
  }
  for (std::size_t work = 0; work < of_work.size(); ++work) {
    const ComputeCost& cost = of_work[work];
    const Device& device = cluster.kind(program.works[work].kind);
    const double share = is_on_host(program.works[work], device) ? 1 : device.share;
    costs.knowledge.push_back(cost.knowledge);
    costs.workspace_bytes.push_back(cost.workspace_bytes);
    costs.jitter.push_back(cost.jitter);
    for (std::size_t level = 0; level < costs.busy_levels; ++level)
      costs.work_s.push_back(cost.busy_s.at(std::min(level, cost.busy_s.size() - 1)) / share);
  }
  cost_transfers(program, model, cluster, costs);
  // A core launches by itself.
  const auto launch_on = [&](std::uint32_t kind) {
    const Device& device = cluster.kind(kind);
    return model.launch_s(kind) / (device.asynchronous ? 1 : device.share);
  };
  costs.launch_s = launch_on(0);
  for (std::uint32_t kind = 0; cluster.is_mixed() && kind <= cluster.other_kinds.size(); ++kind)
    costs.launch_of_kind.push_back(launch_on(kind));
  costs.gap_s = model.gap_s();
  if (std::ranges::any_of(of_work, [](const ComputeCost& cost) { return cost.issue_s.has_value(); }))
    for (std::size_t work = 0; work < of_work.size(); ++work)
      costs.issue_s.push_back(of_work[work].issue_s.value_or(costs.launch_of(program.works[work].kind)));
  costs.rank_jitter = model.rank_jitter();
  costs.common_sd = model.common_sd();
  return costs;
}

}  // namespace sim
