#include "backend/train/dataset.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "sim/error.hpp"

namespace backend {
namespace {

const DataSource kMade{.samples = 10, .seed = 7, .shape = {2, 3}, .classes = 3};

/// A folder that is gone at the end.
class Folder {
 public:
  Folder() : path_(std::filesystem::path(testing::TempDir()) / fmt::format("dataset_test_{}", getpid())) {
    std::filesystem::create_directories(path_ / "cifar-10-batches-bin");
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  void write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ / "cifar-10-batches-bin" / name, std::ios::binary) << bytes;
  }
  [[nodiscard]] std::string text() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

std::string message(const DataSource& source) {
  try {
    training_samples(source);
    load_dataset(source, Part::train);
    return "no error";
  } catch (const sim::ConfigError& error) {
    return error.what();
  }
}

void expect_equal(const Dataset& a, const Dataset& b, std::int64_t size) {
  for (std::int64_t i = 0; i < size; ++i) {
    EXPECT_EQ(a.label(i), b.label(i)) << i;
    EXPECT_TRUE(std::ranges::equal(a.sample(i), b.sample(i))) << i;
  }
}

TEST(Dataset, FilesHaveWhatWasWritten) {
  const Folder folder;
  const std::string records = make_records(kMade, Part::train);
  folder.write("data_batch_1.bin", records.substr(0, 4 * 7));
  folder.write("data_batch_2.bin", records.substr(4 * 7));
  folder.write("test_batch.bin", make_records(kMade, Part::test));
  DataSource source = kMade;
  source.folder = folder.text();
  source.samples = 0;
  EXPECT_EQ(training_samples(source), 10);
  const Dataset read = load_dataset(source, Part::train), made = load_dataset(kMade, Part::train);
  ASSERT_EQ(read.size(), 10);
  expect_equal(read, made, 10);
  expect_equal(load_dataset(source, Part::test), load_dataset(kMade, Part::test), 2);
  source.samples = 5;
  EXPECT_EQ(load_dataset(source, Part::train).size(), 5);
}

TEST(Dataset, WrongFilesAreNamed) {
  const Folder folder;
  DataSource source = kMade;
  source.folder = folder.text();
  source.samples = 0;
  const std::string inside = folder.text() + "/cifar-10-batches-bin";
  EXPECT_EQ(message(source), inside +
                                 ": has no data_batch_1.bin; CIFAR-10's binary version has data_batch_1.bin to "
                                 "data_batch_5.bin and test_batch.bin");
  const std::string records = make_records(kMade, Part::train);
  folder.write("data_batch_1.bin", records.substr(1));
  folder.write("test_batch.bin", records);
  EXPECT_EQ(message(source), inside +
                                 "/data_batch_1.bin: 69 bytes aren't whole records of 7 (a class and 6 values): is "
                                 "the file truncated?");
  folder.write("data_batch_1.bin", records);
  source.samples = 11;
  EXPECT_EQ(message(source), "samples=11 must be at most 10, which " + folder.text() + " has");
  source.samples = 0;
  source.classes = 2;
  EXPECT_EQ(message(source), folder.text() + ": sample 2 is of class 2; the model has classes 0 to 1");
}

TEST(Dataset, MadeSamplesDependOnTheirSeedAndPart) {
  EXPECT_EQ(make_records(kMade, Part::train), make_records(kMade, Part::train));
  EXPECT_NE(make_records(kMade, Part::train).substr(0, 14), make_records(kMade, Part::test).substr(0, 14));
  DataSource other = kMade;
  other.seed = 8;
  EXPECT_NE(make_records(kMade, Part::train), make_records(other, Part::train));
}

TEST(Dataset, ManyClassesTakeTwoBytes) {
  const Dataset dataset = load_dataset({.samples = 300, .shape = {1}, .classes = 300}, Part::train);
  ASSERT_EQ(dataset.size(), 300);
  EXPECT_EQ(dataset.label(299), 299);
}

TEST(Dataset, EveryEpochHasAllSamplesInAnotherOrder) {
  const std::vector<std::uint32_t> first = order_of_epoch(100, 1, 0), second = order_of_epoch(100, 1, 1);
  EXPECT_EQ(std::set(first.begin(), first.end()).size(), 100U);
  EXPECT_EQ(*std::ranges::max_element(first), 99U);
  EXPECT_NE(first, second);
  EXPECT_EQ(first, order_of_epoch(100, 1, 0));
  EXPECT_NE(first, order_of_epoch(100, 2, 0));
}

}  // namespace
}  // namespace backend
