// The progress of a command that takes a while, on stderr: what runs, how far it is, how long it still takes.
//
//   Progress progress("compare");                     // or ("compare", 480): no phase begins after 480 s
//   for (int round = 0; round < 8; ++round) {
//     progress.begin(fmt::format("round {}/8", round + 1), round, 8);
//     for (std::size_t i = 0; i < parts.size(); ++i) progress.at(parts[i], i, parts.size());
//   }
//   progress.end();
//
// On a terminal a bar that rewrites itself, "compare [======----] 31 % · round 3/8 · gpipe on gloo · 2:10 left";
// elsewhere a line per begin(), "compare: round 3/8 · 2:10 left".
#pragma once

#include <cstdio>
#include <functional>
#include <string>

namespace bench {

/// "0:07", "2:10", "1:02:10".
std::string clock_text(double seconds);

double steady_s();  // of std::chrono::steady_clock

class Progress {
 public:
  /// `limit_s`: no phase begins so long after now; 0: none. `now_s` is the clock, in seconds.
  explicit Progress(std::string command, double limit_s = 0, std::FILE* stream = stderr,
                    std::function<double()> now_s = steady_s);
  ~Progress() { end(); }
  Progress(const Progress&) = delete;

  /// The phase `done` of `all` that take about the same time begins. Time is counted from the first of them.
  void begin(std::string phase, double done, double all);
  /// Says that, within the phase, the part `done` of `all` begins.
  void at(std::string part, double done, double all);
  /// Removes the bar, so that what is printed next stands alone.
  void end();

 private:
  void draw() const;
  [[nodiscard]] std::string left() const;  // " · 2:10 left"; empty while nothing is done

  std::string command_;
  std::FILE* stream_;
  std::function<double()> now_s_;
  bool terminal_;
  double end_s_;                                                     // of the limit
  double begin_s_ = -1, first_ = 0, done_ = 0, all_ = 1, part_ = 0;  // phases; the part of the phase, 0…1
  mutable bool drawn_ = false;
  std::string phase_, what_;
};

}  // namespace bench
