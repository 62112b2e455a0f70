#include "bench/peers.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <tuple>

#include "backend/session.hpp"
#include "sim/error.hpp"
#include "sim/lower/lower.hpp"
#include "sim/text/file.hpp"
#include "sim/text/spec.hpp"
#include "tests/sim/testing.hpp"

namespace bench {
namespace {

constexpr std::uint32_t kWarmup = 1, kSteps = 3;

/// Time-shared: these tests run beside others, and real-time ranks of two programs may stop each other for minutes.
const Machine kBesideOthers{.real_time = false};

/// Processes whose parent we are and that run serve.py.
std::vector<pid_t> peers_of_ours() {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    std::ifstream line(entry.path() / "cmdline"), status(entry.path() / "stat");
    std::string command, number, name, state;
    std::getline(line, command);
    pid_t parent = 0;
    if (status >> number >> name >> state >> parent && parent == getpid() && state != "Z" &&
        command.find("serve.py") != std::string::npos)
      found.push_back(std::stoi(number));
  }
  std::ranges::sort(found);
  return found;
}

template <class Error>
std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

/// A user's own models: depthwise separable blocks, odd kernels with Adam, a perceptron.
const std::map<std::string, std::string> kModels{{"depthwise", R"({
      "format": "paragauge-model-1", "name": "depthwise", "input": [3, 24, 24], "target": {"classes": 7},
      "global_batch": 8, "optimizer": {"kind": "sgd", "lr": 0.05, "momentum": 0.9, "weight_decay": 0.001},
      "loss": "cross_entropy",
      "blocks": {
        "separable": {"nodes": [
          {"name": "depthwise", "op": "conv2d", "out_channels": "$in_width", "kernel_size": 3, "padding": 1,
           "groups": "$in_width", "bias": false},
          {"name": "bn1", "op": "batch_norm", "eps": 0.001, "momentum": 0.03},
          {"name": "relu1", "op": "relu", "inplace": true},
          {"name": "pointwise", "op": "conv2d", "out_channels": "$width", "kernel_size": 1, "bias": false},
          {"name": "bn2", "op": "batch_norm"}]},
        "residual": {"nodes": [
          {"block": "separable", "name": "a", "in_width": "$width", "width": "$width"},
          {"name": "add", "op": "add", "inputs": ["a", "in"]},
          {"name": "relu", "op": "relu", "inplace": true}]}},
      "nodes": [
        {"block": "separable", "name": "stem", "in_width": 3, "width": 12},
        {"block": "residual", "name": "block{i}", "repeat": 3, "width": 12},
        {"name": "pool", "op": "adaptive_avg_pool", "output_size": 2},
        {"name": "flatten", "op": "flatten"},
        {"name": "fc", "op": "linear", "out_features": 7, "bias": false}]})"},
                                                 {"odd", R"({
      "format": "paragauge-model-1", "name": "odd", "input": [2, 33, 29], "target": {"classes": 5},
      "global_batch": 12, "optimizer": {"kind": "adam", "lr": 0.003, "beta1": 0.8, "weight_decay": 0.01},
      "loss": "cross_entropy",
      "nodes": [
        {"name": "type", "op": "conv2d", "out_channels": 10, "kernel_size": 5, "stride": 2, "padding": 3},
        {"name": "relu", "op": "relu"},
        {"name": "pool", "op": "max_pool", "kernel_size": 3, "stride": 2, "padding": 1},
        {"name": "wide", "op": "conv2d", "out_channels": 14, "kernel_size": 3, "dilation": 2, "groups": 2, "padding": 1},
        {"name": "bn", "op": "batch_norm"},
        {"name": "train", "op": "conv2d", "out_channels": 14, "kernel_size": 1, "stride": 1},
        {"name": "both", "op": "add", "inputs": ["train", "bn"], "inplace": true},
        {"name": "twice", "op": "add", "inputs": ["both", "both"]},
        {"name": "flatten", "op": "flatten"},
        {"name": "inplace", "op": "relu", "inplace": true},
        {"name": "forward", "op": "linear", "out_features": 5},
        {"name": "softmax", "op": "softmax", "dim": 1}]})"},
                                                 {"untrained", R"({
      "format": "paragauge-model-1", "name": "untrained", "input": [4], "target": {"classes": 4}, "global_batch": 8,
      "optimizer": {"kind": "sgd", "lr": 0.01}, "loss": "mse_loss", "nodes": [{"name": "softmax", "op": "softmax"}]})"},
                                                 {"mlp", R"({
      "format": "paragauge-model-1", "name": "mlp", "input": [9], "target": {"classes": 6}, "global_batch": 24,
      "optimizer": {"kind": "adam", "lr": 0.01}, "loss": "mse_loss",
      "blocks": {"layer": {"nodes": [{"name": "linear", "op": "linear", "out_features": "$width"},
                                     {"name": "relu", "op": "relu", "inplace": true}]}},
      "nodes": [{"block": "layer", "name": "layers.{i}", "repeat": 4, "width": 17},
                {"name": "head", "op": "linear", "out_features": 6, "initial": "xavier_uniform"}]})"}};

