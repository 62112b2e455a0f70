#include "bench/progress.hpp"

#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <array>

namespace bench {
namespace {

TEST(Progress, ALinePerPhaseWhereThereIsNoTerminal) {
  std::FILE* file = std::tmpfile();
  double now_s = 100;
  {
    Progress progress("compare", 0, file, [&] { return now_s; });
    for (int round = 0; round < 3; ++round) {
      progress.begin("round " + std::to_string(round + 1) + "/3", round, 3);
      progress.at("gpipe on gloo", 1, 2);
      now_s += 65;
    }
  }
  std::rewind(file);
  std::array<char, 1000> read{};
  const std::string said(read.data(), std::fread(read.data(), 1, read.size(), file));
  EXPECT_EQ(said, "compare: round 1/3\ncompare: round 2/3 · 2:10 left\ncompare: round 3/3 · 1:05 left\n");
  std::fclose(file);
}

/// What a terminal of so many columns is given.
std::string on_terminal(unsigned short columns, double limit_s) {
  int master = -1, slave = -1;
  winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
  if (openpty(&master, &slave, nullptr, nullptr, &size) != 0) return "no terminal";
  std::FILE* stream = fdopen(slave, "w");
  double now_s = 0;
  {
    Progress progress("compare", limit_s, stream, [&] { return now_s; });
    progress.begin("round 3/8", 2, 8);
    now_s = 30;
    progress.at("gpipe on gl\x1b[31moo", 1, 2);
  }
  std::fclose(stream);
  // What was written arrives in pieces; the last is followed by EIO, since the terminal is closed.
  std::string given;
  std::array<char, 1000> piece{};
  for (ssize_t count = 0; (count = read(master, piece.data(), piece.size())) > 0;)
    given.append(piece.data(), static_cast<std::size_t>(count));
  close(master);
  return given;
}

TEST(Progress, ABarThatRewritesItselfOnATerminal) {
  const std::string begun = "\rcompare [=====---------------] 25 % · round 3/8\x1b[K";
  // Half a round took 30 s: 5.5 more.
  EXPECT_EQ(
      on_terminal(100, 0),
      begun + "\rcompare [======--------------] 31 % · round 3/8 · gpipe on gl\\x1b[31moo · 5:30 left\x1b[K\r\x1b[K");
  // No round begins after 45 s, but this one goes on to its end.
  EXPECT_EQ(
      on_terminal(100, 45),
      begun + "\rcompare [======--------------] 31 % · round 3/8 · gpipe on gl\\x1b[31moo · 0:30 left\x1b[K\r\x1b[K");
  // A narrow one: what runs is cut first.
  EXPECT_NE(on_terminal(70, 0).find(" · round 3/8 · gpipe o · 5:30 left\x1b[K"), std::string::npos);
  EXPECT_EQ(on_terminal(46, 0),
            "\rcompare [=====---------------] 25 % · round 3\x1b[K\rcompare [======--------------] "
            "31 % · round 3\x1b[K\r\x1b[K");
}

TEST(Progress, SaysTimesAsAClockDoes) {
  EXPECT_EQ(clock_text(0), "0:00");
  EXPECT_EQ(clock_text(7.4), "0:07");
  EXPECT_EQ(clock_text(130), "2:10");
  EXPECT_EQ(clock_text(3730), "1:02:10");
  EXPECT_EQ(clock_text(-5), "0:00");
}

}  // namespace
}  // namespace bench
