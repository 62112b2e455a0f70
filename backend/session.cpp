#include "backend/session.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>
#include <tuple>
#include <type_traits>

#include "backend/allocator.hpp"
#include "backend/scheduling.hpp"
#include "backend/supervise.hpp"
#include "backend/verify.hpp"
#include "sim/model.hpp"
#include "sim/strategy/strategy.hpp"

namespace backend {
namespace {

// ---- one rank's part of a run ----------------------------------------------------------------------------------------------------------

/// What one rank has measured.
struct RankReport {
  std::vector<sim::RankTimeline> steps;
  std::vector<double> losses;  // per step, warm-up included, the mean over the rank's loss instructions; NaN without any
  RankMemory memory;
  NamedTensors state;  // for `verify`
};

/// VmHWM: the process's resident peak since it was last reset (or started, where resetting isn't permitted).
std::int64_t resident_peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (std::int64_t kib = 0; word == "VmHWM:" && status >> kib) return kib * 1024;
  return 0;
}
void reset_resident_peak() { std::ofstream("/proc/self/clear_refs") << 5; }

double mean_loss(const StepRecord& record) {
  double sum = 0;
  for (const at::Tensor& loss : record.losses) sum += loss.item<double>();
  return sum / static_cast<double>(record.losses.size());
}

/// Plays the request on this rank; ranks beyond the program's only keep step. The executor stays with the caller: its tensors must outlive the others'
/// transfers, also when this rank fails.
RankReport play(const RunRequest& request, Communicator& communicator, const ProgressBoard& board, std::optional<Executor>& executor) {
  const std::uint32_t rank = communicator.rank();
  const std::uint32_t steps = request.warmup_steps + request.steps;
  const bool idle = rank >= request.program.ranks();
  communicator.prepare(request.program.groups);
  if (idle) {
    for (std::uint32_t s = 0; s < steps; ++s) {
      communicator.begin_step();
      communicator.end_step();
    }
    return {};
  }

  sim::Program::Place place = request.program.places()[rank];
  if (request.copies > 0) place.replica = 0;
  board.set_labels(rank, request.program, request.program.roles[place.role]);
  executor.emplace(request.program, place, communicator, request.seed);
  reset_peak(rank);
  RankReport report;
  StepRecord warmup = executor->new_record();
  std::vector<StepRecord> records(request.steps, warmup);
  for (std::uint32_t s = 0; s < steps; ++s) {
    StepRecord& record = s < request.warmup_steps ? warmup : records[s - request.warmup_steps];
    if (request.verify && s + 1 == steps) executor->keep_gradients();
    executor->step(record, board.progress(rank));
    report.losses.push_back(mean_loss(record));
  }
  for (StepRecord& record : records) report.steps.push_back(std::move(record.times));
  report.memory = {executor->peak_bytes(), rank_bytes(rank).peak, resident_peak_bytes()};
  if (request.verify) report.state = executor->state();
  return report;
}

// ---- all ranks' parts together ---------------------------------------------------------------------------------------------------------

/// Fills in when transfers were ready where the ranks themselves couldn't know: when the last party had posted.
class ReadyTimes {
 public:
  explicit ReadyTimes(const sim::Program& program) {
    std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, std::uint32_t> pairs;        // source, destination, tag
    std::map<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>, std::uint32_t> collectives;  // group, first member, number
    const std::vector<sim::Program::Place> places = program.places();
    const auto join = [&](auto& table, const auto& key, std::uint32_t rank, std::uint32_t i) {
      const auto [entry, is_new] = table.emplace(key, static_cast<std::uint32_t>(transfers_.size()));
      if (is_new) transfers_.emplace_back();
      transfers_[entry->second].push_back({rank, i});
    };
    for (std::uint32_t rank = 0; rank < places.size(); ++rank) {
      const sim::Role& role = program.roles[places[rank].role];
      std::vector<std::uint32_t> joined(program.groups.size());
      for (std::uint32_t i = 0; i < role.size(); ++i) {
        if (role.kind[i] == sim::InstructionKind::collective) {
          const std::uint32_t group = role.peer[i];
          for (const std::vector<std::uint32_t>& members : program.groups[group].members)
            if (std::ranges::find(members, rank) != members.end())
              join(collectives, std::tuple(group, members.front(), joined[group]++), rank, i);
        } else if (role.kind[i] == sim::InstructionKind::send || role.kind[i] == sim::InstructionKind::recv) {
          const std::uint32_t partner = program.roles[role.peer[i]].ranks[places[rank].replica];
          const bool sends = role.kind[i] == sim::InstructionKind::send;
          join(pairs, sends ? std::tuple(rank, partner, role.tag[i]) : std::tuple(partner, rank, role.tag[i]), rank, i);
        }
      }
    }
  }

