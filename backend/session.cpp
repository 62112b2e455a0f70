#include "backend/session.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "backend/machine/accelerator.hpp"
#include "backend/machine/allocator.hpp"
#include "backend/machine/environment.hpp"
#include "backend/machine/launch.hpp"
#include "backend/machine/scheduling.hpp"
#include "backend/machine/threads.hpp"
#include "backend/rank/progress.hpp"
#include "backend/rank/run.hpp"
#include "backend/supervise.hpp"
#include "backend/world/world.hpp"
#include "sim/calibrate/conditions.hpp"
#include "sim/cluster/allowance.hpp"
#include "sim/cluster/world.hpp"
#include "sim/error.hpp"
#include "sim/program/capture.hpp"

// What the processes of a world tell each other between steps, as CBOR, in which numbers keep their bits (NaN, too).
namespace sim {

inline void to_json(nlohmann::json& json, const Program& program) { json = to_text(program); }
inline void from_json(const nlohmann::json& json, Program& program) {
  program = program_from_text(json.get_ref<const std::string&>());
}
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankTimeline, posted_s, start_s, end_s, issued_s, end_of_step_s)

}  // namespace sim

namespace nlohmann {

template <class Value>
struct adl_serializer<std::optional<Value>> {
  static void to_json(json& to, const std::optional<Value>& from) { to = from ? json(*from) : json(); }
  static void from_json(const json& from, std::optional<Value>& to) {
    to = from.is_null() ? std::nullopt : std::optional(from.get<Value>());
  }
};

}  // namespace nlohmann

namespace backend {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(DataSource, folder, samples, seed, shape, classes, is_tested)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Training, data, epoch, first_sample)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RunRequest, program, warmup_steps, steps, seed, verify, graph, host_leads_every,
                                   probe_speed, training)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankMemory, peak_bytes, allocator_peak_bytes, resident_peak_bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(VerifiedTensor, name, relative_error, piece, elements)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SpeedProbe, compute_s, memory_alone_s, memory_together_s, core_to_core_s)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ClockReading, offset_s, drift, error_s, host, rank)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RankReport, steps, late_s, clock, losses, memory, workspace_bytes, compared, probes)

namespace {

template <class Message>
std::string to_bytes(const Message& message) {
  std::string bytes;
  nlohmann::json::to_cbor(message, bytes);
  return bytes;
}
template <class Message>
Message from_bytes(const std::string& bytes) {
  return nlohmann::json::from_cbor(bytes).get<Message>();
}

/// Else it only brings samples to the ranks.
bool plays(const RunRequest& request) { return request.warmup_steps + request.steps > 0; }

void check(const RunRequest& request, const SessionOptions& options) {
  sim::validate(request.program);
  if (request.program.is_periodic())
    throw sim::ConfigError(
        "steps that reach into each other (prologue, body, epilogue) are played as one list: sim::unroll");
  if (request.verify && !plays(request)) throw sim::ConfigError("verify needs at least one step");
  if (request.program.ranks() > options.ranks)
    throw sim::ConfigError("the program needs {} ranks, the session has {}", request.program.ranks(), options.ranks);
  const std::uint32_t here = ranks_here(request.program.ranks());
  const std::uint64_t cores = std::uint64_t{here} * request.program.threads;
  if (request.program.threads > 1 && cores > sim::usable_cores())
    throw sim::ConfigError("{} ranks of {} threads need {} cores; this machine has {}", here, request.program.threads,
                           cores, sim::usable_cores());
  if (request.training && (request.verify || request.graph))
    throw sim::ConfigError("training: steps on samples aren't verified, nor captured");
  if (!request.graph) return;
  sim::check_capture(request.program, options.world, options.device != "cpu");
  if (request.warmup_steps < 2)
    throw sim::ConfigError("graph: warmup_steps={} must be at least 2, a step as ever and one that is captured",
                           request.warmup_steps);
}

/// The threads of a rank; one that the program doesn't have only waits.
std::uint32_t threads_of(const RunRequest& request, std::uint32_t rank) {
  return rank < request.program.ranks() ? request.program.threads : 1;
}

/// What this process' ranks train on, from run to run.
struct Samples {
  DataSource source;
  Dataset dataset;

