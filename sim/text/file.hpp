// Whole files: read, written, and locked while a command reads, measures and writes.
//
//   const FileLock lock("r.json");            // RunError while another command holds it
//   std::string text = read_text_file("r.json");
//   write_text_file("r.json", text + "\n");   // whole or not at all
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace sim {

/// Reads a whole file; ConfigError with the reason when it can't be read.
std::string read_text_file(const std::filesystem::path& path);

/// A regular file is replaced as a whole, so that a crash or a full disk never leaves half of it; it keeps its mode and
/// owner, and a link stays a link to it. Anything else (a device, a pipe, this program's own standard output) is
/// written into. Missing folders are made. RunError when it can't be written; then nothing is left behind. `to_disk`:
/// its bytes are there before it replaces the old one, whatever happens to the machine.
void write_text_file(const std::filesystem::path& path, std::string_view text, bool to_disk = false);

/// Whether writing both would lose one of them: one regular file (or one that will be made), however it is spelled.
bool same_output(const std::filesystem::path& a, const std::filesystem::path& b);

/// A file's lock, which other commands that write the same file respect. It is gone with the process that holds it,
/// however that ends; `.NAME.lock` beside the file may then stay and locks nobody out. Devices and pipes have no lock.
class FileLock {
 public:
  /// RunError when another process holds the lock, or when the file can't be written anyway.
  explicit FileLock(const std::filesystem::path& path);
  ~FileLock();
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&&) = delete;

 private:
  std::filesystem::path lock_;
  int descriptor_ = -1;
};

}  // namespace sim