  void fill(sim::Timeline& timeline) const {
    for (const std::vector<Party>& parties : transfers_) {
      double ready_s = 0;
      for (const auto& [rank, i] : parties) ready_s = std::max(ready_s, timeline.ranks[rank].posted_s[i]);
      for (const auto& [rank, i] : parties) {
        sim::RankTimeline& times = timeline.ranks[rank];
        if (std::isnan(times.start_s[i])) times.start_s[i] = ready_s;
        // A broadcast may reach this rank before others have joined.
        times.start_s[i] = std::min(times.start_s[i], times.end_s[i]);
      }
    }
  }

 private:
  struct Party {
    std::uint32_t rank = 0, instruction = 0;
  };
  std::vector<std::vector<Party>> transfers_;
};

/// The mean over the ranks that have a loss.
double mean_loss(const std::vector<RankReport>& reports, std::uint32_t step) {
  double sum = 0, count = 0;
  for (const RankReport& report : reports)
    if (!std::isnan(report.losses[step])) {
      sum += report.losses[step];
      ++count;
    }
  return sum / count;
}

std::vector<VerifiedTensor> verify(const RunRequest& request, const std::vector<RankReport>& reports) {
  const sim::Program& program = request.program;
  const sim::Model model = sim::load_model(program.model);
  const std::uint32_t steps = request.warmup_steps + request.steps;
  const Reference reference =
      play_reference(model, {program.replicas, program.microbatches, steps, request.seed, sim::parse_strategy(program.strategy, model).broadcast_buffers});
  const std::vector<sim::Program::Place> places = program.places();
  std::vector<std::vector<VerifiedTensor>> rows;
  for (std::uint32_t rank = 0; rank < reports.size(); ++rank) rows.push_back(compare(reference, places[rank].replica, reports[rank].state));
  std::vector<double> losses;
  for (std::uint32_t s = 0; s < steps; ++s) losses.push_back(mean_loss(reports, s));
  return verdict(reference, losses, rows);
}

RunResult merge(const RunRequest& request, std::vector<RankReport> reports) {
  const sim::Program& program = request.program;
  reports.resize(program.ranks());
  const ReadyTimes ready(program);
  RunResult result;
  for (std::uint32_t s = 0; s < request.steps; ++s) {
    StepResult step;
    for (RankReport& report : reports) {
      step.timeline.ranks.push_back(std::move(report.steps[s]));
      step.timeline.step_s = std::max(step.timeline.step_s, step.timeline.ranks.back().end_of_step_s);
    }
    step.loss = mean_loss(reports, request.warmup_steps + s);
    ready.fill(step.timeline);
    sim::break_down(program, step.timeline);
    sim::check(program, step.timeline);
    result.steps.push_back(std::move(step));
  }
  for (const RankReport& report : reports) result.memory.push_back(report.memory);
  if (request.verify) result.verified = verify(request, reports);
  return result;
}

/// The request as the ranks play it: `copies` ranks of a one-rank program, or the program itself.
RunRequest checked(const RunRequest& request, const SessionOptions& options) {
  RunRequest wanted = request;
  sim::validate(request.program);
  if (request.verify && (request.copies > 0 || request.warmup_steps + request.steps == 0))
    throw sim::ConfigError("verify needs at least one step, and no copies");
  if (request.copies > 0) {
    if (request.program.ranks() != 1) throw sim::ConfigError("copies={} of a program for {} ranks; it must be for one", request.copies, request.program.ranks());
    std::vector<std::uint32_t>& ranks = wanted.program.roles[0].ranks;
    ranks.resize(request.copies);
    std::iota(ranks.begin(), ranks.end(), 0U);
  }
  if (wanted.program.ranks() > options.ranks)
    throw sim::ConfigError("the program needs {} ranks, the session has {}", wanted.program.ranks(), options.ranks);
  return wanted;
}

WorldOptions world_options(const SessionOptions& options) {
  return {.ranks = options.ranks,
          .device = options.device == "cpu" ? at::Device(at::kCPU) : at::Device(at::kCUDA, 0),
          .timeout_s = options.timeout_s,
          .real_time = options.real_time};
}

// ---- ranks that are threads ------------------------------------------------------------------------------------------------------------

class ThreadSession final : public Session {
 public:
  ThreadSession(const SessionOptions& options, World world)
      : options_(options),
        world_(std::move(world)),
        board_(options.ranks),
        reports_(options.ranks),
        executors_(options.ranks),
        busy_(options.ranks) {
    busy_ = options.ranks;  // until every thread is ready to serve
    for (std::uint32_t rank = 0; rank < options.ranks; ++rank) threads_.emplace_back([this, rank] { serve(rank); });
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

  [[nodiscard]] const SessionOptions& options() const override { return options_; }
  [[nodiscard]] bool real_time() const override { return real_time_; }

  RunResult run(const RunRequest& request) override {
    if (failure_) throw sim::RunError("the session has failed before; open a new one");
    const RunRequest wanted = checked(request, options_);
    reset_resident_peak();
    std::unique_lock lock(mutex_);
    request_ = &wanted;
    busy_ = options_.ranks;
    ++number_;
    changed_.notify_all();
    ended_.wait(lock, [&] { return busy_ == 0; });
    for (std::optional<Executor>& executor : executors_) executor.reset();
    release_cached();
    if (failure_) std::rethrow_exception(failure_);
    return merge(wanted, reports_);  // a copy: the next run may have more ranks
  }

 private:
  void serve(std::uint32_t rank) {
    pin_to_core(core_of_rank(rank));
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
        reports_[rank] = play(*request_, *world_.ranks[rank], board_, executors_[rank]);
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
      if (const auto rank = hang_watch.hung()) {
        fmt::print(stderr, "rank {} hangs (no progress for {:g} s) {}\n", *rank, hang_watch.patience_s(), board_.where(*rank));
        _exit(kRunErrorStatus);
      }
    }
  }