  /// Returns whether they have been read just now.
  bool load(const RunRequest& request) {
    if (!request.training || request.training->data == source) return false;
    dataset = load_dataset(request.training->data, Part::train);
    source = request.training->data;
    return true;
  }
};

/// The ranks are threads of this process.
class ThreadSession final : public Session {
 public:
  ThreadSession(const SessionOptions& options, World world)
      : Session(options),
        world_(std::move(world)),
        board_(options.ranks),
        reports_(options.ranks),
        executors_(options.ranks),
        busy_(options.ranks) {
    for (std::uint32_t rank = 0; rank < options.ranks; ++rank) {
      board_.progress(rank).stage = Stage::serving;
      threads_.emplace_back([this, rank] { serve(rank); });
    }
    threads_.emplace_back([this] { watch(); });
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] { return busy_ == 0; });
  }
  ~ThreadSession() override {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  RunResult run(const RunRequest& request) override {
    if (failure_) throw sim::RunError("the session has failed before; open a new one");
    check(request, options_);
    reset_resident_peak();
    samples_.load(request);
    if (!plays(request)) return {};
    have_ranks_serve(&request);
    for (std::optional<Executor>& executor : executors_) executor.reset();
    recycle_cached();
    have_ranks_serve(nullptr);
    if (failure_) std::rethrow_exception(failure_);
    std::optional<Reference> reference;
    if (request.verify) reference = reference_of(request);
    for (std::uint32_t rank = 0; reference && rank < options_.ranks; ++rank)
      compare_state(request, *reference, rank, reports_[rank]);
    return merge(request, reports_, reference ? &*reference : nullptr);  // a copy: the next run may have more ranks
  }

 private:
  /// No request: each rank's thread gives the memory of its heap back.
  void have_ranks_serve(const RunRequest* request) {
    std::unique_lock lock(mutex_);
    request_ = request;
    busy_ = options_.ranks;
    ++number_;
    changed_.notify_all();
    ended_.wait(lock, [&] { return busy_ == 0; });
  }

  void serve(std::uint32_t rank) {
    at::set_num_threads(1);
    const RealTime urgent(kComputePriority, options_.real_time);
    const AllocationOwner owner(rank);
    std::uint64_t served = 0;
    std::unique_lock lock(mutex_);
    real_time_ = real_time_ && urgent.permitted();
    for (;;) {
      if (--busy_ == 0) ended_.notify_all();
      changed_.wait(lock, [&] { return closing_ || number_ != served; });
      if (closing_) return;
      served = number_;
      lock.unlock();
      std::exception_ptr failure;
      try {
        if (request_ != nullptr) {
          const RankThreads threads(rank, threads_of(*request_, rank), /*has_process=*/false);
          reports_[rank] = execute(*request_, *world_.ranks[rank], board_, samples_.dataset, executors_[rank]);
        } else {
          release_heap();
        }
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      // The first failure is the cause of the others.
      if (failure && !failure_) {
        failure_ = failure;
        world_.ranks[rank]->abandon();
      }
    }
  }

  /// A thread can't be ended from outside: the whole process goes.
  void watch() {
    HangWatch hang_watch(board_, options_.timeout_s);
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, std::chrono::milliseconds(500), [&] { return closing_; })) {
      hang_watch.look();
      if (const auto text = hang_watch.overdue()) {
        fmt::print(stderr, "paragauge: {}\n", *text);
        _exit(sim::kRunErrorStatus);
      }
    }
  }

  World world_;
  ProgressBoard board_;
  Samples samples_;
  std::vector<RankReport> reports_;
  std::vector<std::optional<Executor>> executors_;
  std::mutex mutex_;
  std::condition_variable changed_, ended_;
  std::uint32_t busy_;  // ranks that aren't ready for the next request
  std::uint64_t number_ = 0;
  const RunRequest* request_ = nullptr;
  bool closing_ = false;
  std::exception_ptr failure_;
  std::vector<std::thread> threads_;
};

/// The rank of this process: executes what it's told, and on rank 0 tells the others.
class ProcessSession final : public Session {
 public:
  ProcessSession(const SessionOptions& options, World world, ProgressBoard board)
      : Session(options), world_(std::move(world)), board_(std::move(board)) {
    real_time_ = RealTime(kComputePriority, options.real_time).permitted();
    const Communicator& own = *world_.ranks[0];
    if (own.host_of(options.ranks - 1) != 0) gather_hosts(own);
    board_.progress(rank()).stage = Stage::serving;
  }
  ~ProcessSession() override {
    board_.progress(rank()).stage = Stage::ending;
    if (rank() == 0 && !failed_) try {
        world_.control->broadcast("");
      } catch (const std::exception&) {
        // The other ranks are gone already.
      }
  }

  [[nodiscard]] std::uint32_t rank() const { return world_.ranks[0]->rank(); }