/// The files of kModels. (std::filesystem::remove_all dies where LibTorch is linked: its library brings a broken one.)
class OwnModels {
 public:
  OwnModels() {
    if (mkdtemp(folder_.data()) == nullptr) throw std::runtime_error("no temporary folder");
    for (const auto& [name, text] : kModels) std::ofstream(path(name)) << text;
  }
  ~OwnModels() {
    for (const auto& [name, text] : kModels) unlink(path(name).c_str());
    rmdir(folder_.c_str());
  }
  [[nodiscard]] std::string path(const std::string& name) const { return folder_ + "/" + name + ".json"; }

 private:
  std::string folder_ = ::testing::TempDir() + "peers_test_XXXXXX";
};

Peers::Answer run(Peers& peers, const std::string& model_text, const std::string& strategy_text) {
  const sim::Model model = sim::load_model(model_text);
  return peers.run(model, sim::parse_strategy(strategy_text, model), "gloo", /*best=*/false, kWarmup, kSteps);
}

struct Variant {
  const char* world;
  bool best;
};
using Variants = std::vector<Variant>;
const Variants kAll{{"local", false}, {"local", true}, {"gloo", false}, {"gloo", true}};
const Variants kDefaults{{"local", false}, {"gloo", false}};
/// Halves of all: where there are many cases alike, they take turns.
const Variants kTurns[]{{{"local", false}, {"gloo", true}}, {{"local", true}, {"gloo", false}}};

/// The same losses, step by step: the peer's step is ours, in plain PyTorch. In every world where there is one.
void expect_our_losses(backend::Session& session, Peers& peers, const std::string& model_text,
                       const std::string& strategy_text, double tolerance, const Variants& variants = kAll) {
  const sim::Model model = sim::load_model(model_text);
  const sim::Strategy strategy = sim::parse_strategy(strategy_text, model);
  const backend::RunResult ours =
      session.run({.program = sim::lower(model, strategy), .warmup_steps = 0, .steps = kWarmup + kSteps});
  const bool threads_too = strategy.preset == "data_parallel" || strategy.preset == "hypar";
  const bool by_rows = strategy.zero == 3;  // with fully_shard: no fused updates, only contiguous parameters
  for (const auto& [world, best] : variants) {
    if (world == std::string_view("local") && !threads_too) continue;
    SCOPED_TRACE(fmt::format("{} {} on {}{}", model_text, strategy_text, world, best ? " at its best" : ""));
    Peers::Answer theirs;
    ASSERT_NO_THROW(theirs = peers.run(model, strategy, world, best, kWarmup, kSteps));
    ASSERT_EQ(theirs.skipped, "");
    ASSERT_EQ(theirs.step_s.size(), strategy.daso ? 1 : kSteps) << "the mean of a period";
    ASSERT_EQ(theirs.losses.size(), kWarmup + kSteps);
    for (std::size_t step = 0; step < theirs.losses.size(); ++step)
      EXPECT_NEAR(theirs.losses[step], ours.losses[step], tolerance * std::abs(ours.losses[step])) << step;
    EXPECT_GT(std::abs(theirs.losses.back() / theirs.losses.front() - 1), 10 * tolerance) << "nothing was learnt";
    for (const double step_s : theirs.step_s) EXPECT_GT(step_s, 0);
    EXPECT_GT(theirs.resident_peak_bytes, std::int64_t{1} << 20);
    std::set<std::string> settings{""};
    if (best && by_rows) settings = {"foreach updates"};
    if (best && !by_rows) settings = {"fused updates", "fused updates, channels_last"};
    EXPECT_TRUE(settings.contains(theirs.settings)) << theirs.settings;
  }
}

