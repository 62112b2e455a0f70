#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <fmt/ranges.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <thread>

#include "backend/machine/scheduling.hpp"
#include "backend/world/processes.hpp"

namespace backend {
namespace {

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
  explicit GlooCommunicator(std::shared_ptr<const Meeting> meeting) : meeting_(std::move(meeting)), start_(meeting_) {}
  ~GlooCommunicator() override {
    if (!abandoned_) return;
    // A process group's destructor waits until everything posted is done or has timed out, one after the other. Left to
    // the end of the process.
    for (auto& [members, group] : groups_) group.release();
    start_.leave();
  }

  [[nodiscard]] std::uint32_t rank() const override { return meeting_->rank; }
  [[nodiscard]] std::uint32_t size() const override { return meeting_->ranks; }
  [[nodiscard]] std::uint32_t place() const override { return meeting_->hosts.place_of(rank()); }
  [[nodiscard]] std::string network() const override { return meeting_->network; }
  [[nodiscard]] std::uint32_t host_of(std::uint32_t of) const override { return meeting_->hosts.host_of(of); }
  [[nodiscard]] std::string named(std::uint32_t of) const override { return meeting_->hosts.named(of); }

  /// Connections of a member list are kept for later programs.
  void prepare(const std::vector<sim::Group>& groups, std::uint32_t ranks) override {
    start_.prepare(ranks);
    members_ = memberships_of(groups, rank());
    memberships_.assign(groups.size(), {});
    for (std::uint32_t g = 0; g < groups.size(); ++g) {
      const std::vector<std::uint32_t>& members = members_[g];
      if (members.size() < 2) continue;
      ProcessGroup& group = groups_[{g, members}];
      if (!group)
        group = meeting_->connect(group_name(g, members),
                                  static_cast<std::uint32_t>(std::ranges::find(members, rank()) - members.begin()),
                                  static_cast<std::uint32_t>(members.size()), meeting_->timeout);
      memberships_[g] = group;
    }
  }

  double begin_step() override {
    posting_.reset();
    posted_.clear();
    return start_.come();
  }
  SharedClock read_clock() override { return start_.read_clock(); }

  void mark(double* moment_s) override {
    *moment_s = now_s();
    posting_.reset();
  }

  Ticket post_send(const at::Tensor& tensor, std::uint32_t destination, std::uint32_t tag) override {
    if (destination == rank()) {
      own_messages_[tag].from = tensor;
      return add({nullptr, {Kind::send, destination, tag}});
    }
    hurry_with(tensor);
    return add({start_.everyone()->send(argument_, static_cast<int>(destination), static_cast<int>(tag)),
                {Kind::send, destination, tag}});
  }
  Ticket post_recv(const at::Tensor& tensor, std::uint32_t source, std::uint32_t tag) override {
    if (source == rank()) {
      own_messages_[tag].to = tensor;
      return add({nullptr, {Kind::recv, source, tag}});
    }
    hurry_with(tensor);
    return add({start_.everyone()->recv(argument_, static_cast<int>(source), static_cast<int>(tag)),
                {Kind::recv, source, tag}});
  }
  using Communicator::post_collective;
  Ticket post_collective(const Collective& collective, std::span<const at::Tensor> reads,
                         std::span<const at::Tensor> writes) override {
    const ProcessGroup& membership = memberships_.at(collective.group);
    const std::vector<std::uint32_t>& members = members_[collective.group];
    const TransferName name{.kind = Kind::collective, .collective = collective.kind, .members = &members};
    if (!membership) {  // alone
      copy_to_itself(reads, writes);
      return add({nullptr, name, now_s()});
    }
    hurry();
    Posted posted{nullptr, name};
    begin(collective, reads, writes, *membership, posted);
    const Ticket ticket = add(std::move(posted));
    // Runs in gloo's thread before the waiting thread is woken.
    posted_.back().work->getFuture()->addCallback(
        [&posted = posted_.back()](c10::ivalue::Future&) { posted.end_s = now_s(); });
    return ticket;
  }

  void wait(Ticket ticket, Completion& done) override {
    Posted& posted = posted_.at(ticket);
    if (posted.work)
      guarded([&] { return posted.name.text(meeting_->hosts) + " failed"; }, [&] { posted.work->wait(); });
    if (posted.name.kind != Kind::collective && posted.name.partner == rank()) move_own(posted.name.tag);
    if (posted.finish) {
      const double begin_s = now_s();
      posted.finish();
      // Where others have had the core since the bytes were there, that isn't the transfer's time.
      posted.end_s = start_.has_own_core() ? now_s() : posted.end_s + now_s() - begin_s;
      posted.finish = nullptr;  // it holds tensors
    }
    done = {0, posted.end_s > 0 ? posted.end_s : now_s()};
    // It holds the tensors, and so does gloo's thread for a moment after it has woken this one (not where it has the
    // higher priority): memory is free when the wait ends, as the forecast says.
    while (posted.work.use_count() > 1) std::this_thread::yield();
    posted.work.reset();
  }