  const SessionOptions options_;
  World world_;
  ProgressBoard board_;
  std::vector<RankReport> reports_;
  std::vector<std::optional<Executor>> executors_;
  std::mutex mutex_;
  std::condition_variable changed_, ended_;
  std::uint32_t busy_;  // ranks that aren't ready for the next request
  std::uint64_t number_ = 0;
  const RunRequest* request_ = nullptr;
  bool closing_ = false, real_time_ = true;
  std::exception_ptr failure_;
  std::vector<std::thread> threads_;
};

// ---- ranks that are processes ----------------------------------------------------------------------------------------------------------

/// Numbers, texts and tensors as bytes.
class Writer {
 public:
  template <class T>
    requires std::is_trivially_copyable_v<T>
  void add(const T& value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  void add(std::string_view text) {
    add(text.size());
    bytes_ += text;
  }
  void add(const std::string& text) { add(std::string_view(text)); }
  void add(const std::vector<double>& numbers) {
    add(std::string_view(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(double)));
  }
  void add(const at::Tensor& tensor) {
    add(tensor.scalar_type());
    add(tensor.dim());
    for (std::int64_t size : tensor.sizes()) add(size);
    const at::Tensor dense = tensor.cpu().contiguous();
    add(std::string_view(static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()));
  }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  template <class T>
    requires std::is_trivially_copyable_v<T>
  T value() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string_view text() { return take(value<std::size_t>()); }
  std::vector<double> numbers() {
    const std::string_view bytes = text();
    std::vector<double> numbers(bytes.size() / sizeof(double));
    std::memcpy(numbers.data(), bytes.data(), bytes.size());
    return numbers;
  }
  at::Tensor tensor() {
    const auto dtype = value<at::ScalarType>();
    std::vector<std::int64_t> sizes(value<std::int64_t>());
    for (std::int64_t& size : sizes) size = value<std::int64_t>();
    const at::Tensor tensor = at::empty(sizes, dtype);
    const std::string_view bytes = text();
    std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
    return tensor;
  }

 private:
  std::string_view take(std::size_t count) {
    sim::check_internal(count <= bytes_.size(), "a message of another rank ends early");
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }
  std::string_view bytes_;
};

std::string to_bytes(const RunRequest& request) {
  Writer writer;
  writer.add(sim::to_text(request.program));
  writer.add(request.warmup_steps);
  writer.add(request.steps);
  writer.add(request.seed);
  writer.add(request.copies);
  writer.add(request.verify);
  return writer.bytes();
}

RunRequest request_from(std::string_view bytes) {
  Reader reader(bytes);
  RunRequest request;
  request.program = sim::program_from_text(reader.text());
  request.warmup_steps = reader.value<std::uint32_t>();
  request.steps = reader.value<std::uint32_t>();
  request.seed = reader.value<std::uint64_t>();
  request.copies = reader.value<std::uint32_t>();
  request.verify = reader.value<bool>();
  return request;
}

std::string to_bytes(const RankReport& report) {
  Writer writer;
  writer.add(report.steps.size());
  for (const sim::RankTimeline& step : report.steps) {
    for (const auto* times : {&step.posted_s, &step.start_s, &step.end_s}) writer.add(*times);
    writer.add(step.end_of_step_s);
  }
  writer.add(report.losses);
  writer.add(report.memory);
  writer.add(report.state.size());
  for (const auto& [name, tensor] : report.state) {
    writer.add(name);
    writer.add(tensor);
  }
  return writer.bytes();
}

RankReport report_from(std::string_view bytes) {
  Reader reader(bytes);
  RankReport report;
  report.steps.resize(reader.value<std::size_t>());
  for (sim::RankTimeline& step : report.steps) {
    for (auto* times : {&step.posted_s, &step.start_s, &step.end_s}) *times = reader.numbers();
    step.end_of_step_s = reader.value<double>();
  }
  report.losses = reader.numbers();
  report.memory = reader.value<RankMemory>();
  for (auto left = reader.value<std::size_t>(); left > 0; --left) {
    std::string name(reader.text());
    report.state.emplace_back(std::move(name), reader.tensor());
  }
  return report;
}

/// The rank of this process: plays what it's told, and on rank 0 tells the others.
class ProcessSession final : public Session {
 public:
  ProcessSession(const SessionOptions& options, World world)
      : options_(options), world_(std::move(world)), board_(ProgressBoard::join(options.ranks)), owner_(rank()) {
    real_time_ = RealTime(kComputePriority, options.real_time).permitted();
  }
  ~ProcessSession() override {
    if (rank() == 0 && !failed_) try {
        world_.control->broadcast("");
      } catch (const std::exception&) {
        // The other ranks are gone already.
      }
  }

