// Op kinds: what an op computes, what it costs, and which tensors its forward and backward read and write.
//
//   OpInstance conv{&op_table().at("conv2d"), {{"out_channels", 64}, {"kernel_size", 3}}, {x}};
//   Signature s = conv.signature();                 // output, parameters, saved tensors
//   Demand d = conv.demand(Pass::forward);          // FLOPs and bytes moved
//
// Conventions. A multiply-add is 2 FLOP. Shapes are [batch, channels, height, width] or [batch, features]. `bytes` is
// the compulsory traffic: every operand read once, every result written once.
//
// The operands of an instruction, in this order (backend/op relies on it). What changes in place is read and written:
//
//                              reads                                          writes
//   forward                    inputs…, parameters…, buffers…                 output, saved…, buffers…
//   backward                   grad_output (not for a loss), those of         gradient of each input that needs one,
//                              backward_reads that these gradients need,      gradient of each parameter
//                              (of a loss) the loss scale, or none
//   update                     parameters…, gradients…, states…,              parameters…, states…
//                              found, or none
//   accumulate                 a, b                                           a
//   scaled_copy                x                                              y, which may exist
//   cast                       x                                              y, which exists
//   blend                      parameters…, x of each                         parameters…
//   fill                                                                      x, which exists
//   slice                      x                                              y, which exists
//   pack                       x                                              its blocks, which exist
//   unpack                     the blocks                                     x, which exists
//   cat                        tensors                                        x, which exists
//   split_out                  x                                              parameters, which exist
//   chunk_in                   gradients                                      x, which exists
//   make_input, make_target                                                   x, which exists
//   count_nans                 x
//   unscale                    gradients…, loss scale                         gradients…, found
//   square_norm                gradients…                                     number
//   clip                       gradients…, number                             gradients…
//   update_scale               loss scale, growth, found                      loss scale, growth
//   read_result                loss, prediction, target
//   class_max                  logits                                         their maximum
//   class_sums                 logits, maximum, target, first                 exponentials, sums
//   class_loss                 sums                                           loss
//   class_grad                 exponentials, sums, target, first,             gradient of the logits
//                              the loss scale, or none
//   norm_stats                 x                                              statistics
//   norm_apply                 x, all ranks' statistics, weight, bias,        y, save_mean, save_invstd, save_count,
//                              buffers…                                       buffers…
//   norm_sums                  grad_y, x, save_mean, save_invstd              sums, gradients of weight and bias, or none
//   norm_grad                  grad_y, x, weight, save_mean, save_invstd,     gradient of x
//                              save_count, sums
//
// pack and unpack have one input, x: the blocks are as its attributes say; cast has two, x and y; blend and what treats
// gradients all of them, flat; those of class_sums and class_grad are logits and target; first, i64[1], is that of the
// rank's classes. What a body calls F (body.hpp) comes last. An optimizer has any number of inputs, the parameters that
// it updates together; `saved` of its signature are their states, all of one kind before the next, zero at first; they
// live as long as the parameters.
//
// torch.amp.GradScaler: the loss scale multiplies the loss' gradient, so that none is too small for half precision;
// `growth` counts steps, i32; `found` is 1 where a gradient wasn't finite: then nothing is updated.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "sim/dtype.hpp"
#include "sim/model/op/body.hpp"
#include "sim/table.hpp"

