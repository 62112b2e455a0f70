// A model on one device, under autograd, in float64 on the CPU: what a reference plays with.
//
//   OneDevice device(model, {program.batch_pieces(), program.microbatches, steps, seed}, program.batch_pieces());
//   const double loss = device.backward();       // of the step's batch; leaves the gradients in the parameters
//   device.update();
//   device.named_parameters();                   // "parameter fc.weight", …
//
// It interprets the Model with the references of the op table's rows (torch's functions, autograd, torch::optim). It plays
// the whole batch, one microbatch after the other, or, where an op depends on the cut (batch norm), piece by piece.
// Batch-norm statistics are those of a piece's microbatch; each piece has running statistics of its own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sim/mesh/placement.hpp"
#include "sim/model/model.hpp"
#include "sim/program/program.hpp"

namespace backend {

/// How the global batch is cut up: pieces of its samples, these again in microbatches.
struct Partition {
  std::vector<sim::Range> pieces;
  std::int64_t microbatches = 1, steps = 1;
  std::uint64_t seed = 1;
  bool broadcast_buffers = true;  // before every step, all pieces take the first one's running statistics (DDP)
  bool one_loss = false;          // on the microbatches' outputs together (schedule forward_only)
  /// Each piece has parameters of its own, and an epoch so many steps.
  std::optional<sim::Daso> daso = {};
  std::int64_t epoch = 1;
  bool nudged = false;  // parameters begin a last bit beside their first values
};

/// Some op's result depends on which samples it sees together.
bool depends_on_cut(const std::vector<sim::OpInstance>& ops);
/// Some op sees the samples of all pieces together: a batch norm with sync=1.
bool sees_all_pieces(const sim::Model& model);

/// What the first ops.size() nodes give, as PyTorch's users write them. `parameters`, `buffers`: by node; `given`: as
/// Model::given.
std::vector<at::Tensor> forward(const sim::Model& model, std::span<const sim::OpInstance> ops, const at::Tensor& input,
                                const at::Tensor& target, const std::vector<std::vector<at::Tensor>>& parameters,
                                const std::vector<std::vector<at::Tensor>>& buffers, bool is_training,
                                std::span<const at::Tensor> given = {});

/// The values, one by one.
void copy(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to);

class OneDevice {
 public:
  using Tensors = std::map<std::string, at::Tensor>;

  /// `pieces`: of the partition's, those that it plays.
  OneDevice(const sim::Model& model, const Partition& partition, std::vector<sim::Range> pieces);

  /// Forward and backward of all pieces; the gradients are sums of each piece's own, as everywhere, and clipped where the
  /// model says so. The loss.
  double backward();
  void update() { step_parameters_(); }
  /// In this step new samples: those of each piece by itself.
  void make_data(std::int64_t step);
  /// All pieces get the first one's running statistics.
  void broadcast_buffers();

  [[nodiscard]] const std::vector<at::Tensor>& parameters() const { return leaves_; }
  /// All of a piece that it plays.
  [[nodiscard]] std::vector<at::Tensor> buffers(std::size_t piece) const;
  [[nodiscard]] Tensors named_parameters() const;  // "parameter fc.weight"
  [[nodiscard]] Tensors named_gradients() const;   // "gradient fc.weight", copies
  [[nodiscard]] Tensors named_buffers(std::size_t piece) const;

 private:
  [[nodiscard]] std::string name(std::size_t node, const std::string& tensor) const;
  [[nodiscard]] at::Tensor make(const std::string& name, const sim::TensorSpec& spec,
                                const sim::Initial& initial) const;
  [[nodiscard]] double weight_of(std::int64_t part, std::int64_t whole) const;
  void clip(const std::vector<at::Tensor>& gradients) const;
  double execute_piece(std::size_t piece);
  [[nodiscard]] at::Tensor samples(const at::Tensor& all, std::int64_t first_row, std::int64_t rows) const;
  /// Those of all pieces are one's where all samples are seen together.
  [[nodiscard]] const std::vector<std::vector<at::Tensor>>& buffers_of(std::size_t piece) const {
    return buffers_[buffers_.size() > 1 ? piece : 0];
  }
  at::Tensor loss_of(const at::Tensor& prediction, std::int64_t first_row, std::int64_t rows);
  at::Tensor output(std::size_t piece, std::int64_t first_row, std::int64_t rows);
  [[nodiscard]] Tensors named(const std::string& what, const std::function<at::Tensor(const at::Tensor&)>& of) const;

  const sim::Model& model_;
  const Partition partition_;
  const std::vector<sim::OpInstance> whole_;
  const std::vector<sim::Range> own_;                          // the partition's pieces that it plays
  const std::int64_t rows_;                                    // of all of them
  const std::vector<sim::Range> pieces_;                       // that are played one after the other
  std::vector<std::vector<at::Tensor>> parameters_;            // [node][parameter]
  std::vector<at::Tensor> leaves_;                             // each once
  std::vector<std::vector<std::vector<at::Tensor>>> buffers_;  // [piece as played][node][buffer]
  at::Tensor order_;  // of the samples, so that each microbatch of all pieces lies together; none: as they are
  at::Tensor input_, target_;
  std::vector<at::Tensor> given_;  // as Model::given
  std::function<void()> step_parameters_;
};

}  // namespace backend