/// All but those that only have more of what a smaller one of their family has.
TEST(PeersRanks, CatalogModelsHaveOurLosses) {
  const auto session = backend::open_session({.world = "local", .real_time = false});
  Peers peers(kBesideOthers, 1);
  const std::set<std::string> longer{"resnet34", "resnet101", "resnet152", "vgg13", "vgg16", "vgg16_c", "vgg19"};
  for (const std::string& name : sim::catalog_names("models")) {
    if (longer.contains(name) || sim::load_model(name).is_imported()) continue;
    // Batch norm over few values magnifies rounding 10^6 times a step: hence float64, steps that change little, and the
    // default layout only (another one rounds otherwise: 7e-8 and 1e-5 of ResNet-50's loss in steps 2 and 3).
    const std::string options = name.starts_with("resnet")
                                    ? ",dtype=f64,image=32,optimizer=sgd:lr=0.000001:momentum=0.9:weight_decay=0.0005"
                                : name.starts_with("vgg")     ? ",image=32"
                                : name.starts_with("alexnet") ? ",dtype=f64,image=64"
                                : name == "sfc"               ? ""  // 563 MB of weights
                                                              : ",dtype=f64";
    // PyTorch at its best takes minutes to set 0.5 GB of weights again and again.
    const bool is_large = name.starts_with("vgg") || name == "sfc";
    expect_our_losses(*session, peers, name + ",global_batch=4" + options, "single", is_large ? 1e-5 : 1e-8,
                      name.starts_with("resnet") || is_large ? kDefaults : kAll);
  }
}

TEST(PeersRanks, StrategiesHaveOurLosses) {
  const auto session = backend::open_session({.world = "local", .ranks = 2});
  Peers peers({.real_time = true}, 2);
  const std::string sgd = "resnet18,image=32,global_batch=8,optimizer=sgd:lr=0.01:momentum=0.9";
  for (const auto& [model_text, strategy_text, tolerance] : std::vector<std::tuple<std::string, std::string, double>>{
           {"toy_mlp", "pipeline,pp=2,schedule=gpipe,microbatches=4,cut=r1", 1e-6},
           {"toy_mlp", "mesh,dp=2,overlap=1", 1e-6},
           {"toy_mlp", "mesh,microbatches=4", 1e-6},
           {"convnet", "model_parallel,pp=2,cut=pool2", 1e-6},
           {"convnet", "ddp,dp=2", 1e-6},
           {"convnet,max_grad_norm=0.01,optimizer=sgd:lr=0.1", "ddp,dp=2", 1e-6},
           {"toy_mlp,precision=bf16,optimizer=sgd:lr=0.5", "ddp,dp=2", 1e-3},
           {"toy_mlp,precision=fp16,max_grad_norm=0.1,optimizer=sgd:lr=0.5", "model_parallel,pp=2,cut=r1", 1e-3},
           {"convnet,loss=mse_loss,timing=tutorial", "model_parallel,pp=2,cut=pool2", 1e-6},
           {"convnet,timing=tutorial", "ddp,dp=2", 1e-6},
           {"convnet,timing=epoch", "pipeline,pp=2,schedule=gpipe,microbatches=2,cut=pool2", 1e-6},
           {"convnet", "heat", 1e-6},
           {"convnet,timing=tutorial", "heat_blocking", 1e-6},
           {"convnet", "zero1,dp=2", 1e-6},
           {"convnet", "fsdp,dp=2,units=layer,reshard=0", 1e-6},
           {sgd, "ddp,dp=2", 1e-4},
           {sgd, "fsdp,dp=2", 1e-4},
           {"resnet18,image=32,global_batch=8,loss=mse_loss,optimizer=adam:lr=0.0001",
            "pipeline,pp=2,schedule=1f1b,microbatches=2,cut=layer2", 1e-4}})
    expect_our_losses(*session, peers, model_text, strategy_text, tolerance);
}

