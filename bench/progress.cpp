#include "bench/progress.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <utility>

#include "sim/error.hpp"
#include "sim/report/console.hpp"

namespace bench {
namespace {

/// The text's first `columns` characters.
std::string cut(const std::string& text, std::size_t columns) {
  const auto goes_on = [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0U) == 0x80U; };  // a character
  std::size_t bytes = 0;
  while (bytes < text.size() && (goes_on(text[bytes]) || columns-- > 0)) ++bytes;
  return text.substr(0, bytes);
}

}  // namespace

std::string clock_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::llround(std::max(seconds, 0.0)));
  const std::int64_t hours = whole / 3600, minutes = whole / 60 % 60;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60)
                   : fmt::format("{}:{:02}", minutes, whole % 60);
}

double steady_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

Progress::Progress(std::string command, double limit_s, std::FILE* stream, std::function<double()> now_s)
    : command_(std::move(command)),
      stream_(stream),
      now_s_(std::move(now_s)),
      terminal_(isatty(fileno(stream)) != 0),
      end_s_(limit_s > 0 ? now_s_() + limit_s : std::numeric_limits<double>::infinity()) {}

void Progress::begin(std::string phase, double done, double all) {
  if (begin_s_ < 0) {
    begin_s_ = now_s_();
    first_ = done;
  }
  phase_ = sim::printable(phase);
  what_.clear();
  done_ = done;
  all_ = all;
  part_ = 0;
  if (terminal_) return draw();
  std::fputs(fmt::format("{}: {}{}\n", command_, phase_, left()).c_str(), stream_);
  std::fflush(stream_);
}

void Progress::at(std::string part, double done, double all) {
  what_ = sim::printable(part);
  part_ = all > 0 ? done / all : 0;
  if (terminal_) draw();
}

void Progress::end() {
  if (std::exchange(drawn_, false)) std::fputs("\r\x1b[K", stream_);
  std::fflush(stream_);
}

std::string Progress::left() const {
  const double passed = done_ - first_ + part_;
  if (passed <= 0) return "";
  const double now_s = now_s_(), phase_s = (now_s - begin_s_) / passed;
  const double this_phase_s = phase_s * (1 - part_);  // ends also when the limit passes
  return fmt::format(" · {} left",
                     clock_text(std::min(phase_s * (all_ - done_ - part_), std::max(end_s_ - now_s, this_phase_s))));
}

void Progress::draw() const {
  constexpr int kCells = 20;
  const double share = std::clamp((done_ + part_) / std::max(all_, 1.0), 0.0, 1.0);
  const auto full = static_cast<std::size_t>(share * kCells);
  const std::string begin = fmt::format("{} [{}{}] {:2.0f} % · {}", command_, std::string(full, '='),
                                        std::string(kCells - full, '-'), 100 * share, phase_);
  winsize size{};
  const std::size_t columns =
      ioctl(fileno(stream_), TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col - 1U : 79U;
  const std::string end = left(), part = what_.empty() ? "" : " · " + what_;
  const std::size_t taken = sim::display_width(begin) + sim::display_width(end);
  const std::string text = begin + cut(part, columns - std::min(columns, taken)) + end;
  std::fputs(("\r" + cut(text, columns) + "\x1b[K").c_str(), stream_);
  std::fflush(stream_);
  drawn_ = true;
}

}  // namespace bench
