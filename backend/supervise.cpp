#include "backend/supervise.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <new>
#include <thread>
#include <utility>

#include "backend/session.hpp"

namespace backend {

// ---- ProgressBoard

struct ProgressBoard::Page {
  static constexpr std::size_t kLabels = 1 << 16, kWidth = 120;  // a sparse file: what isn't written takes no memory

  Progress progress;
  std::uint32_t labels = 0;
  std::array<std::array<char, kWidth>, kLabels> label;
};

ProgressBoard::ProgressBoard(std::uint32_t ranks) : ProgressBoard(memfd_create("paragauge-progress", 0), ranks) {
  // Not value-initialised: the labels' pages stay untouched.
  for (std::uint32_t rank = 0; rank < ranks; ++rank) new (&page(rank)) Page;
}

ProgressBoard::ProgressBoard(int descriptor, std::uint32_t ranks) : descriptor_(descriptor), ranks_(ranks) {
  const std::size_t bytes = ranks * sizeof(Page);
  if (descriptor < 0 || ftruncate(descriptor, static_cast<off_t>(bytes)) != 0)
    throw sim::RunError("no shared memory for the ranks' progress: {}", std::strerror(errno));
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) throw sim::RunError("no shared memory for the ranks' progress: {}", std::strerror(errno));
  pages_ = static_cast<Page*>(memory);
}

ProgressBoard ProgressBoard::join(std::uint32_t ranks) {
  if (const char* descriptor = std::getenv("PARAGAUGE_PROGRESS")) return {std::atoi(descriptor), ranks};
  return ProgressBoard(ranks);
}

