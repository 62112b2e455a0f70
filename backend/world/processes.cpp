#include "backend/world/processes.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/Logging.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/GlooDeviceFactory.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "backend/machine/network.hpp"
#include "backend/machine/scheduling.hpp"
#include "backend/machine/system_file.hpp"

namespace backend {

std::string reason(const std::exception& error) {
  std::string text = error.what();
  text = text.substr(0, text.find('\n'));
  if (text.starts_with('[')) text = text.substr(std::min(text.find("] ") + 2, text.size()));
  return text;
}

namespace {

using Milliseconds = Meeting::Milliseconds;

constexpr Milliseconds kEver = std::chrono::hours(24 * 7);

/// A variable that torchrun and spawn_ranks set.
std::string environment_text(std::string_view world, const char* name) {
  const char* value = std::getenv(name);
  if (!value)
    throw sim::ConfigError("world '{}': {} isn't set; start the ranks with torchrun, or let paragauge spawn them",
                           world, name);
  return value;
}

std::uint32_t environment_number(std::string_view world, const char* name, std::uint32_t maximum) {
  const std::string text = environment_text(world, name);
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value > maximum)
    throw sim::ConfigError("{}='{}' must be an integer of 0…{}", name, text, maximum);
  return value;
}

/// Returns when somebody listens there. c10d's client would wait for up to twice the timeout.
void wait_for_store(const std::string& host, std::uint16_t port, bool may_come_later, std::uint32_t rank,
                    Milliseconds timeout) {
  const addrinfo hints{.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  addrinfo* addresses = nullptr;
  if (const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &addresses))
    throw sim::ConfigError("MASTER_ADDR='{}' can't be resolved: {}", host, gai_strerror(error));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(addresses, freeaddrinfo);
  const double deadline_s = now_s() + 1e-3 * static_cast<double>(timeout.count());
  while (may_come_later) {
    for (const addrinfo* at = addresses; at != nullptr; at = at->ai_next) {
      const int descriptor = socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
      if (descriptor < 0) continue;
      connect(descriptor, at->ai_addr, at->ai_addrlen);
      pollfd end{descriptor, POLLOUT, 0};
      poll(&end, 1, 1000);
      int error = 0;
      socklen_t size = sizeof error;
      const bool heard = (end.revents & POLLOUT) != 0 &&
                         getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0;
      close(descriptor);
      if (heard) return;
    }
    if (now_s() > deadline_s)
      throw sim::RunError(
          "rank {}: nobody listens at {}:{} (MASTER_ADDR, MASTER_PORT) within {:g} s; is there a rank 0?", rank, host,
          port, 1e-3 * static_cast<double>(timeout.count()));
    sleep_until(now_s() + 0.05, /*precisely=*/false);
  }
}

/// Rank 0 serves the store, unless torchrun's agent does or spawn_ranks has opened the socket already.
c10::intrusive_ptr<c10d::Store> open_store(std::string_view world, std::uint32_t rank, std::uint32_t ranks,
                                           Milliseconds timeout) {
  const std::string address = environment_text(world, "MASTER_ADDR");
  setenv("TORCH_CPP_LOG_LEVEL", "FATAL", /*overwrite=*/0);  // what c10d warns of, our errors say without a call stack
  c10::initLogging();
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(environment_number(world, "MASTER_PORT", 65535));
  const char* agent = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  const bool by_agent = agent && std::string_view(agent) == "True";
  const char* socket = std::getenv(StoreSocket::kVariable);
  options.isServer = rank == 0 && !by_agent;
  if (socket && options.isServer) options.masterListenFd = std::atoi(socket);
  wait_for_store(address, options.port, rank != 0 && !by_agent && !socket, rank, timeout);
  options.numWorkers = ranks;
  options.waitWorkers = false;
  options.timeout = timeout;
  try {
    return c10::make_intrusive<c10d::TCPStore>(address, options);
  } catch (const std::exception& error) {
    if (reason(error).find("EADDRINUSE") != std::string::npos)
      throw sim::RunError("port {} of {} (MASTER_PORT) is in use", options.port, address);
    throw sim::RunError("rank {} can't reach the store at {}:{}: {}", rank, address, options.port, reason(error));
  }
}

class GlooControl final : public Control {
 public:
  explicit GlooControl(std::shared_ptr<const Meeting> meeting)
      : meeting_(std::move(meeting)), group_(meeting_->connect("control", meeting_->rank, meeting_->ranks, kEver)) {}

