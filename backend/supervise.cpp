#include "backend/supervise.hpp"

#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <optional>
#include <string_view>
#include <thread>

#include "backend/machine/network.hpp"
#include "backend/machine/process.hpp"
#include "backend/rank/progress.hpp"
#include "sim/error.hpp"

namespace backend {
namespace {

constexpr int kLook_ms = 500;

std::vector<std::pair<std::string, std::string>> variables_of(std::uint32_t rank, std::uint32_t ranks,
                                                              const Network& network, const StoreSocket& store,
                                                              const ProgressBoard& board) {
  std::vector<std::pair<std::string, std::string>> variables{
      {"RANK", std::to_string(rank)},
      {"LOCAL_RANK", std::to_string(rank)},
      {"WORLD_SIZE", std::to_string(ranks)},
      {"LOCAL_WORLD_SIZE", std::to_string(ranks)},
      {"MASTER_ADDR", network.host()},
      {"MASTER_PORT", std::to_string(store.port)},
      {"TORCHELASTIC_USE_AGENT_STORE", "False"},
      {StoreSocket::kVariable, std::to_string(store.descriptor)},
      {ProgressBoard::kVariable, std::to_string(board.descriptor())}};
  if (network.separate()) variables.emplace_back("GLOO_SOCKET_IFNAME", network.interface());
  return variables;
}

/// Every rank has sockets to all others, and gloo's threads can't say that there are none left. ConfigError.
void permit_files(std::uint32_t ranks) {
  const rlim_t needed = 40 + 4 * rlim_t{ranks};
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= needed) return;
  const rlimit wanted{std::min(needed, files.rlim_max), files.rlim_max};
  if (files.rlim_max < needed || setrlimit(RLIMIT_NOFILE, &wanted) != 0)
    throw sim::ConfigError("{} ranks need {} open files each; {} are permitted (ulimit -n)", ranks, needed,
                           files.rlim_max);
}

bool died(int status) { return WIFSIGNALED(status); }
bool failed(int status) { return !succeeded(status); }

/// The first rank that has ended in such a way.
std::optional<std::uint32_t> first_ended(std::deque<Process>& processes, bool (*in_such_a_way)(int)) {
  for (std::uint32_t rank = 0; rank < processes.size(); ++rank)
    if (const auto status = processes[rank].status(); status && in_such_a_way(*status)) return rank;
  return std::nullopt;
}

/// The rank that was the first to say why it can't go on.
std::optional<std::uint32_t> first_failure(const ProgressBoard& board) {
  std::optional<std::uint32_t> first;
  for (std::uint32_t rank = 0; rank < board.ranks(); ++rank)
    if (const auto failure = board.failure(rank);
        failure && (!first || failure->moment_s < board.failure(*first)->moment_s))
      first = rank;
  return first;
}

/// A rank has died, failed or ended with an error: throws what has caused it, or returns rank 0's exit status where
/// rank 0 has said it itself. One rank's end makes others fail, so there is an order.
int outcome(std::deque<Process>& processes, const ProgressBoard& board, const HangWatch& watch) {
  const auto ended = [&](std::uint32_t rank) {
    return sim::RunError("rank {} {} {}", rank, describe_status(*processes[rank].status()), board.where(rank));
  };
  if (const auto rank = first_ended(processes, died)) throw ended(*rank);
  if (const auto rank = first_failure(board)) {
    if (const auto text = watch.behind(*rank)) throw sim::RunError("{}", *text);
    rethrow(*board.failure(*rank));
  }
  const auto rank = first_ended(processes, failed);
  if (*rank != 0) throw ended(*rank);
  return WEXITSTATUS(*processes[0].status());
}

}  // namespace

int spawn_ranks(const std::vector<std::string>& arguments, std::uint32_t ranks, double timeout_s,
                const std::string& network_rate) {
  check_timeout(timeout_s);
  permit_files(ranks);
  const Network network(network_rate, ranks);
  const ProgressBoard board(ranks);
  const StoreSocket store(network);
  HangWatch watch(board, timeout_s);
  std::deque<Process> processes;
  for (std::uint32_t rank = 0; rank < ranks; ++rank)
    processes.emplace_back(
        arguments, ProcessOptions{.environment = environment_with(variables_of(rank, ranks, network, store, board)),
                                  .network_namespace = network.of_rank(rank)});
  for (;;) {
    std::vector<pollfd> ends;
    for (const Process& process : processes) ends.push_back({process.descriptor(), POLLIN, 0});
    poll(ends.data(), ends.size(), kLook_ms);
    // Asked first: a rank that fails after it has been asked hasn't ended well.
    const bool all_ended =
        std::ranges::all_of(processes, [](Process& process) { return process.status().has_value(); });
    const bool over = first_ended(processes, failed) || first_failure(board);
    if (all_ended && !over) return 0;
    if (over) std::this_thread::sleep_for(std::chrono::milliseconds(50));  // until what has caused it can be seen, too
    std::vector<bool> stopped;
    for (const Process& process : processes) stopped.push_back(process.stopped());
    watch.look(stopped);
    if (over) return outcome(processes, board, watch);
    if (const auto text = watch.overdue()) throw sim::RunError("{}", *text);
  }
}

void check_timeout(double timeout_s) {
  constexpr double kShortest_s = 1e-3, kWeek_s = 7 * 24 * 3600;
  if (!(timeout_s >= kShortest_s && timeout_s <= kWeek_s))
    throw sim::ConfigError("timeout_s={:g} must be at least {:g} and at most {:.0f} (a week)", timeout_s, kShortest_s,
                           kWeek_s);
}

bool is_watched() { return ProgressBoard::is_watched(); }

bool is_launched() { return is_rank_process() && !is_watched() && ranks_of_launch() > 1; }

bool is_first_of_its_own() {
  const char* rank = std::getenv("RANK");
  return rank != nullptr && std::string_view(rank) == "0" && !is_watched();
}

bool only_serves() { return is_launched() && !is_first_of_its_own(); }

bool is_first_where_it_is() { return is_rank_process() && is_first_of_host() && !is_watched(); }

}  // namespace backend
