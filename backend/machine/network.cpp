#include "backend/machine/network.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "sim/error.hpp"

namespace backend {
namespace {

/// The inside of a namespace: for as long as it lives, sockets that this thread opens belong to that namespace.
class Inside {
 public:
  explicit Inside(int target) : home_(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC)) {
    entered_ = target >= 0 && home_ >= 0 && setns(target, CLONE_NEWNET) == 0;
  }
  ~Inside() {
    const int kept = errno;
    if (entered_ && setns(home_, CLONE_NEWNET) != 0) std::abort();
    if (home_ >= 0) close(home_);
    errno = kept;
  }
  Inside(const Inside&) = delete;
  [[nodiscard]] bool entered() const { return entered_; }

 private:
  int home_;
  bool entered_ = false;
};

}  // namespace

Network::Network(const std::string& rate, std::uint32_t ranks) {
  if (rate.empty()) return;
  const char* chosen = std::getenv("PARAGAUGE_NETWORK");
  const std::string name = chosen ? chosen : "paragauge";
  const std::string remedy = fmt::format("as root, run: bench/network.sh up {} {}", ranks, rate);
  std::uint32_t made = 0;
  std::string limit;
  std::ifstream file("/run/paragauge-network." + name);
  if (!(file >> made >> limit >> interface_))
    throw sim::ConfigError("network={}: there is no network '{}'; {}", rate, name, remedy);
  if (limit != rate || made < ranks)
    throw sim::ConfigError("network={}: network '{}' is for {} ranks at {}; {}", rate, name, made, limit, remedy);
  std::string path, address;
  for (std::uint32_t rank = 0; rank < ranks && file >> path >> address; ++rank) {
    if (rank == 0) host_ = address;
    namespaces_.push_back(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (namespaces_.back() < 0)
      throw sim::ConfigError("network={}: {}: {}; {}", rate, path, std::strerror(errno), remedy);
  }
  if (namespaces_.size() < ranks)
    throw sim::ConfigError("network={}: the description of network '{}' ends early; {}", rate, name, remedy);
  if (const Inside inside(namespaces_[0]); !inside.entered())
    throw sim::ConfigError("network={}: can't enter a network namespace: {}; paragauge must run as root", rate,
                           std::strerror(errno));
}

Network::~Network() {
  for (const int descriptor : namespaces_) close(descriptor);
}

StoreSocket::StoreSocket(const Network& network) {
  const Inside inside(network.of_rank(0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  inet_pton(AF_INET, network.host().c_str(), &address.sin_addr);
  socklen_t size = sizeof address;
  descriptor = socket(AF_INET, SOCK_STREAM, 0);
  if (descriptor < 0 || bind(descriptor, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(descriptor, 128) != 0 || getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size) != 0)
    throw sim::RunError("can't listen on {}: {}", network.host(), std::strerror(errno));
  port = ntohs(address.sin_port);
}

StoreSocket::~StoreSocket() { close(descriptor); }

}  // namespace backend