/// Cuts anywhere: between an op and one in place, in the middle of residual blocks, and such that a stage's output is
/// read by several later ones or the last stage has nothing but the loss.
TEST(PeersRanks, ModelsOfAUsersOwnHaveOurLosses) {
  const auto session = backend::open_session({.world = "local", .ranks = 3, .real_time = false});
  Peers peers(kBesideOthers, 3);
  const OwnModels models;
  std::set<std::string_view> covered;
  for (const auto& [name, text] : kModels) {
    const sim::Model model = sim::load_model(models.path(name));
    for (const sim::Node& node : model.nodes) covered.insert(node.kind->name);
  }
  covered.insert("sum_loss");   // the catalog's hypar_pair has it
  covered.insert("mean_loss");  // contrast_toy has it
  for (const sim::OpKind& kind : sim::op_table())
    if (kind.inputs != sim::OpKind::kAsBody) {  // imported models are played by their modules
      EXPECT_EQ(covered.contains(kind.name), kind.role == sim::OpRole::layer || kind.role == sim::OpRole::loss)
          << kind.name;
    }
  for (const auto& [name, strategies] : std::map<std::string, std::vector<std::string>>{
           {"depthwise",
            {"single", "ddp,dp=2", "model_parallel,pp=3",
             "pipeline,pp=3,schedule=1f1b,microbatches=4,cut=stem.bn1+block1.a.bn1",
             "pipeline,pp=3,schedule=gpipe,microbatches=2,cut=block0.relu+block1.a.relu1"}},
           {"odd",
            {"single", "ddp,dp=2,bucket_MiB=0.001,first_bucket_MiB=0.0005,broadcast_buffers=0",
             "model_parallel,pp=3,cut=bn+flatten", "pipeline,pp=3,schedule=gpipe,microbatches=3,cut=bn+flatten",
             "pipeline,pp=2,schedule=1f1b,split_size=2,cut=softmax"}},
           {"mlp",
            {"single", "ddp,dp=3", "heat,dp=3", "heat_blocking,dp=3", "zero1,dp=3", "zero3,dp=3",
             "pipeline,pp=3,schedule=1f1b,microbatches=6", "interleaved,microbatches=4", "zero_bubble,microbatches=6",
             "zero_bubble,pp=3,microbatches=6", "zbv,microbatches=4",
             "pipeline,schedule=interleaved_zb,microbatches=4"}}})
    for (const std::string& strategy : strategies)
      expect_our_losses(*session, peers, models.path(name) + ",dtype=f64", strategy, 1e-9);
}

