// What an op `aten` computes: calls of ATen's ops by their names, forward and backward, as the importer has written them
// down (bench/import). So every op of PyTorch can be played without a row of its own in op_table; what it costs and how
// it is cut along the batch stands here, too.
//
//   const std::string text = "gelu|f32[B,64]||f32[B,64]||o=gelu(i0)|gi0=gelu_backward(g,i0)|0+64B,0+64B|0+8B,0+9B|1,1|rows";
//   const Body& gelu = body_from(text);
//   gelu.output.at({.batch = 16});   // f32[16,64]
//   gelu.forward[0].op;              // "gelu"
//
// The text has eleven fields: name; inputs; parameters; output; what the forward saves; the forward's calls; the
// backward's; FLOPs, bytes and kernels of forward and backward; "rows" where a part of the batch gives that part of the
// output, else "whole". B is the batch: sizes are numbers or multiples of it. Inside, where samples are compared with each
// other, also of its square (BB), numbers less one (4B-1: an unbiased variance), and amounts are 1+2B+3BB.
//
// Two more where it can be cut for tensor parallelism: "units=12", and "sums=o", what is a summand in each part: the
// output, or gradients of what all parts read whole. T is a part's units (attention heads; of a linear layer features):
// sizes may be multiples of it, of B and T, and in a tensor's type 3x64T is three blocks of 64T, two dimensions, which
// are one in the module: a part has its units of each. Amounts are 1+2B+3T+4BT. L is 1 in the last part and in the whole,
// else 0: what is to be added to a sum once. F is a value, i64[1]: how many units lie before the part (where a
// vocabulary's rows begin).
//
// Or "positions=64" in the place of units, of what treats each position alike and lies between such layers: T is how many
// of them a part has (sequence parallelism).
//
// Then may follow which of the FLOPs are products, in which dtype, forward and backward:
// "products=matmul:bf16:0+64B:0+128B,attention:f32:0+8B:0+20B". And "own", where the backward isn't the forward's derivative:
// a torch.autograd.Function has one of its own.
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
#include "sim/table.hpp"

namespace sim {

/// How much of an op is played: B, T and L.
struct Extent {
  std::int64_t batch = 1, units = 1;
  bool is_last = true;
};

/// A size, or a multiple of the batch, of its square, of the units, or of batch and units; or (L) 1 in the last part, else 0.
struct PartSize {
  std::int64_t count = 0;
  bool of_batch = false, of_pairs = false, of_units = false, if_last = false;
  std::int64_t less = 0;                                      // 4B-1
  [[nodiscard]] std::int64_t at(const Extent& extent) const;  // at most what fits
};

/// A tensor whose sizes may be multiples of the batch and of the units; of what enters and leaves a body each one of them at
/// most.
struct PartSpec {
  Dtype dtype = Dtype::f32;
  std::vector<PartSize> sizes;
  int blocks_dim = -1;  // this dimension and the next are one in the module; −1: none
  [[nodiscard]] TensorSpec at(const Extent& extent) const;
  [[nodiscard]] TensorSpec in_module(const Extent& extent) const;
  /// The dimension that holds the batch, or the units; −1: none.
  [[nodiscard]] int batch_dim() const;
  [[nodiscard]] int units_dim() const;
};
/// "f32[B,64]". ConfigError for any other text, and where two sizes are multiples of the units.
PartSpec part_spec_from(std::string_view text);

/// An argument of a call.
struct Argument {
  enum class Kind : std::uint8_t { word, number, size, list } kind = Kind::word;
  std::string key = {};   // empty: by its position
  std::string word = {};  // a value's name, true, false, none, or a word
  double number = 0;
  bool is_integral = false;
  PartSize size = {};
  std::vector<Argument> items = {};
};

struct Call {
  std::vector<std::string> results;
  std::string op, overload;  // "add", "Tensor"
  std::vector<Argument> arguments;
};

/// What multiplies in a body: TF32 is for matrix products where it is asked for, for convolutions where it isn't
/// forbidden, and of attentions nothing is known of it.
enum class ProductKind : std::uint8_t { matmul, convolution, attention };
inline constexpr EnumNames<ProductKind, 3> kProductKinds{"product", {"matmul", "convolution", "attention"}};

/// What a body's calls make of four dimensions whose channels lie last (TensorSpec::channels_last).
enum class DimensionOrder : std::uint8_t {
  kept,     // results lie as the operands
  changed,  // a dimension moves: what comes out may lie in any order, and is put back
  needed,   // a view that counts on it: the operands are put back first
};

struct Body {
  std::string text, name;
  std::vector<PartSpec> inputs, parameters, saved;
  PartSpec output;
  std::vector<Call> forward, backward;
  /// A number that grows with the batch and the units.
  struct Amount {
    double fixed = 0, per_sample = 0, per_pair = 0, per_unit = 0, per_sample_and_unit = 0;
    [[nodiscard]] double at(const Extent& extent) const {
      const auto batch = static_cast<double>(extent.batch), units = static_cast<double>(extent.units);
      return fixed + per_sample * batch + per_pair * batch * batch + per_unit * units +
             per_sample_and_unit * batch * units;
    }
  };
  std::array<Amount, 2> flops, bytes;  // forward, backward
  /// Those of the FLOPs that are products.
  struct Multiplied {
    ProductKind kind = ProductKind::matmul;
    Dtype dtype = Dtype::f32;
    std::array<Amount, 2> flops;  // forward, backward
  };
  std::vector<Multiplied> products;
  std::array<double, 2> kernels{};
  bool by_rows = false;        // a part of the batch gives that part of the output; else samples are seen together
  std::int64_t units = 1;      // of the whole; 1: it can't be cut by units
  bool has_positions = false;  // these are its units
  bool reads_last = false, reads_first = false;  // L, F
  bool draws = false;                            // its forward has an op of random numbers (RANDOM in bench/import)
  bool own_backward = false;                     // not the derivative of its forward
  DimensionOrder order = DimensionOrder::kept;
  // What is a summand in each part: the output, gradients of inputs and of parameters (bit i: of the i-th).
  bool sums_output = false;
  std::uint32_t sums_inputs = 0, sums_parameters = 0;
  std::vector<bool> copies;  // which of the saved are parameters in another dtype
  // What the backward reads, ascending, and whether it reads the output.
  std::vector<int> reads_inputs, reads_parameters, reads_saved;
  bool reads_output = false;
  std::uint32_t input_grads = 0;  // bit i: it gives the gradient of input i
};

/// The body of this text, which lives as long as the program: equal texts give the same one. ConfigError that says which
/// part can't be read.
const Body& body_from(std::string_view text);
/// The same with one dtype in another's place, and bf16's largest number as f16's.
const Body& body_in(const Body& body, Dtype from, Dtype to);

}  // namespace sim
