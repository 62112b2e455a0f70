// World `nccl`: a process and an accelerator per rank, NCCL between them. Every group has a communicator and a stream
// of its own, and so has every pair of ranks in each direction: what isn't ordered by the Program isn't by a stream. A
// transfer waits on its stream for the event that was recorded when it was posted, and the compute stream waits for the
// transfer's end; nothing else orders the streams.
//
// NCCL knows no tags: the messages from one rank to another arrive in the order in which they are sent. So a receive is
// issued when those of the messages that are sent before are, too.
#ifdef PARAGAUGE_NCCL
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>
#include <fmt/ranges.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <map>
#include <thread>
#include <vector>

#include "backend/machine/accelerator.hpp"
#include "backend/machine/launch.hpp"
#include "backend/machine/scheduling.hpp"
#include "backend/world/processes.hpp"

namespace backend {
namespace {

void check(ncclResult_t result, std::string_view what, ncclComm_t comm = nullptr) {
  if (result == ncclSuccess) return;
  const char* detail = ncclGetLastError(comm);
  throw sim::RunError("{}: NCCL: {}{}{}", what, ncclGetErrorString(result), *detail != '\0' ? ": " : "", detail);
}

ncclDataType_t data_type(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return ncclFloat32;
    case at::kDouble:
      return ncclFloat64;
    case at::kHalf:
      return ncclFloat16;
    case at::kBFloat16:
      return ncclBfloat16;
    case at::kLong:
      return ncclInt64;
    case at::kInt:
      return ncclInt32;
    case at::kBool:
      return ncclUint8;
    default:
      throw sim::InternalError("world 'nccl' moves no {}", c10::toString(type));
  }
}

/// The library that was loaded, which needn't be the one that this was built with.
void check_library(const std::string& device) {
  int version = 0;
  check(ncclGetVersion(&version), "NCCL's version");
  const auto text = [](int code) { return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100); };
  if (version / 100 != NCCL_VERSION_CODE / 100)
    throw sim::ConfigError("world 'nccl': libnccl.so.2 is NCCL {}, this was built for {}", text(version),
                           text(NCCL_VERSION_CODE));
  if (device == "cuda" && dlsym(RTLD_DEFAULT, "standin_stream_magic") != nullptr)
    throw sim::ConfigError("world 'nccl': libnccl.so.2 is the tests' stand-in, which can't move data of device=cuda");
}

/// The accelerators that so many ranks of this host have, by their number among these ranks; or for each the only one
/// that it may see, where a launcher has chosen it (srun --gpus-per-task). ConfigError where there are fewer.
std::vector<at::Device> devices_of_ranks(const std::string& name, std::uint32_t ranks) {
  const at::Device first = first_device(name);
  const auto count = static_cast<std::uint32_t>(c10::impl::VirtualGuardImpl(first.type()).deviceCount());
  const bool is_chosen = count == 1 && std::getenv("SLURM_STEP_GPUS") != nullptr;
  if (count < ranks && !is_chosen)
    throw sim::ConfigError("world 'nccl' needs a device for each rank: {} ranks, {} of device={}", ranks, count, name);
  std::vector<at::Device> devices;
  for (std::uint32_t place = 0; place < ranks; ++place)
    devices.emplace_back(first.type(), static_cast<c10::DeviceIndex>(is_chosen ? 0 : place));
  return devices;
}

/// Ranks that transfer among each other, one transfer after the other, in the order of posting.
struct Channel {
  Channel(ncclComm_t of_ranks, const c10::Stream& own) : comm(of_ranks), stream(own) {}
  Channel(const Channel&) = delete;
  ~Channel() { ncclCommDestroy(comm); }

  [[nodiscard]] cudaStream_t native_stream() const { return static_cast<cudaStream_t>(stream.native_handle()); }

  ncclComm_t comm;
  const c10::Stream stream;
};

