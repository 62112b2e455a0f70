// Cost model `fitted`: from a Profile of other shapes, models and sizes (sim/cost/fit.hpp has the equations).
// Works are fitted class by class, and the classes are nested: all works; matrix products, what streams through memory
// (updates, copies), or other layers; one op and pass, or the updates of all optimizers; one kernel, dtype, rank of the
// input and choice of gradients. Matrix-vector products stream through memory, too. What a class's works leave open,
// the broader one decides, at last the data sheet. Nothing runs faster than the best rate and bandwidth that were
// measured, or that the data sheet has.
// How well an answer is known, the profile says itself: each level of classes predicts works that it wasn't fitted on
// (a kernel at other batch sizes; an op by its other kernels; …), and how far off it is there scales the uncertainty
// that it states. Several busy ranks: the slow-down is interpolated like the residual. Transfers: piecewise linear in
// bytes; among other numbers of ranks than measured, the algorithm's steps and bytes on the wire. A kind of transfer
// that wasn't measured: its steps and bytes at the mean latency and bandwidth that the other kinds show. Where none
// was, and over links that aren't the profile's: the data sheet. Works on different numbers of threads have nothing in
// common but the data sheet.
// Assumes: an op's efficiency is a smooth function of its shape; what streams hides its arithmetic behind its bytes;
// the profile was made on the device to be predicted.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>

#include "sim/cluster/world.hpp"
#include "sim/cost/collective/collective.hpp"
#include "sim/cost/cost_model.hpp"
#include "sim/cost/fit.hpp"
#include "sim/cost/origin.hpp"
#include "sim/cost/profile.hpp"
#include "sim/error.hpp"

