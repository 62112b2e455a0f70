#include "bench/peers.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "backend/machine/scheduling.hpp"
#include "sim/cluster/world.hpp"
#include "sim/error.hpp"
#include "sim/strategy/schedule/schedule.hpp"

namespace bench {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

std::string python() {
  if (const char* given = std::getenv("PARAGAUGE_PYTHON")) return given;
  const std::string own = PARAGAUGE_SOURCE_DIR "/.venv/bin/python";
  return access(own.c_str(), X_OK) == 0 ? own : "python3";
}

/// Free when asked; rank 0 listens on it some seconds later.
std::uint16_t free_port() {
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const bool bound = descriptor >= 0 && bind(descriptor, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                     getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  const int error = errno;
  if (descriptor >= 0) close(descriptor);
  if (!bound) throw sim::RunError("no free port on 127.0.0.1: {}", std::strerror(error));
  return ntohs(address.sin_port);
}

/// Ours, without what our own ranks and torchrun's are told, and with where the peers meet.
std::vector<std::string> environment(std::uint16_t port) {
  constexpr std::array kNotTheirs{
      "RANK=",        "WORLD_SIZE=", "LOCAL_RANK=", "LOCAL_WORLD_SIZE=", "GROUP_",     "ROLE_",
      "TORCHELASTIC", "MASTER_",     "PARAGAUGE_",  "PYTHONPATH=",       "OMP_NUM_THR"};
  std::vector<std::string> variables{"MASTER_ADDR=127.0.0.1", fmt::format("MASTER_PORT={}", port),
                                     "PYTHONDONTWRITEBYTECODE=1"};
  for (char** entry = environ; *entry != nullptr; ++entry)
    if (std::ranges::none_of(kNotTheirs, [&](const char* name) { return std::string_view(*entry).starts_with(name); }))
      variables.emplace_back(*entry);
  return variables;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> list;
  for (std::string& text : texts) list.push_back(text.data());
  list.push_back(nullptr);
  return list;
}

/// Reads what is there; false at the end.
bool take(int descriptor, std::string& text) {
  std::array<char, 4096> part{};
  const ssize_t count = read(descriptor, part.data(), part.size());
  if (count > 0) text.append(part.data(), static_cast<std::size_t>(count));
  return count > 0 || (count < 0 && (errno == EINTR || errno == EAGAIN));
}

/// The last line that says anything.
std::string last_line(const std::string& text) {
  const std::size_t end = text.find_last_not_of(" \n");
  if (end == std::string::npos) return "no message";
  const std::size_t begin = text.find_last_of('\n', end);
  return text.substr(begin + 1, end - begin);  // npos + 1 is 0
}

Json attributes_of(const sim::OpKind& kind, const sim::Attributes& values) {
  Json json = Json::object();
  for (const sim::AttributeSpec& spec : kind.attributes) {
    const double value = values.at(std::string(spec.name));
    json[spec.name] = spec.integral ? Json(static_cast<std::int64_t>(value)) : Json(value);
  }
  return json;
}

Json model_to_json(const sim::Model& model) {
  Json optimizer = attributes_of(*model.optimizer.kind, model.optimizer.attributes);
  optimizer["kind"] = model.optimizer.kind->name;
  constexpr std::array kTimings{"step", "tutorial", "epoch"};  // as in sim::Timing
  Json nodes = Json::array();
  const std::vector<bool> needs_grad = model.outputs_need_grad();
  const std::vector<sim::OpInstance> ops = model.instances(model.global_batch);
  for (std::size_t n = 0; n < model.nodes.size(); ++n) {
    const sim::Node& node = model.nodes[n];
    const sim::Signature signature = ops[n].signature();
    std::vector<std::int64_t> shape = signature.output.shape;
    if (!shape.empty()) shape.erase(shape.begin());
    Json parameters = Json::object();
    for (const sim::ParameterSpec& p : signature.parameters) parameters[p.name] = {p.initial_center, p.initial_bound};
    nodes.push_back({{"name", node.name},
                     {"op", node.kind->name},
                     {"inputs", node.inputs},
                     {"attributes", attributes_of(*node.kind, node.attributes)},
                     {"shape", shape},            // of a sample
                     {"parameters", parameters},  // first values: center and bound
                     {"needs_grad", static_cast<bool>(needs_grad[n])}});
  }
  return {{"input", model.input},
          {"classes", model.classes},
          {"global_batch", model.global_batch},
          {"dtype", sim::to_string(model.dtype)},
          {"timing", kTimings.at(static_cast<std::size_t>(model.timing))},
          {"loss", model.nodes.back().kind->name},
          {"optimizer", optimizer},
          {"nodes", nodes}};
}

Json strategy_to_json(const sim::Model& model, const sim::Strategy& strategy) {
  const sim::ScheduleKind& schedule = sim::schedule_table().at(strategy.schedule);
  Json actions = Json::array();
  for (std::uint32_t stage = 0; stage < strategy.pp; ++stage)
    actions.push_back(
        sim::to_text(schedule.stage(stage, strategy.pp, static_cast<std::int32_t>(strategy.microbatches))));
  return {{"replicas", strategy.dp},
          {"stages", sim::stages_of(model, strategy)},
          {"microbatches", strategy.microbatches},
          {"actions", actions},
          {"one_loss", schedule.one_loss},
          {"overlap", strategy.overlap},
          {"broadcast_buffers", strategy.broadcast_buffers},
          {"buckets_MiB", {strategy.first_bucket_MiB, strategy.bucket_MiB}}};
}

}  // namespace

bool has_peer(const sim::Strategy& strategy, std::string_view world) {
  if (strategy.ranks() == 1) return true;
  const bool one_loss = sim::schedule_table().at(strategy.schedule).one_loss;
  const bool one_process = strategy.dp == 1 && (strategy.microbatches == 1 || one_loss);
  return sim::world_kind(world).processes != one_process;
}

Json peer_subject(const sim::Model& model, const sim::Strategy& strategy, bool best) {
  return {{"model", model_to_json(model)}, {"strategy", strategy_to_json(model, strategy)}, {"best", best}};
}

/// A rank. Whatever happens to this object or to us, the process doesn't outlive it.
struct Peers::Process {
  pid_t pid = -1;
  int errors = -1;  // its stderr
  std::string messages;
  std::optional<int> status;

