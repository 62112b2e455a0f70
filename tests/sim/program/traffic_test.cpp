#include "sim/program/traffic.hpp"

#include "sim/lower/lower.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

Program program_of(const std::string& model_text, const std::string& strategy) {
  const Model model = load_model(model_text);
  return lower(model, parse_strategy(strategy, model));
}

// toy_mlp has 165 parameters; its hidden layer's output is 10 floats a sample.
TEST(Traffic, IsWhatARankMustSend) {
  EXPECT_EQ(traffic_of(program_of("toy_mlp", "single")).transfers, 0U);
  // In a step: a list of Heat's has nine.
  const Traffic heat = traffic_of(program_of("toy_mlp,global_batch=8", "heat,dp=4"));
  EXPECT_DOUBLE_EQ(heat.sent_bytes, traffic_of(program_of("toy_mlp,global_batch=8", "heat_blocking,dp=4")).sent_bytes);
  EXPECT_EQ(heat.transfers, 4U);
  const Traffic ddp = traffic_of(program_of("toy_mlp,global_batch=8", "ddp,dp=4"));
  EXPECT_DOUBLE_EQ(ddp.sent_bytes, 2 * 3. / 4 * 4 * 165);
  EXPECT_EQ(ddp.transfers, 1U);
  const Program stages = program_of("toy_mlp,global_batch=8", "pipeline,pp=2,microbatches=4,cut=relu");
  for (const Role& role : stages.roles) {  // activations there, and their gradients back
    EXPECT_DOUBLE_EQ(traffic_of(stages, role).sent_bytes, 4 * 8 * 10);
    EXPECT_EQ(traffic_of(stages, role).transfers, 4U);
  }
}

// A root scatters and gathers; over the group that is a share of what it moves.
TEST(Traffic, OfCollectivesIsSharedOut) {
  const Program program = program_of("toy_mlp,global_batch=8", "data_parallel,dp=2");
  const double parameters = 4 * 165, input = 4 * 8 * 10, output = 4 * 8 * 5;
  EXPECT_DOUBLE_EQ(traffic_of(program, program.roles[0]).sent_bytes,
                   parameters / 2 + input / 4 + output / 4 + output / 4 + parameters / 2);
}

}  // namespace
}  // namespace sim