namespace sim {

namespace {

/// Standard deviation of ln(measured / answer) over the links of the committed profiles (bench/results): kinds
/// answered from other kinds, and numbers of ranks from others.
constexpr double kOtherKindSd = 0.55;

/// The levels of classes, from the broadest to the narrowest.
constexpr std::size_t kClassLevels = 4;
using ClassNames = std::array<std::string, kClassLevels>;
constexpr const char* kAll = "all";  // the broadest

/// What the cost of a work depends on.
struct Traits {
  ClassNames classes;
  Demand demand;
  /// Level of the class this op is fitted from but must not be fitted into.
  std::optional<std::size_t> not_in;
};

/// The attributes that choose the code: " 3x3 depthwise".
std::string variant_of(const OpInstance& op) {
  const auto value = [&](std::string_view name) {
    return op.attributes.contains(name) ? op.integer(name) : std::int64_t{0};
  };
  std::string variant;
  if (value("kernel_size") > 0) variant += fmt::format(" {0}x{0}", value("kernel_size"));
  if (op.body != nullptr) variant += " " + op.body->name;
  if (value("dilation") > 1) variant += " dilated";
  if (value("groups") > 1) variant += value("groups") == op.inputs[0].shape.at(1) ? " depthwise" : " grouped";
  const bool updates = op.kind->role == OpRole::optimizer;
  if (updates && op.attributes.contains("momentum") && op.number("momentum") > 0) variant += " with momentum";
  return variant;
}

std::string gradients_of(const Work& work) {
  if (work.pass != Pass::backward) return "";
  const bool of_parameters = (work.grads & kParameterGrads) != 0, of_inputs = (work.grads & ~kParameterGrads) != 0;
  if (!work.op.has_parameters() || (of_parameters && of_inputs)) return "";
  return of_parameters ? ", parameters' gradients alone" : ", inputs' gradients alone";
}

/// "f32", "f32 in bf16".
std::string arithmetic_name(const OpInstance& op) {
  std::string name(to_string(op.leading().dtype));
  return op.precision == Precision::f32 ? name : fmt::format("{} in {}", name, to_string(op.precision));
}

Traits traits_of(const Work& work, bool on_cpu) {
  const OpKind& kind = *work.op.kind;
  const TensorSpec x = work.op.leading();
  const CpuKernel kernel = on_cpu && kind.cpu_kernel ? kind.cpu_kernel(work.op, work.pass) : CpuKernel();
  const bool is_vector = kernel.matrix_vector_products > 0, updates = kind.role == OpRole::optimizer;
  const std::string op = fmt::format("{}.{}", kind.name, to_string(work.pass));
  const bool streams = is_vector || updates || kind.role == OpRole::helper;
  Traits traits;
  traits.classes = {kAll,
                    streams       ? "streams"
                    : kind.matrix ? "matrix products"
                                  : "layers",
                    is_vector ? "matrix-vector products"
                    : updates ? "updates"
                              : op,
                    fmt::format("{}{}{}{}, {}, rank {}{}{}", op, variant_of(work.op), kernel.name.empty() ? "" : ", ",
                                kernel.name, arithmetic_name(work.op), x.shape.size(), gradients_of(work),
                                work.threads == 1 ? "" : fmt::format(", {} threads", work.threads))};
  traits.demand = work.demand();
  if (is_vector) {
    traits.demand.bytes *= kernel.matrix_vector_products;
    traits.not_in = 1;  // it doesn't keep up with an update's or a copy's stream
  } else if (streams && traits.demand.flops < traits.demand.bytes) {
    traits.demand.flops = 0;  // hidden behind the bytes, unlike the logarithms of random numbers
  }
  if (updates && on_cpu) traits.demand.kernels = static_cast<double>(work.op.inputs.size());
  return traits;
}

/// The first input's dimensions and the attributes, as natural logarithms; of updates the number of elements and of
/// parameters.
std::vector<double> shape_of(const Work& work) {
  std::vector<double> shape;
  if (work.pass == Pass::update) {
    double elements = 0;
    for (const TensorSpec& parameter : work.op.inputs) elements += static_cast<double>(parameter.elements());
    return {std::log(elements), std::log(static_cast<double>(work.op.inputs.size()))};
  }
  for (std::int64_t dimension : work.op.leading().shape)
    shape.push_back(std::log(static_cast<double>(std::max<std::int64_t>(dimension, 1))));
  for (const auto& [name, value] : work.op.attributes) shape.push_back(std::log1p(std::max(value, 0.0)));
  return shape;
}

/// What is known of all works before any is measured.
Physics data_sheet(const Device& device) {
  constexpr double kLeast_s = 1e-7, kCacheSpeed = 4;  // rough: any measured work says more
  const double s_per_byte = 1 / (device.memory_bandwidth.base() * device.memory_efficiency);
  return {.launch_s = std::max(device.launch.in_seconds(), kLeast_s),
          .s_per_flop = 1 / device.matmul_rate(Arithmetic::f32).base(),
          .s_per_byte = s_per_byte / kCacheSpeed,
          .beyond = kCacheSpeed - 1};
}

struct Slower {
  std::vector<std::vector<double>> shapes;
  std::vector<double> logs, noise;  // ln(t / alone)
};

/// What the profile says of a class. Shapes: of the narrowest classes; the broader ones have nothing but physics.
struct ClassSamples {
  std::string broader;
  std::vector<ShapeSample> alone;
  std::vector<std::string> groups;         // of `alone`: the narrower class, or the batch size
  double workspace = 0, jitter = 0;        // sums
  std::map<std::uint32_t, Slower> slower;  // by busy ranks
};

class Class {
 public:
  Class(ClassSamples samples, const Physics& broader, Cache cache)
      : alone_(samples.alone, broader, cache),
        workspace_(samples.workspace / static_cast<double>(samples.alone.size())),
        jitter_(samples.jitter / static_cast<double>(samples.alone.size())) {
    for (auto& [busy, slower] : samples.slower) {
      double mean = 0;
      for (double log : slower.logs) mean += log / static_cast<double>(slower.logs.size());
      for (double& log : slower.logs) log -= mean;
      Level& level = slower_[busy];
      level.mean = mean;
      if (!slower.shapes[0].empty()) level.residual.emplace(slower.shapes, slower.logs, slower.noise);
    }
  }

