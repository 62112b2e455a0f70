#include "backend/rank/progress.hpp"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "backend/machine/scheduling.hpp"
#include "sim/error.hpp"

namespace backend {
namespace {

template <std::size_t width>
void copy_text(std::string_view text, std::array<char, width>& to) {
  const std::size_t length = std::min(text.size(), width - 1);
  std::memcpy(to.data(), text.data(), length);
  to[length] = '\0';
}

}  // namespace

void rethrow(const Failure& failure) {
  if (failure.status == sim::kConfigErrorStatus) throw sim::ConfigError("{}", failure.text);
  if (failure.status == sim::kRunErrorStatus) throw sim::RunError("{}", failure.text);
  throw std::runtime_error(failure.text);
}

struct ProgressBoard::Page {
  static constexpr std::size_t kLabels = 1 << 16, kWidth = 120;  // a sparse file: what isn't written takes no memory

  Progress progress;
  std::atomic<bool> failed{false};  // what follows is written
  double failed_s = 0;
  int status = 0;
  std::array<char, 2048> failure;
  std::uint32_t labels = 0;
  std::array<bool, kLabels> is_wait;
  std::array<std::array<char, kWidth>, kLabels> label;
};

namespace {
sim::RunError no_shared_memory() {
  return sim::RunError("no shared memory for the ranks' progress: {}", std::strerror(errno));
}
}  // namespace

ProgressBoard::ProgressBoard(std::uint32_t ranks) : ProgressBoard(memfd_create("paragauge-progress", 0), ranks) {
  // Not value-initialised: the labels' pages stay untouched.
  for (std::uint32_t rank = 0; rank < ranks; ++rank) new (&page(rank)) Page;
}

ProgressBoard::ProgressBoard(int descriptor, std::uint32_t ranks) : descriptor_(descriptor), ranks_(ranks) {
  const std::size_t bytes = ranks * sizeof(Page);
  if (descriptor < 0 || ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) throw no_shared_memory();
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) throw no_shared_memory();
  pages_ = static_cast<Page*>(memory);
}

ProgressBoard ProgressBoard::join(std::uint32_t ranks) {
  const char* variable = std::getenv(kVariable);
  if (variable == nullptr) return ProgressBoard(ranks);
  const int descriptor = std::atoi(variable);
  struct stat of_supervisor {};
  if (fstat(descriptor, &of_supervisor) != 0) throw no_shared_memory();
  ProgressBoard board(descriptor, static_cast<std::uint32_t>(of_supervisor.st_size / sizeof(Page)));
  board.descriptor_ = -1;  // stays open, for whoever joins next
  return board;
}

bool ProgressBoard::is_watched() { return std::getenv(kVariable) != nullptr; }

