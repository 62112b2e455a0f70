#include "backend/train/dataset.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numbers>
#include <numeric>
#include <random>

#include "sim/error.hpp"
#include "sim/text/file.hpp"

namespace backend {
namespace {

namespace fs = std::filesystem;

std::size_t label_bytes(const DataSource& source) { return source.classes > 256 ? 2 : 1; }

std::size_t values_of(const DataSource& source) {
  return std::accumulate(
      source.shape.begin(), source.shape.end(), std::size_t{1},
      [](std::size_t product, std::int64_t size) { return product * static_cast<std::size_t>(size); });
}

std::size_t record_bytes(const DataSource& source) { return label_bytes(source) + values_of(source); }

/// The part's files in their order.
std::vector<fs::path> files_of(const DataSource& source, Part part) {
  fs::path folder = source.folder;
  std::error_code ignored;
  if (fs::exists(folder / "cifar-10-batches-bin", ignored)) folder /= "cifar-10-batches-bin";
  std::vector<fs::path> files;
  for (int number = 1; part == Part::train; ++number) {
    fs::path file = folder / fmt::format("data_batch_{}.bin", number);
    if (!fs::exists(file, ignored)) break;
    files.push_back(std::move(file));
  }
  if (part == Part::test && fs::exists(folder / "test_batch.bin", ignored)) files.push_back(folder / "test_batch.bin");
  if (files.empty())
    throw sim::ConfigError(
        "{}: has no {}; CIFAR-10's binary version has data_batch_1.bin to data_batch_5.bin and test_batch.bin",
        folder.string(), part == Part::train ? "data_batch_1.bin" : "test_batch.bin");
  return files;
}

/// How many records a file has.
std::int64_t records_in(const fs::path& file, const DataSource& source) {
  std::error_code error;
  const std::uintmax_t bytes = fs::file_size(file, error);
  if (error) throw sim::ConfigError("{}: can't be read: {}", file.string(), error.message());
  if (bytes == 0 || bytes % record_bytes(source) != 0)
    throw sim::ConfigError("{}: {} bytes aren't whole records of {} (a class and {} values): is the file truncated?",
                           file.string(), bytes, record_bytes(source), values_of(source));
  return static_cast<std::int64_t>(bytes / record_bytes(source));
}

/// Whole numbers from 0 to `below`: the standard's own distributions differ from library to library.
std::uint64_t drawn(std::mt19937_64& random, std::uint64_t below) { return random() % below; }

std::mt19937_64 generator(std::uint64_t seed, std::uint64_t stream) {
  std::seed_seq mixed{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32),
                      static_cast<std::uint32_t>(stream), static_cast<std::uint32_t>(stream >> 32)};
  return std::mt19937_64(mixed);
}

/// A wave through all dimensions, from −1 to 1.
std::vector<double> wave(const DataSource& source, std::mt19937_64& random) {
  constexpr std::uint64_t kMostPeriods = 4;
  std::vector<double> periods;
  for (std::size_t dim = 0; dim < source.shape.size(); ++dim)
    periods.push_back(static_cast<double>(drawn(random, kMostPeriods)) + 0.5);
  const double phase = static_cast<double>(drawn(random, 1000)) / 1000;
  std::vector<double> values(values_of(source));
  for (std::size_t i = 0; i < values.size(); ++i) {
    double turns = phase;
    std::size_t rest = i;
    for (std::size_t dim = source.shape.size(); dim-- > 0;) {
      const auto size = static_cast<std::size_t>(source.shape[dim]);
      turns += periods[dim] * static_cast<double>(rest % size) / static_cast<double>(size);
      rest /= size;
    }
    values[i] = std::cos(2 * std::numbers::pi * turns);
  }
  return values;
}

}  // namespace

Dataset::Dataset(std::string records, const DataSource& source, const std::string& where)
    : records_(std::move(records)), label_bytes_(label_bytes(source)), record_(record_bytes(source)) {
  for (std::int64_t i = 0; i < size(); ++i)
    if (label(i) >= source.classes)
      throw sim::ConfigError("{}: sample {} is of class {}; the model has classes 0 to {}", where, i, label(i),
                             source.classes - 1);
}

std::int64_t Dataset::label(std::int64_t index) const {
  const char* const record = records_.data() + static_cast<std::size_t>(index) * record_;
  const std::int64_t low = static_cast<std::uint8_t>(record[0]);
  return label_bytes_ == 1 ? low : low + 256 * static_cast<std::uint8_t>(record[1]);
}

std::span<const std::uint8_t> Dataset::sample(std::int64_t index) const {
  const auto* const records = reinterpret_cast<const std::uint8_t*>(records_.data());
  return {records + static_cast<std::size_t>(index) * record_ + label_bytes_, record_ - label_bytes_};
}

std::int64_t training_samples(const DataSource& source) {
  if (source.folder.empty()) return source.samples;
  std::int64_t samples = 0;
  for (const fs::path& file : files_of(source, Part::train)) samples += records_in(file, source);
  if (source.is_tested)
    for (const fs::path& file : files_of(source, Part::test)) records_in(file, source);
  if (source.samples > samples)
    throw sim::ConfigError("samples={} must be at most {}, which {} has", source.samples, samples, source.folder);
  return source.samples > 0 ? source.samples : samples;
}

Dataset load_dataset(const DataSource& source, Part part) {
  if (source.folder.empty()) return {make_records(source, part), source, "made samples"};
  std::string records;
  for (const fs::path& file : files_of(source, part)) {
    records_in(file, source);
    records += sim::read_text_file(file);
  }
  if (part == Part::train) records.resize(static_cast<std::size_t>(training_samples(source)) * record_bytes(source));
  return {std::move(records), source, source.folder};
}

std::string make_records(const DataSource& source, Part part) {
  constexpr double kMiddle = 127.5, kWave = 20, kNoise = 105;
  std::mt19937_64 random = generator(source.seed, 0);
  std::vector<std::vector<double>> waves;
  for (std::int64_t c = 0; c < source.classes; ++c) waves.push_back(wave(source, random));
  random = generator(source.seed, part == Part::train ? 1 : 2);
  const std::int64_t samples = part == Part::train ? source.samples : std::max(source.samples / 4, std::int64_t{1});
  std::string records;
  records.reserve(static_cast<std::size_t>(samples) * record_bytes(source));
  for (std::int64_t i = 0; i < samples; ++i) {
    const std::int64_t label = i % source.classes;
    records.push_back(static_cast<char>(label % 256));
    if (label_bytes(source) == 2) records.push_back(static_cast<char>(label / 256));
    for (const double value : waves[static_cast<std::size_t>(label)]) {
      const double noise = static_cast<double>(drawn(random, 2001)) / 1000 - 1;
      records.push_back(static_cast<char>(std::lround(kMiddle + kWave * value + kNoise * noise)));
    }
  }
  return records;
}

std::vector<std::uint32_t> order_of_epoch(std::int64_t samples, std::uint64_t seed, std::int64_t epoch) {
  std::vector<std::uint32_t> order(static_cast<std::size_t>(samples));
  std::iota(order.begin(), order.end(), 0U);
  std::mt19937_64 random = generator(seed, static_cast<std::uint64_t>(epoch) + 3);
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[drawn(random, i)]);
  return order;
}

}  // namespace backend
