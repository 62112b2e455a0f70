#include "sim/text/file.hpp"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "tests/sim/testing.hpp"

namespace sim {
namespace {

namespace fs = std::filesystem;
using testing::message_of;
using testing::TemporaryFolder;

/// What the RunError that `call` throws says.
template <class Call>
std::string failure_of(const Call& call) {
  try {
    call();
  } catch (const RunError& error) {
    return error.what();
  }
  return "no error";
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::ranges::sort(names);
  return names;
}

using Names = std::vector<std::string>;

TEST(Files, ReadAndWrite) {
  const TemporaryFolder folder;
  const fs::path path = folder / "new" / "a.txt";  // folders are made
  write_text_file(path, "one");
  EXPECT_EQ(read_text_file(path), "one");
  const std::string bytes("\0two\r\n", 6);
  write_text_file(path, bytes);
  EXPECT_EQ(read_text_file(path), bytes);
  EXPECT_EQ(names_in(path.parent_path()), Names{"a.txt"}) << "a part of a file stays";
}

TEST(Files, SayWhyNot) {
  const TemporaryFolder folder;
  const std::string file = folder.file("a", "text"), absent = (folder / "b").string(), inside = file + "/b";
  EXPECT_EQ(message_of([&] { read_text_file(absent); }), absent + ": can't be read: No such file or directory");
  EXPECT_EQ(message_of([&] { read_json_file(absent); }), absent + ": can't be read: No such file or directory");
  EXPECT_EQ(message_of([&] { read_text_file(folder / ""); }), (folder / "").string() + ": is a folder, not a file");
  EXPECT_EQ(failure_of([&] { write_text_file(inside, "x"); }), inside + ": can't be written: Not a directory");
  fs::create_directory(folder / "taken");
  EXPECT_EQ(failure_of([&] { write_text_file(folder / "taken", "x"); }),
            (folder / "taken").string() + ": can't be written: Is a directory");
  EXPECT_EQ(failure_of([&] { write_text_file("/dev/full", "x"); }),
            "/dev/full: can't be written: No space left on device");
  EXPECT_EQ(read_text_file(file), "text");
  EXPECT_EQ(names_in(folder / ""), (Names{"a", "taken"}));
}

TEST(Files, NothingIsLeftOfWhatCouldntBeWrittenWhole) {
  const TemporaryFolder folder;
  const std::string file = folder.file("a", "text");
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = before;
  small.rlim_cur = 1000;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string said = failure_of([&] { write_text_file(file, std::string(5000, 'x')); });
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(said, file + ": can't be written: File too large");
  EXPECT_EQ(read_text_file(file), "text");
  EXPECT_EQ(names_in(folder / ""), Names{"a"});
}

TEST(Files, WhatIsNoRegularFileIsWrittenIntoNotReplaced) {
  const TemporaryFolder folder;
  const fs::path fifo = folder / "fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  std::string received;
  std::thread reader([&] { received = read_text_file(fifo); });
  write_text_file(fifo, "through the pipe");
  EXPECT_TRUE(fs::is_fifo(fifo));
  // Whoever replaces the pipe leaves its reader waiting.
  if (const int end = open(fifo.c_str(), O_WRONLY | O_NONBLOCK); end >= 0) close(end);
  reader.join();
  EXPECT_EQ(received, "through the pipe");
  EXPECT_EQ(names_in(folder / ""), Names{"fifo"});
}

TEST(Files, ALinkStaysOneAndItsTargetIsRewritten) {
  const TemporaryFolder folder;
  const std::string target = folder.file("deep/target", "old");
  fs::create_symlink("deep/target", folder / "link");
  fs::create_symlink("link", folder / "link_to_link");
  write_text_file(folder / "link_to_link", "new");
  EXPECT_TRUE(fs::is_symlink(folder / "link") && fs::is_symlink(folder / "link_to_link"));
  EXPECT_EQ(read_text_file(target), "new");
  // Of one that leads nowhere, the file is made.
  fs::create_symlink("deep/unborn", folder / "dangling");
  write_text_file(folder / "dangling", "born");
  EXPECT_TRUE(fs::is_symlink(folder / "dangling"));
  EXPECT_EQ(read_text_file(folder / "deep/unborn"), "born");
  fs::create_symlink("loop", folder / "loop");
  EXPECT_EQ(failure_of([&] { write_text_file(folder / "loop", "x"); }),
            (folder / "loop").string() + ": can't be written: Too many levels of symbolic links");
  EXPECT_EQ(names_in(folder / "deep"), (Names{"target", "unborn"}));
}

TEST(Files, KeepTheirMode) {
  const TemporaryFolder folder;
  const std::string file = folder.file("a", "secret");
  for (const mode_t mode : {0600U, 0640U, 0755U}) {
    ASSERT_EQ(chmod(file.c_str(), mode), 0);
    write_text_file(file, "more");
    struct stat found {};
    ASSERT_EQ(stat(file.c_str(), &found), 0);
    EXPECT_EQ(found.st_mode & 07777, mode);
  }
}

TEST(Files, NobodyForeseesTheNameOfThePart) {
  const TemporaryFolder folder;
  const std::string victim = folder.file("victim", "untouched");
  for (int process = getpid() - 5; process < getpid() + 5; ++process)
    fs::create_symlink("victim", folder / fmt::format("r.json.part{}", process));
  write_text_file(folder / "r.json", "results");
  EXPECT_EQ(read_text_file(victim), "untouched");
  EXPECT_FALSE(fs::is_symlink(folder / "r.json"));
}

TEST(Files, TellWhenTwoOutputsAreOne) {
  const TemporaryFolder folder;
  const std::string a = folder.file("a", ""), b = folder.file("b", "");
  fs::create_symlink("a", folder / "link");
  fs::create_symlink("unborn", folder / "dangling");
  fs::create_directory_symlink(".", folder / "here");
  EXPECT_TRUE(same_output(a, a));
  EXPECT_TRUE(same_output(a, folder / "./here/./a"));
  EXPECT_TRUE(same_output(folder / "link", a));
  EXPECT_TRUE(same_output(folder / "dangling", folder / "here/unborn"));
  EXPECT_TRUE(same_output(folder / "no/such/file", folder / "no/such/../such/file"));
  EXPECT_FALSE(same_output(a, b));
  EXPECT_FALSE(same_output(a, folder / "unborn"));
  EXPECT_FALSE(same_output("/dev/null", "/dev/null"));  // nothing to lose
}

TEST(FileLock, IsHeldByOneCommandAtATime) {
  const TemporaryFolder folder;
  const std::string file = (folder / "r.json").string();
  const std::string refused =
      file + ": another paragauge command is writing this file; wait for its end or name another file";
  fs::create_symlink("r.json", folder / "link");
  {
    const FileLock lock(file);
    EXPECT_EQ(failure_of([&] { FileLock second(file); }), refused);
    EXPECT_EQ(failure_of([&] { FileLock second(folder / "link"); }),
              (folder / "link").string() + refused.substr(file.size()));
    write_text_file(file, "replaced");  // the lock outlives the file
    EXPECT_EQ(failure_of([&] { FileLock second(file); }), refused);
    EXPECT_EQ(failure_of([&] { FileLock other(folder / "other.json"); }), "no error");
  }
  EXPECT_EQ(failure_of([&] { FileLock again(file); }), "no error");
  EXPECT_EQ(names_in(folder / ""), (Names{"link", "r.json"}));
}

TEST(FileLock, IsGoneWithAKilledProcess) {
  const TemporaryFolder folder;
  const pid_t child = fork();
  if (child == 0) {
    const FileLock lock(folder / "r.json");
    raise(SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(names_in(folder / ""), Names{".r.json.lock"});
  EXPECT_EQ(failure_of([&] { FileLock lock(folder / "r.json"); }), "no error");
  EXPECT_EQ(names_in(folder / ""), Names{});
}

TEST(FileLock, SaysAtOnceThatTheFileCantBeWritten) {
  const TemporaryFolder folder;
  const std::string file = folder.file("a", ""), victim = folder.file("victim", "untouched");
  EXPECT_EQ(failure_of([&] { FileLock lock(folder / ""); }),
            (folder / "").string() + ": can't be written: Is a directory");
  EXPECT_EQ(failure_of([&] { FileLock lock(file + "/b"); }),
            file + "/b: can't be written: .b.lock beside it: Not a directory");
  EXPECT_EQ(failure_of([] { FileLock lock("/dev/null"); }), "no error");
  fs::create_symlink("victim", folder / ".a.lock");  // somebody's trap
  EXPECT_EQ(failure_of([&] { FileLock lock(file); }),
            file + ": can't be written: .a.lock beside it: Too many levels of symbolic links");
  EXPECT_EQ(read_text_file(victim), "untouched");
}

}  // namespace
}  // namespace sim
