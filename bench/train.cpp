#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "backend/calibrate.hpp"
#include "backend/machine/scheduling.hpp"
#include "backend/train/evaluate.hpp"
#include "backend/train/safetensors.hpp"
#include "backend/train/state.hpp"
#include "bench/commands.hpp"
#include "bench/machine.hpp"
#include "bench/progress.hpp"
#include "sim/cost/origin.hpp"
#include "sim/error.hpp"
#include "sim/report/console.hpp"
#include "sim/simulate/forecast.hpp"
#include "sim/simulate/simulate.hpp"
#include "sim/strategy/daso_phases.hpp"
#include "sim/strategy/epoch.hpp"
#include "sim/text/file.hpp"
#include "sim/text/spec.hpp"

namespace bench {
namespace {

// Of the result, a JSON object with model, strategy, world, data (a folder, or "made"), samples, seed, cost_model,
// context and epochs: [{epoch, strategy, loss (mean over its samples), test_loss, accuracy (0…1), measured_s and
// predicted_s (of its steps), wall_s (with what is between them, and the test), losses (of each step)}]; an imported
// model isn't tested. And of a checkpoint's metadata.
constexpr const char* kFormat = "paragauge-train-1";

/// An epoch's steps of one size.
struct Stretch {
  Job job;
  std::int64_t lists = 0;  // how often the Program is played
  double list_s = 0;       // predicted

  [[nodiscard]] std::int64_t steps() const { return lists * job.program.steps_in_list(); }
};

struct Epoch {
  std::vector<Stretch> stretches;  // the full batches, and the smaller last
  std::string remark;              // on the last

