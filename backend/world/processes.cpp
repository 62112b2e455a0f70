#include "backend/world/processes.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Logging.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <poll.h>
#include <sys/resource.h>
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
#include <map>
#include <nlohmann/json.hpp>

#include "backend/machine/address.hpp"
#include "backend/machine/launch.hpp"
#include "backend/machine/network.hpp"
#include "backend/machine/scheduling.hpp"
#include "backend/supervise.hpp"
#include "backend/world/last_words.hpp"
#include "sim/cluster/allowance.hpp"

namespace backend {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Greeting, host, clock, alike, stays_away, status, why)

std::string reason(const std::exception& error) {
  std::string text = error.what();
  text = text.substr(0, text.find('\n'));
  if (text.starts_with('[')) text = text.substr(std::min(text.find("] ") + 2, text.size()));
  return text;
}

void linger(c10d::Store& store, const std::string& heard, std::size_t others, double longest_s) {
  for (const double end_s = now_s() + longest_s;
       now_s() < end_s && store.add(heard, 0) < static_cast<std::int64_t>(others);)
    sleep_until(now_s() + 0.02, /*precisely=*/false);
}

namespace {

using Milliseconds = Meeting::Milliseconds;

constexpr Milliseconds kEver = std::chrono::hours(24 * 7);

/// A variable of backend/machine/launch.hpp.
std::string environment_text(std::string_view world, const char* name) {
  const char* value = std::getenv(name);
  if (!value)
    throw sim::ConfigError(
        "world '{}': {} isn't set; start the ranks with torchrun, srun or mpirun, or let paragauge spawn them", world,
        name);
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

/// Whether this process has looked for the others: who hasn't found them can't tell them anything either.
bool has_looked = false;

/// Every group is a mesh of sockets, and kept for later programs.
void permit_sockets() {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  files.rlim_cur = files.rlim_max;
  static_cast<void>(setrlimit(RLIMIT_NOFILE, &files));
}

/// Rank 0 serves the store, unless torchrun's agent does or spawn_ranks has opened the socket already.
c10::intrusive_ptr<c10d::Store> open_store(std::string_view world, std::uint32_t rank, std::uint32_t ranks,
                                           Milliseconds timeout) {
  permit_sockets();
  has_looked = true;
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
    // torchrun's agent keeps its store when it starts the ranks again.
    const char* restarts = std::getenv("TORCHELASTIC_RESTART_COUNT");
    return c10::make_intrusive<c10d::PrefixStore>(fmt::format("paragauge/{}", restarts != nullptr ? restarts : "0"),
                                                  c10::make_intrusive<c10d::TCPStore>(address, options));
  } catch (const std::exception& error) {
    if (reason(error).find("EADDRINUSE") != std::string::npos)
      throw sim::RunError("port {} of {} (MASTER_PORT) is in use", options.port, address);
    throw sim::RunError("rank {} can't reach the store at {}:{}: {}", rank, address, options.port, reason(error));
  }
}

/// All ranks' greetings, by rank, on every rank; only its own where rank 0 stays away.
std::vector<Greeting> exchange(c10d::Store& store, std::uint32_t rank, std::uint32_t ranks, Milliseconds timeout,
                               Greeting own) {
  const double seconds = 1e-3 * static_cast<double>(timeout.count());
  const auto key_of = [](std::uint32_t of) { return fmt::format("greeting/{}", of); };
  const auto put = [&](const std::string& key, const nlohmann::json& value) {
    store.set(key, nlohmann::json::to_cbor(value));
  };
  put(key_of(rank), own);
  const double begin_s = now_s();
  const auto get = [&](const std::string& key, const std::string& who) {
    try {
      return nlohmann::json::from_cbor(store.get(key));
    } catch (const std::exception& error) {
      if (now_s() - begin_s < seconds)
        throw sim::RunError("rank {} has lost the store while it waited for {}: {}", rank, who, reason(error));
      throw sim::RunError("rank {}: {} hasn't come within {:g} s; WORLD_SIZE={}", rank, who, seconds, ranks);
    }
  };
  if (rank != 0) {
    auto greetings = get("greetings", "one of the ranks").get<std::vector<Greeting>>();
    try {
      store.add("heard", 1);
    } catch (const std::exception&) {  // rank 0 has gone: it hasn't waited
    }
    return greetings;
  }
  std::vector<Greeting> greetings{own};
  try {
    for (std::uint32_t other = 1; other < ranks && !own.stays_away; ++other)
      greetings.push_back(get(key_of(other), fmt::format("rank {}", other)).get<Greeting>());
  } catch (const std::exception&) {
    own.stays_away = true;  // rank 0 says whom it has waited for
    try {
      put("greetings", std::vector{own});
      linger(store, "heard", ranks - 1, 1);
    } catch (const std::exception&) {  // the store has gone, too
    }
    throw;
  }
  put("greetings", greetings);
  return greetings;
}

Hosts meet(c10d::Store& store, std::uint32_t rank, std::uint32_t ranks, Milliseconds timeout,
           const std::map<std::string, std::string>& alike) {
  const std::vector<Greeting> greetings = exchange(store, rank, ranks, timeout, greeting(alike));
  if (greetings[0].stays_away) throw SaidByAnother();
  try {
    return Hosts(greetings);
  } catch (const std::exception&) {
    if (rank != 0) throw SaidByAnother();
    linger(store, "heard", ranks - 1, 1);
    throw;
  }
}

std::shared_ptr<::gloo::transport::Device> make_device(std::string_view world, const Hosts& hosts, std::uint32_t rank) {
  if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME"))
    return c10d::GlooDeviceFactory::makeDeviceForInterface(interface, /*lazyInit=*/false);
  std::string address = "127.0.0.1";
  if (hosts.several()) address = reachable_address(environment_text(world, "MASTER_ADDR"));
  if (address.empty())
    throw sim::ConfigError(
        "{}: neither its host's name nor MASTER_ADDR leads to an address that other hosts reach; set "
        "GLOO_SOCKET_IFNAME to the interface between them",
        hosts.named(rank));
  return c10d::GlooDeviceFactory::makeDeviceForHostname(address, /*lazyInit=*/false);
}

class GlooControl final : public Control {
 public:
  explicit GlooControl(std::shared_ptr<const Meeting> meeting)
      : meeting_(std::move(meeting)), group_(meeting_->connect("control", meeting_->rank, meeting_->ranks, kEver)) {
    if (!is_watched()) last_words_.emplace(meeting_->store, meeting_->rank, meeting_->ranks);
  }

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