/// By the module that they were made of: on one device, replicas, with cut states and weights, in tensor-parallel layers.
TEST(PeersRanks, ImportedModelsHaveOurLosses) {
  const auto session = backend::open_session({.world = "local", .ranks = 2, .real_time = false});
  const std::string folder = (sim::testing::tests_folder() / "models/").string();
  ASSERT_EQ(chdir(sim::testing::tests_folder().parent_path().c_str()), 0);  // where the files' commands were said
  Peers peers(kBesideOthers, 2);
  for (const auto& [name, strategies] : std::map<std::string, std::vector<std::string>>{
           {"gpt_toy", {"single", "ddp,dp=2", "zero1,dp=2", "zero3,dp=2", "fsdp,dp=2,reshard=0"}},
           {"llama_toy", {"single", "ddp,dp=2", "fsdp,dp=2,units=layer", "tp,tp=2"}},
           {"contrast_toy", {"single", "ddp,dp=2", "zero1,dp=2", "tp,tp=2"}}})
    for (const std::string& strategy : strategies)
      expect_our_losses(*session, peers, folder + name + ".json,dtype=f64", strategy, 1e-9, kDefaults);
  expect_our_losses(*session, peers, "gpt_nano,dtype=f64", "ddp,dp=2", 1e-9, kDefaults);  // by its name in the catalog
  for (const char* name : {"gpt_toy", "llama_toy"})  // FSDP2's MixedPrecisionPolicy
    for (const char* strategy : {"fsdp,dp=2,param_dtype=half,reduce_dtype=f32", "zero3,dp=2,param_dtype=half"})
      expect_our_losses(*session, peers, folder + name + ".json,precision=bf16", strategy, 1e-3, kDefaults);
  // A packed projection is no DTensor, and a hand-written file says nothing of a module.
  const auto has = [&](const std::string& model_text, const std::string& strategy_text) {
    const sim::Model model = sim::load_model(folder + model_text);
    return has_peer(model, sim::parse_strategy(strategy_text, model), "gloo");
  };
  EXPECT_FALSE(has("gpt_toy.json", "tp,tp=2"));
  EXPECT_FALSE(has("llama_toy.json", "mesh,dp=2,tp=2"));
  EXPECT_FALSE(has("llama_toy.json", "tp,tp=2,sp=1"));
  EXPECT_FALSE(has("llama_toy.json", "1f1b"));
  EXPECT_FALSE(has("llama_toy.json", "heat"));
  EXPECT_FALSE(has("llama_toy.json,precision=bf16", "fsdp"));  // which would be of autocast
  EXPECT_FALSE(has("llama_toy.json,precision=fp16", "fsdp,param_dtype=half"));
  EXPECT_FALSE(has("llama_toy.json,precision=bf16", "deepspeed_stage_3"));
  const sim::Model by_hand = sim::load_model(folder + "token_toy.json");
  EXPECT_EQ(peers.run(by_hand, sim::parse_strategy("single", by_hand), "gloo", false, 1, 1).skipped,
            folder + "token_toy.json: made_by is 'hand', not the command of an import");
  // A module that can't be played so is said, and the others go on.
  nlohmann::json file = nlohmann::json::parse(sim::read_text_file(folder + "llama_toy.json"));
  file["made_by"] = "paragauge import tests/models/toy.py:stubborn_llama; torch 2.11.0";
  const std::string path = ::testing::TempDir() + "stubborn_llama.json";
  std::ofstream(path) << file;
  const sim::Model stubborn = sim::load_model(path);
  for (int again = 0; again < 2; ++again)
    EXPECT_EQ(peers.run(stubborn, sim::parse_strategy("ddp,dp=2", stubborn), "gloo", false, 1, 1).skipped,
              "the module can't be played so: RuntimeError: not today");
  expect_our_losses(*session, peers, folder + "llama_toy.json,dtype=f64", "ddp,dp=2", 1e-9, kDefaults);
  unlink(path.c_str());
}

