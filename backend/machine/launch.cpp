#include "backend/machine/launch.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>

#include "sim/error.hpp"

namespace backend {
namespace {

constexpr std::uint32_t kPort = 29500;   // torchrun's, and torch.distributed's examples'
constexpr std::uint32_t kPorts = 1'000;  // from there on: several steps of Slurm's may share a node

/// What a launcher calls what torchrun calls RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE.
struct Launcher {
  const char *name, *rank, *ranks, *local_rank, *local_ranks;
  const char* how_to_set;  // a variable, on all hosts
};
// mpirun in a Slurm job goes before srun: each rank has both's variables, and Slurm's are of its daemons.
constexpr std::array kLaunchers{
    Launcher{"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
             "OMPI_COMM_WORLD_LOCAL_SIZE", "mpirun -x MASTER_ADDR=HOST"},
    Launcher{"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE", ""},
    Launcher{"mpirun", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "mpirun -genv MASTER_ADDR HOST"}};

std::optional<std::uint32_t> number_of(std::string_view text) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<std::string> of_this_process(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
}

/// 0 where it isn't set.
std::uint32_t number_here(const char* name) { return number_of(of_this_process(name).value_or("")).value_or(0); }

Variables translated(const Launcher& launcher, const VariableOf& variable) {
  const auto number = [&](const char* name) {
    const std::optional<std::string> text = variable(name);
    if (!text) throw sim::ConfigError("{} has set {} but not {}", launcher.name, launcher.ranks, name);
    const std::optional<std::uint32_t> value = number_of(*text);
    if (!value) throw sim::ConfigError("{}='{}' must be an integer", name, *text);
    return *value;
  };
  const bool is_slurm = launcher.name == std::string_view("srun");
  const std::uint32_t ranks = number(launcher.ranks);
  if (ranks < 2) return {};
  std::uint32_t local_ranks = 0;
  if (is_slurm) {
    const std::string tasks = variable(launcher.local_ranks).value_or("");
    local_ranks = tasks_of_node(tasks, number("SLURM_NODEID"));
    if (local_ranks == 0)
      throw sim::ConfigError("{}='{}' must say how many tasks each node has, as in '4(x2),3'", launcher.local_ranks,
                             tasks);
  } else {
    local_ranks = number(launcher.local_ranks);
  }
  Variables variables{{"RANK", std::to_string(number(launcher.rank))},
                      {"WORLD_SIZE", std::to_string(ranks)},
                      {"LOCAL_RANK", std::to_string(number(launcher.local_rank))},
                      {"LOCAL_WORLD_SIZE", std::to_string(local_ranks)}};
  if (!variable("MASTER_ADDR")) {
    std::string address = "127.0.0.1";
    if (is_slurm && local_ranks < ranks) {
      std::optional<std::string> nodes = variable("SLURM_STEP_NODELIST");
      if (!nodes) nodes = variable("SLURM_JOB_NODELIST");
      address = first_node(nodes.value_or(""));
      if (address.empty())
        throw sim::ConfigError("SLURM_STEP_NODELIST='{}' names no node where the ranks could meet", nodes.value_or(""));
    } else if (local_ranks < ranks) {
      throw sim::ConfigError("{} doesn't say where rank 0 is, with whom the ranks of other hosts meet; use {}",
                             launcher.name, launcher.how_to_set);
    }
    variables.emplace_back("MASTER_ADDR", address);
  }
  if (!variable("MASTER_PORT")) {
    std::uint32_t port = kPort;
    if (is_slurm)
      for (const char* id : {"SLURM_JOB_ID", "SLURM_STEP_ID"})
        port += number_of(variable(id).value_or("")).value_or(0) % kPorts;
    variables.emplace_back("MASTER_PORT", std::to_string(kPort + (port - kPort) % kPorts));
  }
  return variables;
}

}  // namespace

Variables torchrun_variables(const VariableOf& variable) {
  if (variable("RANK") && variable("WORLD_SIZE")) return {};
  for (const Launcher& launcher : kLaunchers)
    if (variable(launcher.rank) && variable(launcher.ranks)) return translated(launcher, variable);
  return {};
}

std::string first_node(std::string_view list) {
  std::string name;
  for (std::size_t at = 0; at < list.size() && list[at] != ','; ++at) {
    if (list[at] != '[') {
      name += list[at];
      continue;
    }
    // Of each bracket what is before the first comma or dash; "rack[1-2]n[03-04]" has several.
    const std::size_t close = list.find(']', at);
    if (close == std::string_view::npos) return "";
    const std::string_view inside = list.substr(at + 1, close - at - 1);
    name += inside.substr(0, inside.find_first_of(",-"));
    at = close;
  }
  return name;
}

std::uint32_t tasks_of_node(std::string_view list, std::uint32_t node) {
  while (!list.empty()) {
    const std::string_view entry = list.substr(0, list.find(','));
    list.remove_prefix(std::min(list.size(), entry.size() + 1));
    const std::size_t times = entry.find("(x");
    const std::optional<std::uint32_t> tasks = number_of(entry.substr(0, times));
    std::optional<std::uint32_t> nodes = 1;
    if (times != std::string_view::npos)
      nodes = entry.ends_with(')') ? number_of(entry.substr(times + 2, entry.size() - times - 3)) : std::nullopt;
    if (!tasks || !nodes) return 0;
    if (node < *nodes) return *tasks;
    node -= *nodes;
  }
  return 0;
}

void adopt_launcher() {
  for (const auto& [name, value] : torchrun_variables(of_this_process)) setenv(name.c_str(), value.c_str(), 1);
}

bool is_rank_process() { return std::getenv("RANK") != nullptr && std::getenv("WORLD_SIZE") != nullptr; }

std::uint32_t ranks_of_launch() { return number_here("WORLD_SIZE"); }

std::uint32_t ranks_per_host() {
  const std::uint32_t local = number_here("LOCAL_WORLD_SIZE");
  return local < ranks_of_launch() ? local : 0;
}

std::uint32_t ranks_here(std::uint32_t of_program) {
  const std::uint32_t each = ranks_per_host();
  return each != 0 ? std::min(each, of_program) : of_program;
}

std::uint32_t hosts_of_launch() {
  const std::uint32_t each = ranks_per_host();
  return each == 0 ? 1 : (ranks_of_launch() + each - 1) / each;
}

bool is_first_of_host() { return of_this_process("LOCAL_RANK").value_or("0") == "0"; }

}  // namespace backend