  Failures exchange_failures(const std::exception& own, const std::function<void()>& leave) override {
    return last_words_.value().exchange(own, leave);
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
    guarded([&] { return meeting_->hosts.named(meeting_->rank) + " has lost another rank between steps"; },
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
  std::optional<LastWords> last_words_;  // where no supervisor hears what this rank says
};

}  // namespace

namespace {

std::uint32_t checked_ranks(std::uint32_t rank, std::uint32_t ranks, std::uint32_t wanted) {
  if (ranks != wanted) throw sim::ConfigError("ranks={} but WORLD_SIZE={}", wanted, ranks);
  if (rank >= ranks) throw sim::ConfigError("RANK={} must be less than WORLD_SIZE={}", rank, ranks);
  return ranks;
}

Milliseconds meeting_time(const SessionOptions& options) {
  return Milliseconds(static_cast<std::int64_t>(1e3 * (options.meeting_s > 0 ? options.meeting_s : options.timeout_s)));
}

/// c10d's leaves its connections open while anything that is posted may still be done.
class ClosableGroup final : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;
  void close() {
    for (const auto& context : contexts_) context->closeConnections();
  }
};

}  // namespace

bool stay_away(int status, const std::string& why) {
  if (has_looked || !is_launched()) return false;
  constexpr double kPatience_s = 10;  // with those who haven't come yet
  try {
    const std::uint32_t rank = environment_number("gloo", "RANK", 65535);
    const std::uint32_t ranks = environment_number("gloo", "WORLD_SIZE", 65536);
    const Milliseconds patience(static_cast<std::int64_t>(1e3 * kPatience_s));
    const auto store = open_store("gloo", rank, ranks, patience);
    Greeting own = greeting({});
    own.stays_away = true;
    own.status = status;
    own.why = why;
    exchange(*store, rank, ranks, patience, own);
    if (rank == 0) linger(*store, "heard", ranks - 1, kPatience_s);
    return rank != 0;
  } catch (const std::exception&) {
    return false;
  }
}

struct Meeting::Groups {
  std::vector<c10::weak_intrusive_ptr<ClosableGroup>> list;
};

Meeting::Meeting(std::string_view its_world, const SessionOptions& options)
    : world(its_world),
      rank(environment_number(world, "RANK", 65535)),
      ranks(environment_number(world, "WORLD_SIZE", 65536)),
      timeout(static_cast<std::int64_t>(options.timeout_s * 1e3)),
      store(open_store(world, rank, checked_ranks(rank, ranks, options.ranks), meeting_time(options))),
      hosts(meet(*store, rank, ranks, meeting_time(options), options.alike)),
      groups_(std::make_shared<Groups>()) {
  if (hosts.several() && ranks_per_host() == 0)
    throw sim::ConfigError(
        "LOCAL_WORLD_SIZE must be how many of the {} ranks are on a host (torchrun and paragauge's own readers of "
        "Slurm "
        "and MPI set it): {} is on another host than rank 0, and {} ranks are taken to be on one",
        ranks, hosts.named(hosts.list().back().ranks.front()), ranks);
  store->setTimeout(timeout);
  pin_to_core(core_of_rank(hosts.place_of(rank)));
  // The device's thread is gloo's event loop: it polls a connection that another thread holds.
  const RealTime urgent(kCommunicationPriority, options.real_time, Turn::limited);
  real_time = urgent.permitted();
  device = guarded([&] { return hosts.named(rank) + " can't meet the other ranks"; },
                   [&] { return make_device(world, hosts, rank); });
  network = device->str();
}

ProcessGroup Meeting::connect(const std::string& name, std::uint32_t me, std::uint32_t members,
                              Milliseconds patience) const {
  const RealTime urgent(kCommunicationPriority, real_time);
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  options->devices = {device};
  options->threads = 1;  // a group's collectives go one after the other, in the order posted, as the forecast has them
  return guarded([&] { return hosts.named(rank) + " can't connect to the other ranks"; },
                 [&] {
                   auto group =
                       c10::make_intrusive<ClosableGroup>(c10::make_intrusive<c10d::PrefixStore>(name, store),
                                                          static_cast<int>(me), static_cast<int>(members), options);
                   group->setTimeout(patience);
                   groups_->list.emplace_back(group);
                   return ProcessGroup(std::move(group));
                 });
}

void Meeting::disconnect() const {
  for (const auto& weak : groups_->list)
    if (const auto group = weak.lock()) group->close();
}

std::string TransferName::text(const Hosts& hosts) const {
  if (kind == sim::InstructionKind::collective) {
    if (!hosts.several()) return fmt::format("the {} of ranks {}", to_string(collective), fmt::join(*members, ", "));
    std::vector<std::string> names;
    for (const std::uint32_t member : *members) names.push_back(hosts.named(member));
    return fmt::format("the {} of {}", to_string(collective), fmt::join(names, ", "));
  }
  return kind == sim::InstructionKind::send ? fmt::format("the send to {} (tag {})", hosts.named(partner), tag)
                                            : fmt::format("the receive from {} (tag {})", hosts.named(partner), tag);
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
  ranks_ = ranks;
  const Hosts& hosts = meeting_->hosts;
  std::uint32_t here = 0;
  has_other_clocks_ = false;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    here += hosts.host_of(rank) == hosts.host_of(meeting_->rank);
    has_other_clocks_ |= hosts.host_of(rank) != 0;
  }
  own_core_ = here <= sim::usable_cores();
  group_ = ProcessGroup();
  clock_ = {};
  if (ranks == 1) return;
  ProcessGroup& group = firsts_[ranks];
  if (!group) group = meeting_->connect(fmt::format("first {}", ranks), meeting_->rank, ranks, meeting_->timeout);
  group_ = group;
  if (has_other_clocks_) add_offset();
}