  [[nodiscard]] std::int64_t steps() const {
    return std::accumulate(stretches.begin(), stretches.end(), std::int64_t{0},
                           [](std::int64_t sum, const Stretch& stretch) { return sum + stretch.steps(); });
  }
  [[nodiscard]] double predicted_s() const {
    return std::accumulate(stretches.begin(), stretches.end(), 0.0, [](double sum, const Stretch& stretch) {
      return sum + static_cast<double>(stretch.lists) * stretch.list_s;
    });
  }
};

/// What a model's step needs that there is no data of; empty: nothing.
std::string what_no_sample_has(const sim::Model& model) {
  for (const sim::Given& given : model.given)
    if (given.per_sample) return fmt::format("reads '{}' beside its input", given.name);
  const sim::Initial& values = model.input_values;
  if (values.classes != 0) return "reads tokens";
  if (values.bound != 0) return fmt::format("reads numbers between 0 and {}", values.center + values.bound);
  if (!model.positions.empty()) return "has a target at each of several positions";
  const std::string_view loss = model.nodes.back().kind->name;
  if (model.is_imported() && loss != "cross_entropy") return fmt::format("has the loss {}, not cross_entropy", loss);
  return "";
}

/// Of what can be trained on; ConfigError for the rest.
Job job_of(const Options& options) {
  std::vector<Job> jobs = make_jobs(options.subject, options.machine);
  if (jobs.size() != 1)
    throw sim::ConfigError("train takes one model, one strategy and one world, found {} combinations", jobs.size());
  Job job = std::move(jobs[0]);
  if (job.model.timing == sim::Timing::tutorial)
    throw sim::ConfigError(
        "train: a step with timing=tutorial makes random samples of its own; use timing=step or epoch");
  if (const std::string what = what_no_sample_has(job.model); !what.empty())
    throw sim::ConfigError(
        "train: model '{}' {}; there are samples of bytes only, of a class each (CIFAR-10's files, or made); compare "
        "and measure play its steps",
        job.model.name, what);
  return job;
}

backend::DataSource source_of(const Options& options, const sim::Model& model) {
  constexpr std::int64_t kMade = 2000;  // 31 batches of 64, and one of 16 as CIFAR-10's last
  return {.folder = options.data,
          .samples = options.samples == 0 && options.data.empty() ? kMade : options.samples,
          .seed = options.seed,
          .shape = model.input,
          .classes = model.classes,
          .is_tested = !model.is_imported()};
}

/// Steps that reach into each other are played several together, between two barriers (sim/program/unroll.hpp): in lists
/// of one length that have as many of the steps as can be, but not so many each that a list takes minutes.
Epoch epoch_in_lists(const Job& job, std::int64_t samples, std::int64_t steps) {
  constexpr std::int64_t kMost = 64;
  const auto with = [&](std::int64_t bodies) {
    Job of_bodies = job;
    of_bodies.strategy.bodies = static_cast<std::uint32_t>(bodies);
    of_bodies.program = sim::lower(job.model, of_bodies.strategy);
    return of_bodies;
  };
  const std::int64_t least = with(2).program.steps_in_list(), each = with(3).program.steps_in_list() - least;
  if (steps < least)
    throw sim::ConfigError(
        "train: strategy '{}' plays at least {} steps together; {} samples make {} of global_batch={}",
        job.strategy.text(), least, samples, steps, job.model.global_batch);
  const auto bodies_in = [&](std::int64_t lists) { return 2 + (std::max(steps / lists, least) - least) / each; };
  const auto steps_in = [&](std::int64_t lists) { return lists * (least + (bodies_in(lists) - 2) * each); };
  const std::int64_t fewest = (steps + kMost - 1) / kMost;
  std::int64_t lists = std::min(fewest, steps / least);
  for (std::int64_t more = lists + 1; more <= 2 * fewest && more <= steps / least; ++more)
    if (steps_in(more) > steps_in(lists)) lists = more;
  Epoch epoch;
  epoch.stretches.push_back({with(bodies_in(lists)), lists});
  epoch.remark = fmt::format("{} steps are played together: they reach into each other, and end together.",
                             steps_in(lists) / lists);
  if (const std::int64_t rest = samples - epoch.steps() * job.model.global_batch; rest > 0)
    epoch.remark += fmt::format(" An epoch's last {} samples aren't trained on.", rest);
  return epoch;
}

Epoch epoch_of(const Job& job, std::int64_t samples) {
  const sim::Epoch sizes = sim::epoch_of(samples, job.model, job.strategy);
  if (job.program.bodies() > 1) return epoch_in_lists(job, samples, sizes.full_steps);
  Epoch epoch;
  if (sizes.full_steps > 0) epoch.stretches.push_back({job, sizes.full_steps});
  if (!sizes.last) return epoch;
  const sim::Model& model = sizes.last->model;
  const std::int64_t rest = samples - sizes.full_steps * job.model.global_batch;
  try {
    Job last{model, sizes.last->strategy, job.world, sim::lower(model, sizes.last->strategy), job.cluster};
    last.cluster.place.resize(std::min<std::size_t>(last.cluster.place.size(), last.program.ranks()));
    epoch.stretches.push_back({std::move(last), 1});
    if (model.global_batch > rest)
      epoch.remark = fmt::format(
          "An epoch's last batch has {} samples, and {} from the epoch's beginning, so that all parts are of one size.",
          rest, model.global_batch - rest);
  } catch (const sim::ConfigError& error) {
    if (epoch.stretches.empty()) throw;
    epoch.remark = fmt::format("An epoch's last {} samples aren't trained on: {}.", rest, error.what());
  }
  return epoch;
}

/// Fills in the steps' forecasts: from a profile, which is calibrated on the spot unless there is one, or a data sheet.
void forecast(Epoch& epoch, const Options& options, const Worlds& worlds) {
  const std::string& name = options.cost_models.at(0);
  sim::Profile profile(options.machine.device);
  if (!options.profile.empty()) {
    profile = sim::load_profile(options.profile);
    sim::check_origin(profile, epoch.stretches[0].job.cluster);
  } else if (sim::cost_model_table().at(name).needs_profile) {
    std::vector<Job> jobs;
    for (const Stretch& stretch : epoch.stretches) jobs.push_back(stretch.job);
    profile.environment = context(options.machine, worlds);
    backend::Calibrator calibrator(sim::calibration_tasks(jobs), worlds.by_label());
    const std::size_t count = calibrator.tasks().size();
    Progress progress("train");
    progress.begin("calibration", 0, 1);
    for (std::size_t t = 0; t < count; ++t) {
      progress.at(calibrator.tasks()[t].label, t, count);
      add(calibrator.visit(t), calibrator.tasks()[t], profile);
    }
  }
  for (Stretch& stretch : epoch.stretches) {
    const Job& job = stretch.job;
    const sim::Forecast step =
        sim::forecast(job.program, job.cluster, *sim::make_cost_model(name, job.cluster, &profile));
    stretch.list_s =
        job.program.bodies() == 1 ? step.step.step_s : sim::simulate(job.program, step.costs, job.cluster).step_s;
  }
}

template <class Number>
Number number_in(const std::map<std::string, std::string>& metadata, const std::string& key, const std::string& where) {
  const auto found = metadata.find(key);
  const std::string text = found == metadata.end() ? "" : found->second;
  Number number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size())
    throw sim::ConfigError("{}: {} '{}' must be a whole number", where, key, text);
  return number;
}

/// What an epoch gave.
struct Trained {
  std::vector<double> losses;  // of each step
  double loss = 0;             // mean over samples
  std::optional<backend::Evaluation> test;
  double measured_s = 0, wall_s = 0;  // of its steps; with all between them, and the test
};

/// The run itself: from epoch to epoch, with its files.
class Training {
 public:
  Training(const Options& options, const Job& job, backend::DataSource source)
      : options_(options), job_(job), source_(std::move(source)), samples_(backend::training_samples(source_)) {
    about_ = {{"format", kFormat},
              {"model", job.model.text()},
              {"strategy", job.strategy.text()},
              {"data", options.data.empty() ? "made" : std::filesystem::weakly_canonical(options.data).string()},
              {"samples", fmt::to_string(samples_)},
              {"seed", fmt::to_string(options.seed)}};
    if (options.phases) {
      if (!job.strategy.daso)
        throw sim::ConfigError("train: --phases is about daso, found strategy '{}'", job.strategy.text());
      phases_.emplace(options.epochs, job.strategy.daso->local);
      about_["phases"] = fmt::format("of {} epochs", options.epochs);
    }
    read_checkpoint();
    read_result();
    for (const double loss : losses_)
      if (phases_) phases_->end_epoch(loss);
  }

