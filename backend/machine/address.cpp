#include "backend/machine/address.hpp"

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <utility>

#include "sim/text/system_file.hpp"

namespace backend {
namespace {

struct FreeFound {
  void operator()(addrinfo* found) const { freeaddrinfo(found); }
};
struct FreeInterfaces {
  void operator()(ifaddrs* list) const { freeifaddrs(list); }
};

bool is_loopback(const sockaddr& address) {
  if (address.sa_family == AF_INET)
    return ntohl(reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr) >> 24 == 127;
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

std::string text_of(const sockaddr& address) {
  const socklen_t size = address.sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
  std::array<char, NI_MAXHOST> text{};
  return getnameinfo(&address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0 ? text.data() : "";
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::string reachable_address(const std::string& other) {
  const addrinfo hints{.ai_family = AF_UNSPEC, .ai_socktype = SOCK_DGRAM};  // nothing is sent
  for (const auto& [host, is_own] : {std::pair<std::string, bool>{host_name(), true}, {other, false}}) {
    addrinfo* list = nullptr;
    if (getaddrinfo(host.c_str(), "9", &hints, &list) != 0) continue;
    const std::unique_ptr<addrinfo, FreeFound> owned(list);
    for (const addrinfo* at = list; at != nullptr; at = at->ai_next) {
      const int descriptor = socket(at->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
      if (descriptor < 0) continue;
      sockaddr_storage bound{};
      auto& address = reinterpret_cast<sockaddr&>(bound);
      socklen_t size = sizeof bound;
      const int error =
          is_own ? bind(descriptor, at->ai_addr, at->ai_addrlen) : connect(descriptor, at->ai_addr, at->ai_addrlen);
      const bool is_usable = error == 0 && getsockname(descriptor, &address, &size) == 0 && !is_loopback(address);
      close(descriptor);
      if (is_usable) return text_of(address);
    }
  }
  return "";
}

std::string interface_with(const std::string& address) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return "";
  const std::unique_ptr<ifaddrs, FreeInterfaces> owned(list);
  for (const ifaddrs* at = list; at != nullptr; at = at->ifa_next)
    if (at->ifa_addr != nullptr && (at->ifa_addr->sa_family == AF_INET || at->ifa_addr->sa_family == AF_INET6) &&
        text_of(*at->ifa_addr) == address)
      return at->ifa_name;
  return "";
}

std::optional<double> link_gigabits(const std::string& interface) {
  const std::optional<std::string> megabits = sim::first_line("/sys/class/net/" + interface + "/speed");
  if (interface.empty() || !megabits) return std::nullopt;
  const double gigabits = 1e-3 * std::strtod(megabits->c_str(), nullptr);  // -1 where the link is down
  return gigabits > 0 ? std::optional(gigabits) : std::nullopt;
}

}  // namespace backend
