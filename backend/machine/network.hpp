// The network that the ranks' processes talk over: this process's own, or one with a namespace per rank, which
// bench/network.sh has made.
//
//   const Network network("1gbit", 2);              // ConfigError unless there is one; ("", 2): this process's own
//   const StoreSocket store(network);               // where rank 0 serves the store
//   network.of_rank(1)                              // for ProcessOptions::network_namespace
//   network.interface()                             // "veth0", for gloo
//
// Everything about such a network stands in the file that network.sh writes (its header says how),
// /run/paragauge-network.NAME: NAME is what $PARAGAUGE_NETWORK says, or "paragauge".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace backend {

class Network {
 public:
  Network(const std::string& rate, std::uint32_t ranks);
  ~Network();
  Network(const Network&) = delete;

  /// Whether the ranks have namespaces of their own.
  [[nodiscard]] bool separate() const { return !namespaces_.empty(); }
  /// A rank's namespace for setns; -1: this process's.
  [[nodiscard]] int of_rank(std::uint32_t rank) const { return separate() ? namespaces_[rank] : -1; }
  /// Where others reach rank 0.
  [[nodiscard]] const std::string& host() const { return host_; }
  /// The name of every rank's interface in its namespace.
  [[nodiscard]] const std::string& interface() const { return interface_; }

 private:
  std::vector<int> namespaces_;
  std::string host_ = "127.0.0.1", interface_;
};

/// A free port of rank 0 with a socket that already listens on it, so that nobody else can take it. Rank 0 inherits the
/// socket, which stays in the namespace where it was made.
struct StoreSocket {
  /// The variable with the inherited socket's descriptor.
  static constexpr const char* kVariable = "PARAGAUGE_STORE_SOCKET";

  int descriptor = -1;
  std::uint16_t port = 0;

  explicit StoreSocket(const Network& network);
  ~StoreSocket();
  StoreSocket(const StoreSocket&) = delete;
};

}  // namespace backend
