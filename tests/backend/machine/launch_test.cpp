#include "backend/machine/launch.hpp"

#include <gtest/gtest.h>

#include <map>

#include "sim/error.hpp"

namespace backend {
namespace {

using Environment = std::map<std::string, std::string>;

Environment adopted(const Environment& environment) {
  const Variables variables = torchrun_variables([&](const std::string& name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    return found == environment.end() ? std::nullopt : std::optional(found->second);
  });
  return {variables.begin(), variables.end()};
}

std::string refusal(const Environment& environment) {
  try {
    adopted(environment);
    return "none";
  } catch (const sim::ConfigError& error) {
    return error.what();
  }
}

// As Slurm 22.05's srun sets them for task 5 of 2 nodes of 4.
const Environment kSlurm{{"SLURM_PROCID", "5"},
                         {"SLURM_STEP_NUM_TASKS", "8"},
                         {"SLURM_LOCALID", "1"},
                         {"SLURM_NODEID", "1"},
                         {"SLURM_NTASKS", "8"},
                         {"SLURM_STEP_TASKS_PER_NODE", "4(x2)"},
                         {"SLURM_JOB_ID", "123456"},
                         {"SLURM_STEP_ID", "7"},
                         {"SLURM_STEP_NODELIST", "gpu[07-08]"},
                         {"SLURM_JOB_NODELIST", "cpu1,gpu[07-08]"}};
// As Open MPI 4.1's mpirun sets them for rank 3 of 2 hosts of 2.
const Environment kOpenMpi{{"OMPI_COMM_WORLD_RANK", "3"},
                           {"OMPI_COMM_WORLD_SIZE", "4"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};

Environment with(Environment environment, const Environment& more) {
  for (const auto& [name, value] : more) environment[name] = value;
  return environment;
}

TEST(Launch, SlurmsTasksAreRanks) {
  EXPECT_EQ(adopted(kSlurm), (Environment{{"RANK", "5"},
                                          {"WORLD_SIZE", "8"},
                                          {"LOCAL_RANK", "1"},
                                          {"LOCAL_WORLD_SIZE", "4"},
                                          {"MASTER_ADDR", "gpu07"},
                                          {"MASTER_PORT", std::to_string(29500 + (456 + 7) % 1000)}}));
  const Environment own = adopted(with(kSlurm, {{"MASTER_ADDR", "ib-gpu07"}, {"MASTER_PORT", "4711"}}));
  EXPECT_FALSE(own.contains("MASTER_ADDR") || own.contains("MASTER_PORT")) << "they stay as they are";
}

TEST(Launch, ABatchScriptIsNoRank) {
  Environment batch = kSlurm;
  batch.erase("SLURM_STEP_NUM_TASKS");
  EXPECT_EQ(adopted(batch), Environment());
  EXPECT_EQ(adopted(with(kSlurm, {{"SLURM_STEP_NUM_TASKS", "1"}})), Environment()) << "one task is no several ranks";
}

TEST(Launch, OpenMpisRanksOfSeveralHostsMustBeToldWhereTheyMeet) {
  EXPECT_EQ(refusal(kOpenMpi),
            "mpirun doesn't say where rank 0 is, with whom the ranks of other hosts meet; use mpirun -x "
            "MASTER_ADDR=HOST");
  EXPECT_EQ(adopted(with(kOpenMpi, {{"MASTER_ADDR", "a"}})), (Environment{{"RANK", "3"},
                                                                          {"WORLD_SIZE", "4"},
                                                                          {"LOCAL_RANK", "1"},
                                                                          {"LOCAL_WORLD_SIZE", "2"},
                                                                          {"MASTER_PORT", "29500"}}));
  EXPECT_EQ(adopted(with(kOpenMpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}))["MASTER_ADDR"], "127.0.0.1");
}

TEST(Launch, HydrasRanks) {
  const Environment hydra{{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
  EXPECT_EQ(adopted(hydra), (Environment{{"RANK", "1"},
                                         {"WORLD_SIZE", "2"},
                                         {"LOCAL_RANK", "1"},
                                         {"LOCAL_WORLD_SIZE", "2"},
                                         {"MASTER_ADDR", "127.0.0.1"},
                                         {"MASTER_PORT", "29500"}}));
}

TEST(Launch, TorchrunsVariablesGoBeforeAllOthers) {
  EXPECT_EQ(adopted(with(kSlurm, {{"RANK", "0"}, {"WORLD_SIZE", "2"}})), Environment());
  EXPECT_EQ(adopted(with(with(kSlurm, kOpenMpi), {{"MASTER_ADDR", "a"}}))["WORLD_SIZE"], "4")
      << "mpirun in a Slurm job";
  EXPECT_EQ(adopted({}), Environment());
}

TEST(Launch, TellsWhatIsMissingOrWrong) {
  Environment some = kSlurm;
  some.erase("SLURM_LOCALID");
  EXPECT_EQ(refusal(some), "srun has set SLURM_STEP_NUM_TASKS but not SLURM_LOCALID");
  EXPECT_EQ(refusal(with(kSlurm, {{"SLURM_PROCID", "five"}})), "SLURM_PROCID='five' must be an integer");
  EXPECT_EQ(refusal(with(kSlurm, {{"SLURM_STEP_TASKS_PER_NODE", "many"}})),
            "SLURM_STEP_TASKS_PER_NODE='many' must say how many tasks each node has, as in '4(x2),3'");
  EXPECT_EQ(refusal(with(kSlurm, {{"SLURM_STEP_NODELIST", "gpu[07"}})),
            "SLURM_STEP_NODELIST='gpu[07' names no node where the ranks could meet");
}

TEST(Launch, FirstOfSlurmsNodes) {
  EXPECT_EQ(first_node("gpu[07-09,12],login"), "gpu07");
  EXPECT_EQ(first_node("login,gpu[07-09]"), "login");
  EXPECT_EQ(first_node("rack[1-2]n[03,05-07].cluster"), "rack1n03.cluster");
  EXPECT_EQ(first_node("a-b"), "a-b");
  EXPECT_EQ(first_node(""), "");
}

TEST(Launch, TasksOfSlurmsNodes) {
  for (const auto& [node, tasks] : {std::pair{0U, 4U}, {1U, 4U}, {2U, 3U}, {3U, 0U}})
    EXPECT_EQ(tasks_of_node("4(x2),3", node), tasks) << node;
  EXPECT_EQ(tasks_of_node("2", 0), 2U);
  EXPECT_EQ(tasks_of_node("2(x", 0), 0U);
}

}  // namespace
}  // namespace backend