  RunResult run(const RunRequest& request) override {
    if (failed_) throw sim::RunError("the session has failed before; open a new one");
    check(request, options_);
    failed_ = true;  // until the end
    std::vector<RankReport> reports;
    telling_failures([&] {
      world_.control->broadcast(to_bytes(request));
      // A training's state may be gigabytes, and goes as it is.
      if (request.training) world_.control->broadcast(request.training->state);
      load(request);
      if (!plays(request)) return;
      RankReport own = execute_here(request);
      for (const std::string& bytes : world_.control->gather(to_bytes(own)))
        reports.push_back(from_bytes<RankReport>(bytes));
      if (!request.training) return;
      std::vector<std::string> packed = world_.control->gather(own.packed);
      for (std::size_t rank = 0; rank < reports.size(); ++rank) reports[rank].packed = std::move(packed[rank]);
    });
    failed_ = false;
    if (!plays(request)) return {};
    RunResult result = merge(request, std::move(reports), request.verify ? &reference_ : nullptr);
    for (const ClockReading& clock : result.clocks)
      hosts_.at(clock.host)["clock"] = {
          {"ahead_s", -clock.offset_s}, {"gains_ppm", -1e6 * clock.drift}, {"error_us", 1e6 * clock.error_s}};
    return result;
  }

  /// Runs what rank 0 asks for until it closes its session.
  void serve() {
    telling_failures([&] {
      for (std::string bytes; !(bytes = world_.control->broadcast("")).empty();) {
        auto request = from_bytes<RunRequest>(bytes);
        if (request.training) request.training->state = world_.control->broadcast("");
        load(request);
        if (!plays(request)) continue;
        const RankReport report = execute_here(request);
        world_.control->gather(to_bytes(report));
        if (request.training) world_.control->gather(report.packed);
      }
    });
  }

 private:
  /// Brings the samples to every rank. What a host lacks, or has otherwise than rank 0's, rank 0 says before any rank
  /// begins.
  void load(const RunRequest& request) {
    if (!request.training) return;
    const Communicator& own = *world_.ranks[0];
    const std::string& folder = request.training->data.folder;
    std::string lack, id;
    try {
      const bool is_new = samples_.load(request);
      if (is_new && !folder.empty() && own.host_of(options_.ranks - 1) != 0)
        id = sim::content_id(samples_.dataset.records());
    } catch (const sim::ConfigError& error) {
      lack = error.what();
    }
    if (const std::string first_id = world_.control->broadcast(id); lack.empty() && id != first_id)
      lack = fmt::format("{}: its samples differ from those of {}", folder, own.named(0));
    const std::vector<std::string> lacks = world_.control->gather(lack);
    const auto first = std::ranges::find_if(lacks, [](const std::string& text) { return !text.empty(); });
    const bool is_ready = world_.control->broadcast(first == lacks.end() ? "ready" : "") == "ready";
    if (is_ready) return;
    if (rank() != 0) throw SaidByAnother();
    const auto who = static_cast<std::uint32_t>(first - lacks.begin());
    throw sim::ConfigError("{}{}", who == 0 ? "" : own.named(who) + ": ", *first);
  }
  /// What the first rank of each host says of it, on rank 0.
  void gather_hosts(const Communicator& own) {
    nlohmann::json of_host;
    if (own.place() == 0) of_host = {{"network", own.network()}, {"environment", environment()}};
    if (own.place() == 0 && !options_.about_host.is_null()) of_host["about"] = options_.about_host;
    const std::vector<std::string> texts = world_.control->gather(to_bytes(of_host));
    for (std::uint32_t other = 0; other < texts.size(); ++other) {
      if (auto said = nlohmann::json::from_cbor(texts[other]); !said.is_null()) {
        const std::string name = own.named(other);  // "rank 3 on b"
        said["name"] = name.substr(name.find(" on ") + 4);
        said["ranks"] = 0;
        hosts_.push_back(std::move(said));
      }
      nlohmann::json& host = hosts_.at(own.host_of(other));
      host["ranks"] = host["ranks"].get<int>() + 1;
    }
  }
  /// The supervisor learns why this rank fails before the others notice.
  template <class Work>
  void telling_failures(Work work) {
    try {
      work();
    } catch (const SaidByAnother&) {
      throw;
    } catch (const std::exception& error) {
      board_.fail(rank(), error);
      const auto leave = [&] { world_.ranks[0]->abandon(); };
      if (is_watched())
        leave();
      else
        say_once(world_.control->exchange_failures(error, leave));
      throw;
    }
  }
  /// One of the ranks that have failed says what has made all of them fail: what was wrong, else the failure that came
  /// first. Returns where nobody could be told.
  void say_once(const Failures& failures) const {
    if (failures.said.empty()) return;
    if (!failures.is_speaker) throw SaidByAnother();
    const auto wrong = std::ranges::find_if(
        failures.said, [](const Failures::Said& said) { return said.failure.status != sim::kRunErrorStatus; });
    const auto& [first, cause] = wrong != failures.said.end() ? *wrong : failures.said.front();
    const Communicator& own = *world_.ranks[0];
    std::string text = cause.text;
    if (first != rank() && !text.starts_with("rank ")) text = fmt::format("{}: {}", own.named(first), text);
    std::vector<std::string> silent;
    for (const std::uint32_t other : failures.silent) silent.push_back(own.named(other));
    // Another rank may only be the first to notice.
    if (!silent.empty() && cause.status == sim::kRunErrorStatus)
      text += "; no word from " + fmt::to_string(fmt::join(silent, ", "));
    rethrow({.status = cause.status, .text = text});
  }
  RankReport execute_here(const RunRequest& request) {
    reference_ = {};  // may be gigabytes
    reset_resident_peak();
    const RealTime urgent(kComputePriority, options_.real_time);
    const AllocationOwner owner(rank());  // not of the messages between the ranks' sessions
    std::optional<RankThreads> threads(std::in_place, world_.ranks[0]->place(), threads_of(request, rank()),
                                       /*has_process=*/true);
    std::optional<Executor> executor;
    RankReport report = execute(request, *world_.ranks[0], board_, samples_.dataset, executor);
    executor.reset();
    threads.reset();
    recycle_cached();
    if (request.verify) {
      reference_ = share_reference(*world_.control, rank() == 0 ? std::optional(reference_of(request)) : std::nullopt);
      compare_state(request, reference_, rank(), report);
    }
    return report;
  }

