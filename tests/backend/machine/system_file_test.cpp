#include "backend/machine/system_file.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace backend {
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

// A control group's page cache can be given back; without a limit it says nothing.
TEST(SystemFile, WhatAControlGroupMayStillTake) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "control_group_test";
  std::filesystem::create_directory(folder);
  const auto write = [&](const char* name, const char* text) { std::ofstream(folder / name) << text; };
  EXPECT_EQ(group_available(folder), std::nullopt);
  write("memory.max", "max\n");
  EXPECT_EQ(group_available(folder), std::nullopt);
  write("memory.max", "1000\n");
  write("memory.current", "900\n");
  EXPECT_EQ(group_available(folder), 100.0);
  write("memory.stat", "anon 500\ninactive_file 100\nactive_file 200\nslab 7\n");
  EXPECT_EQ(group_available(folder), 400.0);
  write("memory.current", "5000\n");
  EXPECT_EQ(group_available(folder), 0.0);
  // One by one: libtorch exports an std::filesystem::remove_all of its own, which fails.
  for (const char* name : {"memory.max", "memory.current", "memory.stat"}) std::filesystem::remove(folder / name);
  std::filesystem::remove(folder);
  EXPECT_GT(free_host_memory().value_or(0), 0);
}

}  // namespace
}  // namespace backend
