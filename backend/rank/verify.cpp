#include "backend/rank/verify.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <set>

#include "backend/op/op.hpp"
#include "backend/rank/initial.hpp"
#include "sim/error.hpp"
#include "sim/model/op/rule.hpp"

namespace backend {
namespace {

/// Some op's result depends on which samples it sees together.
bool depends_on_cut(const std::vector<sim::OpInstance>& ops) {
  return std::ranges::any_of(
      ops, [](const sim::OpInstance& op) { return std::ranges::any_of(sim::rules_of(op), &sim::Rule::by_part); });
}

/// The model on one device, with the running statistics of every piece.
class OneDevice {
 public:
  OneDevice(const sim::Model& model, const Partition& partition)
      : model_(model),
        partition_(partition),
        whole_(model.instances(model.global_batch)),
        pieces_(depends_on_cut(whole_) ? partition.pieces : std::vector{sim::Range{0, model.global_batch}}),
        parameters_(whole_.size()),
        buffers_(partition.pieces.size(), std::vector<std::vector<at::Tensor>>(whole_.size())) {
    using Kind = sim::Initial::Kind;
    for (std::size_t n = 0; n < whole_.size(); ++n) {
      const sim::Signature signature = whole_[n].signature();
      for (const sim::ParameterSpec& p : signature.parameters) {
        parameters_[n].push_back(
            make(name(n, p.name), p.spec, {Kind::uniform, p.initial_center, p.initial_bound}).requires_grad_());
        leaves_.push_back(parameters_[n].back());
      }
      for (auto& of_piece : buffers_)
        for (const sim::BufferSpec& b : signature.buffers)
          of_piece[n].push_back(make(name(n, b.name), b.spec, {Kind::constant, b.initial_value}));
    }
    const std::int64_t batch = model.global_batch;
    input_ = make("input", model.input_spec(batch), {Kind::model_input});
    target_ = make("target", model.target_spec(batch), {.kind = Kind::model_target, .classes = model.classes});
  }

  Reference execute() {
    Reference reference;
    const std::function<void()> step_parameters =
        op_kernels().at(model_.optimizer.kind->name).reference_step(model_.optimizer, leaves_);
    for (std::int64_t step = 0; step < partition_.steps; ++step) {
      if (partition_.broadcast_buffers) broadcast_buffers();
      if (model_.timing == sim::Timing::tutorial) make_data(step);
      std::vector<at::Tensor> sums(leaves_.size());  // gradients: each piece's own sum first, as everywhere
      double loss = 0;
      for (std::size_t piece = 0; piece < pieces_.size(); ++piece) {
        for (const at::Tensor& leaf : leaves_) leaf.mutable_grad().reset();
        const double weight = weight_of(pieces_[piece].size, model_.global_batch);
        loss += execute_piece(piece) * weight;
        for (std::size_t p = 0; p < leaves_.size(); ++p) {
          const at::Tensor part = leaves_[p].grad().mul_(weight);
          sums[p] = piece == 0 ? part : sums[p].add_(part);
        }
      }
      for (std::size_t p = 0; p < leaves_.size(); ++p) leaves_[p].mutable_grad() = sums[p];
      reference.losses.push_back(loss);
      if (step + 1 == partition_.steps)
        each_parameter([&](const std::string& name, const at::Tensor& p) {
          reference.tensors["gradient " + name] = p.grad().clone();
        });
      step_parameters();
    }
    each_parameter(
        [&](const std::string& name, const at::Tensor& p) { reference.tensors["parameter " + name] = p.detach(); });
    for (const auto& of_piece : buffers_) {
      Reference::Tensors& named = reference.buffers.emplace_back();
      for (std::size_t n = 0; n < whole_.size(); ++n) {
        const sim::Signature signature = whole_[n].signature();
        for (std::size_t b = 0; b < signature.buffers.size(); ++b)
          named["buffer " + name(n, signature.buffers[b].name)] = of_piece[n][b];
      }
    }
    return reference;
  }

 private:
  [[nodiscard]] std::string name(std::size_t node, const std::string& tensor) const {
    return model_.nodes[node].name + "." + tensor;
  }

  [[nodiscard]] at::Tensor make(const std::string& name, const sim::TensorSpec& spec,
                                const sim::Initial& initial) const {
    at::Tensor tensor = at::empty(spec.shape, spec.dtype == sim::Dtype::i64 ? at::kLong : at::kDouble);
    set_initial(tensor, {name, spec, 0, 0, initial}, {}, partition_.seed);
    return tensor;
  }

