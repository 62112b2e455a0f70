#include "tests/backend/session/cases.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "sim/cluster/allowance.hpp"
#include "sim/error.hpp"
#include "sim/lower/lower.hpp"
#include "sim/program/memory.hpp"
#include "sim/text/file.hpp"
#include "tests/backend/chain.hpp"
#include "tests/sim/model/toys.hpp"

namespace backend {
namespace {

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

/// The last one: the loss is scaled, and gradients longer than that are shortened.
const std::vector<std::string> kModelsOfPresets{"toy_mlp", "convnet", "toy_mlp,precision=fp16,max_grad_norm=0.05"};

/// Verified, and as it is timed.
void expect_right_twice(Session& session, const sim::Program& program) {
  for (const bool verify : {true, false})
    expect_right(program, session.run({.program = program, .steps = 2, .verify = verify}), 2);
}

}  // namespace

sim::Program lowered(const std::string& model_text, const std::string& strategy) {
  const sim::Model model = sim::load_model(model_text);
  return sim::lower(model, sim::parse_strategy(strategy, model));
}

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

void expect_right(const sim::Program& program, const RunResult& result, std::uint32_t steps) {
  ASSERT_EQ(result.steps.size(), steps);
  expect_right_memory(program, result);
  for (const VerifiedTensor& tensor : result.verified) EXPECT_LE(tensor.relative_error, 1e-9) << tensor.name;
}

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
    expect_right_twice(session, program);
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
    expect_right_twice(session, program);
  }
}

void execute_presets(Session& session) {
  for (const std::string& model_text : kModelsOfPresets) {
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

}  // namespace backend
