#include "backend/rank/message.hpp"

#include <cstring>
#include <type_traits>
#include <utility>

#include "sim/error.hpp"

namespace backend {
namespace {

/// Numbers and texts as bytes.
class Writer {
 public:
  template <class T>
  requires std::is_trivially_copyable_v<T>
  void add(const T& value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  void add(std::string_view text) {
    add(text.size());
    bytes_ += text;
  }
  void add(const std::string& text) { add(std::string_view(text)); }
  template <class Number>
  void add(const std::vector<Number>& numbers) {
    add(std::string_view(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)));
  }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  template <class T>
  requires std::is_trivially_copyable_v<T> T value() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string_view text() { return take(value<std::size_t>()); }
  template <class Number>
  std::vector<Number> numbers() {
    const std::string_view bytes = text();
    std::vector<Number> numbers(bytes.size() / sizeof(Number));
    if (!numbers.empty()) std::memcpy(numbers.data(), bytes.data(), bytes.size());  // data() of none may be null
    return numbers;
  }

 private:
  std::string_view take(std::size_t count) {
    sim::check_internal(count <= bytes_.size(), "a message of another rank ends early");
    const std::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }
  std::string_view bytes_;
};

}  // namespace

std::string to_bytes(const RunRequest& request) {
  Writer writer;
  writer.add(sim::to_text(request.program));
  writer.add(request.warmup_steps);
  writer.add(request.steps);
  writer.add(request.seed);
  writer.add(request.copies);
  writer.add(request.verify);
  return writer.bytes();
}

RunRequest request_from(std::string_view bytes) {
  Reader reader(bytes);
  RunRequest request;
  request.program = sim::program_from_text(reader.text());
  request.warmup_steps = reader.value<std::uint32_t>();
  request.steps = reader.value<std::uint32_t>();
  request.seed = reader.value<std::uint64_t>();
  request.copies = reader.value<std::uint32_t>();
  request.verify = reader.value<bool>();
  return request;
}

std::string to_bytes(const RankReport& report) {
  Writer writer;
  writer.add(report.steps.size());
  for (const sim::RankTimeline& step : report.steps) {
    for (const auto* times : {&step.posted_s, &step.start_s, &step.end_s}) writer.add(*times);
    writer.add(step.end_of_step_s);
  }
  writer.add(report.losses);
  writer.add(report.memory);
  writer.add(report.workspace_bytes);
  writer.add(report.compared.size());
  for (const VerifiedTensor& row : report.compared) {
    writer.add(row.name);
    writer.add(row.relative_error);
  }
  return writer.bytes();
}

RankReport report_from(std::string_view bytes) {
  Reader reader(bytes);
  RankReport report;
  report.steps.resize(reader.value<std::size_t>());
  for (sim::RankTimeline& step : report.steps) {
    for (auto* times : {&step.posted_s, &step.start_s, &step.end_s}) *times = reader.numbers<double>();
    step.end_of_step_s = reader.value<double>();
  }
  report.losses = reader.numbers<double>();
  report.memory = reader.value<RankMemory>();
  report.workspace_bytes = reader.numbers<std::int64_t>();
  for (auto left = reader.value<std::size_t>(); left > 0; --left) {
    std::string name(reader.text());
    report.compared.push_back({std::move(name), reader.value<double>()});
  }
  return report;
}

}  // namespace backend
