#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>

#include "backend/session.hpp"
#include "backend/train/evaluate.hpp"
#include "backend/train/safetensors.hpp"
#include "sim/error.hpp"
#include "sim/lower/lower.hpp"
#include "sim/strategy/epoch.hpp"

namespace backend {
namespace {

TEST(SafetensorsFile, IsWrittenAsSpecified) {
  const Safetensors file{.tensors = {{"b", at::arange(2, at::kFloat)}, {"n", at::arange(1, at::kLong)}},
                         .metadata = {{"epoch", "3"}}};
  const std::string bytes = to_bytes(file);
  const std::string header = R"({"__metadata__":{"epoch":"3"},"n":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
                             R"("b":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})";
  EXPECT_EQ(bytes.substr(8, header.size()), header);
  const auto length = static_cast<std::size_t>(static_cast<unsigned char>(bytes[0]));
  EXPECT_EQ(bytes.size(), 8 + length + 16);
  const Safetensors read = safetensors_from(bytes, "file");
  EXPECT_EQ(read.metadata, file.metadata);
  ASSERT_EQ(read.tensors.size(), 2U);
  for (const auto& [name, tensor] : file.tensors) EXPECT_TRUE(at::equal(read.tensors.at(name), tensor)) << name;
}

TEST(SafetensorsFile, WrongBytesAreRefused) {
  const std::string bytes =
      to_bytes({.tensors = {{"b", at::arange(6, at::kFloat).view({2, 3})}}, .metadata = {{"epoch", "3"}}});
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_THROW(safetensors_from(bytes.substr(0, size), "file"), sim::ConfigError) << size;
  for (std::size_t at = 0; at < bytes.size(); ++at)
    for (const char other : {'\0', '\xff', '"', '-', '9', '}'}) {
      std::string wrong = bytes;
      wrong[at] = other;
      try {
        safetensors_from(wrong, "file");  // other values, names and texts are fine
      } catch (const sim::ConfigError&) {
      }
    }
}

/// With batch norm, whose statistics ranks have of their own samples.
constexpr const char* kModel = R"({"format": "paragauge-model-1", "name": "small", "input": [4, 6, 6], "target":
 {"classes": 4}, "global_batch": 8, "optimizer": {"kind": "adam", "lr": 0.01}, "loss": "cross_entropy", "nodes": [
 {"name": "conv", "op": "conv2d", "out_channels": 4, "kernel_size": 3}, {"name": "bn", "op": "batch_norm"},
 {"name": "relu", "op": "relu"}, {"name": "flat", "op": "flatten"},
 {"name": "fc", "op": "linear", "out_features": 4}]})";

sim::Model small_model() {
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) / fmt::format("small_{}.json", getpid());
  std::ofstream(file) << kModel;
  sim::Model model = sim::load_model(file.string() + ",dtype=f64");
  return model;
}

struct Trained {
  std::vector<double> losses;
  std::string state;
};

/// Two epochs of 20 samples from a state on, each as full batches and a last one: as the command does it.
Trained train(Session& session, const sim::Model& model, const std::string& strategy_text, std::int64_t first_epoch,
              std::int64_t epochs, std::string state) {
  const DataSource data{.samples = 20, .seed = 3, .shape = model.input, .classes = model.classes};
  const sim::Strategy strategy = sim::parse_strategy(strategy_text, model);
  const sim::Epoch epoch = sim::epoch_of(data.samples, model, strategy);
  Trained trained{.losses = {}, .state = std::move(state)};
  const auto play = [&](const sim::Program& program, std::int64_t number, std::int64_t first, std::int64_t steps) {
    RunRequest request{.program = program, .warmup_steps = 0, .steps = static_cast<std::uint32_t>(steps)};
    request.training = Training{data, number, first, trained.state};
    RunResult result = session.run(request);
    trained.losses.insert(trained.losses.end(), result.losses.begin(), result.losses.end());
    trained.state = std::move(result.state);
  };
  for (std::int64_t e = first_epoch; e < first_epoch + epochs; ++e) {
    play(sim::lower(model, strategy), e, 0, epoch.full_steps);
    if (epoch.last)
      play(sim::lower(epoch.last->model, epoch.last->strategy), e, epoch.full_steps * model.global_batch, 1);
  }
  return trained;
}