  void abandon() override {
    abandoned_ = true;
    meeting_->disconnect();
  }

 private:
  using Kind = sim::InstructionKind;
  struct Posted {
    c10::intrusive_ptr<c10d::Work> work;
    TransferName name;
    double end_s = 0;
    std::function<void()> finish{};  // what is left to do when the bytes are there
  };

  /// gloo knows no mean.
  static c10d::ReduceOp reduce_op(sim::Reduction reduction) {
    return reduction == sim::Reduction::max ? c10d::ReduceOp::MAX : c10d::ReduceOp::SUM;
  }
  /// Fills in `work` and `finish`.
  static void begin(const Collective& collective, std::span<const at::Tensor> reads, std::span<const at::Tensor> writes,
                    c10d::ProcessGroupGloo& group, Posted& posted) {
    const auto divide_for_mean = [&](const at::Tensor& sum) {
      const double n = group.getSize();
      if (collective.reduction == sim::Reduction::mean) posted.finish = [sum, n] { sum.div_(n); };
    };
    std::vector<at::Tensor> argument(reads.begin(), reads.begin() + std::min<std::ptrdiff_t>(1, std::ssize(reads)));
    switch (collective.kind) {
      case sim::CollectiveKind::all_reduce: {
        c10d::AllreduceOptions how;
        how.reduceOp = reduce_op(collective.reduction);
        posted.work = group.allreduce(argument, how);
        divide_for_mean(argument[0]);
        return;
      }
      case sim::CollectiveKind::broadcast: {
        c10d::BroadcastOptions from;
        from.rootRank = collective.root;
        posted.work = group.broadcast(argument, from);
        return;
      }
      case sim::CollectiveKind::reduce: {
        c10d::ReduceOptions to;
        to.rootRank = collective.root;
        to.reduceOp = reduce_op(collective.reduction);
        // gloo works in place on all members.
        if (static_cast<std::uint32_t>(group.getRank()) != collective.root) argument[0] = argument[0].clone();
        posted.work = group.reduce(argument, to);
        divide_for_mean(argument[0]);
        return;
      }
      case sim::CollectiveKind::all_gather:
        // gloo gathers into memory of its own and copies from there: of two, the exchange needs none.
        if (writes.size() == 1 && group.getSize() > 2) {
          at::Tensor result = writes[0].view(-1), mine = reads[0].view(-1);
          posted.work = group._allgather_base(result, mine);
          return;
        }
        break;
      case sim::CollectiveKind::reduce_scatter:
      case sim::CollectiveKind::all_to_all:
      case sim::CollectiveKind::scatter:
      case sim::CollectiveKind::gather:
        break;
    }
    exchange_parts(collective, reads, writes, group, posted);
  }

  /// Exchanges parts by gloo's alltoallv: of any sizes, also none. What it sends must lie together, and so must what it
  /// receives: where the blocks don't, copies do (sim/program/staging.hpp counts them).
  static void exchange_parts(const Collective& collective, std::span<const at::Tensor> reads,
                             std::span<const at::Tensor> writes, c10d::ProcessGroupGloo& group, Posted& posted) {
    const auto n = static_cast<std::uint32_t>(group.getSize()), me = static_cast<std::uint32_t>(group.getRank());
    const sim::CollectiveOperands operands = sim::operands_of(collective.kind, me == collective.root);
    const std::vector<at::Tensor> given = blocks_of(operands.reads, reads, n),
                                  wanted = blocks_of(operands.writes, writes, n);
    std::vector<at::Tensor> sent(n), received(n);  // by member; undefined: nothing
    sim::for_each_move(collective.kind, n, collective.root, [&](const sim::Move& move) {
      if (move.is_from(me)) sent[move.to] = given[move.from_block].view(-1);
      if (move.to != me) return;
      for (std::uint32_t member = 0; member < n; ++member)
        if (move.is_from(member)) received[member] = wanted[move.block].view(-1);
    });
    // Of two, each copies its own block, and the other's is alone: it lies together. Of more, the others' lie together
    // only with the own one among them.
    at::Tensor own_given, own_wanted;
    if (n == 2) {
      std::swap(own_given, sent[me]);
      std::swap(own_wanted, received[me]);
    }
    const at::TensorOptions options = (reads.empty() ? writes : reads)[0].options();
    std::vector<std::int64_t> to = sizes_of(sent), from = sizes_of(received);
    at::Tensor input = as_one(sent, options), output = as_one(received, options);
    const bool is_staged = !output.defined();
    if (!input.defined()) input = joined(sent);
    if (is_staged) output = at::empty({std::reduce(from.begin(), from.end())}, options);
    posted.work = group.alltoall_base(output, input, from, to);
    posted.finish = [output, is_staged, wanted, received, own_given, own_wanted, is_reduced = reduces(collective.kind),
                     reduction = collective.reduction] {
      std::int64_t begin = 0;
      for (std::size_t member = 0; is_staged && member < received.size(); ++member) {
        if (!received[member].defined()) continue;
        at::Tensor block = received[member];
        const at::Tensor part = output.narrow(0, begin, block.numel());
        reduce_into(block, part, reduction, /*is_first=*/!is_reduced || member == 0);
        begin += block.numel();
      }
      // A sum of two is the same in either order; what is gathered may be there already.
      if (at::Tensor block = own_wanted; block.defined() && block.const_data_ptr() != own_given.const_data_ptr())
        reduce_into(block, own_given, reduction, /*is_first=*/!is_reduced);
      if (reduction == sim::Reduction::mean) wanted[0].div_(static_cast<double>(received.size()));
    };
  }

