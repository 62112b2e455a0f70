#include "backend/rank/verify.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "backend/op/op.hpp"
#include "backend/rank/initial.hpp"
#include "sim/error.hpp"

namespace backend {
namespace {

/// The model on one device, with the running statistics of every replica.
class OneDevice {
 public:
  OneDevice(const sim::Model& model, const Partition& partition)
      : model_(model),
        partition_(partition),
        replica_rows_(model.global_batch / partition.replicas),
        rows_(replica_rows_ / partition.microbatches),
        ops_(model.instances(rows_)),
        parameters_(ops_.size()),
        buffers_(static_cast<std::size_t>(partition.replicas), std::vector<std::vector<at::Tensor>>(ops_.size())) {
    using Kind = sim::Initial::Kind;
    for (std::size_t n = 0; n < ops_.size(); ++n) {
      const sim::Signature signature = ops_[n].signature();
      for (const sim::ParameterSpec& p : signature.parameters) {
        parameters_[n].push_back(
            make(name(n, p.name), p.spec, {Kind::uniform, p.initial_center, p.initial_bound}).requires_grad_());
        leaves_.push_back(parameters_[n].back());
      }
      for (auto& of_replica : buffers_)
        for (const sim::BufferSpec& b : signature.buffers)
          of_replica[n].push_back(make(name(n, b.name), b.spec, {Kind::constant, b.initial_value}));
    }
    const std::int64_t batch = model.global_batch;
    input_ = make("input", model.input_spec(batch), {Kind::model_input, 0, 0, batch});
    target_ = make("target", model.target_spec(batch), {Kind::model_target, 0, 0, batch});
  }

