#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/Logging.h>
#include <fmt/ranges.h>
#include <gloo/transport/device.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/GlooDeviceFactory.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <optional>

#include "backend/machine/network.hpp"
#include "backend/machine/scheduling.hpp"
#include "backend/machine/system_file.hpp"
#include "backend/world/world.hpp"

namespace backend {
namespace {

using ProcessGroup = c10::intrusive_ptr<c10d::ProcessGroupGloo>;
using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kEver = std::chrono::hours(24 * 7);

/// A variable that torchrun and spawn_ranks set.
std::string environment_text(const char* name) {
  const char* value = std::getenv(name);
  if (!value)
    throw sim::ConfigError("world 'gloo': {} isn't set; start the ranks with torchrun, or let paragauge spawn them",
                           name);
  return value;
}

std::uint32_t environment_number(const char* name, std::uint32_t maximum) {
  const std::string text = environment_text(name);
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value > maximum)
    throw sim::ConfigError("{}='{}' must be an integer of 0…{}", name, text, maximum);
  return value;
}

/// gloo's and c10d's messages begin with a source position and may go on with a stack: only what happened remains.
std::string reason(const std::exception& error) {
  std::string text = error.what();
  text = text.substr(0, text.find('\n'));
  if (text.starts_with('[')) text = text.substr(std::min(text.find("] ") + 2, text.size()));
  return text;
}

/// What `call` throws becomes a RunError that says `what()` has failed.
template <class What, class Call>
auto guarded(What what, Call call) {
  try {
    return call();
  } catch (const sim::ConfigError&) {
    throw;
  } catch (const std::exception& error) {
    throw sim::RunError("{}: {}", what(), reason(error));
  }
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
c10::intrusive_ptr<c10d::Store> open_store(std::uint32_t rank, std::uint32_t ranks, Milliseconds timeout) {
  const std::string address = environment_text("MASTER_ADDR");
  setenv("TORCH_CPP_LOG_LEVEL", "FATAL", /*overwrite=*/0);  // what c10d warns of, our errors say without a call stack
  c10::initLogging();
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(environment_number("MASTER_PORT", 65535));
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

/// What all process groups of this rank share. The calling thread, which executes the rank, is pinned; gloo's threads
/// inherit its core, and the priority under which they are made.
struct Connections {
  explicit Connections(const SessionOptions& options)
      : rank(environment_number("RANK", 65535)),
        ranks(environment_number("WORLD_SIZE", 65536)),
        timeout(static_cast<std::int64_t>(options.timeout_s * 1e3)) {
    if (ranks != options.ranks) throw sim::ConfigError("ranks={} but WORLD_SIZE={}", options.ranks, ranks);
    if (rank >= ranks) throw sim::ConfigError("RANK={} must be less than WORLD_SIZE={}", rank, ranks);
    store = open_store(rank, ranks, timeout);
    pin_to_core(core_of_rank(rank));
    const RealTime urgent(kCommunicationPriority, options.real_time);
    real_time = urgent.permitted();
    guarded([&] { return fmt::format("rank {} can't meet the other ranks", rank); },
            [&] {
              const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
              device = interface ? c10d::GlooDeviceFactory::makeDeviceForInterface(interface, /*lazyInit=*/false)
                                 : c10d::GlooDeviceFactory::makeDeviceForHostname("127.0.0.1", /*lazyInit=*/false);
              check_host();
            });
  }

  /// A process group of `members` in which this process is number `me`. All members make it at the same time.
  [[nodiscard]] ProcessGroup connect(const std::string& name, std::uint32_t me, std::uint32_t members,
                                     Milliseconds patience) const {
    const RealTime urgent(kCommunicationPriority, real_time);
    auto options = c10d::ProcessGroupGloo::Options::create(timeout);
    options->devices = {device};
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
  void check_host() const {
    const std::string boot = first_line("/proc/sys/kernel/random/boot_id").value_or("unknown");
    const std::vector<std::uint8_t> mine(boot.begin(), boot.end());
    if (rank == 0) store->set("paragauge/host", mine);
    if (store->get("paragauge/host") != mine)
      throw sim::ConfigError(
          "world 'gloo': rank {} runs on another host than rank 0; all ranks must share one host's clock", rank);
  }

  const std::uint32_t rank, ranks;
  const Milliseconds timeout;
  bool real_time = false;
  c10::intrusive_ptr<c10d::Store> store;
  std::shared_ptr<::gloo::transport::Device> device;
};

class GlooControl final : public Control {
 public:
  explicit GlooControl(std::shared_ptr<Connections> connections)
      : connections_(std::move(connections)),
        group_(connections_->connect("control", connections_->rank, connections_->ranks, kEver)) {}

  std::string broadcast(const std::string& text) override {
    at::Tensor buffer = as_tensor(text), size = size_of(buffer);
    run([&] { return group_->broadcast(one(size)); });
    if (connections_->rank != 0) buffer = room_for(size);
    run([&] { return group_->broadcast(one(buffer)); });
    return as_text(buffer);
  }

  std::vector<std::string> gather(const std::string& text) override {
    at::Tensor buffer = as_tensor(text), size = size_of(buffer);
    if (connections_->rank != 0) {
      run([&] { return group_->send(one(size), 0, 0); });
      run([&] { return group_->send(one(buffer), 0, 1); });
      return {};
    }
    std::vector<std::string> texts{text};
    for (int rank = 1; rank < static_cast<int>(connections_->ranks); ++rank) {
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
      const RealTime urgent(kCommunicationPriority, connections_->real_time);
      return start();
    };
    guarded([&] { return fmt::format("rank {} has lost another rank between steps", connections_->rank); },
            [&] { post()->wait(); });
  }
  /// At least one byte, because gloo moves no empty tensors.
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

  std::shared_ptr<Connections> connections_;
  ProcessGroup group_;
  std::vector<at::Tensor> argument_;
};

/// A TCP connection of this process with itself.
class Loopback {
 public:
  Loopback() {
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof(address);
    auto* place = reinterpret_cast<sockaddr*>(&address);
    out_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, place, size) == 0 && listen(listener, 1) == 0 && getsockname(listener, place, &size) == 0 &&
        connect(out_, place, size) == 0)
      in_ = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    const int error = errno;
    close(listener);
    if (in_ < 0) throw sim::RunError("a process can't connect to itself: {}", std::strerror(error));
    constexpr int kYes = 1;
    setsockopt(out_, IPPROTO_TCP, TCP_NODELAY, &kYes, sizeof(kYes));
  }
  ~Loopback() {
    close(out_);
    close(in_);
  }
  Loopback(const Loopback&) = delete;

  void move(const void* from, void* to, std::size_t bytes) const {
    constexpr std::size_t kPart = 64 << 10;  // what socket buffers hold
    for (std::size_t done = 0; done < bytes;) {
      const std::size_t part = std::min(kPart, bytes - done);
      if (::send(out_, static_cast<const char*>(from) + done, part, 0) != static_cast<ssize_t>(part) ||
          ::recv(in_, static_cast<char*>(to) + done, part, MSG_WAITALL) != static_cast<ssize_t>(part))
        throw sim::RunError("a message to itself failed: {}", std::strerror(errno));
      done += part;
    }
  }

 private:
  int out_ = -1, in_ = -1;
};

class GlooCommunicator final : public Communicator {
 public:
  explicit GlooCommunicator(std::shared_ptr<Connections> connections)
      : connections_(std::move(connections)),
        everyone_(connections_->connect("everyone", rank(), size(), connections_->timeout)),
        moment_(at::empty({1}, at::kDouble)) {}
  ~GlooCommunicator() override {
    if (!abandoned_) return;
    // A process group's destructor waits until everything posted is done or has timed out, one after the other. Left to
    // the end of the process.
    for (auto& [members, group] : groups_) group.release();
    for (auto& [ranks, group] : firsts_) group.release();
    starting_.release();
    everyone_.release();
  }

  [[nodiscard]] std::uint32_t rank() const override { return connections_->rank; }
  [[nodiscard]] std::uint32_t size() const override { return connections_->ranks; }

  /// Connections of a member list are kept for later programs.
  void prepare(const std::vector<sim::Group>& groups, std::uint32_t ranks) override {
    own_core_ = ranks <= usable_cores();
    starting_ = ranks == size() ? everyone_ : ProcessGroup();
    if (ranks > 1 && !starting_) {
      starting_ = firsts_[ranks];
      if (!starting_)
        starting_ = firsts_[ranks] =
            connections_->connect(fmt::format("first {}", ranks), rank(), ranks, connections_->timeout);
    }
    memberships_.assign(groups.size(), {});
    for (std::uint32_t g = 0; g < groups.size(); ++g)
      for (const std::vector<std::uint32_t>& members : groups[g].members) {
        const auto me = std::ranges::find(members, rank());
        if (me == members.end()) continue;
        memberships_[g].members = members;
        if (members.size() == 1) continue;
        ProcessGroup& group = groups_[{g, members}];
        if (!group)
          group = connections_->connect(fmt::format("group {} of {}", g, fmt::join(members, ",")),
                                        static_cast<std::uint32_t>(me - members.begin()),
                                        static_cast<std::uint32_t>(members.size()), connections_->timeout);
        memberships_[g].group = group;
      }
  }

  /// An all-reduce of "not before now plus a margin": nobody has the result before all have come, and all get the same
  /// moment.
  double begin_step() override {
    constexpr double kMargin_s = 2e-3;  // the slowest rank has the result by then
    posting_.reset();
    posted_.clear();
    moment_.mutable_data_ptr<double>()[0] = now_s() + kMargin_s;
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::MAX;
    argument_.assign(1, moment_);
    if (starting_)
      guarded([] { return "the start of the step failed"; }, [&] { starting_->allreduce(argument_, options)->wait(); });
    argument_.clear();
    const double release_s = moment_.const_data_ptr<double>()[0];
    sleep_until(release_s, own_core_);
    return release_s;
  }

  void mark(double* moment_s) override {
    *moment_s = now_s();
    posting_.reset();
  }

  Ticket post_send(const at::Tensor& tensor, std::uint32_t destination, std::uint32_t tag) override {
    if (destination == rank()) {
      own_messages_[tag].from = tensor;
      return add({nullptr, Kind::send, destination, tag});
    }
    hurry_with(tensor);
    return add({everyone_->send(argument_, static_cast<int>(destination), static_cast<int>(tag)), Kind::send,
                destination, tag});
  }
  Ticket post_recv(const at::Tensor& tensor, std::uint32_t source, std::uint32_t tag) override {
    if (source == rank()) {
      own_messages_[tag].to = tensor;
      return add({nullptr, Kind::recv, source, tag});
    }
    hurry_with(tensor);
    return add({everyone_->recv(argument_, static_cast<int>(source), static_cast<int>(tag)), Kind::recv, source, tag});
  }
  Ticket post_collective(sim::CollectiveKind kind, const at::Tensor& tensor, std::uint32_t group,
                         std::uint32_t root) override {
    const Membership& membership = memberships_.at(group);
    if (!membership.group) return add({nullptr, Kind::collective, group, 0, now_s()});  // alone
    hurry_with(tensor);
    const Ticket ticket = add({.work = begin(kind, root, *membership.group),
                               .kind = Kind::collective,
                               .partner = group,
                               .collective_kind = kind});
    // Runs in gloo's thread before the waiting thread is woken.
    posted_.back().work->getFuture()->addCallback(
        [&posted = posted_.back()](c10::ivalue::Future&) { posted.end_s = now_s(); });
    return ticket;
  }

  void wait(Ticket ticket, Completion& done) override {
    Posted& posted = posted_.at(ticket);
    if (posted.work) guarded([&] { return describe(posted) + " failed"; }, [&] { posted.work->wait(); });
    if (posted.kind != Kind::collective && posted.partner == rank()) move_own(posted.tag);
    done = {0, posted.end_s > 0 ? posted.end_s : now_s()};
    posted.work.reset();  // it holds the tensor
  }

  /// The others notice when they lose their connections to this process.
  void abandon() override { abandoned_ = true; }

 private:
  /// Of what is in argument_.
  c10::intrusive_ptr<c10d::Work> begin(sim::CollectiveKind kind, std::uint32_t root, c10d::ProcessGroupGloo& group) {
    switch (kind) {
      case sim::CollectiveKind::all_reduce:
        return group.allreduce(argument_);
      case sim::CollectiveKind::broadcast: {
        c10d::BroadcastOptions from;
        from.rootRank = root;
        return group.broadcast(argument_, from);
      }
    }
    throw sim::InternalError("world 'gloo' has no collective of kind {}", static_cast<int>(kind));
  }

  enum class Kind : std::uint8_t { send, recv, collective };
  struct Posted {
    c10::intrusive_ptr<c10d::Work> work;
    Kind kind = Kind::send;
    std::uint32_t partner = 0;  // rank, or group
    std::uint32_t tag = 0;
    double end_s = 0;
    sim::CollectiveKind collective_kind = sim::CollectiveKind::all_reduce;
  };
  struct Membership {
    std::vector<std::uint32_t> members;
    ProcessGroup group;  // null: no other member
  };

  /// gloo connects no rank with itself: the way is the same, TCP, in this thread.
  void move_own(std::uint32_t tag) {
    const auto entry = own_messages_.find(tag);
    if (entry == own_messages_.end()) return;  // with the other end's wait
    if (!entry->second.from.defined() || !entry->second.to.defined())
      throw sim::RunError("rank {} waits for a message (tag {}) to itself that it hasn't posted", rank(), tag);
    loopback_.move(entry->second.from.const_data_ptr(), entry->second.to.mutable_data_ptr(), entry->second.to.nbytes());
    own_messages_.erase(entry);
  }

  /// Before a post of `tensor`. SCHED_FIFO and gloo. Two of its threads poll without blocking: the event loop while
  /// another thread holds a connection's lock, and whoever destroys a buffer while the event loop uses it (with
  /// sched_yield). On one core the one polled for must get its turn: so gloo's threads all have the same priority, and
  /// the rank's thread takes it on while it posts. It gives it back with the next `mark`, that is when the next wait or
  /// compute has begun: what gloo's threads then do at once is time of that instruction, not of the post.
  void hurry_with(const at::Tensor& tensor) {
    if (!posting_) posting_.emplace(kCommunicationPriority, connections_->real_time);
    argument_.assign(1, tensor);
  }

  Ticket add(Posted posted) {
    argument_.clear();  // the Program may free the tensor long before the next post
    posted_.push_back(std::move(posted));
    return static_cast<Ticket>(posted_.size() - 1);
  }

  [[nodiscard]] std::string describe(const Posted& posted) const {
    switch (posted.kind) {
      case Kind::send:
        return fmt::format("the send to rank {} (tag {})", posted.partner, posted.tag);
      case Kind::recv:
        return fmt::format("the receive from rank {} (tag {})", posted.partner, posted.tag);
      case Kind::collective:
        return fmt::format("the {} of ranks {}", to_string(posted.collective_kind),
                           fmt::join(memberships_[posted.partner].members, ", "));
    }
    return {};
  }

  std::shared_ptr<Connections> connections_;
  ProcessGroup everyone_;                         // point to point
  ProcessGroup starting_;                         // of the ranks that run the program; null: one
  std::map<std::uint32_t, ProcessGroup> firsts_;  // of the first so many ranks
  bool own_core_ = false;                         // each of them has a core for itself: it may spin
  std::map<std::pair<std::uint32_t, std::vector<std::uint32_t>>, ProcessGroup> groups_;
  std::vector<Membership> memberships_;
  struct OwnMessage {
    at::Tensor from, to;
  };
  std::map<std::uint32_t, OwnMessage> own_messages_;  // by tag
  Loopback loopback_;
  std::deque<Posted> posted_;  // by ticket
  std::optional<RealTime> posting_;
  bool abandoned_ = false;
  std::vector<at::Tensor> argument_;
  at::Tensor moment_;
};

}  // namespace

World make_gloo_world(const SessionOptions& options) {
  if (options.device != "cpu")
    throw sim::ConfigError("world 'gloo' moves CPU tensors only; device=cuda needs world=local");
  const auto connections = std::make_shared<Connections>(options);
  World world;
  world.control = std::make_unique<GlooControl>(connections);
  world.ranks.push_back(std::make_unique<GlooCommunicator>(connections));
  return world;
}

}  // namespace backend
