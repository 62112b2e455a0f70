#include "sim/cost/measured_transfer.hpp"

#include <algorithm>
#include <map>

namespace sim {

LinkKey link_key(const std::string& world, const TransferQuestion& question) {
  const std::string_view kind =
      question.kind == InstructionKind::collective ? to_string(question.collective) : to_string(InstructionKind::send);
  return {world, std::string(kind), question.members};
}

namespace {

/// How many ranks' parts a measured all-reduce took, where the ranks' threads copy: those on one device copy one after
/// the other, and the simulator lets them do that again. (A broadcast was timed by the first rank that had its part.)
double parts_in_turn(const Cluster& cluster, const LinkKey& link) {
  if (cluster.link.engine != TransferEngine::receiver || link.kind != to_string(CollectiveKind::all_reduce)) return 1;
  std::map<std::uint32_t, double> parts;  // by device; the first ranks were measured
  double most = 1;
  for (std::uint32_t rank = 0; rank < std::min<std::size_t>(link.members, cluster.place.size()); ++rank)
    most = std::max(most, ++parts[cluster.place[rank].device]);
  return most;
}

}  // namespace

std::optional<TransferCost> transfer_cost(const Profile& profile, const Cluster& cluster, const LinkKey& link,
                                          std::int64_t bytes) {
  const std::optional<TransferTime> time = profile.transfer(link, bytes);
  if (!time) return std::nullopt;
  // Without measured notifications, only a small message's overhead is charged; the core's share covers what a large
  // one's takes more.
  const TransferTime least = *profile.transfer(link, 0);
  const double parts = parts_in_turn(cluster, link);
  TransferCost cost{.latency_s = time->latency_s / parts,
                    .wire_s = time->wire_s / parts,
                    .send_overhead_s = least.posts.send_overhead_s,
                    .recv_overhead_s = least.posts.recv_overhead_s,
                    .core_share = profile.core_share(cluster.world).value_or(cluster.link.core_share),
                    .jitter = time->jitter};
  if (link.kind != "send") return cost;
  const std::optional<Statistic> note = profile.link({link.world, "note", link.members}, 0);
  const std::optional<TransferTime> unexpected = profile.transfer({link.world, "unexpected_send", link.members}, bytes);
  if (!note || !unexpected) return cost;
  cost.send_overhead_s = time->posts.send_overhead_s;
  // A small message is written whole while it is posted.
  const double delivery_s = std::max(0.0, least.latency_s - least.posts.send_overhead_s);
  cost.rendezvous = {note->mean_s, delivery_s, unexpected->latency_s, unexpected->wire_s,
                     unexpected->posts.send_overhead_s};
  return cost;
}

}  // namespace sim