ProgressBoard::ProgressBoard(ProgressBoard&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      ranks_(other.ranks_),
      pages_(std::exchange(other.pages_, nullptr)) {}

ProgressBoard::~ProgressBoard() {
  if (pages_) munmap(pages_, ranks_ * sizeof(Page));
  if (descriptor_ >= 0) close(descriptor_);
}

ProgressBoard::Page& ProgressBoard::page(std::uint32_t rank) const { return pages_[rank]; }
Progress& ProgressBoard::progress(std::uint32_t rank) const { return page(rank).progress; }

void ProgressBoard::set_labels(std::uint32_t rank, const sim::Program& program, const sim::Role& role) const {
  Page& page = this->page(rank);
  page.labels = static_cast<std::uint32_t>(std::min<std::size_t>(role.size(), Page::kLabels));
  for (std::uint32_t i = 0; i < page.labels; ++i) {
    const std::string label = program.label(role, i);
    const std::size_t length = std::min(label.size(), Page::kWidth - 1);
    std::memcpy(page.label[i].data(), label.data(), length);
    page.label[i][length] = '\0';
  }
}

std::string ProgressBoard::where(std::uint32_t rank) const {
  const Page& page = this->page(rank);
  const std::uint32_t i = page.progress.instruction;
  if (i == Progress::kOutsideStep) return "outside a step";
  if (i >= page.labels) return "at the end of a step";
  return fmt::format("in instruction {}: {}", i, page.label[i].data());
}

// ---- HangWatch

HangWatch::HangWatch(const ProgressBoard& board, double timeout_s)
    : board_(board), patience_s_(timeout_s + std::max(2.0, 0.1 * timeout_s)), seen_(board.ranks()) {}

std::optional<std::uint32_t> HangWatch::hung() {
  const double now = now_s();
  for (std::uint32_t rank = 0; rank < seen_.size(); ++rank) {
    const Progress& progress = board_.progress(rank);
    const std::uint32_t step = progress.step, instruction = progress.instruction;
    Seen& seen = seen_[rank];
    if (instruction == Progress::kOutsideStep || seen.step != step || seen.instruction != instruction)
      seen = {step, instruction, now};
    else if (now - seen.since_s > patience_s_)
      return rank;
  }
  return std::nullopt;
}

// ---- spawn_ranks

namespace {

/// The network namespaces that bench/network.sh has made, one per rank; or none, and the ranks share this process's.
class Network {
 public:
  Network(const std::string& rate, std::uint32_t ranks) {
    if (rate.empty()) return;
    const char* chosen = std::getenv("PARAGAUGE_NETWORK");
    const std::string name = chosen ? chosen : "paragauge";
    const std::string remedy = fmt::format("as root, run: bench/network.sh up {} {}", ranks, rate);
    std::uint32_t made = 0;
    std::string limit;
    std::ifstream file("/run/paragauge-network." + name);
    if (!(file >> made >> limit))
      throw sim::ConfigError("network={}: there is no network '{}'; {}", rate, name, remedy);
    if (limit != rate || made < ranks)
      throw sim::ConfigError("network={}: network '{}' is for {} ranks at {}; {}", rate, name, made, limit, remedy);
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      const std::string path = fmt::format("/run/netns/{}{}", name, rank);
      namespaces_.push_back(open(path.c_str(), O_RDONLY | O_CLOEXEC));
      if (namespaces_.back() < 0)
        throw sim::ConfigError("network={}: {}: {}; {}", rate, path, std::strerror(errno), remedy);
    }
    if (const Inside inside(namespaces_[0]); !inside.entered())
      throw sim::ConfigError("network={}: can't enter a network namespace: {}; paragauge must run as root", rate,
                             std::strerror(errno));
  }
  ~Network() {
    for (const int descriptor : namespaces_) close(descriptor);
  }
  Network(const Network&) = delete;

  /// Whether the ranks have namespaces of their own. Rank r's address is 10.77.0.(r+1) on the interface veth0 there.
  [[nodiscard]] bool separate() const { return !namespaces_.empty(); }
  /// A rank's namespace for setns; -1: this process's.
  [[nodiscard]] int of_rank(std::uint32_t rank) const { return separate() ? namespaces_[rank] : -1; }

  /// For as long as it lives, sockets that this thread opens belong to that namespace.
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

 private:
  std::vector<int> namespaces_;
};

/// A free port of rank 0 with a socket that already listens on it, so that nobody else can take it. Rank 0 inherits the
/// socket, which stays in the namespace where it was made.
struct StoreSocket {
  int descriptor = -1;
  const char* host;
  std::uint16_t port = 0;

  explicit StoreSocket(const Network& network) : host(network.separate() ? "10.77.0.1" : "127.0.0.1") {
    const Network::Inside inside(network.of_rank(0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    inet_pton(AF_INET, host, &address.sin_addr);
    socklen_t size = sizeof address;
    descriptor = socket(AF_INET, SOCK_STREAM, 0);
    if (descriptor < 0 || bind(descriptor, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        listen(descriptor, 128) != 0 || getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size) != 0)
      throw sim::RunError("can't listen on {}: {}", host, std::strerror(errno));
    port = ntohs(address.sin_port);
  }
  ~StoreSocket() { close(descriptor); }
  StoreSocket(const StoreSocket&) = delete;
};

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (std::string& text : texts) list.push_back(text.data());
  list.push_back(nullptr);
  return list;
}

/// A running rank. Whatever happens to this object, the process doesn't outlive it.
class RankProcess {
 public:
  RankProcess(std::vector<std::string> arguments, const std::vector<std::pair<std::string, std::string>>& variables,
              int network_namespace) {
    std::vector<std::string> environment;
    for (char** entry = environ; *entry; ++entry)
      if (std::ranges::none_of(variables,
                               [&](const auto& v) { return std::string_view(*entry).starts_with(v.first + "="); }))
        environment.emplace_back(*entry);
    for (const auto& [name, value] : variables) environment.push_back(name + "=" + value);
    const std::vector<char*> argv = pointers(arguments), envp = pointers(environment);
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ < 0) throw sim::RunError("can't start a process: {}", std::strerror(errno));
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (network_namespace >= 0 && setns(network_namespace, CLONE_NEWNET) != 0) _exit(126);
      if (getppid() == parent) execvpe(argv[0], argv.data(), envp.data());
      _exit(127);
    }
    descriptor_ = static_cast<int>(syscall(SYS_pidfd_open, pid_, 0));
  }
  ~RankProcess() {
    if (!status_) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    if (descriptor_ >= 0) close(descriptor_);
  }
  RankProcess(const RankProcess&) = delete;

  /// Readable when the process has ended.
  [[nodiscard]] int descriptor() const { return status_ ? -1 : descriptor_; }
  /// waitpid's status, if the process has ended.
  std::optional<int> status() {
    int status = 0;
    if (!status_ && waitpid(pid_, &status, WNOHANG) == pid_) status_ = status;
    return status_;
  }

 private:
  pid_t pid_ = -1;
  int descriptor_ = -1;
  std::optional<int> status_;
};

