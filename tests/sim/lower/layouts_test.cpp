// What holds for any layout: HyPar's and meshes drawn at random, on chains of the catalog.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "sim/lower/lower.hpp"
#include "sim/lower/plan.hpp"
#include "tests/sim/lower/elements.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using testing::for_each_element;
using testing::message_of;

struct Drawn {
  Model model;
  Strategy strategy;
};

class Layouts {
 public:
  explicit Layouts(std::uint32_t seed) : generator_(seed) {}

  /// One that fits its model.
  Drawn next() {
    for (;;) {
      const std::string name = one_of({"toy_mlp", "convnet", "lenet_c", "hypar_pair", "cifar_c"});
      const Model model = load_model(name + one_of({",global_batch=8", ",global_batch=12", ",global_batch=24"}));
      try {
        const Strategy strategy = parse_strategy(below(2) == 0 ? hypar(model) : mesh(), model);
        static_cast<void>(Plan(model, layout_of(model, strategy)));
        return {model, strategy};
      } catch (const ConfigError&) {  // a size that can't be cut so; the next draw
      }
    }
  }

 private:
  std::uint32_t below(std::uint32_t count) {
    return std::uniform_int_distribution<std::uint32_t>(0, count - 1)(generator_);
  }
  std::string one_of(const std::vector<std::string>& values) {
    return values[below(static_cast<std::uint32_t>(values.size()))];
  }
  std::string hypar(const Model& model) {
    std::size_t layers = 0;
    for (const Node& node : model.nodes) layers += node.kind->has_parameters;
    std::string levels, choices;
    for (std::uint32_t level = 0, count = 1 + below(3); level < count; ++level) {
      levels += (level > 0 ? "x" : "") + one_of({"2", "2", "3"});
      choices += level > 0 ? "/" : "";
      for (std::size_t layer = 0; layer < layers; ++layer)
        choices += (layer > 0 ? "+" : "") + one_of({"dp", "in", "out"});
    }
    return fmt::format("hypar,levels={},layers={}{}{}", levels, choices, below(4) == 0 ? ",form=rooted" : "",
                       one_of({"", ",microbatches=2"}));
  }
  std::string mesh() {
    std::string text = "mesh,dp=" + one_of({"1", "2", "4"}) + ",pp=" + one_of({"1", "2", "3"}) +
                       ",tp=" + one_of({"1", "2"}) + ",microbatches=" + one_of({"1", "2", "3"}) +
                       ",zero=" + one_of({"0", "0", "1", "2", "3"});
    if (below(3) == 0) text += ",order=" + one_of({"dp-pp-tp", "tp-dp-pp", "dp-tp-pp"});
    return text + one_of({"", ",schedule=1f1b"});
  }

  std::mt19937 generator_;
};

template <class Check>
void for_each_drawn(const Check& check) {
  Layouts layouts(1);
  for (int k = 0; k < 400; ++k) {
    const Drawn drawn = layouts.next();
    SCOPED_TRACE(drawn.model.text() + " " + drawn.strategy.text());
    check(drawn.model, drawn.strategy);
  }
}

TEST(AnyLayout, EveryRankHasOneRole) {
  for_each_drawn([](const Model& model, const Strategy& strategy) {
    const Plan plan(model, layout_of(model, strategy));
    std::set<std::uint32_t> ranks;
    for (const RolePlan& role : plan.roles) {
      EXPECT_EQ(role.rank, role.ranks.front());
      EXPECT_TRUE(std::ranges::is_sorted(role.ranks));
      for (const std::uint32_t rank : role.ranks) EXPECT_TRUE(ranks.insert(rank).second) << rank;
    }
    EXPECT_EQ(ranks.size(), strategy.ranks());
  });
}