std::unique_ptr<Session> open(std::uint32_t ranks) {
  return open_session({.world = "local", .ranks = ranks, .real_time = false});
}

TEST(TrainingRanks, EveryStrategyHasTheCurveOfOneDevice) {
  const auto session = open(4);
  const sim::Model model = sim::load_model("toy_mlp,global_batch=8,optimizer=adam:lr=0.01,dtype=f64");
  const Trained one = train(*session, model, "single", 0, 2, "");
  ASSERT_EQ(one.losses.size(), 6U);
  EXPECT_LT(one.losses.back(), one.losses.front());
  const Safetensors expected = safetensors_from(one.state, "single");
  EXPECT_EQ(expected.tensors.size(), 4U * 4U);  // of each parameter: itself, exp_avg, exp_avg_sq, step
  for (const sim::StrategyKind& kind : sim::strategy_table()) {
    const sim::Strategy strategy = sim::parse_strategy(kind.example, model);
    if (strategy.ranks() > 4 || sim::lower(model, strategy).bodies() > 1) continue;  // the latter: the next test
    SCOPED_TRACE(strategy.text());
    const Trained other = train(*session, model, strategy.text(), 0, 2, "");
    ASSERT_EQ(other.losses.size(), 6U);
    for (std::size_t s = 0; s < 6; ++s) EXPECT_NEAR(other.losses[s], one.losses[s], 1e-12) << "step " << s;
    const Safetensors found = safetensors_from(other.state, strategy.text());
    ASSERT_EQ(found.tensors.size(), expected.tensors.size());
    for (const auto& [name, tensor] : expected.tensors)
      EXPECT_LT((found.tensors.at(name) - tensor).abs().max().item<double>(), 1e-12) << name;
  }
}

TEST(TrainingRanks, StepsThatArePlayedTogetherHaveBatchesOfTheirOwn) {
  const auto session = open(4);
  const sim::Model model = sim::load_model("toy_mlp,global_batch=8,optimizer=adam:lr=0.01,dtype=f64");
  const auto losses = [&](const char* strategy_text) {
    const sim::Program program = sim::lower(model, sim::parse_strategy(strategy_text, model));
    const auto together = static_cast<std::uint32_t>(program.steps_in_list());
    RunRequest request{.program = program, .warmup_steps = 0, .steps = 18 / together};
    request.training = Training{{.samples = 144, .seed = 3, .shape = model.input, .classes = model.classes}};
    return session->run(request).losses;
  };
  const std::vector<double> one = losses("single"), heat = losses("heat"), daso = losses("daso,skips=2,bodies=2");
  ASSERT_EQ(one.size(), 18U);
  ASSERT_EQ(heat.size(), 18U);  // twice a first step and eight that reach into each other
  for (std::size_t s = 0; s < 18; ++s) EXPECT_NEAR(heat[s], one[s], 1e-12) << "step " << s;
  ASSERT_GE(daso.size(), 8U);
  for (std::size_t s = 0; s < daso.size(); ++s) EXPECT_NEAR(daso[s], one[s], 0.05) << "step " << s;
  EXPECT_NE(daso[7], one[7]);  // nodes drift apart
  EXPECT_NEAR(daso[0], one[0], 1e-12);
}

TEST(TrainingRanks, GoesOnInEveryBit) {
  const auto session = open(2);
  const sim::Model small = small_model(),
                   half =
                       sim::load_model("toy_mlp,global_batch=8,optimizer=adam:lr=0.01,precision=fp16,max_grad_norm=1");
  for (const auto& [strategy, of_half] :
       std::vector<std::pair<std::string, bool>>{{"single", false},
                                                 {"ddp", false},
                                                 {"ddp,broadcast_buffers=0", false},
                                                 {"zero1,dp=2", false},
                                                 {"zero3,dp=2", false},
                                                 {"fsdp,dp=2", false},
                                                 {"tp", false},
                                                 {"ddp", true},
                                                 {"zero1,dp=2,param_dtype=half", true},
                                                 {"fsdp,dp=2,param_dtype=half", true},
                                                 {"deepspeed_stage_2", true}}) {
    SCOPED_TRACE(strategy + (of_half ? " in half precision" : ""));
    const sim::Model& model = of_half ? half : small;
    const Trained whole = train(*session, model, strategy, 0, 2, "");
    const Trained first = train(*session, model, strategy, 0, 1, "");
    const Trained second = train(*session, model, strategy, 1, 1, first.state);
    EXPECT_EQ(second.state, whole.state);
    EXPECT_EQ(second.losses, std::vector(whole.losses.begin() + 3, whole.losses.end()));
    // Nor does it matter where a run of steps is cut.
    RunRequest request{
        .program = sim::lower(model, sim::parse_strategy(strategy, model)), .warmup_steps = 0, .steps = 2};
    request.training = Training{{.samples = 20, .seed = 3, .shape = model.input, .classes = model.classes}};
    const std::string at_once = session->run(request).state;
    request.steps = 1;
    request.training->state = session->run(request).state;
    request.training->first_sample = model.global_batch;
    EXPECT_EQ(session->run(request).state, at_once);
  }
}