/// The first rank of each other host asks rank 0, one after the other, and tells its host's other ranks.
void StepStart::add_offset() {
  constexpr int kRoundTrips = 32;  // the shortest is within 10 % of the shortest of 1,000 on two namespaces
  constexpr int kTag = 0;          // nothing else is on its way
  const RealTime urgent(kCommunicationPriority, meeting_->real_time);
  const Hosts& hosts = meeting_->hosts;
  const std::uint32_t rank = meeting_->rank, first = hosts.first_of(rank);
  const auto number = [](double value) { return std::vector<at::Tensor>{at::full({1}, value, at::kDouble)}; };
  const auto send = [&](std::uint32_t to, std::vector<at::Tensor> message) {
    group_->send(message, static_cast<int>(to), kTag)->wait();
  };
  const auto receive = [&](std::uint32_t from, std::int64_t numbers = 1) {
    std::vector<at::Tensor> message{at::empty({numbers}, at::kDouble)};
    group_->recv(message, static_cast<int>(from), kTag)->wait();
    return message[0];
  };
  guarded([&] { return hosts.named(rank) + " can't read the hosts' clocks"; },
          [&] {
            if (rank == 0) {
              for (const Host& host : hosts.list()) {
                const std::uint32_t other = host.ranks.front();
                if (other == 0 || other >= ranks_) continue;
                for (int trip = 0; trip < kRoundTrips; ++trip) {
                  receive(other);
                  send(other, number(now_s()));
                }
              }
              return;
            }
            if (hosts.host_of(rank) == 0) return;
            if (rank != first) {
              const at::Tensor told = receive(first, 3);
              const auto* values = told.const_data_ptr<double>();
              clock_.host.add({values[0], values[1], values[2]});
              return;
            }
            std::vector<RoundTrip> trips;
            for (int trip = 0; trip < kRoundTrips; ++trip) {
              const std::vector<at::Tensor> question = number(0);
              RoundTrip& latest = trips.emplace_back();
              latest.sent_s = now_s();
              send(0, question);
              latest.there_s = receive(0).item<double>();
              latest.back_s = now_s();
            }
            const ClockOffset offset = offset_of(trips);
            clock_.host.add(offset);
            for (const std::uint32_t other : hosts.list()[hosts.host_of(rank)].ranks)
              if (other != rank && other < ranks_)
                send(other, {at::tensor({offset.at_s, offset.offset_s, offset.error_s}, at::kDouble)});
          });
}