/// Two to four ranks, on two levels too, even and uneven parts, both forms, batch norms that see a part each.
TEST(PeersRanks, PlacementsHaveOurLosses) {
  const auto session = backend::open_session({.world = "local", .ranks = 4, .real_time = false});
  Peers peers(kBesideOthers, 4);
  const OwnModels models;
  std::size_t turn = 0;
  const std::string pair = "hypar_pair,dtype=f64,optimizer=sgd:lr=0.00001", convnet = "convnet,dtype=f64";
  const std::string resnet = "resnet18,dtype=f64,image=32,global_batch=6,optimizer=sgd:lr=0.000001:momentum=0.9";
  for (const auto& [model_text, strategies] : std::vector<std::pair<std::string, std::vector<std::string>>>{
           {pair,
            {"data_parallel,dp=3", "hypar,layers=dp+dp", "hypar,layers=dp+in", "hypar,layers=in+dp",
             "hypar,layers=in+in", "hypar,layers=dp+in,form=rooted", "hypar,layers=in+dp,form=rooted",
             "hypar,layers=out+in", "hypar,levels=3,layers=dp+out", "hypar,levels=3,layers=in+dp",
             "hypar,levels=3,layers=dp+in,form=rooted", "hypar,levels=4,layers=out+out,form=rooted",
             "hypar,levels=2x2,layers=dp+in/in+dp", "hypar,levels=2x2,layers=dp+out/dp+in,form=rooted"}},
           {convnet,
            {"daso,skips=2", "daso,skips=4,wait=2,local_skips=2,chunk=10000", "daso,skips=0", "tp", "mesh,dp=2,tp=2",
             "hsdp", "data_parallel", "data_parallel,dp=3,bucket_MiB=0.01", "hypar,layers=dp+in+dp+out+in",
             "hypar,levels=3,layers=dp+out+in+dp+in", "hypar,levels=3,layers=dp+in+dp+out+dp,form=rooted",
             "hypar,levels=2x2,layers=dp+out+in+out+in/dp+dp+dp+in+out", "hypar,levels=2x2,layers=dp"}},
           {convnet + ",timing=epoch", {"data_parallel", "hypar,layers=dp+in+dp+out+dp,form=rooted"}},
           {convnet + ",loss=mse_loss", {"data_parallel", "hypar,layers=dp+in+dp+out+in,form=rooted"}},
           {resnet, {"data_parallel,dp=3"}},
           {resnet + ",timing=tutorial", {"hypar,layers=dp"}},
           {models.path("depthwise") + ",dtype=f64", {"data_parallel", "hypar,layers=dp,levels=4"}},
           {models.path("odd") + ",dtype=f64", {"data_parallel,dp=4", "hypar,levels=4"}},
           {models.path("mlp") + ",dtype=f64", {"hypar,levels=3,layers=out+in+dp+in+out"}}})
    for (const std::string& strategy : strategies)
      expect_our_losses(*session, peers, model_text, strategy, model_text.starts_with("resnet") ? 1e-8 : 1e-9,
                        model_text.starts_with("resnet") ? kDefaults : kTurns[turn++ % 2]);
}

// The contract with bench/peers/serve.py, whose own test reads the same file.
TEST(Peers, ARequestIsWrittenAsTheGoldenFile) {
  const sim::Model model = sim::load_model("resnet18,image=32,global_batch=8");
  const sim::Strategy strategy = sim::parse_strategy("pipeline,pp=2,schedule=1f1b,microbatches=4,cut=layer2", model);
  EXPECT_EQ(nlohmann::json(peer_subject(model, strategy, "gloo", /*best=*/true)),
            nlohmann::json::parse(sim::testing::golden_text("peer_request.json")));
}

TEST(Peers, APlacementIsWrittenByNode) {
  const sim::Model model = sim::load_model("toy_mlp");
  const auto written = [&](const std::string& strategy, std::string_view world) {
    return nlohmann::json(peer_subject(model, sim::parse_strategy(strategy, model), world, false)["strategy"]);
  };
  EXPECT_EQ(written("data_parallel,dp=3,bucket_MiB=2", "local"),
            nlohmann::json::parse(
                R"({"kind": "data_parallel", "replicas": 3, "bucket_MiB": 2, "one_process": true, "threads": 1})"));
  EXPECT_EQ(written("hypar,levels=3,layers=in+dp,form=rooted", "gloo"), nlohmann::json::parse(R"({
      "kind": "hypar", "threads": 1, "levels": [3], "rooted": true, "one_process": false, "input": "@0", "target": "@0",
      "nodes": [{"inputs": ["S1"], "grad_inputs": ["S1"], "output": "P", "grad_output": "R", "resolved": "R",
                 "parameters": ["S1", "@last"], "grad_parameters": ["S1", "@last"]},
                {"inputs": ["R"], "grad_inputs": ["R"], "output": "R", "grad_output": "R", "resolved": "R",
                 "parameters": [], "grad_parameters": []},
                {"inputs": ["S0"], "grad_inputs": ["S0"], "output": "S0", "grad_output": "S0", "resolved": "S0",
                 "parameters": ["R", "R"], "grad_parameters": ["P", "P"]},
                {"inputs": ["S0", "S0"], "grad_inputs": ["S0", "S0"], "output": "P.mean", "grad_output": "R",
                 "resolved": "P.mean", "parameters": [], "grad_parameters": []}]})"));
}