  [[nodiscard]] const Physics& physics() const { return alone_.physics(); }
  /// `least_s`: nothing is faster.
  [[nodiscard]] ComputeCost cost(const Demand& demand, const std::vector<double>& shape, std::uint32_t busy_levels,
                                 double least_s) const {
    Estimate alone = alone_.at(demand, shape);
    alone.seconds = std::max(alone.seconds, least_s);
    ComputeCost cost{.busy_s = {alone.seconds},
                     .workspace_bytes = workspace_ * demand.bytes,
                     .jitter = jitter_,
                     .knowledge = {.novelty = alone.novelty, .sd = alone.sd}};
    for (std::uint32_t busy = 2; busy <= busy_levels; ++busy) {
      const auto level = slower_.find(busy);
      if (level == slower_.end()) {
        cost.busy_s.push_back(cost.busy_s.back());  // not measured: as slow as the level below
        continue;
      }
      const double residual = level->second.residual ? level->second.residual->at(shape).value : 0;
      cost.busy_s.push_back(std::max(alone.seconds * std::exp(level->second.mean + residual), least_s));
    }
    return cost;
  }

 private:
  struct Level {
    double mean = 0;  // of ln(t / alone)
    std::optional<Kriging> residual;
  };
  ShapeFit alone_;
  double workspace_;                       // bytes per byte moved, mean
  double jitter_;                          // mean
  std::map<std::uint32_t, Level> slower_;  // by busy ranks
};

/// A work of the profile.
struct MeasuredWork {
  Work work;
  std::map<std::uint32_t, Statistic> levels;  // by busy ranks, at least 1
  double workspace_bytes = 0;
};

/// What a profile says of works on so many threads: other numbers of them say nothing of it.
class WorksFit {
 public:
  /// `device`: the threads' cores together.
  WorksFit(const Device& device, const std::vector<MeasuredWork>& works)
      : on_cpu_(!device.asynchronous),
        s_per_flop_(1 / device.peak(Arithmetic::f32).base()),
        s_per_byte_(data_sheet(device).s_per_byte) {
    std::array<std::map<std::string, ClassSamples>, kClassLevels> samples;
    std::array<std::vector<double>, kNear + 1> errors;  // of works left out, over their stated uncertainty
    for (const auto& [work, levels, workspace_bytes] : works) {
      const auto alone = levels.find(1);
      const auto& [names, demand, not_in] = traits_of(work, on_cpu_);
      if (demand.flops > 0) s_per_flop_ = std::min(s_per_flop_, alone->second.mean_s / demand.flops);
      if (demand.bytes > 0) s_per_byte_ = std::min(s_per_byte_, alone->second.mean_s / demand.bytes);
      for (std::size_t c = 0; c < kClassLevels; ++c) {
        if (c == not_in) continue;
        ClassSamples& own = samples[c][names[c]];
        if (c > 0) own.broader = names[c - 1];
        const bool is_kernel = c + 1 == kClassLevels;
        const std::vector<double> shape = is_kernel ? shape_of(work) : std::vector<double>();
        own.alone.push_back({demand, shape, alone->second.mean_s, noise_of(alone->second)});
        own.groups.push_back(is_kernel ? fmt::to_string(work.op.inputs[0].shape[0]) : names[c + 1]);
        if (demand.bytes > 0) own.workspace += workspace_bytes / demand.bytes;
        own.jitter += alone->second.jitter();
        for (const auto& [busy, time] : levels) {
          if (busy == 1 || !(time.mean_s > 0)) continue;
          busy_levels_ = std::max(busy_levels_, busy);
          Slower& slower = own.slower[busy];
          slower.shapes.push_back(shape);
          slower.logs.push_back(std::log(time.mean_s / alone->second.mean_s));
          slower.noise.push_back(std::hypot(noise_of(time), noise_of(alone->second)));
        }
      }
    }
    // How much a cache keeps for the next work is a matter of the machine and of who used the operands last: an
    // update's come from memory however small they are, a layer's input has just been written.
    for (std::size_t c = 0; c < kClassLevels; ++c)
      for (auto& [name, own] : samples[c]) {
        const Physics broader = c == 0 ? data_sheet(device) : physics_of(own.broader);
        const Cache cache = c + 1 < kClassLevels ? Cache::found : Cache::broader;
        for (const LeftOut& work : leave_out(own.alone, own.groups, broader, cache)) {
          errors[certainty(c, work.novelty)].push_back(work.error / work.sd);
          worst_error_ = std::max(worst_error_, work.error);
        }
        classes_.try_emplace(name, std::move(own), broader, cache);
      }
    for (std::size_t i = 0; i < errors.size(); ++i) off_by_[i] = off_by(errors[i], i + 1 < kClassLevels);
  }

