#include "sim/simulate/step.hpp"

#include "tests/sim/simulate/sketch.hpp"

namespace sim {
namespace {

using namespace testing;

Cluster notifying_cluster() {
  Cluster cluster = plain_cluster(2);
  cluster.levels[0].link.transport = Transport::notify;
  return cluster;
}

/// A core loses all but a fiftieth of this time.
constexpr double kNotification = 0.5, kLost = 0.98 * kNotification;
constexpr TransferCost kTold{
    .latency_s = 1,
    .send_overhead_s = 0.75,
    .recv_overhead_s = 0.25,
    .core_share = 0.5,
    .rendezvous = {.notification_s = kNotification, .delivery_s = 0.25, .latency_s = 2, .send_overhead_s = 0.125}};

TEST(Transport, WhoPostsFirstDecidesWhatAMessageAsksFor) {
  const Message expected = ask(Transport::notify, kTold, false), unexpected = ask(Transport::notify, kTold, true);
  EXPECT_EQ(expected.latency_s, 1);
  EXPECT_EQ(expected.send_overhead_s, 0.75);
  EXPECT_EQ(expected.sender_free_s, 0.75 + 0.25);  // written while it is posted, and delivered
  EXPECT_EQ(unexpected.latency_s, 2);
  EXPECT_EQ(unexpected.send_overhead_s, 0.125);
  EXPECT_EQ(unexpected.sender_free_s, 0.25);  // until the receiver has posted
  for (const Message& message : {expected, unexpected}) {
    EXPECT_EQ(message.recv_overhead_s, 0.25);
    EXPECT_EQ(message.notification_s, kNotification);
  }
}

TEST(Transport, WithoutNotificationsTheOrderOfPostsDoesntMatter) {
  TransferCost unmeasured = kTold;
  unmeasured.rendezvous = {};
  for (const bool sender_first : {false, true})
    for (const Message& message :
         {ask(Transport::none, kTold, sender_first), ask(Transport::notify, unmeasured, sender_first)}) {
      EXPECT_EQ(message.latency_s, 1);
      EXPECT_EQ(message.send_overhead_s, 0.75);
      EXPECT_EQ(message.recv_overhead_s, 0.25);
      EXPECT_EQ(message.notification_s, 0);
      EXPECT_EQ(message.sender_free_s, 0);
    }
}

// The notification of the send falls into the receiver's compute; once the receiver has posted, the transport's thread writes
// on the sender's core.
TEST(Transport, AnUnexpectedMessageWaitsForItsReceiver) {
  Sketch sketch(2);
  const std::uint32_t sent = sketch.send(0, 1, kTold);
  sketch.compute(0, 4);
  sketch.wait(0, sent);
  sketch.compute(1, 2);
  sketch.wait(1, sketch.recv(1, 0, kTold));
  const Timeline timeline = sketch.run(notifying_cluster());
  const double ready = 2 + kLost, done = ready + 2;
  EXPECT_NEAR(timeline.ranks[1].posted_s[1], ready, kRounding);
  EXPECT_NEAR(end_of(timeline, 1), done, kRounding);
  EXPECT_NEAR(timeline.ranks[0].start_s[1], 0.125, kRounding);
  EXPECT_NEAR(end_of(timeline, 0), 0.125 + 4 + 0.5 * (done - (ready + 0.25)), kRounding);
}

// The notification of the recv falls into the sender's compute; its thread then writes while it posts, and the transport's
// thread what is left: nothing of a small message.
TEST(Transport, AnExpectedMessageIsWrittenByItsSender) {
  for (const double wire_s : {0.0, 4.0}) {
    TransferCost cost = kTold;
    cost.wire_s = wire_s;
    Sketch sketch(2);
    sketch.compute(0, 1);
    const std::uint32_t sent = sketch.send(0, 1, cost);
    sketch.compute(0, 9);
    sketch.wait(0, sent);
    sketch.wait(1, sketch.recv(1, 0, cost));
    const Timeline timeline = sketch.run(notifying_cluster());
    EXPECT_NEAR(timeline.ranks[0].posted_s[1], 1 + kLost, kRounding);
    EXPECT_NEAR(end_of(timeline, 1), 1 + kLost + 1 + wire_s, kRounding);
    EXPECT_NEAR(end_of(timeline, 0), 1 + kLost + 0.75 + 9 + 0.5 * wire_s, kRounding);
  }
}

}  // namespace
}  // namespace sim