  /// The weight of a part's loss in the loss of the whole.
  [[nodiscard]] double weight_of(std::int64_t part, std::int64_t whole) const {
    return model_.nodes.back().kind->is_sum ? 1 : static_cast<double>(part) / static_cast<double>(whole);
  }

  /// Forward and backward of the piece's microbatches; its loss.
  double execute_piece(std::size_t piece) {
    const auto [first_row, piece_rows] = pieces_[piece];
    const std::int64_t rows = piece_rows / partition_.microbatches;
    if (partition_.one_loss) {
      // Autograd goes through the concatenation from its end: gradients are added from the last microbatch to the
      // first.
      std::vector<at::Tensor> outputs;
      for (std::int64_t mb = 0; mb < partition_.microbatches; ++mb)
        outputs.push_back(output(piece, first_row + mb * rows, rows));
      const at::Tensor loss = loss_of(at::cat(outputs), first_row, piece_rows);
      loss.backward();
      return loss.item<double>();
    }
    double sum = 0;
    const double weight = weight_of(1, partition_.microbatches);
    for (std::int64_t mb = 0; mb < partition_.microbatches; ++mb) {
      const std::int64_t row = first_row + mb * rows;
      const at::Tensor loss = loss_of(output(piece, row, rows), row, rows);
      (loss * weight).backward();
      sum += loss.item<double>();
    }
    return sum * weight;
  }

  at::Tensor loss_of(const at::Tensor& prediction, std::int64_t first_row, std::int64_t rows) {
    const std::vector<at::Tensor> inputs{prediction, target_.narrow(0, first_row, rows)};
    return op_kernels().at(whole_.back().kind->name).reference(whole_.back(), {inputs});
  }

  /// What the loss reads.
  at::Tensor output(std::size_t piece, std::int64_t first_row, std::int64_t rows) {
    std::vector<at::Tensor> values;
    const std::vector<sim::OpInstance> ops = model_.instances(rows);
    for (std::size_t n = 0; n + 1 < ops.size(); ++n) {
      std::vector<at::Tensor> inputs;
      for (const int source : model_.nodes[n].inputs)
        inputs.push_back(source == sim::kModelInput    ? input_.narrow(0, first_row, rows)
                         : source == sim::kModelTarget ? target_.narrow(0, first_row, rows)
                                                       : values[static_cast<std::size_t>(source)]);
      values.push_back(
          op_kernels().at(ops[n].kind->name).reference(ops[n], {inputs, parameters_[n], buffers_[piece][n]}));
    }
    return values[static_cast<std::size_t>(model_.nodes.back().inputs[0])];
  }

  /// The batch whose every piece is made by itself in this step.
  void make_data(std::int64_t step) {
    for (std::size_t piece = 0; piece < partition_.pieces.size(); ++piece) {
      const std::uint64_t seed = data_seed(partition_.seed, step, static_cast<std::uint32_t>(piece));
      const auto [first_row, rows] = partition_.pieces[piece];
      make_input(input_.narrow(0, first_row, rows), seed);
      make_target(target_.narrow(0, first_row, rows), model_.classes, seed);
    }
  }

  void broadcast_buffers() {
    for (std::size_t piece = 1; piece < buffers_.size(); ++piece)
      for (std::size_t n = 0; n < whole_.size(); ++n)
        for (std::size_t b = 0; b < buffers_[0][n].size(); ++b) buffers_[piece][n][b].copy_(buffers_[0][n][b]);
  }

  template <class Visit>
  void each_parameter(Visit visit) const {
    for (std::size_t n = 0; n < whole_.size(); ++n) {
      const sim::Signature signature = whole_[n].signature();
      for (std::size_t p = 0; p < parameters_[n].size(); ++p)
        visit(name(n, signature.parameters[p].name), parameters_[n][p]);
    }
  }

