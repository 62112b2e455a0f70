#include "sim/text/file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <utility>

#include "sim/error.hpp"

namespace sim {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void cannot_write(const fs::path& path, int error) {
  throw RunError("{}: can't be written: {}", path.string(), std::strerror(error));
}

/// An open file, closed at the end.
struct File {
  int descriptor = -1;

  explicit File(int opened) : descriptor(opened) {}
  ~File() {
    if (descriptor >= 0) close(descriptor);
  }
  File(const File&) = delete;

  /// False, with errno, unless all of it could be written.
  [[nodiscard]] bool write_all(std::string_view text) const {
    while (!text.empty()) {
      const ssize_t count = write(descriptor, text.data(), text.size());
      if (count < 0 && errno != EINTR) return false;
      if (count > 0) text.remove_prefix(static_cast<std::size_t>(count));
    }
    return true;
  }
};

bool same_file(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

/// stdout or stderr where the file is what they write into: a second opening would overwrite the console's lines.
std::optional<int> console(const struct stat& file) {
  for (const int descriptor : {STDOUT_FILENO, STDERR_FILENO})
    if (struct stat open{}; fstat(descriptor, &open) == 0 && same_file(open, file)) return descriptor;
  return std::nullopt;
}

/// What the path leads to, without links: of a file that exists, and of one that will be made.
fs::path target_of(fs::path path) {
  std::error_code ignored;
  constexpr int kMostLinks = 40;  // as the kernel follows
  for (int i = 0; i < kMostLinks && fs::is_symlink(path, ignored); ++i)
    path = path.parent_path() / fs::read_symlink(path, ignored);
  const fs::path absolute = fs::absolute(path, ignored);
  return fs::weakly_canonical(absolute.parent_path(), ignored) / absolute.filename();
}

void make_folder_of(const fs::path& path) {
  std::error_code ignored;  // what is wrong, opening the file will say
  if (path.has_parent_path()) fs::create_directories(path.parent_path(), ignored);
}

/// Writes beside `target` under a name that nobody can foresee, and renames. `before`: the file that is replaced.
void replace(const fs::path& path, const fs::path& target, const struct stat* before, std::string_view text,
             bool to_disk) {
  const File folder(open(target.parent_path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (folder.descriptor < 0) cannot_write(path, errno);
  std::uint64_t number = 0;
  if (getrandom(&number, sizeof number, 0) != sizeof number) cannot_write(path, errno);
  const std::string name = fmt::format(".paragauge-{:016x}.part", number);
  const mode_t mode = before ? 0600 : 0666;  // of an existing file: its own, once its owner is right
  File part(openat(folder.descriptor, name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
  if (part.descriptor < 0) cannot_write(path, errno);
  bool good = part.write_all(text);
  if (good && before) {
    // Only root can give a file away: what another user writes is theirs.
    [[maybe_unused]] const int given = fchown(part.descriptor, before->st_uid, before->st_gid);
    good = fchmod(part.descriptor, before->st_mode & 07777) == 0;
  }
  good = good && (!to_disk || fsync(part.descriptor) == 0);
  // A network's file system may say only at the end that it has no space.
  good = good && close(std::exchange(part.descriptor, -1)) == 0 &&
         renameat(folder.descriptor, name.c_str(), folder.descriptor, target.filename().c_str()) == 0;
  if (good) return;
  const int error = errno;
  unlinkat(folder.descriptor, name.c_str(), 0);
  cannot_write(path, error);
}

}  // namespace

std::string read_text_file(const fs::path& path) {
  std::error_code ignored;  // what else is wrong with the path (too long, a loop of links), opening it will say
  if (fs::is_directory(path, ignored)) throw ConfigError("{}: is a folder, not a file", path.string());
  std::ifstream file(path, std::ios::binary);
  if (!file) throw ConfigError("{}: can't be read: {}", path.string(), std::strerror(errno));
  std::string text;
  std::array<char, 1 << 16> part{};
  while (file.read(part.data(), part.size()) || file.gcount() > 0)
    text.append(part.data(), static_cast<std::size_t>(file.gcount()));
  if (file.bad()) throw ConfigError("{}: can't be read to its end", path.string());
  return text;
}

void write_text_file(const fs::path& path, std::string_view text, bool to_disk) {
  make_folder_of(path);
  // The kernel follows the links, with its own protection of shared folders; nothing is truncated or made.
  const File file(open(path.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC));
  if (file.descriptor < 0 && errno != ENOENT) cannot_write(path, errno);
  if (file.descriptor < 0) return replace(path, target_of(path), nullptr, text, to_disk);
  struct stat found {};
  fstat(file.descriptor, &found);
  if (const std::optional<int> descriptor = console(found)) {
    std::fflush(stdout);
    const File own(dup(*descriptor));
    if (!own.write_all(text)) cannot_write(path, errno);
  } else if (S_ISREG(found.st_mode)) {
    std::error_code error;
    const fs::path target = fs::canonical(path, error);
    if (error) cannot_write(path, error.value());
    replace(path, target, &found, text, to_disk);
  } else if (!file.write_all(text)) {
    cannot_write(path, errno);
  }
}

bool same_output(const fs::path& a, const fs::path& b) {
  std::error_code ignored;
  if (fs::exists(a, ignored) && fs::exists(b, ignored))
    return fs::is_regular_file(a, ignored) && fs::equivalent(a, b, ignored);
  return target_of(a) == target_of(b);
}

FileLock::FileLock(const fs::path& path) {
  make_folder_of(path);
  struct stat found {};
  if (stat(path.c_str(), &found) == 0) {
    if (S_ISDIR(found.st_mode)) cannot_write(path, EISDIR);
    if (access(path.c_str(), W_OK) != 0) cannot_write(path, errno);
    if (!S_ISREG(found.st_mode) || console(found)) return;
  }
  const fs::path target = target_of(path);
  lock_ = target.parent_path() / fmt::format(".{}.lock", target.filename().string());
  for (;;) {
    descriptor_ = open(lock_.c_str(), O_RDONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    if (descriptor_ < 0)
      throw RunError("{}: can't be written: {} beside it: {}", path.string(), lock_.filename().string(),
                     std::strerror(errno));
    if (flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      close(std::exchange(descriptor_, -1));
      if (error != EWOULDBLOCK) throw RunError("{}: can't be locked: {}", path.string(), std::strerror(error));
      throw RunError("{}: another paragauge command is writing this file; wait for its end or name another file",
                     path.string());
    }
    // Whoever held it before has removed it at their end, and perhaps somebody has made another since.
    struct stat ours {
    }, named{};
    if (fstat(descriptor_, &ours) == 0 && lstat(lock_.c_str(), &named) == 0 && same_file(ours, named)) return;
    close(std::exchange(descriptor_, -1));
  }
}

FileLock::FileLock(FileLock&& other) noexcept
    : lock_(std::move(other.lock_)), descriptor_(std::exchange(other.descriptor_, -1)) {}

FileLock::~FileLock() {
  if (descriptor_ < 0) return;
  unlink(lock_.c_str());  // while it is still locked: nobody can hold what is removed
  flock(descriptor_, LOCK_UN);
  close(descriptor_);
}

}  // namespace sim