bool succeeded(int status) { return WIFEXITED(status) && WEXITSTATUS(status) == 0; }

}  // namespace

int spawn_ranks(const std::vector<std::string>& arguments, std::uint32_t ranks, double timeout_s,
                const std::string& network_rate) {
  using namespace std::chrono_literals;
  const Network network(network_rate, ranks);
  const ProgressBoard board(ranks);
  const StoreSocket store(network);
  HangWatch watch(board, timeout_s);
  std::deque<RankProcess> processes;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    std::vector<std::pair<std::string, std::string>> variables{
        {"RANK", std::to_string(rank)},
        {"LOCAL_RANK", std::to_string(rank)},
        {"WORLD_SIZE", std::to_string(ranks)},
        {"MASTER_ADDR", store.host},
        {"MASTER_PORT", std::to_string(store.port)},
        {"TORCHELASTIC_USE_AGENT_STORE", "False"},
        {"PARAGAUGE_STORE_SOCKET", std::to_string(store.descriptor)},
        {"PARAGAUGE_PROGRESS", std::to_string(board.descriptor())}};
    if (network.separate()) {
      variables.emplace_back("GLOO_SOCKET_IFNAME", "veth0");
      // c10d would warn that these addresses have no names.
      if (!std::getenv("TORCH_CPP_LOG_LEVEL")) variables.emplace_back("TORCH_CPP_LOG_LEVEL", "ERROR");
    }
    processes.emplace_back(arguments, variables, network.of_rank(rank));
  }
  for (;;) {
    std::vector<pollfd> ends;
    for (RankProcess& process : processes) ends.push_back({process.descriptor(), POLLIN, 0});
    poll(ends.data(), ends.size(), 500);

    const auto failed = [](RankProcess& process) { return process.status() && !succeeded(*process.status()); };
    if (std::ranges::any_of(processes, failed)) {
      // One rank's death makes others fail: those who died of a signal come first.
      std::this_thread::sleep_for(50ms);
      auto culprit = std::ranges::find_if(
          processes, [&](RankProcess& process) { return failed(process) && WIFSIGNALED(*process.status()); });
      if (culprit == processes.end()) culprit = std::ranges::find_if(processes, failed);
      const auto rank = static_cast<std::uint32_t>(culprit - processes.begin());
      const int status = *culprit->status();
      if (WIFSIGNALED(status)) {
        fmt::print(stderr, "rank {} died (signal {}) {}\n", rank, WTERMSIG(status), board.where(rank));
        return kRunErrorStatus;
      }
      fmt::print(stderr, "rank {} ended with status {} {}\n", rank, WEXITSTATUS(status), board.where(rank));
      return WEXITSTATUS(status);
    }
    if (std::ranges::all_of(processes, [](RankProcess& process) { return process.status().has_value(); })) return 0;
    if (const auto rank = watch.hung()) {
      fmt::print(stderr, "rank {} hangs (no progress for {:g} s) {}\n", *rank, watch.patience_s(), board.where(*rank));
      return kRunErrorStatus;
    }
  }
}

}  // namespace backend
