// The answer to a person's question: one table, fastest first, and what it says in words.
//
//   Answer answer = answer_of(result);
//   fmt::print("{}\n{}", answer.table, answer.words);     // at most 100 columns
//
//   resnet18,global_batch=8,image=64 on local
//   strategy        predicted measured  error    memory fits
//   ddp                661 ms   661 ms +0.1 %  0.97 GiB yes
//   single            1.12 s   1.12 s  -0.2 %  0.80 GiB yes
//
//   ddp is fastest: 1.70 × single; forecast within 0.1 %; fits with 7.1 GiB to spare.
//
// A strategy whose forecast peak exceeds its device's memory is shown with its time, but isn't called fastest. Nor is
// one that isn't told apart from the next: two are where the 95 % intervals of their measured steps separate, forecasts
// alone by sim/report/told_apart.hpp. Of forecasts it also says what holds the others back. What is unknown isn't said.
#pragma once

#include <string>

#include "sim/report/accuracy.hpp"

namespace sim {

struct Answer {
  std::string table, words;  // whole lines
  /// The fastest cells that fit, by their index: one per model, where there is one.
  std::vector<std::size_t> fastest;
  bool all_tied = true;  // of no model is any that fits told apart from the fastest
};
/// `record`: see `assess`. `more_rounds`: how to go on measuring, with {} for the number of rounds in all
/// ("the same command with --rounds {}"); empty where the command takes none.
Answer answer_of(const Result& result, const TrackRecord* record = nullptr, const std::string& more_rounds = "");

/// "fits", or "does not fit: needs 680 of 80 GiB (activations 655)". Only where CellMemory::fits() is known.
std::string fit_text(const CellMemory& memory);
/// "16 ranks share 8 devices"; empty where each has its own, or where that isn't known.
std::string sharing_text(const Cell& cell);

}  // namespace sim
