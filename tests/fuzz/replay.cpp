// Plays files, and all files of folders, through a fuzz target without libFuzzer: the tests fuzz.*.
#include "tests/fuzz/target.hpp"

int main(int count, char** arguments) {
  std::size_t files = 0;
  for (int i = 1; i < count; ++i) {
    std::vector<std::filesystem::path> paths{arguments[i]};
    if (std::filesystem::is_directory(paths[0]))
      paths = {std::filesystem::directory_iterator(paths[0]), std::filesystem::directory_iterator()};
    for (const std::filesystem::path& path : paths) {
      std::fprintf(stderr, "%s\n", path.c_str());  // the last one named is the one that fails
      const std::string text = sim::read_text_file(path);
      LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
      ++files;
    }
  }
  std::printf("%zu inputs\n", files);
  return files == 0 ? 1 : 0;
}
