#include "sim/simulate/transport.hpp"

namespace sim {

Message ask(Transport transport, const TransferCost& cost, bool sender_posted_first) {
  Message message{.latency_s = cost.latency_s,
                  .wire_s = cost.wire_s,
                  .send_overhead_s = cost.send_overhead_s,
                  .recv_overhead_s = cost.recv_overhead_s};
  const Rendezvous& rendezvous = cost.rendezvous;
  if (transport == Transport::none || !rendezvous.known()) return message;
  message.notification_s = rendezvous.notification_s;
  message.sender_free_s = cost.send_overhead_s + rendezvous.delivery_s;
  if (!sender_posted_first) return message;
  message.latency_s = rendezvous.latency_s;
  message.wire_s = rendezvous.wire_s;
  message.send_overhead_s = rendezvous.send_overhead_s;
  message.sender_free_s = cost.recv_overhead_s;
  return message;
}

}  // namespace sim
