#include <map>
#include <set>

#include "sim/lower/lower.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

Program lowered_with_checks(const std::string& strategy) {
  const Model model = load_model("toy_mlp,global_batch=20,precision=fp16,max_grad_norm=2,optimizer=adam");
  return lower(model, parse_strategy(strategy, model));
}

/// Groups by what is summed up in them: "loss_scale", "grad_norm".
std::map<std::string, std::set<std::string>> groups_of_checks(const Program& program) {
  std::map<std::string, std::set<std::string>> groups;
  for (const Role& role : program.roles)
    for (std::uint32_t i = 0; i < role.size(); ++i)
      if (role.kind[i] == InstructionKind::collective)
        if (const std::string& label = program.names[role.node[i]]; label == "loss_scale" || label == "grad_norm") {
          EXPECT_EQ(role.reduction[i], label == "loss_scale" ? Reduction::max : Reduction::sum);
          groups[label].insert(program.groups[role.peer[i]].name);
        }
  return groups;
}

// Replicas find the same in the same sums; who updates others must be told.
TEST(GradientChecks, RanksThatUpdateDifferentParametersDecideTogether) {
  using Names = std::set<std::string>;
  const std::vector<std::pair<std::string, Names>> cases{{"single", {}},
                                                         {"ddp,dp=2", {}},
                                                         {"heat_blocking,dp=2", {}},
                                                         {"zero1,dp=2", {"dp"}},
                                                         {"zero3,dp=2", {"dp"}},
                                                         {"hsdp,replicas=2,shard=2", {"shard"}},
                                                         {"pipeline,pp=2,split_size=10", {"pp"}},
                                                         {"tp,tp=2", {"tp"}},
                                                         {"mesh,pp=2,dp=2", {"pp"}},
                                                         {"mesh,pp=2,dp=2,zero=1", {"pp.dp"}},
                                                         {"mesh,dp=2,tp=2,zero=3", {"dp.tp"}},
                                                         {"hypar,levels=2,layers=dp", {}},
                                                         {"hypar,levels=2x2,layers=dp+in/in+dp", {"level0.level1"}}};
  for (const auto& [strategy, expected] : cases) {
    SCOPED_TRACE(strategy);
    auto groups = groups_of_checks(lowered_with_checks(strategy));
    EXPECT_EQ(groups["loss_scale"], expected);
    EXPECT_EQ(groups["grad_norm"], expected);
  }
  // There the root alone has gradients, and everyone's loss is scaled.
  auto groups = groups_of_checks(lowered_with_checks("data_parallel,dp=2"));
  EXPECT_EQ(groups["loss_scale"], Names{"dp"});
  EXPECT_EQ(groups["grad_norm"], Names{});
}

// 165 parameters, and what pads them.
TEST(GradientChecks, EachParameterCountsOnceInTheNorm) {
  const std::vector<std::pair<std::string, double>> cases{{"single", 165},
                                                          {"tp,tp=2", 165},
                                                          {"mesh,pp=2,dp=2", 165},
                                                          {"mesh,pp=2,tp=2", 165},
                                                          {"zero1,dp=5,units=all", 165},
                                                          {"zero3,dp=2,units=all", 166},
                                                          {"hsdp,replicas=2,shard=2,units=all", 176},  // 6 rows for 5
                                                          {"mesh,dp=5,tp=2,zero=2,units=all", 165},
                                                          {"data_parallel,dp=2", 165},
                                                          {"hypar,levels=2x2,layers=dp+in/in+out", 165}};
  for (const auto& [strategy, expected] : cases) {
    SCOPED_TRACE(strategy);
    const Program program = lowered_with_checks(strategy);
    double counted = 0;  // over the groups
    double lists = 1;    // that each have a norm
    for (const Group& group : program.groups)
      for (const Role& role : program.roles)
        for (std::uint32_t i = 0; i < role.size(); ++i)
          if (role.kind[i] == InstructionKind::collective && program.names[role.node[i]] == "grad_norm" &&
              &program.groups[role.peer[i]] == &group)
            lists = static_cast<double>(group.members.size());
    for (const Role& role : program.roles)
      for (std::uint32_t i = 0; i < role.size(); ++i)
        if (role.work[i] != kNone && program.works[role.work[i]].op.kind->name == "square_norm")
          counted += static_cast<double>(role.ranks.size()) * role.scale[i] *
                     static_cast<double>(program.works[role.work[i]].op.inputs[0].elements());
    if (groups_of_checks(program)["grad_norm"].empty())  // each for itself
      lists = strategy.starts_with("data_parallel") ? 1 : static_cast<double>(program.ranks());
    EXPECT_DOUBLE_EQ(counted / lists, expected);
  }
}

TEST(GradientChecks, WhoUpdatesBeforeAllGradientsAreThereIsRefused) {
  const auto refusal = [](const std::string& model_text, const std::string& strategy) {
    const Model model = load_model(model_text);
    return testing::message_of([&] { static_cast<void>(lower(model, parse_strategy(strategy, model))); });
  };
  EXPECT_EQ(refusal("toy_mlp,precision=fp16", "heat,dp=2"),
            "strategy 'heat,dp=2': precision=fp16 with its loss scale needs all gradients before the first update, but "
            "heat updates layer by layer; heat_blocking doesn't");
  EXPECT_EQ(refusal("toy_mlp,max_grad_norm=1", "daso"),
            "strategy 'daso,nodes=2,local=2': max_grad_norm needs all gradients before the first update, but DASO's "
            "ranks skip sums");
}

}  // namespace
}  // namespace sim