// What is issued for a message; `peer` is a place in the channel's communicator.
auto sending(const at::Tensor& tensor, int peer) {
  return [&tensor, peer](const Channel& channel) {
    return ncclSend(tensor.const_data_ptr(), static_cast<std::size_t>(tensor.numel()), data_type(tensor.scalar_type()),
                    peer, channel.comm, channel.native_stream());
  };
}
auto receiving(const at::Tensor& tensor, int peer) {
  return [&tensor, peer](const Channel& channel) {
    return ncclRecv(tensor.mutable_data_ptr(), static_cast<std::size_t>(tensor.numel()),
                    data_type(tensor.scalar_type()), peer, channel.comm, channel.native_stream());
  };
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(std::shared_ptr<const Meeting> meeting, at::Device device)
      : meeting_(std::move(meeting)),
        start_(meeting_),
        guard_(device.type()),
        compute_(on(device)),
        own_(own_stream(device)),
        clock_(compute_) {}
  ~NcclCommunicator() override {
    if (!abandoned_) return;
    start_.leave();
    for (auto& [members, channel] : channels_) static_cast<void>(channel.release());  // aborted, and may be looked at
  }

  [[nodiscard]] std::uint32_t rank() const override { return meeting_->rank; }
  [[nodiscard]] std::uint32_t size() const override { return meeting_->ranks; }
  [[nodiscard]] std::uint32_t place() const override { return meeting_->hosts.place_of(rank()); }
  [[nodiscard]] std::string network() const override { return meeting_->network; }
  [[nodiscard]] std::uint32_t host_of(std::uint32_t of) const override { return meeting_->hosts.host_of(of); }
  [[nodiscard]] std::string named(std::uint32_t of) const override { return meeting_->hosts.named(of); }
  [[nodiscard]] at::Device device() const override { return compute_.device(); }

  /// Communicators are kept for later programs.
  void prepare(const std::vector<sim::Group>& groups, std::uint32_t ranks) override {
    guard_.setDevice(device());
    guard_.exchangeStream(compute_);
    start_.prepare(ranks);
    members_ = memberships_of(groups, rank());
    memberships_.assign(groups.size(), nullptr);
    for (std::uint32_t g = 0; g < groups.size(); ++g)
      if (members_[g].size() > 1) memberships_[g] = &channel(group_name(g, members_[g]), members_[g]);
  }

  /// All ranks go through them in one order, so that nobody waits for ever.
  void connect(const Channels& channels) override {
    pairs_.clear();
    posts_ = 0;
    std::vector<at::Tensor> greetings;
    for (const auto& [ends, lanes] : channels) {
      const auto [source, destination] = ends;
      if (source == destination) continue;
      Pair& pair = pairs_[ends];
      for (const std::vector<std::uint32_t>& tags : lanes) {
        const std::string name = fmt::format("from {} to {}{}", source, destination,
                                             pair.lanes.empty() ? "" : fmt::format(", lane {}", pair.lanes.size()));
        const bool is_new = !channels_.contains(name);
        Channel& between = channel(name, {std::min(source, destination), std::max(source, destination)});
        for (const std::uint32_t tag : tags) pair.lane_of[tag] = pair.lanes.size();
        pair.lanes.push_back({&between, tags});
        if (is_new) greetings.push_back(greet(between, source, destination));
      }
    }
    for (std::size_t p = 0; p < posts_; ++p) posted_[p].end.block(compute_);
    synchronize();
  }

  double begin_step() override {
    posts_ = 0;
    own_messages_.clear();
    for (auto& [ends, pair] : pairs_)
      for (Lane& lane : pair.lanes) lane.received = 0;
    synchronize();
    const double begin_s = start_.come();
    clock_.begin();
    return begin_s;
  }
  SharedClock read_clock() override { return start_.read_clock(); }
  void mark(double* moment_s) override { clock_.mark(moment_s); }
  void end_step() override {
    synchronize();
    clock_.settle();
  }
  void forget_captured() override {
    posted_.clear();
    posts_ = 0;
    clock_.forget();
  }

  Ticket post_send(const at::Tensor& tensor, std::uint32_t destination, std::uint32_t tag) override {
    const TransferName name{Kind::send, destination, tag};
    if (destination == rank()) return post_own(tensor, name, &OwnMessage::from);
    return post(*pairs_.at({rank(), destination}).lane(tag).channel, name, sending(tensor, place_of(destination)));
  }
  Ticket post_recv(const at::Tensor& tensor, std::uint32_t source, std::uint32_t tag) override {
    const TransferName name{Kind::recv, source, tag};
    if (source == rank()) return post_own(tensor, name, &OwnMessage::to);
    Posted& posted = add(name);
    posted.ready.record(compute_);
    posted.is_issued = false;
    Lane& lane = pairs_.at({source, rank()}).lane(tag);
    lane.posted[tag] = {tensor, last()};
    for (; lane.received < lane.tags.size() && lane.posted.contains(lane.tags[lane.received]); ++lane.received)
      receive(lane, source);
    return last();
  }
  using Communicator::post_collective;
  Ticket post_collective(const Collective& collective, std::span<const at::Tensor> reads,
                         std::span<const at::Tensor> writes) override {
    const std::vector<std::uint32_t>& members = members_.at(collective.group);
    const TransferName name{.kind = Kind::collective, .collective = collective.kind, .members = &members};
    if (memberships_[collective.group] == nullptr) {  // alone
      copy_to_itself(reads, writes);
      add(name).end.record(compute_);
      return last();
    }
    const auto n = static_cast<std::uint32_t>(members.size());
    const auto me = static_cast<std::uint32_t>(std::ranges::find(members, rank()) - members.begin());
    const sim::CollectiveOperands operands = sim::operands_of(collective.kind, me == collective.root);
    const std::vector<at::Tensor> given = blocks_of(operands.reads, reads, n),
                                  wanted = blocks_of(operands.writes, writes, n);
    return post(*memberships_[collective.group], name,
                [&](const Channel& channel) { return begin(collective, me, n, given, wanted, channel); });
  }

  void wait(Ticket ticket, Completion& done) override {
    Posted& posted = posted_.at(ticket);
    if (!posted.is_issued)
      throw sim::RunError("{} is waited for before this rank has posted what it comes behind, or its other end",
                          posted.name.text(meeting_->hosts));
    posted.end.block(compute_);
    clock_.mark_at(posted.end, &done.end_s);
  }

  void abandon() override {
    abandoned_ = true;
    meeting_->disconnect();
    for (auto& [name, channel] : channels_)
      if (channel) ncclCommAbort(channel->comm);  // else making it has failed
  }

 private:
  using Kind = sim::InstructionKind;
  struct Posted {
    TransferName name;
    bool is_issued = true;
    StreamEvent ready{}, end{};
  };
  /// One of the channels from one rank to another.
  struct Lane {
    Channel* channel = nullptr;
    std::vector<std::uint32_t> tags;  // in the order sent
    std::size_t received = 0;         // of them, issued in this step
    struct Receive {
      at::Tensor tensor;
      Ticket ticket = 0;
    };
    std::map<std::uint32_t, Receive> posted{};  // by tag, not issued yet
  };
  /// All of them.
  struct Pair {
    std::vector<Lane> lanes;
    std::map<std::uint32_t, std::size_t> lane_of;  // by tag

    Lane& lane(std::uint32_t tag) { return lanes.at(lane_of.at(tag)); }
  };
  /// A message of this rank to itself: both ends and their tickets.
  struct OwnMessage {
    at::Tensor from, to;
    std::vector<Ticket> tickets;
  };

  /// A stream on the device, which becomes the calling thread's.
  static c10::Stream on(at::Device device) {
    c10::impl::VirtualGuardImpl(device.type()).setDevice(device);
    return own_stream(device);
  }

  /// The place in a communicator of two: their order is their ranks'.
  [[nodiscard]] int place_of(std::uint32_t other) const { return other > rank() ? 1 : 0; }

  Channel& channel(const std::string& name, const std::vector<std::uint32_t>& members) {
    std::unique_ptr<Channel>& known = channels_[name];
    if (known) return *known;
    const auto me = static_cast<int>(std::ranges::find(members, rank()) - members.begin());
    const std::string what = fmt::format("rank {} can't connect to ranks {}", rank(), fmt::join(members, ", "));
    ncclUniqueId id{};
    guarded([&] { return what; },
            [&] {
              const std::string key = "nccl/" + name;
              if (me == 0) {
                check(ncclGetUniqueId(&id), what);
                const auto* bytes = reinterpret_cast<const std::uint8_t*>(&id);
                meeting_->store->set(key, std::vector<std::uint8_t>(bytes, bytes + sizeof id));
              }
              const std::vector<std::uint8_t> bytes = meeting_->store->get(key);
              std::copy_n(bytes.begin(), std::min(bytes.size(), sizeof id), reinterpret_cast<std::uint8_t*>(&id));
              // ncclCommInitRank waits without end for a member that stays away; the store no longer than the timeout.
              std::vector<std::string> everyone;
              for (std::size_t member = 0; member < members.size(); ++member)
                everyone.push_back(fmt::format("{}/{}", key, member));
              meeting_->store->set(everyone[static_cast<std::size_t>(me)], std::vector<std::uint8_t>{1});
              meeting_->store->wait(everyone);
            });
    ncclComm_t comm = nullptr;
    check(ncclCommInitRank(&comm, static_cast<int>(members.size()), id, me), what);
    known = std::make_unique<Channel>(comm, own_stream(device()));
    return *known;
  }

  /// A first message. NCCL connects two ranks when they exchange one, and their hosts wait for each other meanwhile: in
  /// a step, where both may have something else to post before, for ever.
  at::Tensor greet(Channel& channel, std::uint32_t source, std::uint32_t destination) {
    at::Tensor greeting = at::empty({1}, device());
    if (rank() == source)
      post(channel, {Kind::send, destination}, sending(greeting, place_of(destination)));
    else
      post(channel, {Kind::recv, source}, receiving(greeting, place_of(source)));
    return greeting;
  }

  /// Equal blocks that lie one after the other.
  static bool is_one(std::span<const at::Tensor> blocks) {
    for (std::size_t k = 1; k < blocks.size(); ++k) {
      const at::Tensor& before = blocks[k - 1];
      if (blocks[k].numel() != blocks[0].numel() || !blocks[k].is_alias_of(before) ||
          blocks[k].storage_offset() != before.storage_offset() + before.numel())
        return false;
    }
    return true;
  }

  /// The whole of what this member, number `me` of `n`, does: NCCL's own collective where it has one for these blocks,
  /// else its sends, receives and reduces in a group.
  static ncclResult_t begin(const Collective& collective, std::uint32_t me, std::uint32_t n,
                            std::span<const at::Tensor> given, std::span<const at::Tensor> wanted,
                            const Channel& channel) {
    const at::Tensor& any = (given.empty() ? wanted : given)[0];
    const ncclDataType_t type = data_type(any.scalar_type());
    const auto count = [](const at::Tensor& tensor) { return static_cast<std::size_t>(tensor.numel()); };
    const auto root = static_cast<int>(collective.root);
    const ncclRedOp_t op = collective.reduction == sim::Reduction::mean  ? ncclAvg
                           : collective.reduction == sim::Reduction::max ? ncclMax
                                                                         : ncclSum;
    if (collective.kind == sim::CollectiveKind::all_reduce)
      return ncclAllReduce(given[0].const_data_ptr(), wanted[0].mutable_data_ptr(), count(given[0]), type, op,
                           channel.comm, channel.native_stream());
    if (collective.kind == sim::CollectiveKind::broadcast)
      return ncclBroadcast(given[0].const_data_ptr(), wanted[0].mutable_data_ptr(), count(given[0]), type, root,
                           channel.comm, channel.native_stream());
    if (collective.kind == sim::CollectiveKind::all_gather && is_one(wanted))
      return ncclAllGather(given[0].const_data_ptr(), wanted[0].mutable_data_ptr(), count(given[0]), type, channel.comm,
                           channel.native_stream());
    if (collective.kind == sim::CollectiveKind::reduce_scatter && is_one(given))
      return ncclReduceScatter(given[0].const_data_ptr(), wanted[0].mutable_data_ptr(), count(wanted[0]), type, op,
                               channel.comm, channel.native_stream());
    check(ncclGroupStart(), "ncclGroupStart");
    ncclResult_t result = ncclSuccess;
    const auto then = [&](const auto& call) {
      if (result == ncclSuccess) result = call();
    };
    sim::for_each_move(collective.kind, n, collective.root, [&](const sim::Move& move) {
      const auto to = static_cast<int>(move.to), from = static_cast<int>(move.from);
      if (move.from == sim::kEveryone) {
        const at::Tensor& block = given[move.from_block];
        void* sum = move.to == me ? wanted[move.block].mutable_data_ptr() : nullptr;
        then([&] {
          return ncclReduce(block.const_data_ptr(), sum, count(block), type, op, to, channel.comm,
                            channel.native_stream());
        });
        return;
      }
      if (move.from == me) then([&] { return sending(given[move.from_block], to)(channel); });
      if (move.to == me) then([&] { return receiving(wanted[move.block], from)(channel); });
    });
    const ncclResult_t ended = ncclGroupEnd();
    return result == ncclSuccess ? ended : result;
  }

  Posted& add(const TransferName& name) {
    if (posts_ == posted_.size()) posted_.emplace_back();
    Posted& posted = posted_[posts_++];
    posted.name = name;
    posted.is_issued = true;
    return posted;
  }
  [[nodiscard]] Ticket last() const { return static_cast<Ticket>(posts_ - 1); }

  template <class Call>
  Ticket post(Channel& channel, const TransferName& name, const Call& call) {
    Posted& posted = add(name);
    posted.ready.record(compute_);
    issue(posted, channel, call);
    return last();
  }

  template <class Call>
  void issue(Posted& posted, Channel& channel, const Call& call) const {
    posted.ready.block(channel.stream);
    if (const ncclResult_t result = call(channel); result != ncclSuccess)
      check(result, posted.name.text(meeting_->hosts), channel.comm);
    posted.end.record(channel.stream);
    posted.is_issued = true;
  }

  /// The next message of a pair, which has been posted.
  void receive(Lane& lane, std::uint32_t source) {
    const auto posted = lane.posted.extract(lane.tags[lane.received]);
    issue(posted_[posted.mapped().ticket], *lane.channel, receiving(posted.mapped().tensor, place_of(source)));
  }

  /// A copy, once both ends are posted.
  Ticket post_own(const at::Tensor& tensor, const TransferName& name, at::Tensor OwnMessage::*side) {
    OwnMessage& message = own_messages_[name.tag];
    message.*side = tensor;
    Posted& posted = add(name);
    posted.ready.record(compute_);
    posted.is_issued = false;
    message.tickets.push_back(last());
    if (message.tickets.size() < 2) return last();
    const c10::StreamGuard on_own_stream(own_);
    for (const Ticket ticket : message.tickets) posted_[ticket].ready.block(own_);
    message.to.copy_(message.from, /*non_blocking=*/true);
    for (const Ticket ticket : message.tickets) {
      posted_[ticket].end.record(own_);
      posted_[ticket].is_issued = true;
    }
    own_messages_.erase(name.tag);
    return last();
  }

  /// Returns when the compute stream is idle. RunError after the timeout: another rank may have died.
  void synchronize() {
    constexpr std::chrono::microseconds kPause(50);
    const double deadline_s = now_s() + 1e-3 * static_cast<double>(meeting_->timeout.count());
    while (!compute_.query()) {
      for (const auto& [name, channel] : channels_) {
        ncclResult_t result = ncclSuccess;
        check(ncclCommGetAsyncError(channel->comm, &result), name, channel->comm);
        if (result != ncclSuccess && result != ncclInProgress) check(result, first_open() + " failed", channel->comm);
      }
      if (now_s() > deadline_s)
        throw sim::RunError("{} isn't done within {:g} s", first_open(),
                            1e-3 * static_cast<double>(meeting_->timeout.count()));
      std::this_thread::sleep_for(kPause);
    }
    compute_.synchronize();  // with what the device has to say
  }

  /// The transfer that everything else waits for.
  [[nodiscard]] std::string first_open() const {
    for (std::size_t p = 0; p < posts_; ++p)
      if (posted_[p].is_issued && !posted_[p].end.has_come()) return posted_[p].name.text(meeting_->hosts);
    return "the step's compute";
  }

  std::shared_ptr<const Meeting> meeting_;
  StepStart start_;
  const c10::impl::VirtualGuardImpl guard_;
  const c10::Stream compute_, own_;  // the latter: of messages to itself
  StreamClock clock_;
  std::map<std::string, std::unique_ptr<Channel>> channels_;       // by name
  std::map<std::pair<std::uint32_t, std::uint32_t>, Pair> pairs_;  // [source, destination]
  std::vector<std::vector<std::uint32_t>> members_;                // by group: with this rank in them
  std::vector<Channel*> memberships_;                              // by group; null: no other member
  std::map<std::uint32_t, OwnMessage> own_messages_;               // by tag
  std::deque<Posted> posted_;                                      // by ticket; its events are used again in every step
  std::size_t posts_ = 0;                                          // of this step
  bool abandoned_ = false;
};

}  // namespace

World make_nccl_world(const SessionOptions& options) {
  check_library(options.device);
  // Before the ranks meet, where the launcher says how many are here: so the others learn what this host lacks.
  if (std::getenv("LOCAL_WORLD_SIZE") != nullptr)
    devices_of_ranks(options.device, ranks_per_host() != 0 ? ranks_per_host() : ranks_of_launch());
  const auto meeting = std::make_shared<const Meeting>("nccl", options);
  World world;
  world.control = make_control(meeting);
  const Hosts& hosts = meeting->hosts;
  const auto here = static_cast<std::uint32_t>(hosts.list()[hosts.host_of(meeting->rank)].ranks.size());
  world.ranks.push_back(std::make_unique<NcclCommunicator>(
      meeting, devices_of_ranks(options.device, here)[hosts.place_of(meeting->rank)]));
  return world;
}

}  // namespace backend

#else

#include "backend/world/world.hpp"
#include "sim/error.hpp"

namespace backend {

World make_nccl_world(const SessionOptions& /*options*/) {
  throw sim::ConfigError("world 'nccl': this build has no NCCL (PARAGAUGE_CUDA=OFF, or no nccl.h beside torch)");
}

}  // namespace backend
#endif
