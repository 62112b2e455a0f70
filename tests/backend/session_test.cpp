#include "backend/session.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <thread>

#include "backend/machine/scheduling.hpp"
#include "backend/rank/progress.hpp"
#include "backend/supervise.hpp"
#include "sim/cluster/allowance.hpp"
#include "sim/error.hpp"
#include "sim/lower/lower.hpp"
#include "sim/program/memory.hpp"
#include "sim/text/file.hpp"
#include "tests/backend/chain.hpp"
#include "tests/sim/model/toys.hpp"

namespace backend {
namespace {

sim::Program lowered(const std::string& model_text, const std::string& strategy) {
  const sim::Model model = sim::load_model(model_text);
  return sim::lower(model, sim::parse_strategy(strategy, model));
}

template <class Error>
std::string message(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

/// The memory is what the Program and its transport say, to the byte.
void expect_right_memory(const sim::Program& program, const RunResult& result) {
  constexpr std::int64_t kLosses = 1024;  // scalars that the record of a step keeps
  const sim::Transport transport =
      std::getenv("RANK") != nullptr ? sim::Transport::notify : sim::Transport::none;  // gloo, local
  ASSERT_EQ(result.memory.size(), program.ranks());
  const auto places = program.places();
  for (std::uint32_t r = 0; r < program.ranks(); ++r) {
    const sim::Role& role = program.roles[places[r].role];
    const std::vector<sim::Staging> staging = staging_of(program, role, transport);
    const std::int64_t expected = sim::peak_memory(role, staging).peak_bytes;
    EXPECT_GE(result.memory[r].peak_bytes, expected) << "rank " << r;
    EXPECT_LE(result.memory[r].peak_bytes, expected + kLosses) << "rank " << r;
    EXPECT_GE(result.memory[r].resident_peak_bytes, expected) << "rank " << r;
    EXPECT_GE(result.memory[r].allocator_peak_bytes, expected) << "rank " << r;
    if (!result.verified.empty()) continue;  // verifying keeps copies of the gradients
    // The same with the ops' workspace, nothing more: what is freed is free, in later steps, too.
    std::vector<double> workspace(program.works.size());
    for (std::uint32_t i = 0; i < role.size(); ++i)
      if (is_computed(role.kind[i]))
        workspace[role.work[i]] = std::max(workspace[role.work[i]], static_cast<double>(result.workspace_bytes[r][i]));
    EXPECT_LE(result.memory[r].allocator_peak_bytes, sim::peak_with_workspace(role, workspace, staging) + kLosses)
        << "rank " << r;
  }
}

/// The numbers are right, the memory, too, the times add up (merge calls sim::check).
void expect_right(const sim::Program& program, const RunResult& result, std::uint32_t steps) {
  ASSERT_EQ(result.steps.size(), steps);
  expect_right_memory(program, result);
  for (const VerifiedTensor& tensor : result.verified) EXPECT_LE(tensor.relative_error, 1e-9) << tensor.name;
}

/// Imported ops, a tied weight, a frozen table, a second input, dropout.
const std::string kTokens = PARAGAUGE_TESTS_DIR "/models/token_toy.json,dtype=f64";

/// Two transformer blocks whose heads and features can be cut: packed queries, keys and values, a tied embedding, 7 tokens
/// that two ranks don't divide. And a block with an embedding and a head of its own. Not by AdamW: a key's bias has no
/// gradient but rounding, and Adam divides that by 1e-8 (2e-9 of a tensor in every third run).
const std::string kGpt = PARAGAUGE_TESTS_DIR "/models/gpt_toy.json,dtype=f64,optimizer=sgd:lr=0.1";
const std::string kLlama = PARAGAUGE_TESTS_DIR "/models/llama_toy.json,dtype=f64,optimizer=sgd:lr=0.1";

/// Detached branches, a parameter that is also read where nothing is differentiated, complex numbers.
const std::string kQuantised = PARAGAUGE_TESTS_DIR "/models/quantised_toy.json,dtype=f64";

/// A loss of its own, for which samples are compared with each other: each rank has its own, as in PyTorch.
const std::string kContrast = PARAGAUGE_TESTS_DIR "/models/contrast_toy.json,dtype=f64";

/// ResNet-18 with an eighth of its channels: what it takes to play the real one is copying 90 MB per rank again and again.
const std::string kSynced = PARAGAUGE_TESTS_DIR "/models/synced_toy.json,dtype=f64";
const std::string kResNet = PARAGAUGE_TESTS_DIR "/models/resnet_toy.json,dtype=f64";

/// Backwards that aren't the derivative of their forwards.
const std::string kOwn = PARAGAUGE_TESTS_DIR "/models/own_toy.json,dtype=f64";

/// A number that each part has of its own samples, behind layers that are cut in other ways.
const std::string kMean = PARAGAUGE_TESTS_DIR "/models/mean_toy.json,dtype=f64";

const std::vector<std::pair<std::string, std::string>> kCases = {
    {kOwn, "single"},
    {kOwn, "ddp"},
    {kOwn, "zero3"},
    {kOwn, "model_parallel"},
    {kMean, "hypar,levels=2,layers=dp"},
    {kMean, "hypar,levels=2,layers=in+dp"},
    {kContrast, "single"},
    {kContrast, "ddp,dp=2,microbatches=2"},
    {kContrast, "zero3,dp=2,recompute=full"},
    {kContrast, "tp,microbatches=3"},
    {kContrast, "1f1b,pp=2,microbatches=4"},
    {kContrast + ",precision=bf16", "zero2,dp=2"},
    {kContrast, "tp,sp=1,microbatches=3"},
    {kQuantised, "single"},
    {kQuantised, "ddp,dp=2,recompute=full"},
    {kQuantised, "zero3,dp=2,microbatches=2"},
    {kQuantised, "heat,dp=2"},
    {kQuantised + ",precision=bf16", "fsdp,dp=2"},
    {kQuantised, "zero_bubble,pp=2,microbatches=4,cut=randn_like"},
    {kQuantised, "1f1b,pp=2,microbatches=4,cut=randn_like"},
    {kGpt, "tp"},
    {kGpt, "tp,microbatches=2"},
    {kGpt + ",max_grad_norm=0.1", "tp,recompute=block"},
    {kLlama, "tp"},
    {kGpt, "tp,sp=1"},
    {kGpt, "tp,sp=1,microbatches=2,recompute=block"},
    {kGpt, "tp,microbatches=2,recompute=block:2"},
    {kGpt + ",max_grad_norm=0.1,timing=epoch", "tp,sp=1"},
    {kLlama, "tp,sp=1,microbatches=4"},
    {kGpt, "tp,sp=1,microbatches=8"},
    {kGpt + ",precision=bf16", "tp,sp=1,microbatches=8"},
    {kLlama + ",timing=epoch", "tp"},
    {kTokens, "single"},
    {kTokens, "ddp,dp=2"},
    {kTokens, "ddp,dp=2,microbatches=2,accumulate=every"},
    {kTokens, "data_parallel,dp=2"},
    {kTokens, "zero1,dp=2"},
    {kTokens, "zero3,dp=2,microbatches=2"},
    {kTokens, "fsdp,dp=2"},
    {kTokens, "heat,dp=2"},
    {kTokens, "1f1b,pp=2,microbatches=4"},
    {kTokens, "zero_bubble,pp=2,microbatches=4"},
    {kTokens, "interleaved,pp=2,microbatches=4"},
    {kTokens, "ddp,dp=2,recompute=full"},
    {kTokens + ",max_grad_norm=0.1", "zero3,dp=2"},
    {kTokens + ",precision=bf16", "zero3,dp=2"},
    {kTokens + ",precision=fp16", "ddp,dp=2"},
    {"toy_mlp,dtype=f64", "single"},
    {"toy_mlp,dtype=f64", "ddp_blocking,dp=2"},
    {"convnet,dtype=f64,global_batch=8,optimizer=adam", "ddp,microbatches=2,accumulate=every,bucket_MiB=0.1"},
    {"toy_mlp,dtype=f64,global_batch=8", "ddp_blocking,microbatches=4,accumulate=every"},
    {"convnet,dtype=f64,global_batch=8", "ddp_blocking,dp=2"},
    {"convnet,dtype=f64,global_batch=8", "single,threads=2"},
    {kResNet, "single,threads=2"},
    {"toy_mlp,dtype=f64,global_batch=8,optimizer=adam", "heat"},
    {"convnet,dtype=f64,global_batch=8", "heat"},
    {"convnet,dtype=f64,global_batch=8,timing=tutorial", "heat"},
    {"convnet,dtype=f64,global_batch=8,timing=epoch", "heat"},
    {"convnet,dtype=f64,global_batch=8", "heat_blocking"},
    {"convnet,dtype=f64,global_batch=8,loss=mse_loss,timing=tutorial", "pipeline,pp=2,microbatches=4,bodies=3"},
    {"toy_mlp,dtype=f64,global_batch=8,optimizer=adam", "zero3,bodies=2"},
    {"convnet,dtype=f64,global_batch=8,memory_format=channels_last", "pipeline,pp=2,microbatches=4"},
    {"convnet,dtype=f64,global_batch=8,memory_format=channels_last", "hypar,layers=dp+out+in+dp+dp"},
    {"convnet,dtype=f64,global_batch=8", "model_parallel,pp=2"},
    {"convnet,dtype=f64,global_batch=8", "pipeline,pp=2,microbatches=4"},
    {"convnet,dtype=f64,global_batch=8", "zero_bubble"},
    {"convnet,dtype=f64,global_batch=8", "pipeline,schedule=1f1b_split"},
    {"toy_mlp,dtype=f64,global_batch=8,optimizer=adam", "zbv"},
    // Of 32×32 pixels one would be left, and a microbatch's batch norm of two numbers makes 1e-3 of a rounding error.
    {kResNet + ",image=33", "interleaved,chunks=3"},
    {kResNet + ",memory_format=channels_last", "zbv,microbatches=2"},
    {kResNet + ",memory_format=channels_last", "pipeline,pp=2,microbatches=2"},
    {"resnet18,image=32,dtype=f64,global_batch=8,memory_format=channels_last,optimizer=sgd:lr=0.01:momentum=0.9",
     "ddp_blocking,dp=2"},
    {"unet,dtype=f64,global_batch=2,memory_format=channels_last", "ddp,dp=2"},
    {"unet,dtype=f64,global_batch=2,memory_format=channels_last", "pipeline,pp=2,microbatches=2"},
    {"convnet,dtype=f64,global_batch=8,timing=tutorial", "ddp_blocking,dp=2"},
    {"convnet,dtype=f64,global_batch=8,loss=mse_loss,timing=tutorial", "pipeline,pp=2,microbatches=4"},
    {"convnet,dtype=f64,global_batch=8,timing=epoch", "pipeline,pp=2,microbatches=2,schedule=forward_only"},
    {"toy_mlp,dtype=f64,global_batch=9", "data_parallel,dp=2"},
    {kResNet, "data_parallel,dp=2"},
    {"convnet,dtype=f64,global_batch=8", "hypar,layers=in+dp+out+dp+in"},
    {"convnet,dtype=f64,global_batch=8", "hypar,layers=in+dp+out+dp+in,microbatches=2,recompute=block"},
    {"convnet,dtype=f64,global_batch=8", "hypar,layers=dp+in+out+dp+dp,microbatches=2"},
    {"convnet,dtype=f64,global_batch=9", "hypar,layers=in+dp+dp+dp+dp,form=rooted,split_size=3"},
    {kResNet, "hypar,layers=dp,microbatches=2"},
    {"convnet,dtype=f64,global_batch=8", "tp"},
    {"toy_mlp,dtype=f64,global_batch=8", "tp,microbatches=4"},
    {"toy_mlp,dtype=f64,global_batch=8,optimizer=adam", "zero1"},
    {"convnet,dtype=f64,global_batch=8", "zero2,units=0.1MiB,microbatches=2"},
    {"convnet,dtype=f64,global_batch=8", "zero3,microbatches=2"},
    {kResNet + ",memory_format=channels_last", "zero3,units=layer,prefetch=2"},
    {"resnet18,image=32,dtype=f64,global_batch=8,optimizer=adam", "fsdp"},
    {kResNet + ",memory_format=channels_last", "fsdp,units=layer,prefetch=2"},
    {kResNet, "deepspeed_stage_3"},
    {kResNet, "hypar,layers=dp"},
    {kSynced, "ddp"},
    {kSynced, "zero3,microbatches=2"},
    {kSynced + ",memory_format=channels_last", "heat"},
    {kSynced, "hypar,layers=dp"},
};

/// One session executes all programs after each other, also those for fewer ranks than it has.
void execute_all(Session& session) {
  for (const auto& [model, strategy] : kCases) {
    SCOPED_TRACE(model + " " + strategy);
    const sim::Program program = lowered(model, strategy);
    if (program.threads > sim::usable_cores()) continue;
    const RunResult result =
        session.run({.program = program, .warmup_steps = 1, .steps = 2, .seed = 3, .verify = true});
    expect_right(program, result, 2);
    expect_right(program, session.run({.program = program, .steps = 2}), 2);
    EXPECT_FALSE(result.verified.empty());
    if (model.find("tutorial") == std::string::npos) {  // else every step has other data
      EXPECT_LT(result.steps[1].loss, result.steps[0].loss);
    }
  }
}

TEST(LocalSessionRanks, EveryStrategyIsRight) { execute_all(*open_session({.ranks = 2})); }

/// 3 and 4 ranks, also with parts of other sizes.
void execute_with_many(Session& session) {
  const std::filesystem::path tables = std::filesystem::path(::testing::TempDir()) / "llama_with_tables.json";
  sim::write_text_file(tables, sim::testing::llama_with_tables());
  const std::vector<std::pair<std::string, std::vector<std::string>>> imported{
      // A tied weight: its two stages' gradients are summed over the replicas, too.
      {kTokens,
       {"mesh,pp=2,dp=2,microbatches=2", "mesh,pp=2,dp=2,microbatches=2,schedule=1f1b,overlap=1",
        "mesh,pp=3,microbatches=2", "mesh,dp=4,zero=3"}},
      {kGpt,
       {"mesh,tp=4", "mesh,dp=2,tp=2,zero=1", "mesh,dp=2,tp=2,zero=3,microbatches=2", "mesh,dp=4,zero=3,flat=0",
        "mesh,dp=2,tp=2,zero=3,flat=0", "mesh,pp=2,tp=2,microbatches=2,schedule=1f1b", "mesh,dp=2,tp=2,order=pp-tp-dp",
        "mesh,tp=4,sp=1", "mesh,dp=2,tp=2,sp=1,microbatches=2", "mesh,pp=2,tp=2,sp=1,microbatches=2,schedule=1f1b",
        "mesh,dp=2,tp=2,sp=1,zero=3", "mesh,tp=4,sp=1,microbatches=4", "mesh,dp=2,tp=2,sp=1,zero=1,microbatches=4",
        "mesh,dp=2,tp=2,sp=1,order=pp-tp-dp,microbatches=4", "mesh,pp=2,tp=2,sp=1,microbatches=8,schedule=1f1b"}},
      {kGpt + ",timing=epoch", {"mesh,pp=2,tp=2,sp=1,microbatches=2,schedule=forward_only"}},
      // The statistics of all replicas' samples, whichever rank has them.
      {kSynced,
       {"mesh,pp=2,dp=2,microbatches=2,cut=relu1", "hsdp,replicas=2,shard=2", "ddp,dp=4,microbatches=2,overlap=1",
        "mesh,dp=2,tp=2"}},
      {kSynced + ",global_batch=12", {"ddp,dp=3"}},
      {tables.string() + ",dtype=f64,optimizer=sgd:lr=0.1",
       {"mesh,dp=2,pp=2,microbatches=2,cut=layers.0.self_attn.add,schedule=1f1b"}},
      {kLlama,
       {"mesh,dp=2,tp=2,zero=3", "mesh,pp=2,tp=2,microbatches=4,schedule=zb_h1", "mesh,dp=2,tp=2,sp=1,zero=3,flat=0",
        "mesh,pp=2,tp=2,sp=1,microbatches=4,schedule=interleaved"}}};
  for (const auto& [model, strategies] : imported)
    for (const std::string& strategy : strategies) {
      SCOPED_TRACE(strategy);
      const sim::Program program = lowered(model, strategy);
      expect_right(program, session.run({.program = program, .steps = 1, .verify = true}), 1);
    }
  for (const char* strategy : {"ddp_blocking,dp=4",
                               "pipeline,pp=4,microbatches=4",
                               "pipeline,pp=3,microbatches=8,schedule=interleaved_zb",
                               "interleaved,pp=4",
                               "zbv,pp=4,microbatches=8",
                               "mesh,dp=2,pp=2,microbatches=2,schedule=zbv,zero=1",
                               "mesh,dp=2,pp=2,microbatches=2,schedule=zb_h1,zero=3",
                               "mesh,pp=2,tp=2,microbatches=4,schedule=interleaved",
                               "mesh,dp=2,pp=2,microbatches=2,schedule=interleaved,accumulate=every",
                               "mesh,dp=2,pp=2,microbatches=4,schedule=zb_h1,accumulate=every",
                               "data_parallel,dp=4",
                               "data_parallel,dp=3",
                               "heat,dp=4",
                               "daso",
                               "daso,skips=2,chunk=10000",
                               "daso,skips=4,wait=2,local_skips=2",
                               "daso,skips=0",
                               "mesh,dp=2,tp=2",
                               "mesh,dp=2,tp=2,order=pp-tp-dp,microbatches=2",
                               "mesh,pp=2,tp=2,microbatches=2,schedule=1f1b",
                               "hypar,levels=2x2,layers=dp/in+dp+out+dp+in",
                               "hypar,levels=2x2,layers=dp/in+dp+out+dp+in,microbatches=2",
                               "hypar,levels=3,layers=in",
                               "zero1,dp=4",
                               "zero2,dp=4,units=layer",
                               "zero3,dp=4",
                               "fsdp,dp=4,microbatches=2",
                               "hsdp",
                               "deepspeed_stage_1,dp=4",
                               "deepspeed_stage_2,dp=4,microbatches=2",
                               "deepspeed_stage_3,dp=4",
                               "mesh,dp=2,pp=2,microbatches=2,zero=1",
                               "mesh,dp=2,pp=2,microbatches=2,schedule=1f1b,zero=3",
                               "mesh,dp=2,tp=2,zero=2",
                               "mesh,dp=2,tp=2,zero=3,flat=0",
                               "mesh,replicas=2,shard=2,zero=3,units=all",
                               "mesh,dp=2,tp=2,zero=3,order=tp-dp-pp,microbatches=2",
                               "hypar,levels=3,layers=in,form=rooted"}) {
    SCOPED_TRACE(strategy);
    const sim::Program program = lowered("convnet,dtype=f64,global_batch=8", strategy);
    expect_right(program, session.run({.program = program, .steps = 2, .verify = true}), 2);
    expect_right(program, session.run({.program = program, .steps = 2}), 2);
  }
  {
    // Batch norm's statistics are a node's, as DDP shares them there.
    const sim::Program program = lowered(kResNet + ",image=64", "daso,skips=2");
    expect_right(program, session.run({.program = program, .steps = 1, .verify = true}), 1);
  }
  for (const char* strategy :
       {"ddp,dp=3", "heat,dp=3", "zero1,dp=3", "zero2,dp=3,microbatches=2", "zero3,dp=3,units=layer", "fsdp,dp=3",
        "deepspeed_stage_1,dp=3"}) {  // three don't divide the parameters
    SCOPED_TRACE(strategy);
    const sim::Program program = lowered("toy_mlp,dtype=f64,global_batch=12,optimizer=adam", strategy);
    expect_right(program, session.run({.program = program, .steps = 2, .verify = true}), 2);
    expect_right(program, session.run({.program = program, .steps = 2}), 2);
  }
}
/// Each preset by its name, without further keys.
void execute_presets(Session& session, const std::vector<std::string>& models) {
  for (const std::string& model_text : models) {
    const sim::Model model = sim::load_model(model_text + ",dtype=f64,global_batch=8");
    for (const sim::StrategyKind& kind : sim::strategy_table()) {
      SCOPED_TRACE(model_text + " " + std::string(kind.name));
      const bool is_refused = model.max_grad_norm > 0 && (kind.name == "heat" || kind.name == "daso");
      if (is_refused) {
        EXPECT_THROW(sim::lower(model, sim::parse_strategy(kind.name, model)), sim::ConfigError);
        continue;
      }
      const sim::Program program = sim::lower(model, sim::parse_strategy(kind.name, model));
      expect_right(program, session.run({.program = program, .steps = 1, .verify = true}), 1);
    }
  }
}
/// The last one: the loss is scaled, and gradients longer than that are shortened.
const std::vector<std::string> kModelsOfPresets{"toy_mlp", "convnet", "toy_mlp,precision=fp16,max_grad_norm=0.05"};
TEST(LocalSessionRanks, EveryPresetIsRight) { execute_presets(*open_session({.ranks = 4}), kModelsOfPresets); }

/// The memory is right in half precision, too, and the losses are f32's, nearly.
void execute_in_half_precision(Session& session) {
  const RunResult in_full =
      session.run({.program = lowered("toy_mlp,global_batch=8,optimizer=adam", "single"), .steps = 2});
  for (const char* strategy : {"single", "ddp,dp=2", "pipeline,pp=2,split_size=4", "zero3,dp=2", "mesh,dp=2,tp=2",
                               "zero1,dp=2,param_dtype=half", "zero3,dp=2,param_dtype=half,reduce_dtype=f32",
                               "fsdp,dp=2,param_dtype=half", "deepspeed_stage_2,dp=2", "deepspeed_stage_3,dp=2"})
    for (const char* precision : {"bf16", "fp16"}) {
      SCOPED_TRACE(std::string(strategy) + " " + precision);
      const sim::Program program =
          lowered(fmt::format("toy_mlp,global_batch=8,precision={},optimizer=adam", precision), strategy);
      const RunResult result = session.run({.program = program, .steps = 2});
      expect_right(program, result, 2);
      for (std::size_t s = 0; s < 2; ++s) EXPECT_NEAR(result.steps[s].loss / in_full.steps[s].loss, 1, 0.02);
    }
}
/// Transformers whose parameters are in half precision themselves: as far as float64 can tell they are one device's, and in
/// half precision what lives is what the forecast says.
TEST(LocalSessionRanks, PlayImportedOpsWithHalfParameters) {
  const auto session = open_session({.ranks = 4});
  for (const char* toy : {"gpt_toy", "llama_toy"}) {
    const std::string model = fmt::format(PARAGAUGE_TESTS_DIR "/models/{}.json", toy);
    for (const char* strategy :
         {"zero1,dp=2,param_dtype=half", "zero2,dp=2,microbatches=2,param_dtype=half", "fsdp,dp=2,param_dtype=half",
          "zero3,dp=2,param_dtype=half,reduce_dtype=f32", "mesh,dp=2,tp=2,zero=3,param_dtype=half",
          "mesh,dp=2,tp=2,sp=1,zero=1,param_dtype=half", "deepspeed_stage_3,dp=2"}) {
      SCOPED_TRACE(std::string(toy) + " " + strategy);
      for (const char* samples : {"8", "2"}) {  // 2: sp=1 cuts positions
        if (std::string_view(strategy).find("microbatches") != std::string_view::npos && *samples == '2') continue;
        const sim::Program exact =
            lowered(fmt::format("{},dtype=f64,precision=bf16,global_batch={}", model, samples), strategy);
        expect_right(exact, session->run({.program = exact, .steps = 1, .verify = true}), 1);
      }
      const RunResult in_full = session->run({.program = lowered(model, "single"), .steps = 2});
      for (const char* precision : {"bf16", "fp16"}) {
        SCOPED_TRACE(precision);
        const sim::Program program = lowered(fmt::format("{},precision={}", model, precision), strategy);
        const RunResult result = session->run({.program = program, .steps = 2});
        expect_right(program, result, 2);
        for (std::size_t s = 0; s < 2; ++s) EXPECT_NEAR(result.steps[s].loss / in_full.steps[s].loss, 1, 0.02);
      }
    }
  }
}
/// Of imported ops, too: what lives is what the forecast says, in every byte, and the loss is f32's, nearly. Verified runs
/// leave nothing to chance, which dropout would make of it.
TEST(LocalSessionRanks, PlayImportedOpsInHalfPrecision) {
  const auto session = open_session({.ranks = 2});
  const std::string tokens = PARAGAUGE_TESTS_DIR "/models/token_toy.json";
  for (const char* strategy :
       {"single", "single,microbatches=2", "ddp,dp=2", "1f1b,pp=2,microbatches=4", "zero3,dp=2"}) {
    const RunResult in_full = session->run({.program = lowered(tokens, strategy), .steps = 2, .verify = true});
    for (const char* precision : {"bf16", "fp16"}) {
      if (std::string_view(precision) == "fp16" && std::string_view(strategy).starts_with("1f1b"))
        continue;  // a tied weight and a loss scale: refused
      SCOPED_TRACE(std::string(strategy) + " " + precision);
      const sim::Program program = lowered(fmt::format("{},precision={}", tokens, precision), strategy);
      const RunResult result = session->run({.program = program, .steps = 2, .verify = true});
      ASSERT_EQ(result.steps.size(), 2U);
      expect_right_memory(program, result);
      for (std::size_t s = 0; s < 2; ++s) EXPECT_NEAR(result.steps[s].loss / in_full.steps[s].loss, 1, 0.02);
    }
  }
}
TEST(LocalSessionRanks, PlayInHalfPrecision) { execute_in_half_precision(*open_session({.ranks = 4})); }

/// The same kernels on the same inputs.
TEST(LocalSessionRanks, WhatIsComputedAgainIsEqualInEveryBit) {
  const auto session = open_session({.ranks = 2});
  const auto losses = [&](const std::string& model, const std::string& strategy) {
    const sim::Program program = lowered(model, strategy);
    const RunResult result = session->run({.program = program, .steps = 3});
    expect_right(program, result, 3);
    std::vector<double> all;
    for (const auto& step : result.steps) all.push_back(step.loss);
    return all;
  };
  for (const char* strategy : {"single,microbatches=2", "ddp,dp=2", "zero3,dp=2", "pipeline,pp=2,microbatches=4",
                               "zero_bubble,pp=2", "tp,tp=2"})
    for (const char* recompute : {"selective", "block", "full"}) {
      SCOPED_TRACE(std::string(strategy) + " " + recompute);
      const std::string again = std::string(strategy) + ",recompute=" + recompute;
      for (const char* model : {"convnet,global_batch=16", "convnet,global_batch=16,precision=bf16"})
        EXPECT_EQ(losses(model, again), losses(model, strategy));
    }
  const std::string resnet = "resnet18,image=32,global_batch=4";
  EXPECT_EQ(losses(resnet, "ddp,dp=2,recompute=selective"), losses(resnet, "ddp,dp=2"));
}

/// Weights that are kept in f32, and travel in half precision, as far as float64 can tell.
void execute_half_parameters(Session& session) {
  for (const char* strategy :
       {"zero1,dp=2", "zero2,dp=2,microbatches=2", "zero3,dp=3,units=layer", "fsdp,dp=2", "hsdp",
        "mesh,dp=2,tp=2,zero=3", "mesh,dp=2,pp=2,zero=1,microbatches=2", "zero3,dp=2,microbatches=2,reduce_dtype=f32",
        "deepspeed_stage_1,dp=2", "deepspeed_stage_2,dp=2", "deepspeed_stage_3,dp=2"}) {
    SCOPED_TRACE(strategy);
    const bool is_deepspeed = std::string_view(strategy).starts_with("deepspeed");
    const sim::Program program =
        lowered("convnet,dtype=f64,precision=fp16,max_grad_norm=0.1,global_batch=12,optimizer=adam",
                std::string(strategy) + (is_deepspeed ? "" : ",param_dtype=half"));
    expect_right(program, session.run({.program = program, .steps = 1, .verify = true}), 1);
  }
}
TEST(LocalSessionRanks, HalfParametersAreRight) { execute_half_parameters(*open_session({.ranks = 4})); }

/// A loss scale whose gradients overflow f16: nothing is updated, on no rank, until it is small enough.
TEST(LocalSessionRanks, InfiniteGradientsUpdateNothing) {
  const auto session = open_session({.ranks = 2});
  for (const char* strategy : {"single", "ddp,dp=2", "model_parallel,pp=2", "zero3,dp=2", "tp,tp=2"}) {
    SCOPED_TRACE(strategy);
    // 2^27 times gradients of a thousandth are beyond 65504; four steps later they are not.
    const sim::Program program =
        lowered("toy_mlp,global_batch=8,precision=fp16,loss_scale=134217728,optimizer=sgd:lr=0.1", strategy);
    const RunResult result = session->run({.program = program, .warmup_steps = 0, .steps = 16});
    ASSERT_EQ(result.steps.size(), 16U);
    EXPECT_EQ(result.steps[0].loss, result.steps[1].loss);
    EXPECT_EQ(result.steps[1].loss, result.steps[2].loss);
    EXPECT_LT(result.steps[15].loss, result.steps[14].loss);
    EXPECT_LT(result.steps[15].loss, result.steps[2].loss);
  }
}

TEST(LocalSessionRanks, MoreRanksThanCores) { execute_with_many(*open_session({.ranks = 4})); }

/// R3's two convolutions: every choice for both on 2, 3 and 4 ranks and on nested levels of two, in both forms. What the ranks
/// have is one device's to the rounding of the numbers' type.
void execute_hypar(Session& session) {
  struct Levels {
    std::string levels;
    std::vector<std::string> layers;
  };
  std::vector<std::string> pairs, nested;
  for (const std::string first : {"dp", "in", "out"})
    for (const std::string second : {"dp", "in", "out"}) pairs.push_back(first + "+" + second);
  for (const std::string outer : {"dp+in", "in+dp", "in+in"})
    for (const std::string inner : {"dp+dp", "dp+in", "in+out"}) nested.push_back(outer + "/" + inner);
  for (const Levels& levels : {Levels{"2", pairs}, Levels{"3", pairs}, Levels{"4", pairs}, Levels{"2x2", nested}})
    for (const std::string& layers : levels.layers)
      for (const std::string form : {"derived", "rooted"})
        for (const auto& [dtype, most] : {std::pair("f64", 1e-12), std::pair("f32", 1e-6)}) {
          const std::string strategy = fmt::format("hypar,levels={},layers={},form={}", levels.levels, layers, form);
          SCOPED_TRACE(strategy + " " + dtype);
          const sim::Program program = lowered(fmt::format("hypar_pair,dtype={}", dtype), strategy);
          const RunResult result = session.run({.program = program, .warmup_steps = 0, .steps = 2, .verify = true});
          expect_right_memory(program, result);
          EXPECT_GT(result.verified.size(), 8U);
          for (const VerifiedTensor& tensor : result.verified) EXPECT_LE(tensor.relative_error, most) << tensor.name;
        }
}
TEST(LocalSessionRanks, HyParsPairIsRightInEveryCombination) { execute_hypar(*open_session({.ranks = 4})); }

TEST(LocalSessionRanks, CopiesAreReplicasThatExchangeNothing) {
  const auto session = open_session({.ranks = 3});
  sim::Program three = lowered("toy_mlp,global_batch=20", "single");
  three.roles[0].ranks = {0, 1, 2};
  three.mesh.axes = {{"copy", 3}};
  three.rows = {sim::shard(0)};
  three.global_batch = 60;
  for (sim::Tensor& tensor : three.roles[0].tensors)
    if (tensor.name == "input" || tensor.name == "target") {
      tensor.whole = tensor.spec.shape;
      tensor.whole[0] = 60;
      tensor.on = {sim::shard(0)};
    }
  const RunResult copies = session->run({.program = three, .warmup_steps = 0});
  const RunResult replicas =
      session->run({.program = lowered("toy_mlp,global_batch=60", "ddp_blocking,dp=3"), .warmup_steps = 0});
  EXPECT_EQ(copies.steps[0].loss, replicas.steps[0].loss) << "each with a batch of its own";
  EXPECT_EQ(copies.steps[0].timeline.ranks.size(), 3U);
  EXPECT_EQ(copies.memory.size(), 3U);
}

/// A rank alone, and all at once, where it is asked for.
void probe_speeds(Session& session) {
  for (const std::uint32_t ranks : {1U, 2U}) {
    RunRequest request{.program = ranks == 1 ? lowered("toy_mlp,global_batch=20", "single") : chain(256, 4)};
    EXPECT_FALSE(session.run(request).speed);
    request.probe_speed = true;
    const std::optional<sim::MachineSpeed> speed = session.run(request).speed;
    ASSERT_TRUE(speed);
    EXPECT_GT(speed->compute_s, 1e-5);
    EXPECT_GT(speed->memory_alone_s, 1e-4) << "32 MiB at 300 GB/s";
    EXPECT_GT(speed->memory_together_s, 1e-4);
    if (ranks == 1) {
      EXPECT_EQ(speed->memory_alone_s, speed->memory_together_s);
      EXPECT_EQ(speed->core_to_core_s, 0) << "nobody to get there";
    } else if (sim::usable_cores() > 1) {
      EXPECT_GT(speed->core_to_core_s, 1e-8);
      EXPECT_LT(speed->core_to_core_s, 1e-4);
    }
    EXPECT_LE(speed->change, 2);
  }
}

TEST(LocalSessionRanks, ProbeHowFastTheMachineIs) { probe_speeds(*open_session({.ranks = 2})); }

TEST(LocalSessionRanksTimes, ATransferIsReadyWhenBothHavePosted) {
  const sim::Program program = chain(256, 40);
  const RunResult result = open_session({.ranks = 2})->run({.program = program});
  const sim::RankTimeline &sender = result.steps[0].timeline.ranks[0], &receiver = result.steps[0].timeline.ranks[1];
  EXPECT_LT(receiver.posted_s[0], sender.end_s[20]) << "posted while the sender still computes";
  EXPECT_GE(receiver.start_s[0], sender.end_s[39]) << "ready once the sender has computed";
  EXPECT_GT(receiver.bubble_s, 0.8 * sender.compute_s);
  EXPECT_LT(receiver.exposed_communication_s, 0.2 * sender.compute_s);
}

TEST(LocalSession, TellsWhatIsWrong) {
  EXPECT_EQ(message<sim::ConfigError>([] { open_session({.world = "mpi"}); }),
            "unknown world 'mpi'; known: local, gloo, nccl");
  EXPECT_EQ(message<sim::ConfigError>([] { open_session({.device = "tpu"}); }),
            "unknown device 'tpu'; known: cpu, cuda, privateuseone; did you mean 'cpu'?");
  EXPECT_EQ(message<sim::ConfigError>([] { open_session({.world = "gloo"}); }),
            "world 'gloo': RANK isn't set; start the ranks with torchrun, srun or mpirun, or let paragauge spawn them");
  const auto session = open_session({.ranks = 2});
  EXPECT_EQ(message<sim::ConfigError>(
                [&] { session->run({.program = lowered("convnet,global_batch=8", "ddp_blocking,dp=4")}); }),
            "the program needs 4 ranks, the session has 2");
  EXPECT_EQ(message<sim::ConfigError>([&] { session->run({.program = lowered("toy_mlp", "ddp,dp=2,threads=1024")}); }),
            fmt::format("2 ranks of 1024 threads need 2048 cores; this machine has {}", sim::usable_cores()));
  sim::Program periodic = lowered("toy_mlp", "ddp_blocking,dp=2");
  for (sim::Role& role : periodic.roles) role.body_begin = role.size();
  EXPECT_EQ(message<sim::ConfigError>([&] { session->run({.program = periodic}); }),
            "steps that reach into each other (prologue, body, epilogue) are played as one list: sim::unroll");
}

TEST(Session, TimeoutsAreBetweenAMillisecondAndAWeek) {
  for (const char* world : {"local", "gloo"})
    for (const auto& [timeout_s, text] : {std::pair{std::numeric_limits<double>::infinity(), "inf"},
                                          {std::numeric_limits<double>::quiet_NaN(), "nan"},
                                          {1e300, "1e+300"},
                                          {0, "0"},
                                          {604801, "604801"}})
      EXPECT_EQ(message<sim::ConfigError>([&] { open_session({.world = world, .timeout_s = timeout_s}); }),
                fmt::format("timeout_s={} must be at least 0.001 and at most 604800 (a week)", text));
  EXPECT_EQ(message<sim::ConfigError>([] { spawn_ranks({"true"}, 1, 1e300); }),
            "timeout_s=1e+300 must be at least 0.001 and at most 604800 (a week)");
}

TEST(LocalSessionRanks, AFailureNamesRankAndInstruction) {
  sim::Program program = chain(8, 2);
  program.works[0].op.inputs[0].shape = {8, 8};
  program.roles[0].tensors[2].spec.shape = {4, 16};  // what the first layer writes isn't that
  const auto session = open_session({.ranks = 2});
  EXPECT_EQ(message<sim::RunError>([&] { session->run({.program = program}); }),
            "rank 0, instruction 0 (compute forward): internal error: 'value0' was written as Float[8,8] (strides "
            "8,1), the Program "
            "says f32[4,16]");
  EXPECT_EQ(message<sim::RunError>([&] { session->run({.program = program}); }),
            "the session has failed before; open a new one");
}

/// One layer of 1.6 TFLOP takes many seconds; rank 1 gives up waiting long before.
TEST(LocalSessionRanks, AHungThreadEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(open_session({.ranks = 2, .timeout_s = 0.3})->run({.program = chain(9216, 1)}),
              testing::ExitedWithCode(sim::kRunErrorStatus),
              "^paragauge: rank 0 hangs \\(no progress for 2.3 s\\) in instruction 0: compute forward\n$");
}

TEST(CudaSession, EveryStrategyAndReplayIsRight) {
  std::unique_ptr<Session> session;
  try {
    session = open_session({.ranks = 2, .device = "cuda"});
  } catch (const sim::ConfigError& error) {
    GTEST_SKIP() << error.what();
  }
  for (const auto& [model, strategy] : kCases) {
    const sim::Program program = lowered(model, strategy);
    const bool is_captured = program.ranks() == 1 && sim::load_model(model).timing == sim::Timing::step;
    for (const bool graph : std::set{false, is_captured}) {
      SCOPED_TRACE(fmt::format("{} {}{}", model, strategy, graph ? " replayed" : ""));
      const RunResult result =
          session->run({.program = program, .warmup_steps = 2, .steps = 2, .seed = 3, .verify = true, .graph = graph});
      for (const VerifiedTensor& tensor : result.verified) EXPECT_LE(tensor.relative_error, 1e-9) << tensor.name;
    }
  }
}

// What calibration relies on: events around an op that was issued long before enclose nothing of the host's time.
TEST(CudaSession, AHeldDeviceFindsItsOpsIssued) {
  std::unique_ptr<Session> session;
  try {
    session = open_session({.device = "cuda"});
  } catch (const sim::ConfigError& error) {
    GTEST_SKIP() << error.what();
  }
  const sim::Program program = lowered("resnet18,image=32,global_batch=8", "single");  // its host takes longer
  const auto issued_before = [&](std::uint32_t host_leads_every) {
    const RunResult result =
        session->run({.program = program, .warmup_steps = 3, .steps = 1, .host_leads_every = host_leads_every});
    const sim::RankTimeline& times = result.steps[0].timeline.ranks[0];
    double count = 0;
    for (std::size_t i = 0; i < times.start_s.size(); ++i) count += times.issued_s[i] <= times.start_s[i];
    return count / static_cast<double>(times.start_s.size());
  };
  EXPECT_LT(issued_before(0), 0.5);
  EXPECT_GT(issued_before(1), 0.95);
}

// ---- gloo: this program again, once per rank

int spawn(const std::string& name, std::uint32_t ranks, double timeout_s = 60) {
  return spawn_ranks({"/proc/self/exe", "--gtest_filter=" + name, "--gtest_also_run_disabled_tests", "--gtest_brief=1"},
                     ranks, timeout_s);
}

TEST(GlooSessionRanks, DISABLED_PlayAll) {
  if (const auto session = open_session({.world = "gloo", .ranks = 2})) execute_all(*session);
}
TEST(GlooSessionRanks, EveryStrategyIsRight) { EXPECT_EQ(spawn("GlooSessionRanks.DISABLED_PlayAll", 2), 0); }

TEST(GlooSessionRanks, DISABLED_PlayPresets) {
  if (const auto session = open_session({.world = "gloo", .ranks = 4})) execute_presets(*session, kModelsOfPresets);
}
TEST(GlooSessionRanks, EveryPresetIsRight) { EXPECT_EQ(spawn("GlooSessionRanks.DISABLED_PlayPresets", 4), 0); }

TEST(GlooSessionRanks, DISABLED_PlayInHalfPrecision) {
  if (const auto session = open_session({.world = "gloo", .ranks = 4})) {
    execute_in_half_precision(*session);
    execute_half_parameters(*session);
  }
}
TEST(GlooSessionRanks, HalfPrecision) { EXPECT_EQ(spawn("GlooSessionRanks.DISABLED_PlayInHalfPrecision", 4), 0); }

/// The GPT with a dropout behind its embeddings.
std::string gpt_with_dropout() {
  nlohmann::json file = nlohmann::json::parse(sim::read_text_file(PARAGAUGE_TESTS_DIR "/models/gpt_toy.json"));
  const nlohmann::json other = nlohmann::json::parse(sim::read_text_file(PARAGAUGE_TESTS_DIR "/models/token_toy.json"));
  file["bodies"]["dropout/1"] = other["bodies"]["dropout/1"];
  for (nlohmann::json& node : file["nodes"])
    for (nlohmann::json& input : node["inputs"])
      if (input == "add") input = "drop";
  const auto where = std::ranges::find_if(file["nodes"], [](const auto& node) { return node["name"] == "add"; }) + 1;
  file["nodes"].insert(where, nlohmann::json::parse(R"({"name": "drop", "op": "aten", "body": "dropout/1",
                                                        "inputs": ["add"], "parameters": []})"));
  const std::string path = ::testing::TempDir() + "gpt_with_dropout.json";
  sim::write_text_file(path, file.dump());
  return path + ",dtype=f64";
}

/// What both ranks of a cut layer have is the same in both, and the same as in one, though it is drawn.
TEST(GlooSessionRanks, DISABLED_Draw) {
  const auto session = open_session({.world = "gloo", .ranks = 2});
  if (!session) return;
  const std::string model = gpt_with_dropout();
  const auto losses = [&](const std::string& strategy, std::uint64_t seed) {
    const sim::Program program = lowered(model, strategy);
    return session->run({.program = program, .steps = 3, .seed = seed}).losses;
  };
  const std::vector<double> one = losses("single", 3), two = losses("tp", 3), again = losses("tp", 3);
  EXPECT_EQ(two, again);
  ASSERT_EQ(one.size(), two.size());
  for (std::size_t s = 0; s < one.size(); ++s) EXPECT_NEAR(two[s], one[s], 1e-12);
  EXPECT_NE(losses("tp", 4), two);
  // Where each has samples of its own in between, it draws for itself.
  const std::vector<double> parts = losses("tp,sp=1", 3);
  EXPECT_EQ(losses("tp,sp=1", 3), parts);
  EXPECT_NE(parts, two);
}

TEST(GlooSessionRanks, WhatIsDrawnIsTheSameForAll) { EXPECT_EQ(spawn("GlooSessionRanks.DISABLED_Draw", 2), 0); }

TEST(GlooSessionRanks, DISABLED_PlayWithMany) {
  if (const auto session = open_session({.world = "gloo", .ranks = 4})) execute_with_many(*session);
}
TEST(GlooSessionRanks, MoreRanksThanCores) { EXPECT_EQ(spawn("GlooSessionRanks.DISABLED_PlayWithMany", 4), 0); }

TEST(GlooSessionRanks, DISABLED_Probe) {
  if (const auto session = open_session({.world = "gloo", .ranks = 2})) probe_speeds(*session);
}
TEST(GlooSessionRanks, ProbeHowFastTheMachineIs) { EXPECT_EQ(spawn("GlooSessionRanks.DISABLED_Probe", 2), 0); }

TEST(GlooSessionRanks, DISABLED_PlayHyPar) {
  if (const auto session = open_session({.world = "gloo", .ranks = 4})) execute_hypar(*session);
}
TEST(GlooSessionRanks, HyParsPairIsRightInEveryCombination) {
  EXPECT_EQ(spawn("GlooSessionRanks.DISABLED_PlayHyPar", 4), 0);
}

TEST(GlooSessionRanks, DISABLED_PlayLong) {
  std::jthread killer;
  if (std::getenv("RANK") == std::string("1"))
    killer = std::jthread([] {
      const ProgressBoard board = ProgressBoard::join(2);
      while (board.progress(1).instruction != 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      raise(SIGKILL);
    });
  if (const auto session = open_session({.world = "gloo", .ranks = 2}))
    session->run({.program = chain(1024, 1000), .warmup_steps = 0});
}

TEST(GlooSessionRanks, AKilledRankEndsAll) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(message<sim::RunError>([] { spawn("GlooSessionRanks.DISABLED_PlayLong", 2); }),
            "rank 1 died (signal 9) in instruction 1: wait for recv from sender");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "") << "who loses the dead rank says nothing";
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a rank's process is left";
  EXPECT_EQ(errno, ECHILD);
}

/// Rank 0 computes for several seconds; rank 1 gives up waiting. The ranks also have to find each other within the
/// timeout.
TEST(GlooSessionRanks, DISABLED_WaitTooLong) {
  const auto session = open_session({.world = "gloo", .ranks = 2, .timeout_s = 1.5});
  if (session) session->run({.program = chain(6144, 2), .warmup_steps = 0});
}
TEST(GlooSessionRanksTimes, ATimeoutNamesTheRankThatComputes) {
  const std::string said = message<sim::RunError>([] { spawn("GlooSessionRanks.DISABLED_WaitTooLong", 2, 1.5); });
  EXPECT_TRUE(std::regex_match(
      said, std::regex("rank 0 hangs \\(no progress for [0-9.]+ s\\) in instruction [01]: compute forward")))
      << said;
}

/// Rank 0 gets on all the time, but not fast enough for rank 1.
TEST(GlooSessionRanks, DISABLED_WaitForMany) {
  const auto session = open_session({.world = "gloo", .ranks = 2, .timeout_s = 1.5});
  if (session) session->run({.program = chain(1024, 10000), .warmup_steps = 0});
}
TEST(GlooSessionRanksTimes, ATimeoutNamesRankAndInstruction) {
  EXPECT_EQ(message<sim::RunError>([] { spawn("GlooSessionRanks.DISABLED_WaitForMany", 2, 1.5); }),
            "rank 1, instruction 1 (wait for recv from sender): the receive from rank 0 (tag 0) failed: Timed out "
            "waiting 1500ms for recv operation to complete");
}

TEST(GlooSessionRanks, AConfigErrorOfTheRanksIsOne) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(message<sim::ConfigError>([] { spawn("GlooSessionRanks.DISABLED_WaitTooLong", 3, 60); }),
            "ranks=2 but WORLD_SIZE=3");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(GlooSessionRanks, DISABLED_PlayForEver) {
  if (const auto session = open_session({.world = "gloo", .ranks = 2}))
    session->run({.program = chain(1024, 100000), .warmup_steps = 0});
}

/// The pipe's last writer is gone only when all ranks' processes are.
TEST(GlooSessionRanks, NoRankOutlivesItsSupervisor) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t supervisor = fork();
  if (supervisor == 0) {
    close(ends[0]);
    _exit(spawn("GlooSessionRanks.DISABLED_PlayForEver", 2));
  }
  close(ends[1]);
  pollfd reading{ends[0], POLLIN, 0};
  EXPECT_EQ(poll(&reading, 1, 3000), 0) << "the ranks have ended by themselves";
  kill(supervisor, SIGKILL);
  waitpid(supervisor, nullptr, 0);
  EXPECT_EQ(poll(&reading, 1, 5000), 1) << "a rank's process is left";
  close(ends[0]);
}

TEST(GlooSession, APortInUseIsOneLine) {
  const int taken = socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_any;
  socklen_t size = sizeof address;
  ASSERT_EQ(bind(taken, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(taken, 1), 0);
  getsockname(taken, reinterpret_cast<sockaddr*>(&address), &size);
  const std::string port = std::to_string(ntohs(address.sin6_port));
  const std::vector<std::pair<const char*, std::string>> variables = {
      {"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "localhost"}, {"MASTER_PORT", port}};
  for (const auto& [name, value] : variables) setenv(name, value.c_str(), 1);
  EXPECT_EQ(message<sim::ConfigError>([] { open_session({.world = "gloo", .ranks = 2}); }), "ranks=2 but WORLD_SIZE=1");
  EXPECT_EQ(message<sim::RunError>([] { open_session({.world = "gloo", .ranks = 1}); }),
            "port " + port + " of localhost (MASTER_PORT) is in use");
  for (const auto& [name, value] : variables) unsetenv(name);
  close(taken);
}

}  // namespace
}  // namespace backend