  /// How the epoch that comes is played.
  [[nodiscard]] Job job() const {
    Job job = job_;
    if (!phases_) return job;
    job.strategy.daso = phases_->now();
    job.program = sim::lower(job.model, job.strategy);
    return job;
  }

  [[nodiscard]] std::int64_t samples() const { return samples_; }
  [[nodiscard]] bool is_tested() const { return source_.is_tested; }
  [[nodiscard]] std::uint32_t epochs_done() const { return done_; }

  /// All ranks have their samples; what a host lacks is said before anything is calibrated.
  void load(const sim::Program& program, backend::Session& session) const {
    backend::RunRequest request{.program = program, .warmup_steps = 0, .steps = 0};
    request.training = backend::Training{source_, done_, 0, ""};
    session.run(request);
  }

  /// One more.
  Trained train(const Epoch& epoch, const std::string& strategy, backend::Session& session, Progress& progress) {
    const double begin_s = backend::now_s();
    Trained trained;
    std::int64_t first_sample = 0, step = 0;
    double seen = 0;
    for (const Stretch& stretch : epoch.stretches) {
      const sim::Program& program = stretch.job.program;
      backend::RunRequest request{.program = program,
                                  .warmup_steps = 0,
                                  .steps = static_cast<std::uint32_t>(stretch.lists),
                                  .seed = options_.seed};
      request.training = backend::Training{source_, done_, first_sample, std::move(state_)};
      request.after_step = [&](std::uint32_t s) {
        if (const double now_s = backend::now_s(); now_s - drawn_s_ > kRedraw_s) {
          drawn_s_ = now_s;
          const std::int64_t at = step + (s + 1) * program.steps_in_list();
          progress.at(fmt::format("step {}/{}", at, epoch.steps()), static_cast<double>(at),
                      static_cast<double>(epoch.steps()));
        }
      };
      backend::RunResult run = session.run(request);
      state_ = std::move(run.state);
      for (const double loss : run.losses) {
        trained.loss += loss * static_cast<double>(program.global_batch);
        seen += static_cast<double>(program.global_batch);
      }
      trained.losses.insert(trained.losses.end(), run.losses.begin(), run.losses.end());
      for (const backend::StepResult& of_step : run.steps) trained.measured_s += of_step.timeline.step_s;
      first_sample += stretch.steps() * program.global_batch;
      step += stretch.steps();
    }
    trained.loss /= seen;
    if (is_tested()) {
      if (test_.size() == 0) test_ = backend::load_dataset(source_, backend::Part::test);
      trained.test = backend::evaluate(job_.model, state_, test_);
    }
    trained.wall_s = backend::now_s() - begin_s;
    ++done_;
    losses_.push_back(trained.loss);
    if (phases_) phases_->end_epoch(trained.loss);
    steps_ += epoch.steps();
    nlohmann::ordered_json row{{"epoch", done_}, {"strategy", strategy}, {"loss", trained.loss}};
    if (trained.test) row.update({{"test_loss", trained.test->loss}, {"accuracy", trained.test->accuracy}});
    row.update({{"measured_s", trained.measured_s},
                {"predicted_s", epoch.predicted_s()},
                {"wall_s", trained.wall_s},
                {"losses", trained.losses}});
    rows_.push_back(std::move(row));
    return trained;
  }

