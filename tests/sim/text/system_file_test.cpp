#include "sim/text/system_file.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace sim {
namespace {

TEST(SystemFile, FieldsAndWhatIsMissing) {
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "system_file_test";
  std::ofstream(path) << "VmHWM:\t    2048 kB\nmodel name\t: AMD EPYC: 9\nempty:\n";
  EXPECT_EQ(first_line(path), "VmHWM:\t    2048 kB");
  EXPECT_EQ(field(path, "model name"), "AMD EPYC: 9");
  EXPECT_EQ(field_bytes(path, "VmHWM:"), 2048 * 1024.0);
  EXPECT_EQ(field(path, "empty"), std::nullopt);
  EXPECT_EQ(field_bytes(path, "VmPeak:"), std::nullopt);
  std::filesystem::remove(path);
  EXPECT_EQ(first_line(path), std::nullopt);
  EXPECT_EQ(field(path, "model name"), std::nullopt);
}

}  // namespace
}  // namespace sim