  /// `input_output`: of rank 0; the others have none.
  Process(std::vector<std::string> arguments, std::vector<std::string> variables, int input_output) {
    std::array<int, 2> pipe_ends{};
    if (pipe2(pipe_ends.data(), O_CLOEXEC) != 0) throw sim::RunError("no pipe to a peer: {}", std::strerror(errno));
    const std::vector<char*> argv = pointers(arguments), envp = pointers(variables);
    const pid_t parent = getpid();
    pid = fork();
    if (pid == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const int input = input_output >= 0 ? input_output : open("/dev/null", O_RDONLY);
      dup2(input, STDIN_FILENO);
      dup2(input_output >= 0 ? input_output : pipe_ends[1], STDOUT_FILENO);
      dup2(pipe_ends[1], STDERR_FILENO);
      if (getppid() == parent) execvpe(argv[0], argv.data(), envp.data());
      dprintf(STDERR_FILENO, "can't execute %s: %s\n", argv[0], std::strerror(errno));
      _exit(127);
    }
    const int error = errno;
    close(pipe_ends[1]);
    errors = pipe_ends[0];
    if (pid < 0) {
      close(errors);
      throw sim::RunError("can't start a peer: {}", std::strerror(error));
    }
  }
  ~Process() {
    if (!ended()) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    close(errors);
  }
  Process(const Process&) = delete;

