// The catalog's imported models: what is published of them, and that they are played. That their files are what the
// importer makes of them is tests/bench/catalog_test.py's.
#include <map>

#include "sim/lower/lower.hpp"
#include "sim/model/model.hpp"
#include "sim/plan/candidates.hpp"
#include "sim/program/memory.hpp"
#include "sim/strategy/strategy.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

struct Published {
  std::int64_t parameters = 0;
  double multiply_adds = 0;  // of a sample's forward, products only; 0: not published
};

/// GPT-2 and Llama 3 8B: of the published weights. torchvision's: num_params and _ops (10^9, of an image of 224) of the
/// IMAGENET1K_V1 weights, torchvision 0.26.0. Others are our own sizes: counted by hand where they are made.
const std::map<std::string, Published>& published() {
  static const std::map<std::string, Published> table{{"bert_base", {109'512'762}},
                                                      {"convnext_tiny", {28'589'128, 4.456e9}},
                                                      {"densenet121", {7'978'856, 2.834e9}},
                                                      {"efficientnet_b0", {5'288'548, 0.386e9}},
                                                      {"gpt2", {124'439'808}},
                                                      {"gpt_nano", {834'304}},
                                                      {"llama3_8b", {8'030'261'248}},
                                                      {"llama_nano", {803'968}},
                                                      {"lstm_classifier", {230'404}},
                                                      {"mobilenet_v3_large", {5'483'032, 0.217e9}},
                                                      {"unet", {117'412}},
                                                      {"vit_b_16", {86'567'656, 17.564e9}}};
  return table;
}

TEST(ImportedCatalog, HasTheParametersThatArePublished) {
  std::vector<std::string> names;
  for (const auto& [name, about] : published()) {
    names.push_back(name);
    const Model model = load_model(name);
    EXPECT_EQ(model.name, name);
    EXPECT_FALSE(model.description.empty()) << name;
    EXPECT_EQ(parameter_count(model), about.parameters) << name;
  }
  EXPECT_EQ(testing::imported_models(), names);
}

/// torchvision rounds to 10^6.
TEST(ImportedCatalog, HasTheProductsThatArePublished) {
  for (const auto& [name, about] : published()) {
    if (about.multiply_adds == 0) continue;
    double products = 0;
    for (const OpInstance& op : load_model(name).instances(1)) {
      if (op.body == nullptr && op.kind->matrix) products += op.demand(Pass::forward).flops;
      if (op.body == nullptr) continue;
      for (const Body::Multiplied& product : op.body->products)
        products += product.flops[0].at({.units = op.body->units});
    }
    EXPECT_NEAR(products / 2 / about.multiply_adds, 1, 0.005) << name;
  }
}

TEST(ImportedCatalog, IsPlayedByWhatItsImportPromises) {
  for (const std::string& name : testing::imported_models()) {
    const Model model = load_model(name + ",global_batch=8");
    std::vector<std::string> strategies{"single", "ddp,dp=8", "zero3,dp=4",
                                        "pipeline,pp=2,schedule=1f1b,microbatches=4"};
    const bool has_parts =
        std::ranges::any_of(model.nodes, [](const Node& node) { return node.body != nullptr && node.body->units > 1; });
    if (has_parts) strategies.insert(strategies.end(), {"tp", "mesh,dp=2,pp=2,tp=2,microbatches=2"});
    for (const std::string& text : strategies) {
      const Strategy strategy = parse_strategy(text, model);
      EXPECT_EQ(obstacle(model, strategy), "") << name << " " << text;
      const Program program = lower(model, strategy);
      EXPECT_EQ(testing::message_of([&] { validate(program); }), "no error") << name << " " << text;
      EXPECT_GT(peak_memory(program.roles[0]).peak_bytes, 0);
    }
    EXPECT_EQ(has_parts, (std::set<std::string>{"bert_base", "convnext_tiny", "gpt2", "gpt_nano", "llama3_8b",
                                                "llama_nano", "vit_b_16"}
                              .contains(name)))
        << name;
  }
}

TEST(ImportedCatalog, IsPlayedInHalfPrecision) {
  for (const std::string& name : testing::imported_models())
    EXPECT_EQ(testing::message_of([&] { load_model(name + ",precision=bf16"); }), "no error") << name;
}

}  // namespace
}  // namespace sim