  Reference execute() {
    Reference reference;
    const std::unique_ptr<torch::optim::Optimizer> optimizer =
        op_kernels().at(model_.optimizer.kind->name).reference_optimizer(model_.optimizer, leaves_);
    for (std::int64_t step = 0; step < partition_.steps; ++step) {
      if (partition_.broadcast_buffers) broadcast_buffers();
      if (model_.timing == sim::Timing::tutorial) make_data(step);
      std::vector<at::Tensor> mean(leaves_.size());  // gradients: each replica's own sum first, as everywhere
      double sum = 0;
      for (std::int64_t replica = 0; replica < partition_.replicas; ++replica) {
        optimizer->zero_grad();
        sum += execute_replica(replica);
        for (std::size_t p = 0; p < leaves_.size(); ++p) {
          const at::Tensor part = leaves_[p].grad().div_(static_cast<double>(partition_.replicas));
          mean[p] = replica == 0 ? part : mean[p].add_(part);
        }
      }
      for (std::size_t p = 0; p < leaves_.size(); ++p) leaves_[p].mutable_grad() = mean[p];
      reference.losses.push_back(sum / static_cast<double>(partition_.replicas));
      if (step + 1 == partition_.steps)
        each_parameter([&](const std::string& name, const at::Tensor& p) {
          reference.tensors["gradient " + name] = p.grad().clone();
        });
      optimizer->step();
    }
    each_parameter(
        [&](const std::string& name, const at::Tensor& p) { reference.tensors["parameter " + name] = p.detach(); });
    for (const auto& of_replica : buffers_) {
      Reference::Tensors& named = reference.buffers.emplace_back();
      for (std::size_t n = 0; n < ops_.size(); ++n) {
        const sim::Signature signature = ops_[n].signature();
        for (std::size_t b = 0; b < signature.buffers.size(); ++b)
          named["buffer " + name(n, signature.buffers[b].name)] = of_replica[n][b];
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
    set_initial(tensor, {name, spec, 0, 0, initial}, model_.classes, 0, partition_.seed);
    return tensor;
  }

  /// Forward and backward of the replica's microbatches; its loss.
  double execute_replica(std::int64_t replica) {
    const std::int64_t first_row = replica * replica_rows_;
    if (partition_.one_loss) {
      // Autograd goes through the concatenation from its end: gradients are added from the last microbatch to the
      // first.
      std::vector<at::Tensor> outputs;
      for (std::int64_t mb = 0; mb < partition_.microbatches; ++mb)
        outputs.push_back(output(replica, first_row + mb * rows_));
      const at::Tensor loss = loss_of(at::cat(outputs), first_row, replica_rows_);
      loss.backward();
      return loss.item<double>();
    }
    double sum = 0;
    const auto parts = static_cast<double>(partition_.microbatches);
    for (std::int64_t mb = 0; mb < partition_.microbatches; ++mb) {
      const std::int64_t row = first_row + mb * rows_;
      const at::Tensor loss = loss_of(output(replica, row), row, rows_);
      (loss / parts).backward();
      sum += loss.item<double>();
    }
    return sum / parts;
  }

  at::Tensor loss_of(const at::Tensor& prediction, std::int64_t first_row, std::int64_t rows) {
    const std::vector<at::Tensor> inputs{prediction, target_.narrow(0, first_row, rows)};
    return op_kernels().at(ops_.back().kind->name).reference(ops_.back(), {inputs});
  }

  /// What the loss reads.
  at::Tensor output(std::int64_t replica, std::int64_t first_row) {
    std::vector<at::Tensor> values;
    for (std::size_t n = 0; n + 1 < ops_.size(); ++n) {
      std::vector<at::Tensor> inputs;
      for (const int source : model_.nodes[n].inputs)
        inputs.push_back(source == sim::kModelInput    ? input_.narrow(0, first_row, rows_)
                         : source == sim::kModelTarget ? target_.narrow(0, first_row, rows_)
                                                       : values[static_cast<std::size_t>(source)]);
      values.push_back(
          op_kernels()
              .at(ops_[n].kind->name)
              .reference(ops_[n], {inputs, parameters_[n], buffers_[static_cast<std::size_t>(replica)][n]}));
    }
    return values[static_cast<std::size_t>(model_.nodes.back().inputs[0])];
  }

  /// The batch that every replica makes for itself in this step.
  void make_data(std::int64_t step) {
    for (std::int64_t replica = 0; replica < partition_.replicas; ++replica) {
      const std::uint64_t seed = data_seed(partition_.seed, step, static_cast<std::uint32_t>(replica));
      make_input(input_.narrow(0, replica * replica_rows_, replica_rows_), seed);
      make_target(target_.narrow(0, replica * replica_rows_, replica_rows_), model_.classes, seed);
    }
  }

  void broadcast_buffers() {
    for (std::size_t replica = 1; replica < buffers_.size(); ++replica)
      for (std::size_t n = 0; n < ops_.size(); ++n)
        for (std::size_t b = 0; b < buffers_[0][n].size(); ++b) buffers_[replica][n][b].copy_(buffers_[0][n][b]);
  }

  template <class Visit>
  void each_parameter(Visit visit) const {
    for (std::size_t n = 0; n < ops_.size(); ++n) {
      const sim::Signature signature = ops_[n].signature();
      for (std::size_t p = 0; p < parameters_[n].size(); ++p)
        visit(name(n, signature.parameters[p].name), parameters_[n][p]);
    }
  }

  const sim::Model& model_;
  const Partition partition_;
  const std::int64_t replica_rows_, rows_;
  const std::vector<sim::OpInstance> ops_;
  std::vector<std::vector<at::Tensor>> parameters_;            // [node][parameter]
  std::vector<at::Tensor> leaves_;                             // the same, in one row
  std::vector<std::vector<std::vector<at::Tensor>>> buffers_;  // [replica][node][buffer]
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

std::vector<VerifiedTensor> compare(const Reference& reference, std::uint32_t replica,
                                    std::span<const std::pair<std::string, at::Tensor>> tensors) {
  Reference::Tensors expected = reference.tensors;
  expected.insert(reference.buffers.at(replica).begin(), reference.buffers.at(replica).end());
  const std::map<std::string_view, double> largest = largest_norms(expected);
  std::vector<VerifiedTensor> rows;
  for (const auto& [name, tensor] : tensors) {
    const auto found = expected.find(name);
    sim::check_internal(found != expected.end() && found->second.sizes() == tensor.sizes(),
                        "the reference has no '{}' of this shape", name);
    const at::Tensor want = found->second.to(at::kDouble);
    const double difference = (tensor.detach().to(at::kCPU, at::kDouble) - want).abs().max().item<double>();
    // All zeros, expected and found: no error.
    const double divisor = std::max(norm_of(want), 1e-3 * largest.at(kind_of(name)));
    rows.push_back({name, finite_or_infinite(difference == 0 ? 0 : difference / divisor)});
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
  for (const auto& rank : ranks)
    for (const VerifiedTensor& row : rank) worst[row.name] = std::max(worst[row.name], row.relative_error);
  Reference::Tensors all = reference.tensors;
  all.insert(reference.buffers[0].begin(), reference.buffers[0].end());
  for (const auto& [name, tensor] : all) {
    const auto found = worst.find(name);
    rows.push_back({name, found == worst.end() ? std::numeric_limits<double>::infinity() : found->second});
  }
  return rows;
}

}  // namespace backend