  World world_;
  ProgressBoard board_;
  Samples samples_;
  Reference reference_;  // of the last run that was verified
  bool failed_ = false;
};

/// Finds the other ranks' processes.
std::unique_ptr<ProcessSession> meet(const SessionOptions& options, const WorldMaker& maker) {
  ProgressBoard board = ProgressBoard::join(options.ranks);
  const char* number = std::getenv("RANK");
  const auto rank = static_cast<std::uint32_t>(number != nullptr ? std::atoi(number) : 0);
  try {
    if (rank < board.ranks()) board.progress(rank).stage = Stage::meeting;
    return std::make_unique<ProcessSession>(options, maker.make(options), std::move(board));
  } catch (const SaidByAnother&) {
    throw;
  } catch (const std::exception& error) {
    if (rank < board.ranks()) board.fail(rank, error);
    throw;
  }
}

}  // namespace

std::optional<std::string> Session::missing_memory(std::int64_t bytes) const {
  constexpr double kGiB = 1 << 30;
  if (options_.device == "cpu") {
    const std::optional<double> free = sim::free_memory();
    if (!free || static_cast<double>(bytes) <= *free) return std::nullopt;
    return fmt::format("does not fit: needs {:.3g} GiB, {:.3g} of this machine's {:.3g} are free",
                       static_cast<double>(bytes) / kGiB, *free / kGiB, sim::usable_memory() / kGiB);
  }
  const at::Device device = first_device(options_.device);
  try {
    at::empty({bytes}, at::TensorOptions(device).dtype(at::kByte));
    return std::nullopt;
  } catch (const c10::OutOfMemoryError&) {
    return fmt::format("does not fit: needs {:.3g} GiB, has {:.3g}", static_cast<double>(bytes) / kGiB,
                       static_cast<double>(memory_bytes(device)) / kGiB);
  }
}

std::unique_ptr<Session> open_session(const SessionOptions& options) {
  const WorldMaker& maker = world_table().at(options.world);
  if (options.ranks == 0) throw sim::ConfigError("ranks=0 must be at least 1");
  sim::check_device(options.device);
  check_timeout(options.timeout_s);
  sim::usable_cores();
  at::set_num_threads(1);
  // Where threads run already, LibTorch's first exp of doubles is now and then right to 3e-9 only (NOTEBOOK, "The first exp").
  at::zeros({64}, at::kDouble).exp();
  install_counting_allocator();
  if (!sim::world_kind(options.world).processes) return std::make_unique<ThreadSession>(options, maker.make(options));
  try {
    auto session = meet(options, maker);
    if (session->rank() == 0) return session;
    session->serve();
  } catch (const SaidByAnother&) {
  }
  return nullptr;
}

}  // namespace backend