TEST(TrainingRanks, RanksKeepStatisticsOfTheirOwn) {
  const auto session = open(2);
  const sim::Model model = small_model();
  const auto owns = [&](const char* strategy) {
    return safetensors_from(train(*session, model, strategy, 0, 1, "").state, "")
        .tensors.contains("rank1.bn.running_mean");
  };
  EXPECT_TRUE(owns("ddp,broadcast_buffers=0"));
  EXPECT_FALSE(owns("ddp"));  // the next step begins with rank 0's
}

TEST(TrainingRanks, AStateOfAnotherModelIsRefused) {
  const auto session = open(1);
  const sim::Model model = small_model(), other = sim::load_model("toy_mlp,dtype=f64");
  const std::string state = train(*session, other, "single", 0, 1, "").state;
  EXPECT_THROW(train(*session, model, "single", 1, 1, state), sim::ConfigError);
}

TEST(TrainingRanks, EverySampleIsSeenOnce) {
  // Where nothing is learnt, the mean of the epoch's losses is that of all samples.
  const auto session = open(2);
  const sim::Model model = sim::load_model("toy_mlp,global_batch=8,optimizer=sgd:lr=0,dtype=f64");
  const Dataset dataset =
      load_dataset({.samples = 20, .seed = 3, .shape = model.input, .classes = model.classes}, Part::train);
  for (const char* strategy : {"single", "ddp", "tp", "data_parallel", "hypar", "gpipe,microbatches=2"}) {
    SCOPED_TRACE(strategy);
    const Trained trained = train(*session, model, strategy, 3, 1, "");
    EXPECT_NEAR((8 * trained.losses.at(0) + 8 * trained.losses.at(1) + 4 * trained.losses.at(2)) / 20,
                evaluate(model, trained.state, dataset).loss, 1e-12);
    const Trained next = train(*session, model, strategy, 4, 1, trained.state);
    EXPECT_EQ(next.state, trained.state);
    EXPECT_NE(next.losses, trained.losses);  // in another order
  }
}

TEST(Evaluation, BatchNormSeesNoOtherSamples) {
  const auto session = open(1);
  const sim::Model model = small_model();
  const std::string state = train(*session, model, "single", 0, 1, "").state;
  const DataSource source{.samples = 12, .seed = 5, .shape = model.input, .classes = model.classes};
  const std::string records = make_records(source, Part::train);
  const std::size_t record = records.size() / 12;
  double sum = 0;
  for (std::size_t i = 0; i < 12; ++i)
    sum += evaluate(model, state, Dataset(records.substr(i * record, record), source, "one")).loss;
  EXPECT_NEAR(evaluate(model, state, Dataset(records, source, "all")).loss, sum / 12, 1e-12);
}

TEST(Evaluation, ATrainedNetworkIsRight) {
  // A linear layer and so few samples that it gets all of them right.
  const auto session = open(1);
  const sim::Model model = sim::load_model("toy_mlp,global_batch=4,optimizer=adam:lr=0.1");
  const Trained trained = train(*session, model, "single", 0, 20, "");
  const Dataset dataset =
      load_dataset({.samples = 20, .seed = 3, .shape = model.input, .classes = model.classes}, Part::train);
  const Evaluation after = evaluate(model, trained.state, dataset);
  EXPECT_EQ(after.accuracy, 1);
  EXPECT_LT(after.loss, trained.losses[0]);
}

}  // namespace
}  // namespace backend
