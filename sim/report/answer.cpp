#include "sim/report/answer.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "sim/cost/cost_model.hpp"
#include "sim/error.hpp"
#include "sim/report/console.hpp"
#include "sim/text/spec.hpp"

namespace sim {
namespace {

constexpr std::size_t kWidth = 100, kLeastRoom = 24;
/// So many strategies are each looked at, and so many named in a sentence.
constexpr std::size_t kFew = 4, kNamed = 3;

/// A cell of our own executor that ran or was forecast.
struct Line {
  std::size_t index = 0;  // in Result::cells
  const Cell* cell = nullptr;
  const CellAccuracy* accuracy = nullptr;
  const ForecastAccuracy* forecast = nullptr;  // of the best cost model; may be null

  [[nodiscard]] bool is_measured() const { return accuracy->measured.has_value(); }
  [[nodiscard]] double step_s() const {
    return is_measured() ? accuracy->measured->step_s : forecast->predicted.step_s;
  }
  [[nodiscard]] bool fits() const { return cell->memory.fits().value_or(true); }
};

/// One model's rows.
struct Question {
  std::string model;
  std::vector<Line> lines;                              // fastest first
  std::vector<const Cell*> skipped;                     // also of plain PyTorch
  std::vector<std::string> worlds, cost_models, peers;  // in the order of appearance
};

void add_once(std::vector<std::string>& list, const std::string& text) {
  if (std::ranges::find(list, text) == list.end()) list.push_back(text);
}

/// What knows the very shapes before what answers for others, and both before data sheets.
int rank_of(const std::string& cost_model) {
  const CostModelKind* kind = cost_model_table().find(cost_model);
  return kind == nullptr ? 3 : !kind->needs_profile ? 2 : kind->for_other_shapes ? 1 : 0;
}

std::vector<Question> questions_of(const Result& result, const Accuracy& accuracy) {
  std::vector<Question> questions;
  for (std::size_t i = 0; i < result.cells.size(); ++i) {
    const Cell& cell = result.cells[i];
    auto question = std::ranges::find(questions, cell.model, &Question::model);
    if (question == questions.end()) question = questions.insert(questions.end(), {.model = cell.model});
    add_once(question->worlds, cell.world);
    if (cell.executor != kOurs) {
      if (accuracy.cells[i].measured) add_once(question->peers, cell.executor);
      if (cell.executor == kPeers[0] && !cell.skipped.empty()) question->skipped.push_back(&cell);
      continue;
    }
    Line line{i, &cell, &accuracy.cells[i], nullptr};
    std::string best;
    for (const auto& [cost_model, forecast] : line.accuracy->forecasts) {
      add_once(question->cost_models, cost_model);
      if (line.forecast != nullptr && rank_of(cost_model) >= rank_of(best)) continue;
      line.forecast = &forecast;
      best = cost_model;
    }
    if (!cell.skipped.empty())
      question->skipped.push_back(&cell);
    else if (line.is_measured() || line.forecast != nullptr)
      question->lines.push_back(line);
  }
  for (Question& question : questions) {
    std::ranges::stable_sort(question.lines, {}, &Line::step_s);
    std::ranges::stable_sort(question.cost_models, {}, rank_of);
    if (std::ranges::any_of(question.lines, &Line::is_measured))  // one forecast stands beside a measurement
      question.cost_models.resize(std::min<std::size_t>(1, question.cost_models.size()));
  }
  return questions;
}

/// What the profile lacked for the forecast, and what answered.
std::vector<std::string> guesses_of(const Cell& cell, const std::string& cost_model) {
  std::vector<std::string> guesses;
  for (const Round& round : cell.rounds)
    if (const auto found = round.guesses.find(cost_model); found != round.guesses.end())
      for (const std::string& guess : found->second) add_once(guesses, guess);
  return guesses;
}

SpecText text_of(const Line& line) { return {line.cell->strategy, "strategy"}; }

/// The strategy as a person says it: "ddp", "pipeline gpipe microbatches=8 on gloo". What all rows of its kind have in
/// common goes without saying.
std::string name_of(const Line& line, const Question& question) {
  const SpecText text = text_of(line);
  std::string name = text.head();
  for (const auto& [key, value] : text.items()) {
    const bool is_common = std::ranges::all_of(question.lines, [&, &key = key, &value = value](const Line& other) {
      const SpecText of_other = text_of(other);
      return of_other.head() != text.head() || of_other.text(key) == value;
    });
    if (key == "overlap" && value == "0")
      name += " blocking";
    else if (!is_common || key == "threads")
      name += " " + (key == "schedule" ? value : key + "=" + value);
  }
  return question.worlds.size() > 1 ? name + " on " + line.cell->world : name;
}

/// "2.33 GiB"; "1.03 to 2.33 GiB" where the devices need that much.
std::string needed_text(const CellMemory& memory) {
  const std::optional<std::int64_t> needed = memory.needed();
  if (!needed) return "";
  const std::string most = readable_bytes(static_cast<double>(*needed)),
                    least = readable_bytes(static_cast<double>(memory.least_needed().value_or(*needed)));
  if (least == most) return most;
  const auto unit_of = [](const std::string& text) { return text.substr(text.find(' ')); };
  return fmt::format("{} to {}", unit_of(least) == unit_of(most) ? least.substr(0, least.find(' ')) : least, most);
}

std::string table_of(const Question& question, const Result& result, const Accuracy& accuracy) {
  std::vector<ConsoleColumn> columns;
  // A column without any text is left out.
  const auto add = [&](std::string_view header, bool right, const auto& text) {
    ConsoleColumn column{.cells = {{std::string(header)}}, .right = right};
    bool is_empty = true;
    for (const Line& line : question.lines) {
      const std::string cell = text(line);
      is_empty = is_empty && cell.empty();
      column.cells.push_back({cell});
    }
    if (!is_empty) columns.push_back(std::move(column));
  };
  if (question.worlds.size() > 1) add("world", false, [](const Line& line) { return line.cell->world; });
  for (const std::string& cost_model : question.cost_models)
    add(question.cost_models.size() > 1 ? cost_model : "predicted", true, [&](const Line& line) {
      const auto found = line.accuracy->forecasts.find(cost_model);
      if (found == line.accuracy->forecasts.end()) return std::string();
      return (guesses_of(*line.cell, cost_model).empty() ? "" : "~") + readable_seconds(found->second.predicted.step_s);
    });
  add("measured", true, [](const Line& line) { return line.is_measured() ? readable_seconds(line.step_s()) : ""; });
  add("error", true, [](const Line& line) {
    const bool known = line.forecast != nullptr && line.forecast->absolute;
    return known ? fmt::format("{:+.1f} %", 100 * std::expm1(line.forecast->absolute->log_ratio)) : "";
  });
  for (const std::string& peer : question.peers)
    add(peer, true, [&](const Line& line) {
      const auto i = result.find(line.cell->model, line.cell->strategy, line.cell->world, peer);
      return i && accuracy.cells[*i].measured ? readable_seconds(accuracy.cells[*i].measured->step_s) : "";
    });
  add("memory", true, [](const Line& line) { return needed_text(line.cell->memory); });
  add("fits", false, [](const Line& line) {
    const std::optional<bool> fits = line.cell->memory.fits();
    return fits ? *fits ? "yes" : "no" : "";
  });
  ConsoleColumn names{.cells = {{"strategy"}}, .right = false};
  const std::size_t room = room_beside(columns, kWidth, kLeastRoom);
  for (const Line& line : question.lines) names.cells.push_back(wrap(line.cell->strategy, ',', room));
  columns.insert(columns.begin(), std::move(names));
  return lay_out(columns);
}

/// Below the table: what a row's columns don't hold.
std::string remarks_of(const Question& question) {
  std::string text;
  const auto add = [&](const std::string& remark) { text += paragraph(remark, ' ', kWidth); };
  for (const Line& line : question.lines) {
    const std::string sharing = sharing_text(*line.cell);
    if (!line.fits()) add(fmt::format("{} {}", name_of(line, question), fit_text(line.cell->memory)));
    if (!sharing.empty()) add(fmt::format("{}: {}", name_of(line, question), sharing));
  }
  constexpr std::size_t kMostNamed = 6;
  std::vector<std::string> guesses;
  for (const Line& line : question.lines)
    for (const std::string& cost_model : question.cost_models)
      for (const std::string& guess : guesses_of(*line.cell, cost_model)) add_once(guesses, guess);
  if (!guesses.empty()) {
    if (guesses.size() > kMostNamed) guesses.resize(kMostNamed), guesses.emplace_back("…");
    add(fmt::format("~ partly a guess, because the profile lacks: {}", fmt::join(guesses, "; ")));
  }
  for (const Cell* cell : question.skipped)
    add(fmt::format("{} on {}{} skipped: {}", cell->strategy, cell->world,
                    cell->executor == kOurs ? "" : " by plain PyTorch", cell->skipped));
  return text;
}

/// Whether `a`, which has the smaller mean, may be the slower one for all that is known.
bool too_close(const Line& a, const Line& b) {
  if (a.is_measured() && b.is_measured())
    return a.accuracy->interval && b.accuracy->interval && !is_faster(*a.accuracy, *b.accuracy);
  if (a.forecast == nullptr || b.forecast == nullptr) return false;
  return !told_apart(a.forecast->compared, b.forecast->compared);
}

/// Whether all of these were measured often enough to say how much of a difference is noise; of forecasts: yes.
bool have_intervals(const std::vector<const Line*>& lines) {
  return std::ranges::all_of(
      lines, [](const Line* line) { return !line->is_measured() || line->accuracy->interval.has_value(); });
}

/// How far the forecast was off, or may be.
std::string trust_text(const Line& line) {
  if (line.forecast == nullptr) return "";
  if (line.forecast->absolute)  // rounded up: it is within
    return fmt::format("forecast within {:.1f} %",
                       std::ceil(1000 * std::abs(std::expm1(line.forecast->absolute->log_ratio))) / 10);
  const ForecastAccuracy& forecast = *line.forecast;
  std::vector<std::string> parts;
  if (forecast.interval_90)
    parts.push_back(fmt::format("90 % interval {} to {}, from {}", readable_seconds(forecast.interval_90->low),
                                readable_seconds(forecast.interval_90->high), forecast.interval_from));
  else if (!line.cell->device.empty())
    parts.push_back(fmt::format(
        "no track record for {}this device ({}): how far the forecast may be off isn't known",
        line.cell->threads > 1 ? fmt::format("ranks of {} threads on ", line.cell->threads) : "", line.cell->device));
  if (!forecast.interval_90 && forecast.ratios && forecast.ratios->device != line.cell->device)
    parts.push_back(fmt::format("ratios to single were off by {:.0f} % on {}", 100 * forecast.ratios->from_0,
                                forecast.ratios->device));
  return fmt::to_string(fmt::join(parts, "; "));
}

std::string spare_text(const Line& line) {
  const CellMemory& memory = line.cell->memory;
  if (!memory.fits().value_or(false)) return "";
  return fmt::format("fits with {} to spare",
                     readable_bytes(static_cast<double>(*memory.capacity_bytes - *memory.needed())));
}

/// Whether it is `single`, on one thread or more.
bool is_single(const Line& line) { return text_of(line).head() == "single" && line.cell->microbatches == 1; }

/// "1.70 × single", or of `single` itself the next one. `fitting`: what is slower for sure, and the fastest. Of one
/// rank with more or fewer threads, the fastest counts.
std::string ratio_text(const Line& fastest, const std::vector<const Line*>& fitting, const Question& question) {
  const auto comparable = [&](const Line* other) {
    return other->cell->world == fastest.cell->world && other->is_measured() == fastest.is_measured();
  };
  for (const Line* other : fitting)
    if (!is_single(fastest) && is_single(*other) && comparable(other))
      return fmt::format("{:.2f} × {}", other->step_s() / fastest.step_s(), other->cell->strategy);
  if (is_single(fastest))
    for (const Line* other : fitting)
      if (other != &fastest && comparable(other))
        return fmt::format("{:.2f} × {}", other->step_s() / fastest.step_s(), name_of(*other, question));
  return "";
}

/// What one process with all cores takes is what a CPU's user has without any strategy: "single uses 1 of 2 cores;
/// single,threads=2 isn't in this table".
std::string cores_text(const Line& fastest, const Question& question) {
  std::int64_t threads = 0;
  for (const Line& line : question.lines)
    if (is_single(line) && line.cell->world == fastest.cell->world) threads = std::max(threads, line.cell->threads);
  const std::int64_t cores = fastest.cell->cores;
  if (threads == 0 || threads >= cores || question.lines.size() == 1) return "";
  return fmt::format("single uses {} of {} cores; single,threads={} isn't in this table", threads, cores, cores);
}

/// "a", "a and b", "a, b and c", "a, b, c and 5 more".
std::string listed(std::vector<std::string> names) {
  if (names.size() > kNamed + 1) {
    names.push_back(fmt::format("{} more", names.size() - kNamed));
    names.erase(names.begin() + kNamed, names.end() - 1);
  }
  const std::string last = names.back();
  names.pop_back();
  return names.empty() ? last : fmt::format("{} and {}", fmt::join(names, ", "), last);
}

std::string samples_text(std::int64_t samples) {
  return samples == 1 ? "1 sample" : fmt::format("{} samples", samples);
}

/// What keeps a forecast step from being shorter, in people's words: what takes the most of it.
std::string hold_back_of(const Line& line, const Question& question) {
  constexpr double kWorthNaming = 0.05, kMoreCompute = 1.25;  // a share of the step; of the least that another needs
  const StepTime& step = line.forecast->predicted;
  const auto devices_of = [](const Line& of) { return of.cell->devices > 0 ? of.cell->devices : of.cell->ranks; };
  const auto all_compute_s = [&](const Line& of) {
    return of.forecast->predicted.compute_s * static_cast<double>(of.cell->ranks * of.cell->threads);
  };
  std::int64_t most = 0;
  const Line* least = &line;  // of all that compute by the same cost model
  const bool shares = line.cell->devices > 0 && line.cell->devices < line.cell->ranks;
  for (const Line& other : question.lines) {
    if (other.forecast == nullptr) continue;
    most = std::max(most, devices_of(other));
    if (all_compute_s(other) < all_compute_s(*least)) least = &other;
  }
  std::vector<std::pair<double, std::string>> parts;  // by the share of the machine's time that is lost
  const auto add = [&](double share, const std::string& text) {
    if (share >= kWorthNaming) parts.emplace_back(share, text);
  };
  const auto percent = [&](double seconds) { return 100 * seconds / step.step_s; };
  const std::int64_t devices = devices_of(line);
  if (devices < most)
    add(1 - static_cast<double>(devices) / static_cast<double>(most),
        fmt::format("{} of {} devices", devices == 1 ? "one" : std::to_string(devices), most));
  add(step.bubble_s / step.step_s,
      fmt::format("devices wait for each other {:.0f} % of the step (bubble)", percent(step.bubble_s)));
  add(step.exposed_communication_s / step.step_s,
      fmt::format("{:.0f} % of the step is communication that no compute hides",
                  percent(step.exposed_communication_s)));
  add(step.host_s / step.step_s,
      shares ? fmt::format("ranks wait for a device that they share, or launch ops, {:.0f} % of the step",
                           percent(step.host_s))
             : fmt::format("the host takes {:.0f} % of the step to launch ops", percent(step.host_s)));
  // Where ranks share a device, each one's ops take longer, and it waits for the device between them.
  if (const double more = all_compute_s(line) / all_compute_s(*least); !shares && more >= kMoreCompute) {
    const auto at_a_time = [](const Cell& cell) {
      return std::max<std::int64_t>(1, cell.global_batch / (cell.replicas * cell.microbatches));
    };
    const std::int64_t samples = at_a_time(*line.cell);
    add((1 - 1 / more) * step.compute_s / step.step_s,
        fmt::format("its ops{} take {:.1f} × the device time of those of {}",
                    samples == at_a_time(*least->cell) ? "" : ", on " + samples_text(samples) + " at a time,", more,
                    name_of(*least, question)));
  }
  if (parts.empty()) return fmt::format("{:.0f} % of the step is compute", percent(step.compute_s));
  std::ranges::stable_sort(parts, std::ranges::greater(), &std::pair<double, std::string>::first);
  return parts.size() == 1 ? parts[0].second : parts[0].second + "; " + parts[1].second;
}

/// A line for each strategy of a few; of many, for the fastest of each kind. None for `fastest`.
std::string hold_backs_of(const Question& question, const Line* fastest) {
  std::string text;
  std::set<std::string> kinds;
  if (fastest != nullptr) kinds.insert(text_of(*fastest).head());
  for (const Line& line : question.lines) {
    if (&line == fastest || line.forecast == nullptr) continue;
    const bool is_first = kinds.insert(text_of(line).head()).second;
    if (question.lines.size() > kFew && !is_first) continue;
    for (const std::string& row :
         wrap(fmt::format("  {}: {}", name_of(line, question), hold_back_of(line, question)), ' ', kWidth - 4))
      text += fmt::format("{}{}\n", row.starts_with("  ") ? "" : "    ", row);
  }
  if (text.empty()) return "";
  return fmt::format("What holds {} back:\n{}", fastest == nullptr ? "each" : "the others", text);
}

/// "begin: part; part."
std::string sentence(const std::string& begin, std::vector<std::string> parts) {
  std::erase(parts, "");
  return fmt::format("{}{}{}.", begin, parts.empty() ? "" : ": ", fmt::join(parts, "; "));
}

/// How the machine's own speed differed between a model's rounds.
std::string speed_text(const Question& question) {
  std::map<int, std::vector<MachineSpeed>> by_round;
  for (const Line& line : question.lines)
    for (const Round& round : line.cell->rounds)
      if (round.speed) by_round[round.round].push_back(*round.speed);
  return describe_speeds(by_round);
}

/// How the machine's own speed differed between strategies of as many ranks (ranks slow each other) in one world.
std::string speed_beside_text(const Question& question) {
  constexpr double kWorthSaying = 0.15;  // a strategy's few visits meet a burst or none
  std::map<std::pair<std::string, std::int64_t>, std::vector<NamedSpeed>> alike;
  for (const Line& line : question.lines) {
    std::vector<MachineSpeed> speeds;
    for (const Round& round : line.cell->rounds)
      if (round.speed) speeds.push_back(*round.speed);
    if (!speeds.empty())
      alike[{line.cell->world, line.cell->ranks}].emplace_back("beside " + name_of(line, question), mean(speeds));
  }
  if (alike.empty()) return "";
  const auto most = std::ranges::max_element(alike, {}, [](const auto& of_world) { return of_world.second.size(); });
  return describe_speeds(most->second, kWorthSaying);
}

/// "this machine isn't equally fast all the time: …" and what to do.
std::string unequal_text(const std::string& speeds) {
  return fmt::format(
      "this machine isn't equally fast all the time: {}. Forecasts are for the speed that the steps met. Others use "
      "the machine: close other programs",
      speeds);
}

/// What to do where the noise of the rounds hides something.
std::string noise_text(const Question& question, const std::string& more_rounds) {
  double floor = 0;
  std::size_t rounds = 0, noisy = 0, fewest = kFewestRounds;
  for (const Line& line : question.lines) {
    if (!line.is_measured()) continue;
    fewest = std::min(fewest, line.accuracy->measured_step.rounds());
    if (!line.accuracy->noise_floor || line.accuracy->conclusive) continue;
    ++noisy;
    floor = std::max(floor, *line.accuracy->noise_floor);
    rounds = std::max(rounds, line.accuracy->measured_step.rounds());
  }
  const auto go_on = [&](std::size_t in_all) { return fmt::format(fmt::runtime(more_rounds), in_all); };
  if (fewest < kFewestRounds) {
    const std::string speeds = speed_beside_text(question);
    return (speeds.empty() ? "" : "These numbers are noisy, because " + unequal_text(speeds) + ". ") +
           (more_rounds.empty()
                ? "One round doesn't tell how much of a difference is noise: `paragauge compare` takes rounds."
                : fmt::format("{} rounds or more tell how much of a difference is noise: {}.", kFewestRounds,
                              go_on(2 * kFewestRounds)));
  }
  if (noisy == 0) return "";
  constexpr std::size_t kMostRounds = 100;
  // The floor falls with the root of the rounds.
  const double wanted = std::ceil(static_cast<double>(rounds) * std::pow(floor / kConclusiveNoiseFloor, 2));
  const std::string speeds = speed_text(question);
  std::string text = fmt::format("Noise floor up to {:.1f} % in {} of {} rows ({:.0f} % is quiet)", 100 * floor, noisy,
                                 question.lines.size(), 100 * kConclusiveNoiseFloor);
  if (!speeds.empty())
    text += ", because " + unequal_text(speeds);
  else
    text += ": close other programs";
  if (!more_rounds.empty() && wanted <= kMostRounds)
    text += fmt::format(", or run {} more rounds: {}", static_cast<std::size_t>(wanted) - rounds,
                        go_on(static_cast<std::size_t>(wanted)));
  return text + ".";
}

/// Where plain PyTorch is faster beyond noise, by how much, and what it does otherwise.
std::string peer_text(const Question& question, const Result& result, const Accuracy& accuracy) {
  constexpr double kWorthSaying = 0.05;  // of ln(ours / its)
  const Line* most = nullptr;            // where that is largest
  std::string_view by;
  double largest = kWorthSaying;
  std::size_t faster = 0, compared = 0;
  for (const Line& line : question.lines) {
    bool is_faster = false;
    for (const auto& [peer, ratio] : line.accuracy->against_peer) {
      if (ratio.log_ratio < kWorthSaying || !ratio.interval || ratio.interval->low <= 0) continue;
      is_faster = true;
      if (ratio.log_ratio >= largest) most = &line, by = peer, largest = ratio.log_ratio;
    }
    compared += line.accuracy->against_peer.empty() ? 0 : 1;
    faster += is_faster ? 1 : 0;
  }
  if (most == nullptr) return "";
  const std::size_t peer = result.find(most->cell->model, most->cell->strategy, most->cell->world, by).value();
  const std::string& settings = result.cells[peer].settings;
  std::string text = fmt::format(
      "Plain PyTorch{}{} is faster in {} of {} rows: {} takes it {}, not {}.", by == kPeers[0] ? "" : " at its best",
      settings.empty() ? "" : fmt::format(" ({})", settings), faster, compared, name_of(*most, question),
      readable_seconds(accuracy.cells[peer].measured->step_s), readable_seconds(most->step_s()));
  if (settings.find("channels_last") != std::string::npos && question.model.find("memory_format=") == std::string::npos)
    text += " This layout is memory_format=channels_last, a key of the model.";
  return text;
}

}  // namespace

std::string fit_text(const CellMemory& memory) {
  const double needed = static_cast<double>(memory.needed().value()),
               capacity = static_cast<double>(memory.capacity_bytes.value());
  if (needed <= capacity) return "fits";
  const auto most = std::ranges::max_element(memory.needed_bytes, {}, [](const auto& use) { return use.second; });
  // All in one unit; "80 of 80" would be no reason.
  constexpr double kMiB = 1048576, kGiB = 1073741824;
  const double unit = needed < kGiB ? kMiB : kGiB;
  const int digits = needed / unit < 10 ? 2 : needed - capacity < unit ? 1 : 0;
  const bool fits_fused = memory.fused_needed_bytes && *memory.fused_needed_bytes <= *memory.capacity_bytes;
  return fmt::format("does not fit: needs {:.{}f} of {:.{}f} {} ({} {:.{}f}{})", needed / unit, digits, capacity / unit,
                     digits, unit == kMiB ? "MiB" : "GiB", most->first, static_cast<double>(most->second) / unit,
                     digits, fits_fused ? "; with the optimizer's fused=True it fits" : "");
}

std::string sharing_text(const Cell& cell) {
  if (cell.devices == 0 || cell.devices >= cell.ranks) return "";
  return fmt::format("{} ranks share {} device{}", cell.ranks, cell.devices, cell.devices == 1 ? "" : "s");
}

Answer answer_of(const Result& result, const TrackRecord* record, const std::string& more_rounds) {
  const Accuracy accuracy = assess(result, record);
  Answer answer;
  const auto say = [&](const std::string& text) {
    if (!text.empty()) answer.words += paragraph(text, ' ', kWidth);
  };
  const std::vector<Question> questions = questions_of(result, accuracy);
  for (const Question& question : questions) {
    const std::string of_model = questions.size() > 1 ? question.model + ": " : "";
    std::string heading = question.model;
    if (question.worlds.size() == 1) heading += " on " + question.worlds[0];
    if (!question.cost_models.empty())
      heading += fmt::format(", forecast by {}", fmt::join(question.cost_models, ", "));
    answer.table += answer.table.empty() ? "" : "\n";
    answer.table += paragraph(heading, ',', kWidth);
    if (!question.lines.empty()) answer.table += table_of(question, result, accuracy);
    answer.table += remarks_of(question);

    std::vector<const Line*> fitting;
    for (const Line& line : question.lines)
      if (line.fits()) fitting.push_back(&line);
    if (fitting.empty()) {
      const auto least = std::ranges::min_element(question.lines, {}, [](const Line& line) {
        return static_cast<double>(*line.cell->memory.needed()) /
               static_cast<double>(*line.cell->memory.capacity_bytes);
      });
      if (least != question.lines.end())
        say(question.lines.size() == 1
                ? fmt::format("{}{} {}.", of_model, name_of(*least, question), fit_text(least->cell->memory))
                : fmt::format("{}nothing fits; what needs least, {}, {}.", of_model, name_of(*least, question),
                              fit_text(least->cell->memory)));
      continue;
    }
    const Line& fastest = *fitting[0];
    answer.fastest.push_back(fastest.index);
    std::vector<std::string> ties{name_of(fastest, question)};
    std::vector<const Line*> apart;
    for (const Line* other : fitting)
      if (other != &fastest && too_close(fastest, *other))
        ties.push_back(name_of(*other, question));
      else
        apart.push_back(other);
    answer.all_tied &= ties.size() == fitting.size();
    const bool is_forecast = !fastest.is_measured();
    const std::string of_what = fitting.size() < question.lines.size() ? " of what fits" : "";
    std::string begin = of_model + ties[0];
    if (question.lines.size() == 1)
      begin += fmt::format(" takes {}{}", readable_seconds(fastest.step_s()), is_forecast ? " (forecast)" : "");
    else if (ties.size() == 1)
      begin += have_intervals(fitting) ? fmt::format(" is fastest{}", of_what)
                                       : fmt::format(" was fastest{}, this time", of_what);
    else
      begin = fmt::format("{}{} can't be told apart{} by {}; {} is shown first", of_model, listed(ties),
                          of_what.empty() ? "" : "," + of_what + ",",
                          is_forecast ? "this forecast" : "these measurements", ties[0]);
    say(sentence(begin, {ratio_text(fastest, apart, question), cores_text(fastest, question), trust_text(fastest),
                         spare_text(fastest), sharing_text(*fastest.cell)}));
    if (is_forecast && question.lines.size() > 1)
      answer.words += hold_backs_of(question, ties.size() == 1 ? &fastest : nullptr);
    say(peer_text(question, result, accuracy));
    if (std::ranges::any_of(question.lines, &Line::is_measured)) say(noise_text(question, more_rounds));
  }
  constexpr std::size_t kFewestCells = 3;
  for (const ForecastSummary& summary : accuracy.summaries)
    if (summary.executor == kOurs && summary.cells >= kFewestCells &&
        std::ranges::any_of(questions, [&](const Question& question) {
          return question.cost_models == std::vector{summary.cost_model};
        }))
      say(fmt::format(
          "All {} forecasts by {}: median error {:.1f} %; {} of {} pairs that noise doesn't hide are in the "
          "right order.",
          summary.cells, summary.cost_model, 100 * summary.absolute->median_absolute, summary.pairs_right,
          summary.pairs_right + summary.pairs_wrong));
  answer.table = printable(answer.table);  // names may come from anywhere
  answer.words = printable(answer.words);
  return answer;
}

}  // namespace sim
