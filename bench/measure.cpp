#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "backend/rank/verify.hpp"
#include "bench/commands.hpp"
#include "bench/machine.hpp"
#include "bench/progress.hpp"
#include "sim/error.hpp"
#include "sim/lower/lower.hpp"
#include "sim/report/answer.hpp"
#include "sim/report/console.hpp"
#include "sim/report/report.hpp"
#include "sim/text/spec.hpp"

namespace bench {
namespace {

constexpr double kVerifyBound = 1e-9;  // of the tensor's norm
/// A run's sums are in another order than the reference's: as if many a last bit were another.
constexpr double kManyBits = 100;
constexpr std::uint32_t kVerifySteps = 3;

backend::Partition partition_of(const sim::Program& program) {
  return {.pieces = program.batch_pieces(),
          .microbatches = program.microbatches,
          .steps = kVerifySteps * program.steps_in_list(),
          .broadcast_buffers = program.broadcast_buffers,
          .one_loss = program.one_loss};
}

/// What the parts make of the result, beside being equal to one device that plays the same parts: "toy_mlp × ddp,dp=2
/// also equals one device with the whole batch".
std::string words_of_whole_batch(const Job& job, const sim::Model& model, const sim::Program& program) {
  std::int64_t samples = 0;  // that are played together at most
  const std::vector<sim::Range> pieces = program.batch_pieces();
  for (const sim::Range& piece : pieces) samples = std::max(samples, piece.size / program.microbatches);
  if (backend::sees_all_pieces(model)) samples = model.global_batch / program.microbatches;
  if (samples == model.global_batch) return "";
  const std::string subject = sim::printable(fmt::format("{} × {}", job.model.text(), job.strategy.text()));
  if (program.daso)
    return subject +
           " equals Heat's optimizer on a device for each rank: between averages the nodes' parameters differ, "
           "and from those of one device with the whole batch";
  const std::optional<double> distance = backend::distance_from_whole_batch(model, partition_of(program));
  // Where samples are seen together for a mean alone, parts give the same.
  if (!distance || *distance <= kVerifyBound) return subject + " also equals one device with the whole batch";
  return fmt::format(
      "{} differs from one device with the whole batch by {:.2g} % of its gradient's norm: what sees samples "
      "together (a batch norm) sees {} of {}",
      subject, 100 * *distance, samples, model.global_batch);
}

/// What verify found.
struct Verdict {
  double error = 0;
  std::optional<double> last_bit;  // where the error is above the bound: moved_by_a_last_bit
  [[nodiscard]] bool is_right() const {
    return error <= kVerifyBound || (last_bit && std::isfinite(error) && error <= kManyBits * *last_bit);
  }
};

/// Largest error over loss, gradients, parameters and buffers after 3 steps in float64; names the worst tensor where it
/// is wrong, or for `details`.
Verdict verify(const Job& job, const Machine& machine, backend::Session& session, bool details, Progress& progress,
               std::map<std::string, std::string>& words) {
  sim::Model model = job.model;
  if (model.dtype != sim::Dtype::f64) model = sim::load_model(job.model.text() + ",dtype=f64");
  backend::RunRequest request = request_of(job, machine, kVerifySteps - 1, 1);
  request.program = sim::lower(model, job.strategy);
  request.verify = true;
  const backend::RunResult result = session.run(request);
  const auto worst = std::ranges::max_element(result.verified, {}, &backend::VerifiedTensor::relative_error);
  sim::check_internal(worst != result.verified.end(), "nothing was verified");
  Verdict verdict{worst->relative_error};
  if (!verdict.is_right() && !request.program.daso)
    verdict.last_bit = backend::moved_by_a_last_bit(model, partition_of(request.program));
  const bool right = verdict.is_right();
  if (const auto [known, is_new] = words.try_emplace(job.program.model + job.program.strategy); right && is_new)
    known->second = words_of_whole_batch(job, model, request.program);
  if (right && !details && !verdict.last_bit) return verdict;
  progress.end();
  fmt::print("verify {}: {} tensors, largest error {:.2e} of the norm ({}): {}\n", to_text(job), result.verified.size(),
             worst->relative_error, sim::printable(worst->name),
             !right ? "WRONG"
             : verdict.last_bit
                 ? fmt::format("equal but for rounding: a last bit of the parameters makes {:.1e}", *verdict.last_bit)
                 : "equal");
  std::fflush(stdout);
  return verdict;
}

}  // namespace

int measure(const Options& options) {
  if (!options.json.empty()) sim::check_replaceable(options.json, "measure");
  sim::Result result;
  result.kind = "measure";
  std::vector<Job> jobs = make_jobs(options.subject, options.machine, &result);
  const Worlds worlds = open_worlds(options.machine, jobs);
  if (worlds.done) return *worlds.done;
  result.begin_session(context(options.machine, worlds), options.json);
  jobs = that_fit(std::move(jobs), options.machine, worlds, result);
  double largest_error = 0;
  bool right = true;
  std::map<std::string, std::string> words;  // by model and strategy, whatever the world
  Progress progress("measure");
  std::size_t done = 0;
  for (const Job& job : jobs) {
    progress.begin(job.model.text() + " · " + short_text(job), done++, jobs.size());
    sim::Cell& cell = result.cell(job.program, job.world);
    sim::place(cell, job.program, job.cluster);
    if (options.verify) {
      const Verdict verdict = verify(job, options.machine, worlds.at(job.world), options.details, progress, words);
      cell.verify_error = verdict.error;
      largest_error = std::max(largest_error, verdict.error);
      right &= verdict.is_right();
    }
    sim::Round round;
    if (options.machine.graph) cell.settings = "graph";
    add_measured(cell, round, job.program,
                 worlds.at(job.world).run(request_of(job, options.machine, options.warmup_steps, options.steps)));
    cell.rounds.push_back(std::move(round));
    see_neighbours(result.sessions.back().context);
    see_hosts(result.sessions.back().context, worlds);
    if (!options.json.empty()) sim::save_result(options.json, result, options.raw);  // what is measured stays
  }
  progress.end();
  const sim::Report report = sim::make_report(result);
  if (options.details) {
    fmt::print("{}", sim::to_console(report, sim::Detail::full));
  } else {
    const sim::Answer answer = sim::answer_of(result);
    fmt::print("{}\n{}", answer.table, answer.words);
  }
  print_remarks(jobs);
  if (options.machine.graph) fmt::print("{}", kGraphRemark);
  if (!options.csv.empty()) sim::write_text_file(options.csv, sim::to_csv(report));
  const bool has_bodies = std::ranges::any_of(jobs, [](const Job& job) { return job.program.bodies() > 1; });
  if (options.verify)
    fmt::print("verify: {} (float64, {} steps{}; largest error {:.1e} of a tensor's norm, allowed {:.0e})\n",
               !right ? "WRONG results, see above"
               : largest_error > kVerifyBound
                   ? "every result equals one device's that plays the same parts but for rounding, see above"
                   : "every result equals one device's that plays the same parts",
               kVerifySteps, has_bodies ? " or more" : "", largest_error, kVerifyBound);
  for (const auto& [subject, text] : words)
    if (!text.empty()) fmt::print("{}", sim::paragraph(text + ".", ' ', 100));
  return right ? 0 : 1;
}

}  // namespace bench