  [[nodiscard]] const SessionOptions& options() const override { return options_; }
  [[nodiscard]] bool real_time() const override { return real_time_; }
  [[nodiscard]] std::uint32_t rank() const { return world_.ranks[0]->rank(); }

  RunResult run(const RunRequest& request) override {
    if (failed_) throw sim::RunError("the session has failed before; open a new one");
    const RunRequest wanted = checked(request, options_);
    failed_ = true;  // until the end
    world_.control->broadcast(to_bytes(wanted));
    std::vector<RankReport> reports;
    for (const std::string& bytes : world_.control->gather(to_bytes(play_here(wanted)))) reports.push_back(report_from(bytes));
    failed_ = false;
    return merge(wanted, std::move(reports));
  }

  /// Until rank 0 closes its session.
  void serve() {
    for (std::string bytes; !(bytes = world_.control->broadcast("")).empty();)
      world_.control->gather(to_bytes(play_here(request_from(bytes))));
  }

 private:
  RankReport play_here(const RunRequest& request) {
    reset_resident_peak();
    const RealTime urgent(kComputePriority, options_.real_time);
    std::optional<Executor> executor;
    try {
      RankReport report = play(request, *world_.ranks[0], board_, executor);
      executor.reset();
      release_cached();
      return report;
    } catch (...) {
      world_.ranks[0]->abandon();
      throw;
    }
  }

  const SessionOptions options_;
  World world_;
  ProgressBoard board_;
  AllocationOwner owner_;
  bool real_time_ = false, failed_ = false;
};

}  // namespace

std::unique_ptr<Session> open_session(const SessionOptions& options) {
  const WorldKind& kind = world_table().at(options.world);
  if (options.ranks == 0) throw sim::ConfigError("ranks=0 must be at least 1");
  if (options.device != "cpu" && options.device != "cuda") throw sim::ConfigError("unknown device '{}'; known: cpu, cuda", options.device);
  if (!(options.timeout_s > 0)) throw sim::ConfigError("timeout_s={:g} must be more than 0", options.timeout_s);
  usable_cores();
  at::set_num_threads(1);
  install_counting_allocator();
  World world = kind.make(world_options(options));
  if (!world.control) return std::make_unique<ThreadSession>(options, std::move(world));
  auto session = std::make_unique<ProcessSession>(options, std::move(world));
  if (session->rank() == 0) return session;
  session->serve();
  return nullptr;
}

bool is_rank_process() { return std::getenv("RANK") && std::getenv("WORLD_SIZE"); }

}  // namespace backend