TEST(Peers, WorldsWherePlainPyTorchRunsAStrategy) {
  const sim::Model model = sim::load_model("toy_mlp");
  for (const auto& [strategy, local, gloo] :
       std::vector<std::tuple<std::string, bool, bool>>{{"single", true, true},
                                                        {"mesh,microbatches=4", true, true},
                                                        {"model_parallel,pp=2", true, false},
                                                        {"pipeline,pp=2,schedule=forward_only", true, false},
                                                        {"pipeline,pp=2", false, true},
                                                        {"1f1b", false, true},
                                                        {"interleaved", false, true},
                                                        {"zero_bubble", false, true},
                                                        {"ddp_blocking,dp=2", false, true},
                                                        {"heat", false, true},
                                                        {"ddp,bodies=2", false, false},
                                                        {"heat_blocking", false, true},
                                                        {"daso", false, true},
                                                        {"zero1", false, true},
                                                        {"zero2", false, false},
                                                        {"fsdp,units=layer", false, true},
                                                        {"fsdp,units=1MiB", false, false},
                                                        {"mesh,dp=2,pp=2,zero=1", false, false},
                                                        {"deepspeed_stage_3", false, false},
                                                        {"data_parallel", true, true},
                                                        {"tp", true, true},
                                                        {"mesh,dp=2,tp=2", true, true},
                                                        {"mesh,pp=2,tp=2", false, false},
                                                        {"hypar", true, true}}) {
    EXPECT_EQ(has_peer(model, sim::parse_strategy(strategy, model), "local"), local) << strategy;
    EXPECT_EQ(has_peer(model, sim::parse_strategy(strategy, model), "gloo"), gloo) << strategy;
  }
  const sim::Model half = sim::load_model("toy_mlp,precision=bf16");
  for (const auto& [strategy, gloo] : std::vector<std::pair<std::string, bool>>{
           {"single", true}, {"ddp", true}, {"zero1", false}, {"1f1b", false}, {"single,recompute=full", false}})
    EXPECT_EQ(has_peer(half, sim::parse_strategy(strategy, half), "gloo"), gloo) << strategy;
}

TEST(PeersRanks, WhatPlainPyTorchHasNotIsAnAnswer) {
  Peers peers(kBesideOthers, 1);
  const auto skipped = [&](const std::string& strategy) { return run(peers, "toy_mlp", strategy).skipped; };
  EXPECT_EQ(skipped("ddp_blocking,dp=2"),
            "plain PyTorch has no DDP that overlaps nothing; its DistributedDataParallel is ddp");
  EXPECT_EQ(skipped("mesh,dp=2,pp=2,overlap=1"),
            "these peers have no DistributedDataParallel of pipelines or microbatches");
  EXPECT_EQ(skipped("single,schedule=zb_h1,microbatches=4"),
            "plain PyTorch has no such schedule whose backwards are in two");
  EXPECT_EQ(skipped("pipeline,pp=2,schedule=forward_only"),
            "one process has a single CPU device: its stages can't work at the same time");
  EXPECT_EQ(message_of<sim::ConfigError>([&] { run(peers, "toy_mlp", "ddp,dp=2"); }),
            "PyTorch peers: the strategy needs 2 ranks, the session has 1");
  EXPECT_EQ(run(peers, "toy_mlp", "single").losses.size(), kWarmup + kSteps);

  // A loss that goes to infinity is no error: the sum that is hypar_pair's has no least value.
  const sim::Model model = sim::load_model("hypar_pair");
  const std::vector<double> losses =
      peers.run(model, sim::parse_strategy("single", model), "local", false, 0, 40).losses;
  ASSERT_EQ(losses.size(), 40U);
  EXPECT_TRUE(std::isfinite(losses.front()));
  EXPECT_TRUE(std::isnan(losses.back()));
}