  bool ended() {
    int now = 0;
    if (!status && waitpid(pid, &now, WNOHANG) == pid) status = now;
    return status.has_value();
  }
};

Peers::Peers(const Machine& machine, std::uint32_t ranks) : timeout_s_(machine.timeout_s) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    throw sim::RunError("no channel to the peers: {}", std::strerror(errno));
  channel_ = ends[0];
  const auto whole_s = static_cast<time_t>(timeout_s_);
  const timeval patience{whole_s, static_cast<suseconds_t>(1e6 * (timeout_s_ - static_cast<double>(whole_s)))};
  setsockopt(channel_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  try {
    const std::uint16_t port = free_port();
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      std::vector<std::string> arguments{python(),   PARAGAUGE_SOURCE_DIR "/bench/peers/serve.py",
                                         "--rank",   std::to_string(rank),
                                         "--ranks",  std::to_string(ranks),
                                         "--core",   std::to_string(backend::core_of_rank(rank)),
                                         "--device", machine.device};
      if (machine.real_time) arguments.emplace_back("--real-time");
      processes_.push_back(std::make_unique<Process>(arguments, environment(port), rank == 0 ? ends[1] : -1));
    }
  } catch (...) {
    close(ends[0]);
    close(ends[1]);
    throw;
  }
  close(ends[1]);
}

Peers::~Peers() {
  shutdown(channel_, SHUT_WR);  // the end of rank 0's input ends all
  const auto deadline = Clock::now() + std::chrono::seconds(5);
  while (Clock::now() < deadline && !std::ranges::all_of(processes_, [](auto& process) { return process->ended(); }))
    poll(nullptr, 0, 20);
  close(channel_);
}

void Peers::fail(const std::string& what) {
  processes_.clear();
  throw sim::RunError("PyTorch peers: {}", what);
}

/// Also collects what the processes write to stderr, lest they wait for us.
std::string Peers::answer_line() {
  const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_s_);
  std::vector<pollfd> ends{{channel_, POLLIN, 0}};
  for (const auto& process : processes_) ends.push_back({process->errors, POLLIN, 0});
  for (;;) {
    if (const std::size_t end = received_.find('\n'); end != std::string::npos) {
      const std::string line = received_.substr(0, end);
      received_.erase(0, end + 1);
      return line;
    }
    if (Clock::now() > deadline) {
      const auto talker = std::ranges::find_if(processes_, [](auto& process) { return !process->messages.empty(); });
      fail(fmt::format("no answer for {:g} s{}", timeout_s_,
                       talker == processes_.end() ? "" : ": " + last_line((*talker)->messages)));
    }
    poll(ends.data(), ends.size(), 100);
    if (ends[0].revents != 0 && !take(channel_, received_)) ends[0].fd = -1;
    for (std::size_t rank = 0; rank < processes_.size(); ++rank)
      if (ends[rank + 1].revents != 0 && !take(ends[rank + 1].fd, processes_[rank]->messages)) ends[rank + 1].fd = -1;
    // A process has ended when all it wrote has been read.
    for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
      Process& process = *processes_[rank];
      if (ends[rank + 1].fd >= 0 || !process.ended()) continue;
      const int status = *process.status;
      fail(fmt::format("rank {} {} {}: {}", rank, WIFSIGNALED(status) ? "died of signal" : "ended with status",
                       WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), last_line(process.messages)));
    }
  }
}

Peers::Answer Peers::run(const sim::Model& model, const sim::Strategy& strategy, bool best, std::uint32_t warmup_steps,
                         std::uint32_t steps) {
  if (processes_.empty()) throw sim::RunError("PyTorch peers: they have failed before");
  const Json request{{"subject", peer_subject(model, strategy, best)},
                     {"warmup_steps", warmup_steps},
                     {"steps", steps},
                     {"seed", 1}};  // backend::RunRequest's
  const std::string line = request.dump() + "\n";
  // Fails where rank 0 has died or stands still: then there is no answer.
  for (std::size_t sent = 0; sent < line.size();) {
    const ssize_t part = send(channel_, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (part < 0) break;
    sent += static_cast<std::size_t>(part);
  }
  const std::string text = answer_line();
  const nlohmann::json answer = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!answer.is_object()) fail(fmt::format("'{}' is no answer", text));
  if (answer.contains("error"))
    throw sim::ConfigError("PyTorch peers: {}", answer["error"].get_ref<const std::string&>());
  if (answer.contains("skipped")) return {.skipped = answer["skipped"].get<std::string>()};
  return {.step_s = answer.at("step_s").get<std::vector<double>>(),
          .losses = answer.at("loss").get<std::vector<double>>(),
          .resident_peak_bytes = answer.at("resident_peak_bytes").get<std::int64_t>(),
          .settings = answer.at("settings").get<std::string>()};
}

}  // namespace bench