  /// The result first: where it has an epoch more than the checkpoint, that epoch is trained again.
  void save(const nlohmann::json& machine) const {
    if (!options_.output.empty()) {
      nlohmann::ordered_json result(about_);
      result["samples"] = samples_;
      result["seed"] = options_.seed;
      result["world"] = job_.world;
      result["cost_model"] = options_.cost_models.at(0);
      result["context"] = machine;
      result["epochs"] = rows_;
      sim::write_text_file(options_.output, result.dump() + "\n");
    }
    if (options_.checkpoint.empty()) return;
    backend::Safetensors checkpoint = backend::safetensors_from(state_, "state");
    backend::to_module_shapes(checkpoint, job_.model.parameters);
    checkpoint.metadata = about_;
    checkpoint.metadata["epoch"] = fmt::to_string(done_);
    checkpoint.metadata["step"] = fmt::to_string(steps_);
    checkpoint.metadata["losses"] = fmt::to_string(fmt::join(losses_, " "));
    sim::write_text_file(options_.checkpoint, backend::to_bytes(checkpoint), /*to_disk=*/true);
  }

 private:
  static constexpr double kRedraw_s = 0.1;

  /// Goes on with the checkpoint where there is one.
  void read_checkpoint() {
    const std::string& file = options_.checkpoint;
    if (file.empty() || !std::filesystem::exists(file)) return;
    state_ = sim::read_text_file(file);
    const backend::Safetensors state = backend::safetensors_from(state_, file);
    const std::map<std::string, std::string>& metadata = state.metadata;
    check_about(metadata, file, "checkpoint");
    backend::check_state(state, job_.program, file);
    done_ = number_in<std::uint32_t>(metadata, "epoch", file);
    steps_ = number_in<std::int64_t>(metadata, "step", file);
    std::istringstream losses(metadata.contains("losses") ? metadata.at("losses") : "");
    for (std::string loss; losses >> loss;) losses_.push_back(std::strtod(loss.c_str(), nullptr));
    if (losses_.size() != done_)
      throw sim::ConfigError("{}: has losses of {} epochs, not {}", file, losses_.size(), done_);
  }

  /// And with the epochs that the result has until there. ConfigError where it is another training's.
  void read_result() {
    const std::string& file = options_.output;
    if (file.empty() || !std::filesystem::is_regular_file(file) || std::filesystem::file_size(file) == 0) return;
    std::map<std::string, std::string> about;
    try {
      const auto result = nlohmann::ordered_json::parse(sim::read_text_file(file));
      if (result.at("format") != kFormat) throw sim::ConfigError("");
      for (const auto& [key, expected] : about_)
        if (result.contains(key))
          about[key] = result[key].is_string() ? result[key].get<std::string>() : result[key].dump();
      for (const nlohmann::ordered_json& row : result.at("epochs"))
        if (row.at("epoch").get<std::uint32_t>() <= done_) rows_.push_back(row);
    } catch (const std::exception&) {
      throw sim::ConfigError("{}: is no result of train, and would be replaced; name another file", file);
    }
    check_about(about, file, "result");
  }

  /// ConfigError where a file is of another training.
  void check_about(const std::map<std::string, std::string>& about, const std::string& file, const char* what) const {
    for (const auto& [key, expected] : about_)
      if (const auto found = about.find(key); found == about.end() || found->second != expected)
        throw sim::ConfigError("{}: is a {} with {} '{}', this run has '{}'; name another file, or remove it", file,
                               what, key, found == about.end() ? "" : found->second, expected);
  }

  const Options& options_;
  const Job& job_;
  const backend::DataSource source_;
  const std::int64_t samples_;
  std::map<std::string, std::string> about_;  // what a checkpoint must be of
  std::uint32_t done_ = 0;                    // epochs
  std::int64_t steps_ = 0;                    // of them
  std::vector<double> losses_;                // of each epoch
  std::optional<sim::DasoPhases> phases_;
  std::string state_;
  nlohmann::ordered_json rows_ = nlohmann::ordered_json::array();  // of the result: an epoch each
  backend::Dataset test_;
  double drawn_s_ = 0;
};

/// "31 batches of 64 and one of 16".
std::string words_of(const Epoch& epoch) {
  std::vector<std::string> words;
  for (const Stretch& stretch : epoch.stretches)
    words.push_back(fmt::format("{} batch{} of {}", stretch.steps() == 1 ? "one" : fmt::to_string(stretch.steps()),
                                stretch.steps() == 1 ? "" : "es", stretch.job.program.global_batch));
  return fmt::to_string(fmt::join(words, " and "));
}

}  // namespace

