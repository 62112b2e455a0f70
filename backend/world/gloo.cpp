#include <fmt/ranges.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <optional>

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
  explicit GlooCommunicator(std::shared_ptr<const Meeting> meeting)
      : meeting_(std::move(meeting)),
        everyone_(meeting_->connect("everyone", rank(), size(), meeting_->timeout)),
        start_(meeting_, everyone_) {}
  ~GlooCommunicator() override {
    if (!abandoned_) return;
    // A process group's destructor waits until everything posted is done or has timed out, one after the other. Left to
    // the end of the process.
    for (auto& [members, group] : groups_) group.release();
    start_.leave();
    everyone_.release();
  }

  [[nodiscard]] std::uint32_t rank() const override { return meeting_->rank; }
  [[nodiscard]] std::uint32_t size() const override { return meeting_->ranks; }

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
    return add({everyone_->send(argument_, static_cast<int>(destination), static_cast<int>(tag)),
                {Kind::send, destination, tag}});
  }
  Ticket post_recv(const at::Tensor& tensor, std::uint32_t source, std::uint32_t tag) override {
    if (source == rank()) {
      own_messages_[tag].to = tensor;
      return add({nullptr, {Kind::recv, source, tag}});
    }
    hurry_with(tensor);
    return add(
        {everyone_->recv(argument_, static_cast<int>(source), static_cast<int>(tag)), {Kind::recv, source, tag}});
  }
  Ticket post_collective(sim::CollectiveKind kind, const at::Tensor& tensor, std::uint32_t group,
                         std::uint32_t root) override {
    const ProcessGroup& membership = memberships_.at(group);
    const TransferName name{.kind = Kind::collective, .collective = kind, .members = &members_[group]};
    if (!membership) return add({nullptr, name, now_s()});  // alone
    hurry_with(tensor);
    const Ticket ticket = add({begin(kind, root, *membership), name});
    // Runs in gloo's thread before the waiting thread is woken.
    posted_.back().work->getFuture()->addCallback(
        [&posted = posted_.back()](c10::ivalue::Future&) { posted.end_s = now_s(); });
    return ticket;
  }

  void wait(Ticket ticket, Completion& done) override {
    Posted& posted = posted_.at(ticket);
    if (posted.work) guarded([&] { return posted.name.text() + " failed"; }, [&] { posted.work->wait(); });
    if (posted.name.kind != Kind::collective && posted.name.partner == rank()) move_own(posted.name.tag);
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

  using Kind = sim::InstructionKind;
  struct Posted {
    c10::intrusive_ptr<c10d::Work> work;
    TransferName name;
    double end_s = 0;
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
    if (!posting_) posting_.emplace(kCommunicationPriority, meeting_->real_time);
    argument_.assign(1, tensor);
  }

  Ticket add(Posted posted) {
    argument_.clear();  // the Program may free the tensor long before the next post
    posted_.push_back(std::move(posted));
    return static_cast<Ticket>(posted_.size() - 1);
  }

  std::shared_ptr<const Meeting> meeting_;
  ProcessGroup everyone_;  // point to point
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