// The ops of a role have the shapes of the parts that its first rank has, and its last.
TEST(AnyLayout, OpsHaveTheShapesOfTheirParts) {
  for_each_drawn([](const Model& model, const Strategy& strategy) {
    const Plan plan(model, layout_of(model, strategy));
    for (const RolePlan& role : plan.roles) {
      RolePlan last = role;
      for (std::uint32_t axis = 0; axis < last.at.size(); ++axis)
        last.at[axis] = plan.layout.mesh.coordinate(role.ranks.back(), axis);
      for (std::size_t n = 0; n + 1 < model.nodes.size(); ++n) {
        if (!role.plays[n] || plan.stage[n] != role.stage) continue;
        const NodePlacements& placed = plan.placements[n];
        const auto expect = [&](const TensorSpec& found, const TensorSpec& whole, const Placements& where) {
          EXPECT_EQ(plan.local(whole, where, role), std::optional(found)) << model.nodes[n].name;
          EXPECT_EQ(plan.local(whole, where, last), std::optional(found)) << model.nodes[n].name;
        };
        const Signature &own = role.parts->signatures[n], &whole = plan.whole_signatures[n];
        expect(own.output, whole.output, placed.output);
        for (std::size_t k = 0; k < placed.inputs.size(); ++k)
          expect(role.parts->ops[n].inputs[k], plan.whole[n].inputs[k], placed.inputs[k]);
        for (std::size_t p = 0; p < placed.parameters.size(); ++p)
          if (plan.local(whole.parameters[p].spec, placed.parameters[p], role))  // a bias lies at one coordinate
            expect(own.parameters[p].spec, whole.parameters[p].spec, placed.parameters[p]);
      }
    }
  });
}

// The pieces of a tensor fill it as often as ranks have the same.
TEST(AnyLayout, PiecesTileTheirTensor) {
  for_each_drawn([](const Model& model, const Strategy& strategy) {
    const Plan plan(model, layout_of(model, strategy));
    const Mesh& mesh = plan.layout.mesh;
    const auto expect_tiled = [&](const TensorSpec& whole, const Placements& where, const std::string& what) {
      std::vector<int> times(static_cast<std::size_t>(whole.elements()), 0);
      for (std::uint32_t rank = 0; rank < mesh.ranks(); ++rank) {
        const auto piece = sim::piece(whole.shape, where, mesh, rank);
        if (!piece) continue;
        for_each_element(*piece, whole.shape, [&](std::size_t, std::size_t place) { ++times[place]; });
      }
      int copies = 1;
      for (std::size_t axis = 0; axis < where.size(); ++axis)
        if (where[axis].kind != Placement::Kind::shard && where[axis].kind != Placement::Kind::rooted)
          copies *= static_cast<int>(mesh.axes[axis].size);
      EXPECT_EQ(std::ranges::count(times, copies), std::ssize(times)) << what;
    };
    for (std::size_t n = 0; n + 1 < model.nodes.size(); ++n) {
      const NodePlacements& placed = plan.placements[n];
      expect_tiled(plan.whole_signatures[n].output, placed.output, model.nodes[n].name);
      for (std::size_t p = 0; p < placed.parameters.size(); ++p) {
        const ParameterSpec& parameter = plan.whole_signatures[n].parameters[p];
        if (parameter.spec.elements() < 100'000)
          expect_tiled(parameter.spec, placed.parameters[p], model.nodes[n].name + "." + parameter.name);
      }
    }
  });
}

// A Program is valid, keeps its text, and its matrix products are the model's, shared out.
TEST(AnyLayout, ProgramsAreValidAndShareOutTheModelsProducts) {
  for_each_drawn([](const Model& model, const Strategy& strategy) {
    Program program;
    ASSERT_EQ(message_of([&] { program = lower(model, strategy); }), "no error");
    const std::string text = to_text(program);
    EXPECT_EQ(to_text(program_from_text(text)), text);
    double found = 0, expected = 0;
    for (const Role& role : program.roles)
      for (std::uint32_t i = 0; i < role.size(); ++i)
        if (role.kind[i] == InstructionKind::compute && program.works[role.work[i]].op.kind->matrix)
          found += program.works[role.work[i]].demand().flops * static_cast<double>(role.ranks.size());
    for (std::size_t n = 0; n < model.nodes.size(); ++n)
      if (model.nodes[n].kind->matrix) {
        const NodeSummary node = summarize(model, model.global_batch)[n];
        expected += node.forward_flops + node.backward_flops;
      }
    EXPECT_NEAR(found, expected, 1e-9 * expected);
  });
}

}  // namespace
}  // namespace sim
