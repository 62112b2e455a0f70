#include "sim/strategy/epoch.hpp"

#include "sim/lower/lower.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using testing::message_of;

Epoch epoch(std::int64_t samples, const char* model_text, std::string_view strategy_text, bool drop_last = false) {
  const Model model = load_model(model_text);
  const Epoch found = epoch_of(samples, model, parse_strategy(strategy_text, model), drop_last);
  if (found.last) {
    EXPECT_NO_THROW(lower(found.last->model, found.last->strategy)) << strategy_text << " " << samples;
  }
  return found;
}

// ImageNet on 8 GPUs: torch's DistributedSampler gives each 160,146 of its 1,281,167 samples (the first one twice), which are
// 5,004 batches of 32 and one of 18.
TEST(Epoch, IsDistributedSamplersAndDataLoaders) {
  const Epoch imagenet = epoch(1'281'167, "resnet18,image=32,global_batch=256", "ddp,dp=8");
  EXPECT_EQ(imagenet.steps(), 5005);
  ASSERT_TRUE(imagenet.last.has_value());
  EXPECT_EQ(imagenet.last->samples, 8 * 18);
  EXPECT_EQ(imagenet.last->model.global_batch, 8 * 18);
  const Epoch dropped = epoch(1'281'167, "resnet18,image=32,global_batch=256", "ddp,dp=8", /*drop_last=*/true);
  EXPECT_EQ(dropped.steps(), 5004);
  EXPECT_FALSE(dropped.last.has_value());
  // One loader for the pipeline: nothing is padded.
  EXPECT_EQ(epoch(1'281'167, "resnet18,image=32,global_batch=256", "pipeline,pp=2").last->samples, 143);
  EXPECT_EQ(epoch(1'281'167, "resnet18,image=32,global_batch=256", "single").last->model.global_batch, 143);
  EXPECT_FALSE(epoch(512, "convnet,global_batch=256", "ddp,dp=8").last.has_value());
  EXPECT_EQ(epoch(512, "convnet,global_batch=256", "ddp,dp=8").steps(), 2);
  EXPECT_EQ(epoch(3, "convnet,global_batch=256", "ddp,dp=8").last->model.global_batch, 8);
}

// Whatever is left over can be lowered, for whatever is in the table.
TEST(Epoch, NoLastBatchIsAnError) {
  for (const StrategyKind& kind : strategy_table())
    for (const std::string& text :
         {std::string(kind.example), kind.takes("dp") ? fmt::format("{},dp=4", kind.name) : "",
          kind.takes("microbatches") ? fmt::format("{},microbatches=8", kind.name) : "",
          kind.takes("levels") ? fmt::format("{},levels=2x2", kind.name) : ""})
      for (std::int64_t rest = 1; !text.empty() && rest < 32; ++rest) {
        const Epoch found = epoch(32 * 3 + rest, "convnet,global_batch=32", text);
        EXPECT_EQ(found.steps(), 4) << text;
        if (found.last) {  // else the last one is whole: padded
          EXPECT_GE(found.last->model.global_batch, found.last->samples) << text;
        }
      }
}

// Chunks of one size: 9 samples in 4 microbatches are played as 4 of 3.
TEST(Epoch, MicrobatchesOfTheLastStepAreOfOneSize) {
  const Epoch::Last last = *epoch(64 + 9, "convnet,global_batch=64", "pipeline,pp=2,microbatches=4").last;
  EXPECT_EQ(last.samples, 9);
  EXPECT_EQ(last.model.global_batch, 12);
  EXPECT_EQ(last.strategy.microbatches, 4);
  EXPECT_EQ(epoch(64 + 3, "convnet,global_batch=64", "single,microbatches=4").last->strategy.microbatches, 3);
}

// nn.DataParallel's last batch goes to as many devices as torch.chunk makes parts.
TEST(Epoch, DataParallelMayUseFewerDevicesAtLast) {
  EXPECT_EQ(epoch(64 + 9, "convnet,global_batch=64", "data_parallel,dp=8").last->strategy.text(), "data_parallel,dp=5");
  EXPECT_EQ(epoch(64 + 1, "convnet,global_batch=64", "data_parallel,dp=8").last->strategy.text(), "single");
  // Eight devices, though five play the whole steps.
  EXPECT_EQ(epoch(9 + 8, "convnet,global_batch=9", "data_parallel,dp=8").last->strategy.text(), "data_parallel,dp=8");
}

TEST(Epoch, NothingButADroppedStep) {
  EXPECT_EQ(message_of([] { epoch(100, "convnet,global_batch=256", "ddp,dp=8", true); }),
            "an epoch of 100 samples has no step of global_batch=256 where the last one is dropped");
}

}  // namespace
}  // namespace sim