  std::string broadcast(const std::string& text) override {
    at::Tensor buffer = as_tensor(text), size = size_of(buffer);
    run([&] { return group_->broadcast(one(size)); });
    if (meeting_->rank != 0) buffer = room_for(size);
    run([&] { return group_->broadcast(one(buffer)); });
    return as_text(buffer);
  }

  void broadcast_into(const at::Tensor& tensor) override {
    if (tensor.numel() > 0) run([&] { return group_->broadcast(one(tensor)); });
  }

  std::vector<std::string> gather(const std::string& text) override {
    at::Tensor buffer = as_tensor(text), size = size_of(buffer);
    if (meeting_->rank != 0) {
      run([&] { return group_->send(one(size), 0, 0); });
      run([&] { return group_->send(one(buffer), 0, 1); });
      return {};
    }
    std::vector<std::string> texts{text};
    for (int rank = 1; rank < static_cast<int>(meeting_->ranks); ++rank) {
      run([&] { return group_->recv(one(size), rank, 0); });
      buffer = room_for(size);
      run([&] { return group_->recv(one(buffer), rank, 1); });
      texts.push_back(as_text(buffer));
    }
    return texts;
  }

 private:
  std::vector<at::Tensor>& one(const at::Tensor& tensor) {
    argument_.assign(1, tensor);
    return argument_;
  }
  template <class Start>
  void run(Start start) {
    const auto post = [&] {
      const RealTime urgent(kCommunicationPriority, meeting_->real_time);
      return start();
    };
    guarded([&] { return fmt::format("rank {} has lost another rank between steps", meeting_->rank); },
            [&] { post()->wait(); });
  }
  /// The text as at least one byte, because gloo moves no empty tensors.
  static at::Tensor as_tensor(const std::string& text) {
    at::Tensor tensor = at::empty({static_cast<std::int64_t>(text.size()) + 1}, at::kByte);
    std::memcpy(tensor.mutable_data_ptr(), text.c_str(), text.size() + 1);
    return tensor;
  }
  static at::Tensor size_of(const at::Tensor& buffer) { return at::full({1}, buffer.numel(), at::kLong); }
  static at::Tensor room_for(const at::Tensor& size) { return at::empty({size.item<std::int64_t>()}, at::kByte); }
  static std::string as_text(const at::Tensor& tensor) {
    const auto* bytes = static_cast<const char*>(tensor.const_data_ptr());
    return {bytes, bytes + tensor.numel() - 1};
  }

  std::shared_ptr<const Meeting> meeting_;
  ProcessGroup group_;
  std::vector<at::Tensor> argument_;
};

}  // namespace

Meeting::Meeting(std::string_view its_world, const SessionOptions& options)
    : world(its_world),
      rank(environment_number(world, "RANK", 65535)),
      ranks(environment_number(world, "WORLD_SIZE", 65536)),
      timeout(static_cast<std::int64_t>(options.timeout_s * 1e3)) {
  if (ranks != options.ranks) throw sim::ConfigError("ranks={} but WORLD_SIZE={}", options.ranks, ranks);
  if (rank >= ranks) throw sim::ConfigError("RANK={} must be less than WORLD_SIZE={}", rank, ranks);
  store = open_store(world, rank, ranks, timeout);
  pin_to_core(core_of_rank(rank));
  // The device's thread is gloo's event loop: it polls a connection that another thread holds.
  const RealTime urgent(kCommunicationPriority, options.real_time, Turn::limited);
  real_time = urgent.permitted();
  guarded([&] { return fmt::format("rank {} can't meet the other ranks", rank); },
          [&] {
            const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
            device = interface ? c10d::GlooDeviceFactory::makeDeviceForInterface(interface, /*lazyInit=*/false)
                               : c10d::GlooDeviceFactory::makeDeviceForHostname("127.0.0.1", /*lazyInit=*/false);
            check_host();
          });
}

