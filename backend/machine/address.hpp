// Where other hosts reach this one, and over what.
//
//   const std::string address = reachable_address("host0");       // "10.0.0.2", by this host's name or the way to host0
//   link_gigabits(interface_with(address))                        // 10: what the NIC says of itself
#pragma once

#include <optional>
#include <string>

namespace backend {

/// What this host calls itself.
std::string host_name();
/// The address of this host to which others can connect: that of its name, as gloo has it, unless that is a loopback
/// (Debian's 127.0.1.1), or nobody here has it; else the one from which it reaches `other`. Empty where neither is.
std::string reachable_address(const std::string& other);
/// The name of the interface with this address; empty where none has it.
std::string interface_with(const std::string& address);
/// Gbit/s, as the interface's driver says (/sys/class/net/…/speed); none where it doesn't.
std::optional<double> link_gigabits(const std::string& interface);

}  // namespace backend
