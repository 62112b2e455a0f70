// Batch norms with sync=1: where ranks have parts of the samples, they exchange what torch.nn.SyncBatchNorm exchanges.
#include <algorithm>

#include "sim/program/memory.hpp"
#include "tests/sim/model/toys.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

const std::string kModel = testing::toy_path("synced_toy");

Program synced(const std::string& strategy, const std::string& options = "") {
  return testing::lowered(strategy, kModel + options);
}

/// Of one role: the bytes that each of a kind's collectives writes, in order; of gradients' sums none.
std::vector<std::int64_t> written(const Program& program, CollectiveKind kind) {
  std::vector<std::int64_t> bytes;
  const Role& role = program.roles.at(0);
  for (std::uint32_t i = 0; i < role.size(); ++i) {
    if (role.kind[i] != InstructionKind::collective || role.collective[i] != kind) continue;
    const Tensor& tensor = role.tensors[role.writes(i)[0]];
    if (role.storages[tensor.storage].tensor_class == TensorClass::activation) bytes.push_back(tensor.spec.bytes());
  }
  return bytes;
}

std::ptrdiff_t works_named(const Program& program, std::string_view name) {
  return std::ranges::count(program.works, name, [](const Work& work) { return work.op.name(); });
}

// torch/nn/modules/_functions.py: mean, variance and count of each rank are gathered, and two sums per channel reduced.
TEST(SyncedNorm, RanksExchangeWhatSyncBatchNormDoes) {
  const Program program = synced("ddp,dp=4");
  EXPECT_EQ(written(program, CollectiveKind::all_gather),
            (std::vector<std::int64_t>{4 * 4 * (2 * 4 + 1), 4 * 4 * (2 * 6 + 1)}));
  EXPECT_EQ(written(program, CollectiveKind::all_reduce), (std::vector<std::int64_t>{4 * 2 * 6, 4 * 2 * 4}));
  for (const char* name : {"norm_stats", "norm_apply", "norm_sums", "norm_grad"})
    EXPECT_EQ(works_named(program, name), 2) << name;
  EXPECT_EQ(works_named(program, "batch_norm"), 0);
}

// All of what a rank sees: nothing is exchanged, and the op is played as it is.
TEST(SyncedNorm, OneDeviceAndStagesPlayItAsItIs) {
  for (const char* strategy : {"single", "gpipe,pp=2,cut=relu1,microbatches=2", "hypar,layers=in"}) {
    const Program program = synced(strategy);
    EXPECT_EQ(works_named(program, "norm_stats"), 0) << strategy;
    EXPECT_EQ(works_named(program, "batch_norm"), 4) << strategy;
    for (const Work& work : program.works)
      EXPECT_FALSE(is_synced(work.op.attributes)) << "costs what any batch norm does";
  }
}

// Along all axes that cut samples, in one collective; of a microbatch of its own each.
TEST(SyncedNorm, OfAllAxesThatCutSamples) {
  // Its backward doesn't send for a unit's weights twice, nor keep the forward's: a unit is gathered once for each.
  std::map<std::string, std::size_t> gathers;
  const Program fsdp = synced("fsdp,dp=2");
  for (std::uint32_t i = 0; i < fsdp.roles[0].size(); ++i)
    if (fsdp.roles[0].kind[i] == InstructionKind::collective &&
        fsdp.roles[0].collective[i] == CollectiveKind::all_gather)
      ++gathers[std::string(fsdp.names[fsdp.roles[0].node[i]])];
  ASSERT_GT(gathers.size(), 1U);
  for (const auto& [unit, times] : gathers) EXPECT_LE(times, 2U) << unit;
  const Program hsdp = synced("hsdp,replicas=2,shard=2");
  EXPECT_EQ(written(hsdp, CollectiveKind::all_gather).size(), 2U);
  EXPECT_TRUE(std::ranges::any_of(hsdp.groups, [](const Group& group) { return group.name == "replicas.shard"; }));
  const Program stages = synced("mesh,pp=2,dp=2,microbatches=2,cut=relu1");
  EXPECT_EQ(written(stages, CollectiveKind::all_gather),
            (std::vector<std::int64_t>{2 * 4 * (2 * 4 + 1), 2 * 4 * (2 * 4 + 1)}));
  EXPECT_FALSE(written(synced("hypar,layers=dp"), CollectiveKind::all_gather).empty());
}

TEST(SyncedNorm, StrategiesWithoutOneProcessGroupRefuse) {
  const auto message = [](const std::string& strategy) {
    try {
      synced(strategy);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message("data_parallel,dp=2"),
            "strategy 'data_parallel,dp=2': batch norm 'bn1' has sync=1, but nn.DataParallel has no process group; ddp "
            "has");
  EXPECT_EQ(
      message("daso"),
      "strategy 'daso,nodes=2,local=2': batch norm 'bn1' has sync=1, but DASO's nodes have parameters of their own");
}

// Batch 1 on one device has one value per channel behind the pool; eight ranks with a sample each have eight.
TEST(SyncedNorm, ASampleForEachRankIsEnough) {
  EXPECT_NO_THROW(synced("ddp,dp=8"));
  try {
    synced("single", ",global_batch=1");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_EQ(std::string(error.what()),
              "model 'synced_toy', node 'bn2': op 'batch_norm' needs more than one value per channel, found "
              "f32[1,6,1,1]");
  }
}

}  // namespace
}  // namespace sim
