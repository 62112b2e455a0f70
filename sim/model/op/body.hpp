// What an op `aten` computes: calls of ATen's ops by their names, forward and backward, as the importer has written them
// down (bench/import). So every op of PyTorch can be played without a row of its own in op_table; what it costs and how
// it is cut along the batch stands here, too.
//
//   const std::string text = "gelu|f32[B,64]||f32[B,64]||o=gelu(i0)|gi0=gelu_backward(g,i0)|0+64B,0+64B|0+8B,0+9B|1,1|rows";
//   const Body& gelu = body_from(text);
//   gelu.output.at(16);          // f32[16,64]
//   gelu.forward[0].op;          // "gelu"
//
// The text has eleven fields: name; inputs; parameters; output; what the forward saves; the forward's calls; the
// backward's; FLOPs, bytes and kernels of forward and backward; "rows" where a part of the batch gives that part of the
// output, else "whole". B is the batch: sizes are numbers or multiples of it.
//
// A call: `results=op(arguments)`. Values are i0, i1, … (inputs), p0, … (parameters), o (the output), s0, … (saved), g
// (the output's gradient), gi0, gp0, … (gradients), all others are the pass's own; "_" is a result that nobody reads.
// Arguments are those of ATen's schema, by position and then key=value: values, numbers, sizes (4B), true, false, none,
// words, and lists of them in brackets.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/dtype.hpp"

namespace sim {

/// A size, or a multiple of the batch.
struct BatchedSize {
  std::int64_t count = 0;
  bool of_batch = false;
  [[nodiscard]] std::int64_t at(std::int64_t batch) const { return of_batch ? count * batch : count; }
};

/// A tensor whose sizes may be multiples of the batch.
struct BatchedSpec {
  Dtype dtype = Dtype::f32;
  std::vector<BatchedSize> sizes;
  [[nodiscard]] TensorSpec at(std::int64_t batch) const;
  /// The dimension that holds the batch; −1: none.
  [[nodiscard]] int batch_dim() const;
};
/// "f32[B,64]". ConfigError for any other text, and where two sizes are multiples of the batch.
BatchedSpec batched_spec_from(std::string_view text);

/// An argument of a call.
struct Argument {
  enum class Kind : std::uint8_t { word, number, size, list } kind = Kind::word;
  std::string key = {};   // empty: by its position
  std::string word = {};  // a value's name, true, false, none, or a word
  double number = 0;
  bool is_integral = false;
  BatchedSize size = {};
  std::vector<Argument> items = {};
};

struct Call {
  std::vector<std::string> results;
  std::string op, overload;  // "add", "Tensor"
  std::vector<Argument> arguments;
};

struct Body {
  std::string text, name;
  std::vector<BatchedSpec> inputs, parameters, saved;
  BatchedSpec output;
  std::vector<Call> forward, backward;
  /// A number that grows with the batch.
  struct Amount {
    double fixed = 0, per_sample = 0;
    [[nodiscard]] double at(std::int64_t batch) const { return fixed + per_sample * static_cast<double>(batch); }
  };
  std::array<Amount, 2> flops, bytes;  // forward, backward
  std::array<double, 2> kernels{};
  bool by_rows = false;  // a part of the batch gives that part of the output
  // What the backward reads, ascending, and whether it reads the output.
  std::vector<int> reads_inputs, reads_parameters, reads_saved;
  bool reads_output = false;
  std::uint32_t input_grads = 0;  // bit i: it gives the gradient of input i
};

/// The body of this text, which lives as long as the program: equal texts give the same one. ConfigError that says which
/// part can't be read.
const Body& body_from(std::string_view text);
/// The same in another dtype: what is f32 becomes `dtype`.
const Body& body_in(const Body& body, Dtype dtype);

}  // namespace sim