  const sim::Model& model_;
  const Partition partition_;
  const std::vector<sim::OpInstance> whole_;
  const std::vector<sim::Range> pieces_;                       // that are played one after the other
  std::vector<std::vector<at::Tensor>> parameters_;            // [node][parameter]
  std::vector<at::Tensor> leaves_;                             // the same, in one row
  std::vector<std::vector<std::vector<at::Tensor>>> buffers_;  // [piece][node][buffer]
  at::Tensor input_, target_;
};

/// "gradient", "parameter" or "buffer".
std::string_view kind_of(std::string_view name) { return name.substr(0, name.find(' ')); }

double norm_of(const at::Tensor& tensor) { return tensor.to(at::kDouble).norm().item<double>(); }

/// The largest norm of each kind of tensor.
std::map<std::string_view, double> largest_norms(const Reference::Tensors& tensors) {
  std::map<std::string_view, double> norms;
  for (const auto& [name, tensor] : tensors) {
    double& norm = norms[kind_of(name)];
    norm = std::max(norm, norm_of(tensor));
  }
  return norms;
}

double finite_or_infinite(double error) {
  return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
}

}  // namespace

Reference execute_reference(const sim::Model& model, const Partition& partition) {
  const at::AutoGradMode grad_mode(true);
  return OneDevice(model, partition).execute();
}

std::optional<double> distance_from_whole_batch(const sim::Model& model, Partition partition) {
  if (!depends_on_cut(model.instances(model.global_batch))) return std::nullopt;
  partition.steps = 1;
  Partition whole = partition;
  whole.pieces = {{0, model.global_batch}};
  whole.microbatches = 1;
  const Reference of_parts = execute_reference(model, partition), of_whole = execute_reference(model, whole);
  double distance = 0, norm = 0;
  for (const auto& [name, tensor] : of_whole.tensors) {
    if (kind_of(name) != "gradient") continue;
    distance += std::pow(norm_of(of_parts.tensors.at(name) - tensor), 2);
    norm += std::pow(norm_of(tensor), 2);
  }
  return finite_or_infinite(std::sqrt(distance / norm));
}

std::vector<VerifiedTensor> compare(const Reference& reference, std::uint32_t batch_piece,
                                    std::span<const NamedPiece> tensors) {
  Reference::Tensors expected = reference.tensors;
  expected.insert(reference.buffers.at(batch_piece).begin(), reference.buffers.at(batch_piece).end());
  const std::map<std::string_view, double> largest = largest_norms(expected);
  std::vector<VerifiedTensor> rows;
  for (const auto& [name, piece, tensor, elements, channels_last] : tensors) {
    const auto found = expected.find(name);
    sim::check_internal(found != expected.end(), "the reference has no '{}'", name);
    const at::Tensor whole = found->second.to(at::kDouble);
    at::Tensor want = narrowed(whole, piece);
    if (elements.size > 0)
      want = in_memory_order(
                 want.contiguous(channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous))
                 .view(-1)
                 .narrow(0, elements.begin, elements.size);
    sim::check_internal(want.sizes() == tensor.sizes(), "'{}' has another shape than the reference's", name);
    const double difference = (tensor.detach().to(at::kCPU, at::kDouble) - want).abs().max().item<double>();
    // All zeros, expected and found: no error.
    const double divisor = std::max(norm_of(whole), 1e-3 * largest.at(kind_of(name)));
    VerifiedTensor row{name, finite_or_infinite(difference == 0 ? 0 : difference / divisor)};
    row.elements = tensor.numel();
    for (const sim::Range& range : piece) row.piece.insert(row.piece.end(), {range.begin, range.size});
    if (elements.size > 0) row.piece.insert(row.piece.end(), {elements.begin, elements.size});
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<VerifiedTensor> verdict(const Reference& reference, std::span<const double> losses,
                                    std::span<const std::vector<VerifiedTensor>> ranks) {
  sim::check_internal(losses.size() == reference.losses.size(), "{} losses, the reference has {}", losses.size(),
                      reference.losses.size());
  std::vector<VerifiedTensor> rows;
  for (std::size_t step = 0; step < losses.size(); ++step) {
    const double expected = reference.losses[step];
    rows.push_back({fmt::format("loss step {}", step),
                    finite_or_infinite(std::abs(losses[step] - expected) / std::abs(expected))});
  }
  std::map<std::string, double> worst;
  std::map<std::string, std::map<std::vector<std::int64_t>, std::int64_t>> pieces;  // equal or apart: they are of one
                                                                                    // mesh; elements of each
  for (const auto& rank : ranks)
    for (const VerifiedTensor& row : rank) {
      worst[row.name] = std::max(worst[row.name], row.relative_error);
      pieces[row.name].emplace(row.piece, row.elements);
    }
  const auto is_covered = [&](const std::string& name, const at::Tensor& tensor) {
    std::int64_t covered = 0;
    for (const auto& [piece, elements] : pieces[name]) covered += elements;
    return covered >= tensor.numel();
  };
  Reference::Tensors all = reference.tensors;
  all.insert(reference.buffers[0].begin(), reference.buffers[0].end());
  for (const auto& [name, tensor] : all) {
    rows.push_back({name, is_covered(name, tensor) ? worst[name] : std::numeric_limits<double>::infinity()});
  }
  return rows;
}

}  // namespace backend