  [[nodiscard]] ComputeCost compute(const Work& work) const {
    const Traits traits = traits_of(work, on_cpu_);
    const double least_s = std::max(traits.demand.flops * s_per_flop_, traits.demand.bytes * s_per_byte_);
    for (std::size_t c = kClassLevels; c-- > 0;)
      if (const auto found = classes_.find(traits.classes[c]); found != classes_.end()) {
        ComputeCost cost = found->second.cost(traits.demand, shape_of(work), busy_levels_, least_s);
        cost.knowledge.sd *= off_by_[certainty(c, cost.knowledge.novelty)];
        if (worst_error_ > 0) cost.knowledge.sd = std::min(cost.knowledge.sd, worst_error_ / kNormal90);
        cost.knowledge.kind = traits.classes.back();
        cost.knowledge.kind_is_new = c + 1 < kClassLevels;
        return cost;
      }
    throw InternalError("no class holds all works");
  }

 private:
  /// The constants of the class, or of all works where the class has none.
  [[nodiscard]] const Physics& physics_of(const std::string& name) const {
    const auto found = classes_.find(name);
    return (found != classes_.end() ? found->second : classes_.at(kAll)).physics();
  }
  /// Answers alike in how well they are known: by class level, those of a known kernel near measured shapes apart.
  static constexpr std::size_t kNear = kClassLevels;
  [[nodiscard]] static std::size_t certainty(std::size_t level, double novelty) {
    return level + 1 == kClassLevels && novelty < 0.5 ? kNear : level;
  }
  /// The factor that puts 90 % of the works left out into their 90 % intervals. Few kinds of work are in a profile:
  /// those left out can make an answer for a new kind less certain than it states, but not more.
  [[nodiscard]] static double off_by(std::vector<double> errors, bool kind_is_new) {
    constexpr std::size_t kFewest = 10;
    if (errors.size() < kFewest) return 1;
    const auto at = errors.begin() + static_cast<std::ptrdiff_t>(0.9 * static_cast<double>(errors.size()));
    std::ranges::nth_element(errors, at);
    return std::max(*at / kNormal90, kind_is_new ? 1.0 : 0.0);
  }
  [[nodiscard]] static double noise_of(const Statistic& time) {
    return time.sd_s ? *time.sd_s / std::sqrt(static_cast<double>(time.count)) / time.mean_s : 0.1;
  }

  bool on_cpu_;
  std::uint32_t busy_levels_ = 1;
  double s_per_flop_, s_per_byte_;          // the least known
  std::array<double, kNear + 1> off_by_{};  // by certainty: how much further off than they state answers are
  double worst_error_ = 0;                  // |ln(measured / answer)| of any work left out: no interval reaches further
  std::map<std::string, Class> classes_;
};

class Fitted final : public CostModel {
 public:
  Fitted(const Cluster& cluster, const Profile& profile)
      : cluster_(cluster),
        profile_(profile),
        origin_(check_origin(profile, cluster)),
        sheet_(make_cost_model("analytic", cluster)) {
    profile_.even_out_links();
    std::map<std::uint32_t, std::vector<MeasuredWork>> works;
    for (const std::string& key : profile.works()) {
      std::map<std::uint32_t, Statistic> levels = profile.op_levels(cluster.world, key);
      const auto alone = levels.find(1);
      if (alone == levels.end() || !(alone->second.mean_s > 0)) continue;
      const Work work = work_from_key(key);
      works[work.threads].push_back({work, std::move(levels), static_cast<double>(profile.workspace(key).value_or(0))});
    }
    if (works.empty())
      throw ConfigError("the profile of device '{}' has no ops; calibrate some model first", profile.device);
    for (const auto& [threads, measured] : works) works_.try_emplace(threads, cluster.device.times(threads), measured);
  }