  static std::vector<std::int64_t> sizes_of(const std::vector<at::Tensor>& blocks) {
    std::vector<std::int64_t> sizes;
    for (const at::Tensor& block : blocks) sizes.push_back(block.defined() ? block.numel() : 0);
    return sizes;
  }

  /// The blocks as one flat tensor, in place: undefined where they don't lie one after the other.
  static at::Tensor as_one(const std::vector<at::Tensor>& blocks, const at::TensorOptions& options) {
    at::Tensor first;
    std::int64_t size = 0;
    for (const at::Tensor& block : blocks) {
      if (!block.defined()) continue;
      if (!first.defined()) first = block;
      if (!block.is_alias_of(first) || block.storage_offset() != first.storage_offset() + size) return {};
      size += block.numel();
    }
    return first.defined() ? first.as_strided({size}, {1}) : at::empty({0}, options);
  }

  static at::Tensor joined(std::vector<at::Tensor> blocks) {
    std::erase_if(blocks, [](const at::Tensor& block) { return !block.defined(); });
    return at::cat(blocks);
  }

  /// gloo connects no rank with itself: the way is the same, TCP, in this thread.
  void move_own(std::uint32_t tag) {
    const auto entry = own_messages_.find(tag);
    if (entry == own_messages_.end()) return;  // with the other end's wait
    if (!entry->second.from.defined() || !entry->second.to.defined())
      throw sim::RunError("rank {} waits for a message (tag {}) to itself that it hasn't posted", rank(), tag);
    loopback_.move(entry->second.from.const_data_ptr(), entry->second.to.mutable_data_ptr(), entry->second.to.nbytes());
    own_messages_.erase(entry);
  }

  /// What must be done before a post. Two of gloo's threads poll without blocking: the event loop while another thread
  /// holds a connection's lock, and whoever destroys a buffer while the event loop uses it (with sched_yield). On one
  /// core the one polled for must get its turn: so gloo's threads all have the same priority (and take turns,
  /// scheduling.hpp), and the rank's thread takes it on while it posts. It gives it back with the next `mark`, that is
  /// when the next wait or compute has begun: what gloo's threads then do at once is time
  /// of that instruction, not of the post.
  void hurry() {
    if (!posting_) posting_.emplace(kCommunicationPriority, meeting_->real_time);
  }
  void hurry_with(const at::Tensor& tensor) {
    hurry();
    argument_.assign(1, tensor);
  }

  Ticket add(Posted posted) {
    argument_.clear();  // the Program may free the tensor long before the next post
    posted_.push_back(std::move(posted));
    return static_cast<Ticket>(posted_.size() - 1);
  }

  std::shared_ptr<const Meeting> meeting_;
  StepStart start_;
  std::map<std::pair<std::uint32_t, std::vector<std::uint32_t>>, ProcessGroup> groups_;
  std::vector<std::vector<std::uint32_t>> members_;  // by group: with this rank in them
  std::vector<ProcessGroup> memberships_;            // by group; null: no other member
  struct OwnMessage {
    at::Tensor from, to;
  };
  std::map<std::uint32_t, OwnMessage> own_messages_;  // by tag
  Loopback loopback_;
  std::deque<Posted> posted_;  // by ticket
  std::optional<RealTime> posting_;
  bool abandoned_ = false;
  std::vector<at::Tensor> argument_;
};

}  // namespace

World make_gloo_world(const SessionOptions& options) {
  if (options.device != "cpu")
    throw sim::ConfigError("world 'gloo' moves CPU tensors only; device={} needs world=local or nccl", options.device);
  const auto meeting = std::make_shared<const Meeting>("gloo", options);
  World world;
  world.control = make_control(meeting);
  world.ranks.push_back(std::make_unique<GlooCommunicator>(meeting));
  return world;
}

}  // namespace backend