int train(const Options& options) {
  const Job job = job_of(options);
  // What is wrong with files is said before ranks are started.
  Training training(options, job, source_of(options, job.model));
  if (training.epochs_done() >= options.epochs) {
    fmt::print("train: {} has its {} epochs already\n", sim::printable(options.checkpoint), training.epochs_done());
    return 0;
  }
  std::map<std::string, Epoch> epochs;  // by strategy; most trainings have one
  const auto epoch_now = [&]() -> std::pair<const std::string, Epoch>& {
    const Job now = training.job();
    const auto known = epochs.find(now.strategy.text());
    if (known != epochs.end()) return *known;
    return *epochs.emplace(now.strategy.text(), epoch_of(now, training.samples())).first;
  };
  std::vector<Job> jobs;
  for (const Stretch& stretch : epoch_now().second.stretches) jobs.push_back(stretch.job);
  const Worlds worlds = open_worlds(options.machine, jobs);
  if (worlds.done) return *worlds.done;
  if (const std::optional<std::string> reason = why_not(job, options.machine, worlds))
    throw sim::ConfigError("train: {} {}", to_text(job), *reason);
  if (training.epochs_done() > 0)
    fmt::print("train: goes on after epoch {} of {} in {}\n", training.epochs_done(), options.epochs,
               sim::printable(options.checkpoint));
  training.load(jobs[0].program, worlds.at(job.world));
  Progress progress("train");
  const nlohmann::json machine = context(options.machine, worlds);
  fmt::print("{}: an epoch is {}\n{:>5} {:>9} {:>9} {:>9} {:>9} {:>9}\n", to_text(job), words_of(epoch_now().second),
             "epoch", "loss", "test_loss", "accuracy", "measured", "predicted");
  std::vector<double> measured_s;  // of each epoch
  double predicted_s = 0;
  std::string remark;
  while (training.epochs_done() < options.epochs) {
    const std::uint32_t number = training.epochs_done() + 1;
    auto& [strategy, epoch] = epoch_now();
    if (epoch.predicted_s() == 0) forecast(epoch, options, worlds);
    progress.begin(fmt::format("epoch {}/{}", number, options.epochs), number - 1, options.epochs);
    const Trained trained = training.train(epoch, strategy, worlds.at(job.world), progress);
    training.save(machine);
    measured_s.push_back(trained.measured_s);
    predicted_s += epoch.predicted_s();
    remark = epoch.remark;
    progress.end();
    const auto& test = trained.test;
    fmt::print("{:>5} {:>9.4f} {:>9} {:>9} {:>9} {:>9}{}\n", number, trained.loss,
               test ? fmt::format("{:.4f}", test->loss) : "-",
               test ? fmt::format("{:.1f} %", 100 * test->accuracy) : "-", sim::readable_seconds(trained.measured_s),
               sim::readable_seconds(epoch.predicted_s()), options.phases ? " " + strategy : "");
    std::fflush(stdout);
  }
  const double count = static_cast<double>(measured_s.size()),
               all_s = std::accumulate(measured_s.begin(), measured_s.end(), 0.0);
  const auto [least, most] = std::ranges::minmax(measured_s);
  const std::string between =
      options.phases || most < 1.05 * least
          ? ""
          : fmt::format(" (from {} to {})", sim::readable_seconds(least), sim::readable_seconds(most));
  fmt::print(
      "{}",
      sim::paragraph(fmt::format("An epoch's steps took {} on average{}, predicted by {}: {} ({:+.1f} %). Not counted: "
                                 "what happens between steps, where batches are put together{}.",
                                 sim::readable_seconds(all_s / count), between, options.cost_models.at(0),
                                 sim::readable_seconds(predicted_s / count), 100 * (predicted_s / all_s - 1),
                                 training.is_tested() ? ", and the test" : ""),
                     ' ', 100));
  if (!training.is_tested())
    fmt::print("{}",
               sim::paragraph("Not tested: an imported model's file says what a step of training computes, not what "
                              "the model gives outside of one (without dropout, by a batch norm's averages). "
                              "Its module reads a --checkpoint: load_state_dict(load_file(FILE), strict=False), "
                              "since the optimizer's states are in there, too.",
                              ' ', 100));
  if (!remark.empty()) fmt::print("{}", sim::paragraph(sim::printable(remark), ' ', 100));
  if (job.program.bodies() == 1) print_remarks({job});
  return 0;
}

}  // namespace bench
