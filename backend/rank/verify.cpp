#include "backend/rank/verify.hpp"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "backend/op/op.hpp"
#include "backend/rank/initial.hpp"
#include "sim/error.hpp"

namespace backend {
namespace {

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

}  // namespace

std::vector<VerifiedTensor> compare(const Reference& reference, std::uint32_t batch_piece,
                                    std::span<const NamedPiece> tensors) {
  Reference::Tensors expected = reference.tensors;
  expected.insert(reference.of_piece.at(batch_piece).begin(), reference.of_piece.at(batch_piece).end());
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
    const double divisor = std::max(norm_of(whole), 1e-3 * largest.at(kind_of(name)));
    VerifiedTensor row{name, relative_error(difference, divisor)};
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
    rows.push_back(
        {fmt::format("loss step {}", step), relative_error(std::abs(losses[step] - expected), std::abs(expected))});
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
  all.insert(reference.of_piece[0].begin(), reference.of_piece[0].end());
  for (const auto& [name, tensor] : all) {
    rows.push_back({name, is_covered(name, tensor) ? worst[name] : std::numeric_limits<double>::infinity()});
  }
  return rows;
}

double moved_by_a_last_bit(const sim::Model& model, Partition partition) {
  const Reference reference = execute_reference(model, partition);
  partition.nudged = true;
  const Reference moved = execute_reference(model, partition);
  std::vector<std::vector<VerifiedTensor>> of_pieces;
  for (std::uint32_t piece = 0; piece < moved.of_piece.size(); ++piece) {
    NamedTensors state;
    for (const Reference::Tensors* tensors : {&moved.tensors, &moved.of_piece[piece]})
      for (const auto& [name, tensor] : *tensors) state.push_back({.name = name, .piece = {}, .tensor = tensor});
    of_pieces.push_back(compare(reference, piece, state));
  }
  return std::ranges::max(verdict(reference, moved.losses, of_pieces), {}, &VerifiedTensor::relative_error)
      .relative_error;
}

}  // namespace backend
