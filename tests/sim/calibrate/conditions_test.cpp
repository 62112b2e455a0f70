#include "sim/calibrate/conditions.hpp"

#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using testing::message_of;

TEST(Conditions, NamesTheFirstThatDiffers) {
  const nlohmann::json then{{"device", "cpu"},
                            {"scheduling", "SCHED_FIFO"},
                            {"environment", {{"cpu", {{"usable_cores", 2}}}, {"commit", "abc"}, {"date", "monday"}}}};
  const auto message = [&](const char* pointer, const nlohmann::json& value) {
    nlohmann::json now = then;
    now[nlohmann::json::json_pointer(pointer)] = value;
    return message_of([&] { check_same_conditions(then, now, "cpu.json"); });
  };
  EXPECT_EQ(message("/environment/date", "tuesday"), "no error");
  EXPECT_EQ(message("/network", "1gbit"), "no error");  // an older file doesn't tell
  EXPECT_EQ(
      message("/scheduling", "time-shared"),
      "cpu.json: measured with scheduling=SCHED_FIFO, this run has time-shared; write to another file, or run under "
      "the same conditions");
  EXPECT_EQ(message("/environment/cpu/usable_cores", 4),
            "cpu.json: measured with cores=2, this run has 4; write to another file, or run under the same conditions");
  EXPECT_EQ(message("/environment/commit", "def"),
            "cpu.json: measured with commit=abc, this run has def; write to another file, or run under the same "
            "conditions");
  EXPECT_EQ(message("/device", "cuda"),
            "cpu.json: measured with device=cpu, this run has cuda; write to another file, or run under the same "
            "conditions");
}

}  // namespace
}  // namespace sim