TEST(PeersRanks, SchedulesThatTorchHasNotAreSkippedAndTheEndEndsTheProcesses) {
  {
    Peers peers(kBesideOthers, 2);
    const OwnModels models;
    const auto skipped = [&](const std::string& strategy) {
      return run(peers, models.path("mlp") + ",global_batch=20", strategy).skipped;
    };
    for (int again = 0; again < 2; ++again) {
      EXPECT_EQ(skipped("pipeline,schedule=1f1b_split,microbatches=4"),
                "plain PyTorch has no such schedule whose backwards are in two");
      EXPECT_EQ(skipped("zero_bubble,microbatches=5"), "torch's schedule takes no 5 microbatches on 2 ranks");
    }
    EXPECT_EQ(skipped("interleaved,microbatches=4"), "");
    EXPECT_EQ(peers_of_ours().size(), 2U);
  }
  EXPECT_EQ(peers_of_ours().size(), 0U);
}

TEST(PeersRanks, AnExceptionInPythonIsOneLine) {
  Peers peers(kBesideOthers, 2);
  const OwnModels models;
  const std::string message = message_of<sim::RunError>([&] { run(peers, models.path("untrained"), "ddp,dp=2"); });
  EXPECT_TRUE(message.starts_with("PyTorch peers: rank ")) << message;
  EXPECT_EQ(message.substr(message.find(" ended")),
            " ended with status 1: RuntimeError: DistributedDataParallel is not needed when a module doesn't have any "
            "parameter "
            "that requires a gradient.");
}

TEST(PeersRanks, DeathIsAnErrorAndNobodyStays) {
  Peers peers(kBesideOthers, 2);
  EXPECT_EQ(run(peers, "toy_mlp", "ddp,dp=2").losses.size(), kWarmup + kSteps);
  const std::vector<pid_t> processes = peers_of_ours();
  ASSERT_EQ(processes.size(), 2U);
  kill(processes[1], SIGKILL);
  EXPECT_EQ(message_of<sim::RunError>([&] { run(peers, "toy_mlp", "ddp,dp=2"); }).substr(0, 38),
            "PyTorch peers: rank 1 died of signal 9");
  EXPECT_EQ(peers_of_ours().size(), 0U);
  EXPECT_EQ(message_of<sim::RunError>([&] { run(peers, "toy_mlp", "single"); }),
            "PyTorch peers: they have failed before");
}

TEST(PeersRanks, NoAnswerIsAnError) {
  Peers peers({.timeout_s = 0.05, .real_time = false}, 1);  // importing torch takes longer
  EXPECT_EQ(message_of<sim::RunError>([&] { run(peers, "toy_mlp", "single"); }).substr(0, 35),
            "PyTorch peers: no answer for 0.05 s");
  EXPECT_EQ(peers_of_ours().size(), 0U);
}

TEST(PeersRanks, WhoStandsStillSaysWhere) {
  Peers peers({.timeout_s = 4, .real_time = false}, 2);
  std::vector<pid_t> processes;
  while (processes.size() < 2) processes = peers_of_ours();  // both run Python by then
  kill(processes[1], SIGSTOP);                               // rank 0 waits for it in main, or is still importing torch
  const std::string message = message_of<sim::RunError>([&] { run(peers, "toy_mlp", "ddp,dp=2"); });
  EXPECT_TRUE(message.starts_with("PyTorch peers: no answer for 4 s: rank 0 in ")) << message;
  EXPECT_NE(message.find(".py, line "), std::string::npos) << message;
  EXPECT_EQ(peers_of_ours().size(), 0U);
}

TEST(PeersRanks, PythonThatIsNotThere) {
  setenv("PARAGAUGE_PYTHON", "/nowhere/python", 1);
  Peers peers(kBesideOthers, 1);
  unsetenv("PARAGAUGE_PYTHON");
  EXPECT_EQ(message_of<sim::RunError>([&] { run(peers, "toy_mlp", "single"); }),
            "PyTorch peers: rank 0 ended with status 127: can't execute /nowhere/python: No such file or directory");
}

}  // namespace
}  // namespace bench