namespace sim {

enum class Pass : std::uint8_t { forward, backward, update };
inline constexpr EnumNames<Pass, 3> kPasses{"pass", {"forward", "backward", "update"}};
inline std::string_view to_string(Pass pass) { return kPasses.of(pass); }

/// Attribute values by name; booleans are 0 or 1. Defaults are filled in, so two equal ops compare equal.
using Attributes = std::map<std::string, double, std::less<>>;
/// Of an op that sees the samples of all ranks together: a batch_norm with sync=1.
bool is_synced(const Attributes& attributes);

struct AttributeSpec {
  std::string_view name;
  bool required = false;
  double otherwise = 0;  // the default where not required
  double minimum = 0, maximum = 1e9;
  bool integral = true;
};

/// How a forward output relates to the first input's storage.
enum class OutputStorage : std::uint8_t { fresh, view, in_place };

/// Of gradients that are wanted: bit i that of input i, and this one those of the parameters.
constexpr std::uint32_t kParameterGrads = 1U << 31;

/// A tensor that the backward pass reads.
struct Operand {
  enum class From : std::uint8_t { input, output, parameter, saved } from;
  int index = 0;
  std::uint32_t grads = 0xffffffffU;  // only where one of these is wanted
};

struct ParameterSpec {
  std::string name;  // "weight", "bias"
  TensorSpec spec;
  double initial_bound = 0;  // uniform in ±initial_bound around initial_center
  double initial_center = 0;
  // Its first two dimensions are the module's first: [3,64,64] of [192,64] (PartSpec::blocks_dim).
  bool is_packed = false;
};

struct BufferSpec {
  std::string name;  // "running_mean"
  TensorSpec spec;
  double initial_value = 0;
};

struct SavedSpec {
  std::string name;  // "save_mean", "indices"
  TensorSpec spec;
  bool is_copy = false;  // of a parameter, in another dtype
};

/// Everything the lowering needs to know about one op at given input shapes.
struct Signature {
  TensorSpec output;
  OutputStorage storage = OutputStorage::fresh;
  std::vector<ParameterSpec> parameters;
  std::vector<BufferSpec> buffers;
  std::vector<SavedSpec> saved;
  std::vector<Operand> backward_reads;
  /// The gradient of every input is grad_output's storage (view or add): backward is no instruction.
  bool backward_is_alias = false;
};

/// What an instruction asks of a device (not how long it takes).
struct Demand {
  double flops = 0;    // arithmetic; for conv2d and linear exactly torch.utils.flop_counter's count
  double bytes = 0;    // compulsory memory traffic
  double kernels = 1;  // that begin one after the other
};

enum class OpRole : std::uint8_t {
  layer,      // a node of a model
  loss,       // the last node: inputs are prediction and target, the output is a scalar
  optimizer,  // a parameter update
  helper      // what lowering inserts: sums, copies, a loop's work on the host
};

struct OpInstance;
struct Rule;

/// Which of several kernels LibTorch runs on a CPU core: what one shape costs says nothing
/// of a shape that another kernel runs.
struct CpuKernel {
  std::string_view name;
  /// How many matrix-vector products a matrix product is, one after the other: each moves the bytes anew, and
  /// memory decides how long it takes, not arithmetic.
  double matrix_vector_products = 0;
};

/// One row of the op table. Functions get a filled-in instance (attributes complete, inputs checked for count).
struct OpKind {
  std::string_view name;
  std::string_view equation;  // one line
  OpRole role = OpRole::layer;
  int inputs = 1;                     // of an optimizer at least
  static constexpr int kAsBody = -1;  // as many as its body says, or none
  bool has_parameters = false;        // kAsBody: as its body says
  bool matrix = false;                // its FLOPs are what torch.utils.flop_counter counts
  /// A loss whose target is i64[rows], the index of each sample's class; else it is one-hot: [rows, classes].
  bool takes_class_indices = false;
  /// A helper whose output is the loss, of what ranks have found out together.
  bool gives_loss = false;
  /// A loss that is a sum over the samples; else it is their mean.
  bool is_sum = false;
  /// The host does it, also where tensors are an accelerator's: it waits for what it reads, and for what it has made to
  /// be there.
  bool on_host = false;
  /// A helper that is a part of a layer's backward, though it is played forward itself.
  bool of_backward = false;
  /// Autograd hands the parameters' gradients over in declaration order, or from the last to the first.
  bool last_gradient_first = false;
  std::vector<AttributeSpec> attributes = {};
  /// Shapes that don't fit: ConfigError (the caller adds the node's name).
  Signature (*signature)(const OpInstance&) = nullptr;
  /// `grads`: which gradients are wanted (backward only).
  Demand (*demand)(const OpInstance&, Pass, std::uint32_t grads) = nullptr;
  /// None: the same for all shapes.
  CpuKernel (*cpu_kernel)(const OpInstance&, Pass) = nullptr;
  /// Optimizers: how many copies of the parameters torch.optim holds at a time beside the states while it updates them
  /// all together (foreach=True, PyTorch's default on GPUs). With fused=True, as backend/op does it, none.
  double (*foreach_copies)(const OpInstance&) = nullptr;
  /// Optimizers: how many ops torch.optim launches for each parameter where it goes from one to the next
  /// (foreach=False), with zero_grad's.
  double (*launches_each)(const OpInstance&) = nullptr;
  /// Layers and losses: how it can be played in parts (rule.hpp).
  std::vector<Rule> (*rules)(const OpInstance&) = nullptr;
};

/// The most threads of a rank that plays an op.
constexpr std::uint32_t kMostThreads = 1024;

/// An op kind with its attributes and the shapes of its inputs.
struct OpInstance {
  const OpKind* kind = nullptr;
  Attributes attributes;
  std::vector<TensorSpec> inputs;
  Precision precision = Precision::f32;  // of matrix ops; of others always f32
  const Body* body = nullptr;            // of an op `aten`; of others none
  const Body* in_parts = nullptr;        // what takes the body's place in each part of its units, where that is another
  /// Its parameters are in the dtype that it multiplies, not copied into it (FSDP2's MixedPrecisionPolicy.param_dtype).
  bool half_parameters = false;

  /// What people call it: the kind's name, or the body's.
  [[nodiscard]] std::string_view name() const { return body != nullptr ? std::string_view(body->name) : kind->name; }
  [[nodiscard]] bool has_parameters() const {
    return body != nullptr ? !body->parameters.empty() : kind->has_parameters;
  }
  /// What its size is told by: its first input, or, without inputs, its output.
  [[nodiscard]] TensorSpec leading() const { return inputs.empty() ? signature().output : inputs[0]; }
  [[nodiscard]] std::int64_t integer(std::string_view attribute) const;
  [[nodiscard]] double number(std::string_view attribute) const;
  /// How much of an op `aten` it is.
  [[nodiscard]] Extent extent() const;
  /// Whether an op `aten` gives four dimensions as an input has them, whose channels lie last.
  [[nodiscard]] bool keeps_channels_last() const;
  /// ConfigError when the inputs don't fit the op, or a tensor is too large (sim::fits).
  [[nodiscard]] Signature signature() const;
  [[nodiscard]] Demand demand(Pass pass, std::uint32_t grads = kParameterGrads | 1) const {
    return kind->demand(*this, pass, grads);
  }
  /// Which of the pass's reads change in place, counted from 0: each must be among the instruction's writes, too.
  [[nodiscard]] std::vector<std::uint32_t> changed_reads(Pass pass) const;
  /// The dtype in which a matrix op multiplies its first input: its own, or autocast's.
  [[nodiscard]] Dtype multiplied() const;
  /// That of its parameters: f32 where it computes in half precision, unless these are, too.
  [[nodiscard]] Dtype parameter_dtype() const;
  friend bool operator==(const OpInstance&, const OpInstance&) = default;
};

const Table<OpKind>& op_table();

/// Checks names and ranges and fills in defaults. `where` names the node in messages.
Attributes complete_attributes(const OpKind& kind, const Attributes& given, const std::string& where);

}  // namespace sim
