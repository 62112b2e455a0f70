// How fast the machine was beside what was measured, and how long the same takes when it is as fast as at another
// moment.
//
//   CalibrationSamples samples = samples_of(task, timelines);  // of a visit; samples.speed: how fast the machine was
//   SpeedModel model;
//   model.add(task, samples);                                  // of every visit
//   model.fit();
//   samples = model.moved(samples, task, beside_the_steps);    // as if the machine had been as fast as it was then
//
// A machine's neighbours use its memory and its cores' other halves, for tenths of a second or for a minute. What
// is calibrated and what is measured then meet different machines, unless both say how fast theirs was. A visit's
// times y follow
//
//   y = 1 + m · traffic share · x_memory + c · arithmetic share · x_compute + d · x_core_to_core
//
// x is how much longer than on average the probes beside the visit took, the shares are the ops' by the data
// sheet's roofline: memory that is slower slows down what reads memory; d is of transfers and of ops of several threads.
// Next to nothing is left of a transfer's rewriting (TransferCost::rewriting_s) where cores share a cache: it follows a
// straight line of its own, seconds by the seconds of a round trip between the cores.
//
// m, c and d are fitted to all visits of calibration tasks, never to a step that is forecast, for ops of one rank at a
// time, of several at once, and for transfers. A probe only sees the moments before and after a visit: the slopes are
// smaller where the machine changes within it, and 0 where the probes say nothing; visits whose two probes differ count
// less.
#pragma once

#include <Eigen/Core>
#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "sim/calibrate/machine_speed.hpp"

namespace sim {

struct CalibrationSamples;
struct CalibrationTask;
struct Device;
struct Work;

class SpeedModel {
 public:
  /// A visit of a calibration task. Samples without a speed, and tasks whose times aren't of ops or transfers,
  /// say nothing.
  void add(const CalibrationTask& task, const CalibrationSamples& samples);
  /// To all visits so far: once before `moved`.
  void fit();
  /// The samples of a visit as they would be at another speed, at the visits' mean unless given; as they are
  /// where nothing is known.
  [[nodiscard]] CalibrationSamples moved(const CalibrationSamples& samples, const CalibrationTask& task,
                                         const std::optional<MachineSpeed>& to = std::nullopt) const;

 private:
  enum class Class : std::size_t { one_at_a_time, at_once, transfers };
  static constexpr std::size_t kClasses = 3;
  /// What memory, compute and the way between cores have to do with it, as shares.
  struct Shares {
    double traffic = 1, arithmetic = 1, core_to_core = 1;
  };
  struct Visit {
    MachineSpeed speed;
    double seconds = 0;
    double rewriting_s = 0;
    Shares shares;
  };
  /// By what the probes of one class see: memory, compute, the way between cores.
  using Slopes = Eigen::Vector3d;
  static std::optional<Class> class_of(const CalibrationTask& task);
  static Shares shares_of(const Work& work, const Device& device);
  static double memory_s(const MachineSpeed& speed, Class kind);
  /// How much longer than in `reference` each probe took, times the shares.
  static Eigen::Vector3d excess_of(Class kind, const Shares& shares, const MachineSpeed& speed,
                                   const MachineSpeed& reference);
  [[nodiscard]] Slopes slopes_of(Class kind) const;
  /// By how much the rewritings of a transfer's operand take longer, for each second that a round trip between the cores
  /// does.
  static double slope_of_rewriting(const std::vector<Visit>& visits);
  [[nodiscard]] double factor(Class kind, const Shares& shares, const MachineSpeed& speed) const;

  std::array<std::map<std::string, std::vector<Visit>>, kClasses> visits_;  // by task
  std::array<Slopes, kClasses> slopes_{Slopes::Zero(), Slopes::Zero(), Slopes::Zero()};
  std::map<std::string, double> rewriting_slopes_;  // by task
  std::array<MachineSpeed, kClasses> reference_;    // means
};

}  // namespace sim
