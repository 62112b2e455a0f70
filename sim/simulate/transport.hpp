// What the two ends of a message do to each other beside moving its bytes: which end posts first decides what it asks
// for.
//
//   const Message message = ask(Transport::notify, cost, /*sender_posted_first=*/false);
//   message.notification_s;        // of the core of the end that hasn't posted yet
//
// none    Each end pays its own overhead; the transfer takes latency + wire, from when both have posted.
// notify  gloo over TCP (gloo/transport/tcp/pair.cc). Whoever posts first notifies the other end (NOTIFY_RECV_READY,
//         NOTIFY_SEND_READY); handling that takes notification_s of the other's core. Receiver first: the message is
//         *expected*, and the sending thread writes it while it posts: what TCP takes at once is its overhead, the rest
//         the transport's thread writes on the sender's core. Sender first: it is *unexpected*; the sender's overhead is
//         small, and the transport's thread writes the message once the receiver has posted.
//         Assumes: what a profile hasn't measured of it costs nothing.
#pragma once

#include "sim/cluster/cluster.hpp"
#include "sim/cost/cost_model.hpp"

namespace sim {

/// What one message asks for, once it is known which end has posted first.
struct Message {
  double latency_s = 0, wire_s = 0;
  double send_overhead_s = 0, recv_overhead_s = 0;  // host time until the thread that posts goes on
  double notification_s = 0;                        // of the core of the end that posts last, from the first post on
  /// From when both have posted until the transport's threads work on the sender's core, too; on the receiver's they
  /// do from the beginning.
  double sender_free_s = 0;
};
Message ask(Transport transport, const TransferCost& cost, bool sender_posted_first);

}  // namespace sim