  [[nodiscard]] ComputeCost compute(const Work& work) const override {
    const auto found = works_.find(work.threads);
    if (found == works_.end())
      throw ConfigError("the profile of device '{}' has no ops on {} thread{}; calibrate some model with threads={}",
                        profile_.device, work.threads, work.threads == 1 ? "" : "s", work.threads);
    const Work measured = measured_as(work, cluster_.device);
    ComputeCost cost = found->second.compute(measured);
    cost.issue_s = profile_.issue_s(work_key(measured));
    return cost;
  }

  [[nodiscard]] TransferCost transfer(const TransferQuestion& question) const override {
    if (origin_.has_links && !question.spread.empty())
      if (const std::optional<TransferCost> cost = transfer_between_hosts(question)) return *cost;
    if (origin_.has_links && question.spread.empty()) {
      if (const std::optional<TransferCost> cost = transfer_of_kind(question)) return *cost;
      if (const std::optional<TransferCost> cost = transfer_of_other_kinds(question)) return *cost;
    }
    TransferCost cost = sheet_->transfer(question);
    cost.novelty = 1;
    cost.source = Source::data_sheet;
    return cost;
  }

  [[nodiscard]] double launch_s(std::uint32_t /*kind*/) const override { return profile_.launch_s(); }

  [[nodiscard]] double gap_s() const override { return profile_.gap_s(); }
  [[nodiscard]] double rank_jitter() const override { return profile_.rank_jitter(cluster_.world); }
  [[nodiscard]] double common_sd() const override { return std::hypot(origin_.sd, profile_.drift_sd()); }
  [[nodiscard]] std::vector<std::string> remarks() const override { return origin_.remarks; }

 private:
  /// The measured link of this kind that is most like the question; nothing where the kind wasn't measured.
  [[nodiscard]] std::optional<LinkKey> nearest_of(const std::string& kind, const TransferQuestion& question) const {
    std::optional<LinkKey> nearest;
    for (const auto& [link, times] : profile_.links())
      if (is_same_world(link.world, cluster_.world) && link.kind == kind &&
          link.spread.size() == question.spread.size() &&
          (!nearest || distance(link, question) < distance(*nearest, question)))
        nearest = link;
    return nearest;
  }

  /// The cost of the nearest that was measured between hosts; of other numbers of them or of members in the ratio of what
  /// the data sheet says of both.
  [[nodiscard]] std::optional<TransferCost> transfer_between_hosts(const TransferQuestion& question) const {
    const std::optional<LinkKey> nearest = nearest_of(link_key(cluster_.world, question).kind, question);
    std::optional<TransferCost> cost =
        nearest ? transfer_cost(profile_, cluster_, *nearest, question.bytes) : std::nullopt;
    if (!cost || link_key(cluster_.world, question) == *nearest) return cost;
    TransferQuestion measured = question;
    measured.members = nearest->members, measured.spread = nearest->spread;
    const TransferCost of_question = sheet_->transfer(question), of_measured = sheet_->transfer(measured);
    if (of_measured.latency_s > 0) cost->latency_s *= of_question.latency_s / of_measured.latency_s;
    if (of_measured.wire_s > 0) cost->wire_s *= of_question.wire_s / of_measured.wire_s;
    cost->use = of_question.use;
    cost->novelty = 1;
    cost->sd = kOtherKindSd;
    return cost;
  }