ProgressBoard::ProgressBoard(ProgressBoard&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      ranks_(other.ranks_),
      pages_(std::exchange(other.pages_, nullptr)) {}

ProgressBoard::~ProgressBoard() {
  if (pages_) munmap(pages_, ranks_ * sizeof(Page));
  if (descriptor_ >= 0) close(descriptor_);
}

ProgressBoard::Page& ProgressBoard::page(std::uint32_t rank) const { return pages_[rank]; }
Progress& ProgressBoard::progress(std::uint32_t rank) const { return page(rank).progress; }

void ProgressBoard::set_labels(std::uint32_t rank, const sim::Program& program, const sim::Role& role) const {
  Page& page = this->page(rank);
  page.labels = static_cast<std::uint32_t>(std::min<std::size_t>(role.size(), Page::kLabels));
  for (std::uint32_t i = 0; i < page.labels; ++i) {
    page.is_wait[i] = role.kind[i] == sim::InstructionKind::wait;
    copy_text(program.label(role, i), page.label[i]);
  }
}

std::string ProgressBoard::where(std::uint32_t rank) const {
  const Page& page = this->page(rank);
  switch (page.progress.stage.load()) {
    case Stage::starting:
      return "while starting";
    case Stage::meeting:
      return "while looking for the other ranks";
    case Stage::ending:
      return "while ending";
    case Stage::serving:
      break;
  }
  const std::uint32_t i = page.progress.instruction;
  if (i == Progress::kOutsideStep) return "outside a step";
  if (i >= page.labels) return "at the end of a step";
  return fmt::format("in instruction {}: {}", i, page.label[i].data());
}

bool ProgressBoard::waits(std::uint32_t rank) const {
  const Page& page = this->page(rank);
  const std::uint32_t i = page.progress.instruction;
  return i < page.labels && page.is_wait[i];
}

void ProgressBoard::let_others_end(std::uint32_t rank, std::uint32_t ranks) const {
  constexpr double kNap_s = 200e-6;
  const std::uint32_t ended = ++progress(rank).ended;
  const auto computes = [&](std::uint32_t other) {
    const Progress& of_other = progress(other);
    return core_of_rank(other) == core_of_rank(rank) && of_other.ended < ended && !page(other).failed;
  };
  for (std::uint32_t other = 0; other < std::min(ranks, ranks_); ++other)
    while (computes(other)) sleep_until(now_s() + kNap_s, /*precisely=*/false);
}

void ProgressBoard::fail(std::uint32_t rank, const std::exception& error) const {
  if (!is_watched()) return;
  constexpr unsigned kPatience_s = 10;  // of a supervisor that is there, but doesn't look
  Page& page = this->page(rank);
  page.failed_s = now_s();
  page.status = sim::exit_status(error);
  copy_text(error.what(), page.failure);
  page.failed = true;
  for (unsigned left_s = kPatience_s; left_s > 0;) left_s = sleep(left_s);
}

std::optional<Failure> ProgressBoard::failure(std::uint32_t rank) const {
  const Page& page = this->page(rank);
  if (!page.failed) return std::nullopt;
  return Failure{page.failed_s, page.status, page.failure.data()};
}

HangWatch::HangWatch(const ProgressBoard& board, double timeout_s)
    : board_(board),
      timeout_s_(timeout_s),
      patience_s_(timeout_s + std::max(2.0, 0.1 * timeout_s)),
      seen_(board.ranks()) {
  now_s_ = now_s();
  for (Seen& seen : seen_) seen.since_s = now_s_;
}

void HangWatch::look(const std::vector<bool>& stopped) {
  now_s_ = now_s();
  for (std::uint32_t rank = 0; rank < seen_.size(); ++rank) {
    const Progress& progress = board_.progress(rank);
    Seen now{progress.stage, progress.step, progress.instruction, now_s_, std::nullopt};
    Seen& seen = seen_[rank];
    if (seen.stage == now.stage && seen.step == now.step && seen.instruction == now.instruction)
      now.since_s = seen.since_s;
    if (!stopped.empty() && stopped[rank]) now.stopped_s = seen.stopped_s.value_or(now_s_);
    seen = now;
  }
}

std::optional<std::string> HangWatch::overdue() const {
  std::optional<std::uint32_t> hung;
  for (std::uint32_t rank = 0; rank < seen_.size(); ++rank) {
    const Seen& seen = seen_[rank];
    if (seen.stopped_s && now_s_ - *seen.stopped_s > timeout_s_) return is_stopped(rank);
    // Before and between steps a rank may take its time; but not to find the others, nor to take its leave.
    const bool limited = seen.stage == Stage::meeting || seen.stage == Stage::ending ||
                         (seen.stage == Stage::serving && seen.instruction != Progress::kOutsideStep);
    if (!limited || now_s_ - seen.since_s <= patience_s_) continue;
    if (!hung || (board_.waits(*hung) && !board_.waits(rank))) hung = rank;
  }
  if (!hung) return std::nullopt;
  return behind(*hung).value_or(hangs(*hung, patience_s_));
}

std::optional<std::string> HangWatch::behind(std::uint32_t failed) const {
  for (std::uint32_t rank = 0; rank < seen_.size(); ++rank)
    if (seen_[rank].stopped_s) return is_stopped(rank);
  const bool waited = board_.waits(failed) || seen_[failed].instruction == Progress::kOutsideStep;
  for (std::uint32_t rank = 0; rank < seen_.size(); ++rank) {
    const Seen& seen = seen_[rank];
    const double stood_s = now_s_ - seen.since_s;
    if (rank == failed || stood_s < 0.5 * timeout_s_) continue;
    const bool absent = seen_[failed].stage == Stage::meeting && seen.stage == Stage::starting;
    const bool computes =
        seen.stage == Stage::serving && seen.instruction != Progress::kOutsideStep && !board_.waits(rank);
    if (absent || (computes && waited)) return hangs(rank, stood_s);
  }
  return std::nullopt;
}

std::string HangWatch::hangs(std::uint32_t rank, double seconds) const {
  return fmt::format("rank {} hangs (no progress for {:.1f} s) {}", rank, seconds, board_.where(rank));
}

std::string HangWatch::is_stopped(std::uint32_t rank) const {
  return fmt::format("rank {} is stopped (by SIGSTOP or the like) {}", rank, board_.where(rank));
}

}  // namespace backend
