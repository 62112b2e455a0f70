#include <set>

#include "sim/lower/lower.hpp"
#include "sim/plan/method.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using testing::message_of;

Proposal propose(const Model& model, std::uint32_t devices) {
  return method_table().at("hypar").propose({model, devices, {}});
}

TEST(HyparMethod, ProposesWhatCanBePlayed) {
  for (const char* name : {"sfc", "lenet_c", "cifar_c", "alexnet_tower", "vgg11", "convnet"}) {
    SCOPED_TRACE(name);
    const Model model = load_model(std::string(name) + ",global_batch=256");
    const Proposal proposal = propose(model, 16);
    std::set<std::string> texts;
    for (const Strategy& strategy : proposal.strategies) {
      EXPECT_TRUE(texts.insert(strategy.text()).second) << strategy.text() << " is there twice";
      EXPECT_EQ(strategy.ranks(), 16U);
      EXPECT_EQ(parse_strategy(strategy.text(), model).text(), strategy.text());
      EXPECT_NO_THROW(lower(model, strategy)) << strategy.text();
    }
    EXPECT_TRUE(texts.contains("hypar,levels=2x2x2x2,layers=dp/dp/dp/dp"));
  }
}

TEST(HyparMethod, SaysChoiceAndBytes) {
  const Proposal proposal = propose(load_model("lenet_c"), 16);
  EXPECT_EQ(proposal.words,
            "layer weights MB  output MB  by level, outermost first\n"
            "conv1      0.002      2.949  dp dp dp dp\n"
            "conv2        0.1     0.8192  dp dp dp dp\n"
            "fc1          1.6      0.512  in in dp in\n"
            "fc2         0.02    0.01024  in dp dp in\n"
            "communicated per step by HyPar's model: 0.0161 GB; all dp 0.0517 GB; all in 0.129 GB\n"
            "all in, hypar,levels=2x2x2x2,layers=in/in/in/in, can't be played: node 'conv1': level0=2 parts of 1 would "
            "leave one empty\n");
  EXPECT_EQ(proposal.strategies.at(0).text(), "hypar,levels=2x2x2x2,layers=dp+dp+in+in/dp+dp+in+dp/dp/dp+dp+in+in");
}

TEST(HyparMethod, IsForPowersOfTwoAndChains) {
  EXPECT_EQ(message_of([] { propose(load_model("convnet"), 6); }),
            "method hypar halves the devices level by level, so their number must be 2, 4, 8, … 256; found 6");
  EXPECT_NE(message_of([] { propose(load_model("convnet"), 1); }).find("found 1"), std::string::npos);
  EXPECT_NE(message_of([] { propose(load_model("resnet18"), 2); }).find("is no chain"), std::string::npos);
}

TEST(MethodTable, UnknownNamesListTheKnown) {
  EXPECT_EQ(message_of([] { static_cast<void>(method_table().at("magic")); }),
            "unknown method 'magic'; known: candidates, hypar, layers");
}

}  // namespace
}  // namespace sim