  [[nodiscard]] std::optional<TransferCost> transfer_of_kind(const TransferQuestion& question) const {
    const std::optional<LinkKey> nearest = nearest_of(link_key(cluster_.world, question).kind, question);
    std::optional<TransferCost> cost =
        nearest ? transfer_cost(profile_, cluster_, *nearest, question.bytes) : std::nullopt;
    if (!cost || question.kind != InstructionKind::collective) return cost;
    if (nearest->members == question.members) {
      // Members that share devices take turns, or don't, where it was measured; and what is in place isn't copied.
      if (nearest->devices != question.devices || nearest->own_in_place != question.own_in_place)
        cost->novelty = 1, cost->sd = kOtherKindSd;
      return cost;
    }
    const CollectiveAlgorithm& algorithm = collective_algorithm(cluster_.world, question.collective);
    cost->latency_s *=
        algorithm.steps(question.collective, question.members) / algorithm.steps(question.collective, nearest->members);
    cost->wire_s *= algorithm.wire_bytes(question.collective, question.members, 1) /
                    algorithm.wire_bytes(question.collective, nearest->members, 1);
    cost->novelty = 1;
    cost->sd = kOtherKindSd;
    return cost;
  }

  /// The cost at the latency of a step and the seconds per byte on the wire that the
  /// other kinds have: their geometric mean.
  [[nodiscard]] std::optional<TransferCost> transfer_of_other_kinds(const TransferQuestion& question) const {
    const auto of_sheet = [&](TransferQuestion other, std::int64_t bytes) {
      other.bytes = bytes;
      return sheet_->transfer(other);
    };
    double latency = 0, wire = 0, latencies = 0, wires = 0;  // sums of ln(measured / data sheet), and how many
    const auto add = [&](TransferQuestion other) {
      const std::optional<LinkKey> nearest = nearest_of(link_key(cluster_.world, other).kind, other);
      if (!nearest) return;
      other.members = nearest->members;
      const std::optional<TransferCost> measured = transfer_cost(profile_, cluster_, *nearest, question.bytes);
      const TransferCost sheet = of_sheet(other, question.bytes);
      if (!measured) return;
      if (measured->latency_s > 0 && sheet.latency_s > 0)
        latency += std::log(measured->latency_s / sheet.latency_s), ++latencies;
      if (measured->wire_s > 0 && sheet.wire_s > 0) wire += std::log(measured->wire_s / sheet.wire_s), ++wires;
    };
    for (const CollectiveKind kind : kCollectiveKinds) {
      TransferQuestion other = question;
      other.kind = InstructionKind::collective, other.collective = kind;
      add(other);
    }
    add({.kind = InstructionKind::send, .bytes = question.bytes});
    if (latencies == 0 && wires == 0) return std::nullopt;
    TransferCost cost = sheet_->transfer(question);
    if (latencies > 0) cost.latency_s *= std::exp(latency / latencies);
    if (wires > 0) cost.wire_s *= std::exp(wire / wires);
    cost.core_share = profile_.core_share(cluster_.world).value_or(cluster_.link().core_share);
    cost.novelty = 1;
    cost.sd = kOtherKindSd;
    cost.source = Source::broader;
    return cost;
  }

  /// The distance by number of members; of as many, those that share their devices in the same way and copy as much.
  [[nodiscard]] static std::tuple<std::uint32_t, bool, bool, bool> distance(const LinkKey& link,
                                                                            const TransferQuestion& question) {
    return {link.members > question.members ? link.members - question.members : question.members - link.members,
            link.spread != question.spread, link.devices != question.devices,
            link.own_in_place != question.own_in_place};
  }

  Cluster cluster_;
  Profile profile_;
  Origin origin_;
  std::unique_ptr<CostModel> sheet_;
  std::map<std::uint32_t, WorksFit> works_;  // by threads
};

}  // namespace

CostModelKind fitted_cost_model() {
  return {
      .name = "fitted",
      .equation = "per op kind and pass: launch + flops / rate + bytes / bandwidth, residual interpolated over shapes",
      .knows_from = "the profile",
      .needs_profile = true,
      .for_other_shapes = true,
      .make = [](const Cluster& cluster, const Profile* profile) -> std::unique_ptr<CostModel> {
        if (!profile) throw ConfigError("cost model 'fitted' needs a profile; 'paragauge calibrate' writes one");
        return std::make_unique<Fitted>(cluster, *profile);
      }};
}

}  // namespace sim
