#include "backend/rank/one_device.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "backend/op/op.hpp"
#include "backend/rank/initial.hpp"
#include "sim/model/op/rule.hpp"

namespace backend {

bool depends_on_cut(const std::vector<sim::OpInstance>& ops) {
  return std::ranges::any_of(
      ops, [](const sim::OpInstance& op) { return std::ranges::any_of(sim::rules_of(op), &sim::Rule::by_part); });
}

bool sees_all_pieces(const sim::Model& model) {
  return std::ranges::any_of(model.nodes, sim::is_synced, &sim::Node::attributes);
}

std::vector<at::Tensor> forward(const sim::Model& model, std::span<const sim::OpInstance> ops, const at::Tensor& input,
                                const at::Tensor& target, const std::vector<std::vector<at::Tensor>>& parameters,
                                const std::vector<std::vector<at::Tensor>>& buffers, bool is_training,
                                std::span<const at::Tensor> given) {
  std::vector<at::Tensor> values;
  for (std::size_t n = 0; n < ops.size(); ++n) {
    std::vector<at::Tensor> inputs;
    for (const int source : model.nodes[n].inputs)
      inputs.push_back(source == sim::kModelInput    ? input
                       : source == sim::kModelTarget ? target
                       : source < 0                  ? given[static_cast<std::size_t>(sim::kModelGiven - source)]
                                                     : values[static_cast<std::size_t>(source)]);
    values.push_back(
        op_kernels().at(ops[n].kind->name).reference(ops[n], {inputs, parameters[n], buffers[n], is_training}));
  }
  return values;
}

void copy(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to) {
  for (std::size_t i = 0; i < from.size(); ++i) to[i].copy_(from[i]);
}

namespace {

/// Which of the pieces' rows, one after the other, come where each microbatch of all of them lies together.
at::Tensor by_microbatch(const std::vector<sim::Range>& pieces, std::int64_t microbatches) {
  std::vector<at::Tensor> rows;
  for (std::int64_t mb = 0; mb < microbatches; ++mb)
    for (const auto& [first_row, size] : pieces)
      rows.push_back(at::arange(size / microbatches).add_(first_row + mb * (size / microbatches)));
  return at::cat(rows);
}

/// Each third element grows, each third shrinks by 2⁻⁵² of itself.
void nudge(at::Tensor& tensor) {
  const at::Tensor third = at::arange(tensor.numel(), at::kDouble).remainder(3).sub_(1).view_as(tensor);
  tensor.mul_(third.mul(std::numeric_limits<double>::epsilon()).add_(1));
}

}  // namespace

OneDevice::OneDevice(const sim::Model& model, const Partition& partition, std::vector<sim::Range> pieces)
    : model_(model),
      partition_(partition),
      whole_(model.instances(model.global_batch)),
      own_(std::move(pieces)),
      rows_(std::accumulate(own_.begin(), own_.end(), std::int64_t{0},
                            [](std::int64_t rows, const sim::Range& piece) { return rows + piece.size; })),
      pieces_(depends_on_cut(whole_) ? own_ : std::vector{sim::Range{own_.at(0).begin, rows_}}),
      parameters_(whole_.size()),
      buffers_(pieces_.size(), std::vector<std::vector<at::Tensor>>(whole_.size())) {
  using Kind = sim::Initial::Kind;
  const bool is_synced = sees_all_pieces(model);
  if (is_synced && pieces_.size() > 1)
    throw sim::ConfigError(
        "model '{}': batch norms with sync=1 see the samples of all ranks, others only their rank's: what one device "
        "makes of that isn't known",
        model.name);
  if (is_synced) order_ = by_microbatch(own_, partition.microbatches);
  std::map<std::string, at::Tensor> known;
  for (std::size_t n = 0; n < whole_.size(); ++n) {
    const sim::Signature signature = whole_[n].signature();
    for (std::size_t index = 0; index < signature.parameters.size(); ++index) {
      const sim::ParameterSpec p = model.parameter(n, index, signature.parameters[index]);
      at::Tensor& tensor = known[p.name];
      if (!tensor.defined()) {
        tensor = make(p.name, p.spec, {Kind::uniform, p.initial_center, p.initial_bound});
        if (partition.nudged) nudge(tensor);
        tensor.requires_grad_();
        leaves_.push_back(tensor);
      }
      parameters_[n].push_back(tensor);
    }
    for (auto& of_piece : buffers_)
      for (const sim::BufferSpec& b : signature.buffers)
        of_piece[n].push_back(make(name(n, b.name), b.spec, {Kind::constant, b.initial_value}));
  }
  const std::int64_t batch = model.global_batch;
  input_ = make("input", model.input_spec(batch), model.source_initial(sim::kModelInput));
  target_ = make("target", model.target_spec(batch), {.kind = Kind::model_target, .classes = model.classes});
  for (int source = sim::kModelGiven; given_.size() < model.given.size(); --source)
    given_.push_back(make(model.given_of(source).name, model.source_spec(source, batch), model.source_initial(source)));
  step_parameters_ = op_kernels().at(model_.optimizer.kind->name).reference_step(model_.optimizer, leaves_);
}

double OneDevice::backward() {
  std::vector<at::Tensor> sums(leaves_.size());
  double loss = 0;
  for (std::size_t piece = 0; piece < pieces_.size(); ++piece) {
    for (const at::Tensor& leaf : leaves_) leaf.mutable_grad().reset();
    const double weight = weight_of(pieces_[piece].size, rows_);
    loss += execute_piece(piece) * weight;
    for (std::size_t p = 0; p < leaves_.size(); ++p) {
      const at::Tensor part = leaves_[p].grad().mul_(weight);
      sums[p] = piece == 0 ? part : sums[p].add_(part);
    }
  }
  for (std::size_t p = 0; p < leaves_.size(); ++p) leaves_[p].mutable_grad() = sums[p];
  if (model_.max_grad_norm > 0) clip(sums);
  return loss;
}

/// torch.nn.utils.clip_grad_norm_.
void OneDevice::clip(const std::vector<at::Tensor>& gradients) const {
  double squares = 0;
  for (const at::Tensor& gradient : gradients) squares += gradient.square().sum().item<double>();
  const double factor = model_.max_grad_norm / (std::sqrt(squares) + 1e-6);
  for (const at::Tensor& gradient : gradients) gradient.mul_(std::min(1.0, factor));
}

void OneDevice::make_data(std::int64_t step) {
  for (std::size_t piece = 0; piece < own_.size(); ++piece) {
    const std::uint64_t seed = data_seed(partition_.seed, step, static_cast<std::uint32_t>(piece));
    const auto [first_row, rows] = own_[piece];
    make_input(input_.narrow(0, first_row, rows), seed);
    make_target(target_.narrow(0, first_row, rows), model_.classes, seed);
  }
}

void OneDevice::broadcast_buffers() {
  for (std::size_t piece = 1; piece < buffers_.size(); ++piece) copy(buffers(0), buffers(piece));
}

std::vector<at::Tensor> OneDevice::buffers(std::size_t piece) const {
  std::vector<at::Tensor> all;
  for (const auto& of_node : buffers_of(piece)) all.insert(all.end(), of_node.begin(), of_node.end());
  return all;
}

OneDevice::Tensors OneDevice::named(const std::string& what,
                                    const std::function<at::Tensor(const at::Tensor&)>& of) const {
  Tensors tensors;
  for (std::size_t n = 0; n < whole_.size(); ++n) {
    const sim::Signature signature = whole_[n].signature();
    for (std::size_t p = 0; p < parameters_[n].size(); ++p)
      tensors[what + " " + model_.parameter(n, p, signature.parameters[p]).name] = of(parameters_[n][p]);
  }
  return tensors;
}

OneDevice::Tensors OneDevice::named_parameters() const {
  return named("parameter", [](const at::Tensor& parameter) { return parameter.detach(); });
}

OneDevice::Tensors OneDevice::named_gradients() const {
  return named("gradient", [](const at::Tensor& parameter) { return parameter.grad().clone(); });
}

OneDevice::Tensors OneDevice::named_buffers(std::size_t piece) const {
  Tensors tensors;
  for (std::size_t n = 0; n < whole_.size(); ++n) {
    const sim::Signature signature = whole_[n].signature();
    for (std::size_t b = 0; b < signature.buffers.size(); ++b)
      tensors["buffer " + name(n, signature.buffers[b].name)] = buffers_of(piece)[n][b];
  }
  return tensors;
}

std::string OneDevice::name(std::size_t node, const std::string& tensor) const {
  return model_.nodes[node].name + "." + tensor;
}

at::Tensor OneDevice::make(const std::string& name, const sim::TensorSpec& spec, const sim::Initial& initial) const {
  at::Tensor tensor = at::empty(spec.shape, sim::is_float(spec.dtype) ? at::kDouble : scalar_type(spec.dtype));
  set_initial(tensor, {name, spec, 0, 0, initial}, {}, partition_.seed);
  return tensor;
}

/// The weight of a part's loss in the loss of the whole.
double OneDevice::weight_of(std::int64_t part, std::int64_t whole) const {
  return model_.nodes.back().kind->is_sum ? 1 : static_cast<double>(part) / static_cast<double>(whole);
}

/// Forward and backward of the piece's microbatches; its loss.
double OneDevice::execute_piece(std::size_t piece) {
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

/// Of those that it plays, one after the other.
at::Tensor OneDevice::samples(const at::Tensor& all, std::int64_t first_row, std::int64_t rows) const {
  if (!order_.defined()) return all.narrow(0, first_row, rows);
  return all.index_select(0, order_.narrow(0, first_row - pieces_[0].begin, rows));
}

at::Tensor OneDevice::loss_of(const at::Tensor& prediction, std::int64_t first_row, std::int64_t rows) {
  const std::vector<at::Tensor> inputs{prediction, samples(target_, first_row, rows)};
  return op_kernels().at(whole_.back().kind->name).reference(whole_.back(), {inputs});
}

/// What the loss reads.
at::Tensor OneDevice::output(std::size_t piece, std::int64_t first_row, std::int64_t rows) {
  std::vector<sim::OpInstance> ops = model_.instances(rows);
  ops.pop_back();  // the loss
  std::vector<at::Tensor> given = given_;
  for (std::size_t g = 0; g < given.size(); ++g)
    if (model_.given[g].per_sample) given[g] = samples(given[g], first_row, rows);
  const std::vector<at::Tensor> values = forward(model_, ops, samples(input_, first_row, rows), /*target=*/{},
                                                 parameters_, buffers_[piece], /*is_training=*/true, given);
  return values[static_cast<std::size_t>(model_.nodes.back().inputs[0])];
}

}  // namespace backend
