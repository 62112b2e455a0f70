// What is trained on and tested with: samples of bytes, each of a class, from CIFAR-10's binary files or made here.
//
//   const DataSource source{.folder = "cifar-10-batches-bin", .shape = {3, 32, 32}, .classes = 10};
//   const Dataset train = load_dataset(source, Part::train);
//   train.size();                                             // 50000
//   train.label(7);
//   train.sample(7);                                          // 3072 bytes, [channels, height, width]
//   order_of_epoch(train.size(), /*seed=*/1, /*epoch=*/0);    // the same on every rank: no sample travels
//
// A file is a record per sample, without a header (https://www.cs.toronto.edu/~kriz/cifar.html): its class in a byte,
// then its values; data_batch_1.bin, data_batch_2.bin, … are trained on, test_batch.bin tests. Samples of other shapes
// make longer or shorter records, and of more than 256 classes each takes two bytes, the lower one first.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace backend {

/// Where samples come from, and what they must be.
struct DataSource {
  std::string folder;                 // of the files, or the one that has cifar-10-batches-bin; empty: made of the seed
  std::int64_t samples = 0;           // to train on; 0: all of the folder's
  std::uint64_t seed = 1;             // of made ones
  std::vector<std::int64_t> shape{};  // of a sample
  std::int64_t classes = 0;
  bool is_tested = true;  // else the folder needs no test_batch.bin

  friend bool operator==(const DataSource&, const DataSource&) = default;
};

enum class Part : std::uint8_t { train, test };

class Dataset {
 public:
  Dataset() = default;
  /// `records` as in a file; ConfigError for a class that there isn't. `where` names them in messages.
  Dataset(std::string records, const DataSource& source, const std::string& where);

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(records_.size() / record_); }
  [[nodiscard]] std::int64_t label(std::int64_t index) const;
  [[nodiscard]] std::span<const std::uint8_t> sample(std::int64_t index) const;
  /// All of them, as in a file.
  [[nodiscard]] const std::string& records() const { return records_; }

 private:
  std::string records_;
  std::size_t label_bytes_ = 1, record_ = 1;
};

/// How many samples there are to train on. ConfigError where a file is missing (of the test's only where it is read), or
/// isn't made of whole records.
std::int64_t training_samples(const DataSource& source);
Dataset load_dataset(const DataSource& source, Part part);

/// Made samples, as in a file: waves, of every class others, under stronger noise. The classes come in turns. A quarter
/// as many samples test.
std::string make_records(const DataSource& source, Part part);

/// A permutation of the samples, a function of its arguments only.
std::vector<std::uint32_t> order_of_epoch(std::int64_t samples, std::uint64_t seed, std::int64_t epoch);

}  // namespace backend
