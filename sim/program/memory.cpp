#include "sim/program/memory.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "sim/cluster/world.hpp"
#include "sim/error.hpp"

namespace sim {

namespace {

using Live = std::array<std::int64_t, kTensorClasses>;

/// The allocations and frees of so many bodies in their order: change(class, bytes, 1 or −1), run(instruction) while
/// all that it needs is allocated, and once run(kNone) before the first, with the persistent storages.
template <class Change, class Run>
void walk(const Role& role, std::span<const Staging> staging, std::uint32_t bodies, const Change& change,
          const Run& run) {
  const auto change_storage = [&](std::uint32_t s, int sign) {
    change(role.storages[s].tensor_class, role.storages[s].bytes, sign);
  };
  const auto change_staging = [&](const Staging& staged, int sign) {
    for (const std::int64_t bytes : {staged.sent_bytes, staged.received_bytes})
      if (bytes > 0) change(TensorClass::communication, bytes, sign);
  };
  std::vector<Staging> staged(role.tickets());  // of what is in flight
  for (std::uint32_t s = 0; s < role.storages.size(); ++s)
    if (role.storages[s].persistent) change_storage(s, 1);
  run(kNone);
  std::vector<bool> allocated(role.storages.size());
  for (std::uint32_t s = 0; s < role.storages.size(); ++s) allocated[s] = role.storages[s].persistent;
  role.play(bodies, [&](std::uint32_t i) {
    for (std::uint32_t tensor : role.writes(i))
      if (const std::uint32_t s = role.tensors[tensor].storage; !allocated[s]) {
        allocated[s] = true;
        change_storage(s, 1);
      }
    if (is_posted(role.kind[i]) && !staging.empty()) change_staging(staged[role.ticket[i]] = staging[i], 1);
    run(i);
    if (role.kind[i] == InstructionKind::wait && !staging.empty())
      change_staging(std::exchange(staged.at(role.ticket[i]), {}), -1);
    for (std::uint32_t s : role.frees(i)) {
      allocated[s] = false;
      change_storage(s, -1);
    }
  });
}

/// visit(instruction, bytes alive while it runs, the same by class); kNone before the first.
template <class Visit>
void each_live(const Role& role, std::span<const Staging> staging, const Visit& visit) {
  Live live{};
  std::int64_t total = 0;
  constexpr std::int64_t kMost = std::int64_t{1} << 60;
  const auto change = [&](TensorClass tensor_class, std::int64_t bytes, int sign) {
    if (total > kMost) throw ConfigError("role '{}' holds more than 2^60 bytes at a time", role.name);
    live[static_cast<std::size_t>(tensor_class)] += sign * bytes;
    total += sign * bytes;
  };
  walk(role, staging, 1, change, [&](std::uint32_t i) { visit(i, total, live); });
}

double workspace_of(const Role& role, std::uint32_t i, std::span<const double> workspace_bytes) {
  return i != kNone && role.work[i] != kNone && !workspace_bytes.empty() ? workspace_bytes[role.work[i]] : 0;
}

/// The use of each TensorClass.
constexpr std::array<MemoryUse, kTensorClasses> kUseOf{
    MemoryUse::parameters, MemoryUse::gradients,   MemoryUse::optimizer_states,      MemoryUse::activations,
    MemoryUse::parameters, MemoryUse::activations, MemoryUse::communication_buffers, MemoryUse::parameter_copies};

struct Peak {
  double bytes = -1;
  MemoryUses uses{};
};

Peak peak_of(const Role& role, std::span<const double> workspace_bytes, std::span<const Staging> staging,
             std::int64_t temporaries = 0) {
  Peak peak;
  each_live(role, staging, [&](std::uint32_t i, std::int64_t total, const Live& live) {
    const bool updates = i != kNone && role.kind[i] == InstructionKind::update;
    const std::int64_t beside = updates ? temporaries : 0;
    const double workspace = workspace_of(role, i, workspace_bytes);
    const double bytes = static_cast<double>(total + beside) + workspace;
    if (bytes <= peak.bytes) return;
    peak = {.bytes = bytes};
    peak.uses[static_cast<std::size_t>(MemoryUse::optimizer_temporaries)] = beside;
    for (std::size_t c = 0; c < live.size(); ++c) peak.uses[static_cast<std::size_t>(kUseOf[c])] += live[c];
    peak.uses[static_cast<std::size_t>(MemoryUse::workspace)] = static_cast<std::int64_t>(workspace);
  });
  return peak;
}

}  // namespace

Memory peak_memory(const Role& role, std::span<const Staging> staging) {
  Memory memory;
  each_live(role, staging, [&](std::uint32_t i, std::int64_t total, const Live& live) {
    if (i == kNone) memory.persistent_bytes = total;
    if (i != kNone && total <= memory.peak_bytes) return;
    memory.peak_bytes = total;
    memory.at_peak = live;
    memory.peak_instruction = i == kNone ? 0 : i;
  });
  return memory;
}

double peak_with_workspace(const Role& role, std::span<const double> workspace_bytes,
                           std::span<const Staging> staging) {
  return peak_of(role, workspace_bytes, staging).bytes;
}

MemoryUses uses_at_peak(const Role& role, std::span<const double> workspace_bytes, std::span<const Staging> staging,
                        std::int64_t temporaries) {
  return peak_of(role, workspace_bytes, staging, temporaries).uses;
}

std::int64_t foreach_temporaries(const Program& program, const Role& role) {
  double bytes = 0;
  const std::uint32_t end = role.next_bodies.empty() ? role.size() : role.next_bodies.front();
  for (std::uint32_t i = role.next_bodies.empty() ? 0 : role.body_begin; i < end; ++i)  // of several bodies one
    if (role.kind[i] == InstructionKind::update) {
      const OpInstance& op = program.works.at(role.work[i]).op;
      for (const TensorSpec& parameter : op.inputs)
        bytes += op.kind->foreach_copies(op) * static_cast<double>(parameter.bytes());
    }
  return static_cast<std::int64_t>(bytes / static_cast<double>(program.steps));  // a body's, of which one
}

std::size_t communicators_of(const Program& program, const Role& role) {
  std::set<std::uint32_t> groups, partners;
  for (std::uint32_t i = 0; i < role.size(); ++i)
    if (role.kind[i] == InstructionKind::collective) {
      if (program.groups.at(role.peer[i]).members.at(0).size() > 1) groups.insert(role.peer[i]);
    } else if (is_message(role.kind[i])) {
      partners.insert(program.partner(role, role.ranks.at(0), i));
    }
  return groups.size() + partners.size();
}

Bytes communicator_memory(const Cluster& cluster) {
  if (cluster.communicator) return *cluster.communicator;
  constexpr BytesPerSecond kOfRing = gigabytes_per_second(20);
  constexpr double kMostChannels = 32, kNeighbours = 2;
  const double rings = std::max(1.0, std::floor(cluster.link().bandwidth / kOfRing));
  return std::min(kMostChannels, 2 * rings) * kNeighbours * mebibytes(10 + 2);
}

std::int64_t sum_of(const MemoryUses& uses) { return std::accumulate(uses.begin(), uses.end(), std::int64_t{0}); }

std::int64_t MemoryNeed::fused_bytes() const {
  return executor_bytes + uses[static_cast<std::size_t>(MemoryUse::device_context)] +
         uses[static_cast<std::size_t>(MemoryUse::communicators)];
}

MemoryFit fit_memory(const Program& program, const Cluster& cluster, std::span<const double> workspace_bytes) {
  std::map<std::uint32_t, MemoryNeed> by_memory;  // by node where the ranks of a node share it, else by device
  std::set<std::uint32_t> devices;
  const WorldKind& world = world_kind(cluster.world);
  const auto at = [](MemoryUses& uses, MemoryUse use) -> std::int64_t& { return uses[static_cast<std::size_t>(use)]; };
  for (const Role& role : program.roles) {
    const std::vector<Staging> staging = staging_of(program, role, cluster.link().transport);
    const Peak fused = peak_of(role, workspace_bytes, staging);
    const std::int64_t temporaries = cluster.device.asynchronous ? foreach_temporaries(program, role) : 0;
    MemoryUses uses = temporaries > 0 ? peak_of(role, workspace_bytes, staging, temporaries).uses : fused.uses;
    if (world.on_devices)
      at(uses, MemoryUse::communicators) = static_cast<std::int64_t>(
          static_cast<double>(communicators_of(program, role)) * communicator_memory(cluster).base());
    for (const std::uint32_t rank : role.ranks) {
      const RankPlace& place = cluster.place.at(rank);
      devices.insert(place.device);
      const bool is_shared = cluster.host && cluster.host->memory > Bytes();
      MemoryNeed& sum = by_memory[is_shared ? cluster.group_of(place.device, cluster.node_level) : place.device];
      sum.ranks.push_back(rank);
      for (std::size_t use = 0; use < uses.size(); ++use) sum.uses[use] += uses[use];
      sum.executor_bytes += sum_of(fused.uses);
      const Device& device = cluster.device_of(rank);
      sum.capacity_bytes = static_cast<std::int64_t>(
          (is_shared ? cluster.host->memory : device.memory_capacity * program.threads).base());
      const auto context = static_cast<std::int64_t>(device.context.base());
      std::int64_t& contexts = at(sum.uses, MemoryUse::device_context);
      contexts = world.processes ? contexts + context : context;
    }
  }
  // A rank with more cores shares none of them.
  MemoryFit fit{.devices = static_cast<std::uint32_t>(devices.size()) * program.threads};
  std::int64_t least_left = 0, least_fused_left = 0, least_executor_left = 0;
  std::map<std::tuple<MemoryUses, std::int64_t, std::int64_t>, MemoryNeed> alike;
  for (const auto& [where, need] : by_memory) {
    const std::int64_t left = need.capacity_bytes - sum_of(need.uses);
    const bool is_first = alike.empty();
    if (is_first || left < least_left)
      least_left = left, fit.needed = need.uses, fit.capacity_bytes = need.capacity_bytes;
    const auto least = [&](std::int64_t& so_far, std::int64_t bytes) {
      so_far = is_first ? need.capacity_bytes - bytes : std::min(so_far, need.capacity_bytes - bytes);
    };
    least(least_fused_left, need.fused_bytes());
    least(least_executor_left, need.executor_bytes);
    MemoryNeed& together = alike
                               .try_emplace({need.uses, need.executor_bytes, need.capacity_bytes},
                                            MemoryNeed{.uses = need.uses, .capacity_bytes = need.capacity_bytes})
                               .first->second;
    together.executor_bytes = need.executor_bytes;
    together.ranks.insert(together.ranks.end(), need.ranks.begin(), need.ranks.end());
    ++together.devices;
  }
  fit.fused_bytes = fit.capacity_bytes - least_fused_left;
  fit.executor_bytes = fit.capacity_bytes - least_executor_left;
  for (auto& [key, need] : alike) {
    std::ranges::sort(need.ranks);
    fit.each.push_back(std::move(need));
  }
  std::ranges::sort(fit.each, {}, [](const MemoryNeed& need) { return need.ranks.front(); });
  return fit;
}

double memory_with_reuse(const Role& role, std::span<const double> workspace_bytes, std::span<const Staging> staging) {
  constexpr std::uint32_t kBodies = 2;
  std::map<double, std::int64_t> unused;  // blocks by size
  double held = 0, small = 0, most_small = 0;
  const auto change = [&](double bytes, int sign) {
    if (bytes < static_cast<double>(kReusedFrom))
      most_small = std::max(most_small, small += sign * bytes);
    else if (std::int64_t& blocks = unused[bytes]; sign < 0 || blocks > 0)
      blocks -= sign;
    else
      held += bytes;
  };
  walk(
      role, staging, kBodies,
      [&](TensorClass, std::int64_t bytes, int sign) { change(static_cast<double>(bytes), sign); },
      [&](std::uint32_t i) {
        const double workspace = workspace_of(role, i, workspace_bytes);
        change(workspace, 1);
        change(workspace, -1);
      });
  return held + most_small;
}

}  // namespace sim
