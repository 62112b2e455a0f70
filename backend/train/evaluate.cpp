#include "backend/train/evaluate.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/argmax.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "backend/op/op.hpp"
#include "backend/rank/one_device.hpp"
#include "backend/train/feed.hpp"
#include "backend/train/safetensors.hpp"
#include "sim/error.hpp"

namespace backend {
namespace {

std::vector<at::Tensor> of_node(const Safetensors& state, const std::string& node, const auto& specs) {
  std::vector<at::Tensor> tensors;
  for (const auto& spec : specs) {
    const auto found = state.tensors.find(fmt::format("{}.{}", node, spec.name));
    sim::check_internal(found != state.tensors.end(), "the state has no '{}.{}'", node, spec.name);
    tensors.push_back(found->second);
  }
  return tensors;
}

}  // namespace

Evaluation evaluate(const sim::Model& model, const std::string& state_bytes, const Dataset& dataset) {
  constexpr std::int64_t kTogether = 256;  // samples
  const at::NoGradGuard no_grad;
  const Safetensors state = safetensors_from(state_bytes, "state");
  const at::ScalarType type = scalar_type(model.dtype);
  std::vector<std::vector<at::Tensor>> parameters, buffers;  // by node
  const std::vector<sim::OpInstance> ops = model.instances(kTogether);
  for (std::size_t n = 0; n < ops.size(); ++n) {
    const sim::Signature signature = ops[n].signature();
    parameters.push_back(of_node(state, model.nodes[n].name, signature.parameters));
    buffers.push_back(of_node(state, model.nodes[n].name, signature.buffers));
  }
  Evaluation sum;
  for (std::int64_t first = 0; first < dataset.size(); first += kTogether) {
    const std::int64_t rows = std::min(kTogether, dataset.size() - first);
    std::vector<std::uint32_t> samples(static_cast<std::size_t>(rows));
    std::iota(samples.begin(), samples.end(), static_cast<std::uint32_t>(first));
    const at::Tensor input = inputs_of(dataset, samples, model.input_spec(rows).shape, type),
                     target = targets_of(dataset, samples, model.target_spec(rows).shape, type);
    const std::vector<at::Tensor> values =
        forward(model, model.instances(rows), input, target, parameters, buffers, /*is_training=*/false);
    const at::Tensor output = values[static_cast<std::size_t>(model.nodes.back().inputs[0])].reshape({rows, -1});
    const at::Tensor classes = target.dim() == 1 ? target : target.argmax(1);
    sum.accuracy += static_cast<double>(output.argmax(1).eq(classes).sum().item<std::int64_t>());
    sum.loss += values.back().item<double>() * (model.nodes.back().kind->is_sum ? 1 : static_cast<double>(rows));
  }
  const auto all = static_cast<double>(dataset.size());
  return {model.nodes.back().kind->is_sum ? sum.loss : sum.loss / all, sum.accuracy / all};
}

}  // namespace backend