/// An all-reduce of "not before now plus a margin": nobody has the result before all have come, and all get the same
/// moment, on rank 0's host's clock.
double StepStart::come() {
  // The slowest rank has the result by then: gloo's all-reduce of one number goes twice around, and a hop takes 50 us, or
  // 130 without real-time priority.
  const double margin_s = std::max(2e-3, 1e-3 + 3e-4 * (static_cast<double>(ranks_) - 1));
  constexpr double kFresh_s = 1;  // clocks that differ by 50 ppm, as quartzes do, move apart by 50 us meanwhile
  if (has_other_clocks_ && !clock_.starts.empty() &&
      clock_.starts.back().reference_s - clock_.read_s > kFresh_s) {  // the same on all ranks
    add_offset();
    clock_.read_s = clock_.starts.back().reference_s;
  }
  // A message takes half of the round trip that the error is half of.
  moment_.mutable_data_ptr<double>()[0] = clock_.host.on_reference(now_s()) + margin_s + 4 * clock_.host.error_s();
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MAX;
  std::vector<at::Tensor> tensors{moment_};
  if (group_)
    guarded([] { return std::string("the start of the step failed"); },
            [&] { group_->allreduce(tensors, options)->wait(); });
  const double reference_s = moment_.const_data_ptr<double>()[0];
  const double release_s = clock_.host.here(reference_s);
  sleep_until(release_s + turn_after_s(meeting_->hosts.place_of(meeting_->rank)), own_core_);
  if (has_other_clocks_) {
    if (clock_.starts.empty()) clock_.read_s = reference_s;
    clock_.starts.push_back({release_s, reference_s});
  }
  return release_s;
}

SharedClock StepStart::read_clock() {
  if (has_other_clocks_) add_offset();
  return clock_;
}

void StepStart::leave() {
  for (auto& [ranks, group] : firsts_) group.release();
  group_.release();
}

std::unique_ptr<Control> make_control(std::shared_ptr<const Meeting> meeting) {
  return std::make_unique<GlooControl>(std::move(meeting));
}

}  // namespace backend