ProcessGroup Meeting::connect(const std::string& name, std::uint32_t me, std::uint32_t members,
                              Milliseconds patience) const {
  const RealTime urgent(kCommunicationPriority, real_time);
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  options->devices = {device};
  options->threads = 1;  // a group's collectives go one after the other, in the order posted, as the forecast has them
  return guarded([&] { return fmt::format("rank {} can't connect to the other ranks", rank); },
                 [&] {
                   auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(
                       c10::make_intrusive<c10d::PrefixStore>(name, store), static_cast<int>(me),
                       static_cast<int>(members), options);
                   group->setTimeout(patience);
                   return group;
                 });
}

/// Times of different ranks are compared, so all must read the same clock.
void Meeting::check_host() const {
  const std::string boot = first_line("/proc/sys/kernel/random/boot_id").value_or("unknown");
  const std::vector<std::uint8_t> mine(boot.begin(), boot.end());
  if (rank == 0) store->set("paragauge/host", mine);
  if (store->get("paragauge/host") != mine)
    throw sim::ConfigError(
        "world '{}': rank {} runs on another host than rank 0; all ranks must share one host's clock", world, rank);
}

std::string TransferName::text() const {
  if (kind == sim::InstructionKind::collective)
    return fmt::format("the {} of ranks {}", to_string(collective), fmt::join(*members, ", "));
  return kind == sim::InstructionKind::send ? fmt::format("the send to rank {} (tag {})", partner, tag)
                                            : fmt::format("the receive from rank {} (tag {})", partner, tag);
}

std::vector<std::vector<std::uint32_t>> memberships_of(const std::vector<sim::Group>& groups, std::uint32_t rank) {
  std::vector<std::vector<std::uint32_t>> memberships(groups.size());
  for (std::uint32_t g = 0; g < groups.size(); ++g)
    for (const std::vector<std::uint32_t>& members : groups[g].members)
      if (std::ranges::find(members, rank) != members.end()) memberships[g] = members;
  return memberships;
}

std::string group_name(std::uint32_t group, const std::vector<std::uint32_t>& members) {
  return fmt::format("group {} of {}", group, fmt::join(members, ","));
}

StepStart::StepStart(std::shared_ptr<const Meeting> meeting)
    : meeting_(std::move(meeting)), moment_(at::empty({1}, at::kDouble)) {
  firsts_[meeting_->ranks] = meeting_->connect("everyone", meeting_->rank, meeting_->ranks, meeting_->timeout);
}
StepStart::~StepStart() = default;

const ProcessGroup& StepStart::everyone() const { return firsts_.at(meeting_->ranks); }

void StepStart::prepare(std::uint32_t ranks) {
  own_core_ = ranks <= usable_cores();
  group_ = ProcessGroup();
  if (ranks == 1) return;
  ProcessGroup& group = firsts_[ranks];
  if (!group) group = meeting_->connect(fmt::format("first {}", ranks), meeting_->rank, ranks, meeting_->timeout);
  group_ = group;
}

/// An all-reduce of "not before now plus a margin": nobody has the result before all have come, and all get the same
/// moment.
double StepStart::come() {
  constexpr double kMargin_s = 2e-3;  // the slowest rank has the result by then
  moment_.mutable_data_ptr<double>()[0] = now_s() + kMargin_s;
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MAX;
  std::vector<at::Tensor> tensors{moment_};
  if (group_)
    guarded([&] { return fmt::format("rank {}: the start of the step failed", meeting_->rank); },
            [&] { group_->allreduce(tensors, options)->wait(); });
  const double release_s = moment_.const_data_ptr<double>()[0];
  sleep_until(release_s, own_core_);
  return release_s;
}

void StepStart::leave() {
  for (auto& [ranks, group] : firsts_) group.release();
  group_.release();
}

std::unique_ptr<Control> make_control(std::shared_ptr<const Meeting> meeting) {
  return std::make_unique<GlooControl>(std::move(meeting));
}

}  // namespace backend
