#include "backend/rank/initial.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>

#include "backend/op/op.hpp"
#include "sim/error.hpp"

namespace backend {
namespace {

/// splitmix64's finalizer: every bit of the input changes half of the output's bits (ATen's generator uses only the
/// lower 32).
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

std::uint64_t stream(std::uint64_t seed, std::string_view name, std::int64_t row = 0) {
  std::uint64_t hash = 0xcbf29ce484222325U;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return mix(hash ^ mix(seed ^ mix(static_cast<std::uint64_t>(row))));
}

/// Uniform in center ± bound, drawn in float64 and rounded. The values repeat after kPeriod: to draw the 133 million of
/// a VGG would take longer than its step. A prime, so that no two rows of a matrix begin at the same value.
void draw(const at::Tensor& tensor, double center, double bound, std::uint64_t seed) {
  constexpr std::int64_t kPeriod = 65521;
  if (!tensor.is_contiguous()) {  // the same values, wherever they lie
    const at::Tensor contiguous = at::empty(tensor.sizes(), tensor.options());
    draw(contiguous, center, bound, seed);
    tensor.copy_(contiguous);
    return;
  }
  const at::Tensor flat = tensor.view(-1);
  const std::int64_t all = flat.numel(), drawn = std::min(kPeriod, all);
  flat.narrow(0, 0, drawn)
      .copy_(
          at::empty(drawn, at::kDouble).uniform_(center - bound, center + bound, at::detail::createCPUGenerator(seed)));
  for (std::int64_t done = drawn, more = 0; done < all; done += more) {
    more = std::min(done, all - done);  // what is there so far, once more
    flat.narrow(0, done, more).copy_(flat.narrow(0, 0, more));
  }
}

/// Whole numbers from 0 to classes − 1.
void draw_classes(const at::Tensor& tensor, std::int64_t classes, std::uint64_t seed) {
  tensor.copy_(at::empty(tensor.sizes(), at::kDouble)
                   .uniform_(0, static_cast<double>(classes), at::detail::createCPUGenerator(seed))
                   .floor_());
}

/// What f32 holds and half precision doesn't is its largest number, as a mask's torch.finfo(dtype).min.
double in_range(double value, at::ScalarType of) {
  if ((of != at::kHalf && of != at::kBFloat16) || std::isinf(value)) return value;
  const double largest =
      of == at::kHalf ? double{std::numeric_limits<at::Half>::max()} : double{std::numeric_limits<at::BFloat16>::max()};
  return std::clamp(value, -largest, largest);
}

}  // namespace

std::uint64_t data_seed(std::uint64_t seed, std::int64_t step, std::uint32_t batch_piece) {
  return stream(stream(seed, "step", step), "replica", batch_piece);
}

void make_input(const at::Tensor& tensor, std::uint64_t data_seed) {
  tensor.normal_(0, 1, at::detail::createCPUGenerator(stream(data_seed, "input")));
}

void make_target(const at::Tensor& tensor, std::int64_t classes, std::uint64_t data_seed) {
  at::Generator generator = at::detail::createCPUGenerator(stream(data_seed, "target"));
  if (tensor.dim() == 1) {
    tensor.random_(0, classes, generator);
    return;
  }
  const at::Tensor indices = at::empty({tensor.size(0), 1}, at::kLong).random_(0, classes, generator);
  tensor.zero_().scatter_(1, indices, 1);
}

at::Tensor narrowed(at::Tensor tensor, const std::vector<sim::Range>& piece) {
  for (std::size_t dim = 0; dim < piece.size(); ++dim)
    tensor = tensor.narrow(static_cast<std::int64_t>(dim), piece[dim].begin, piece[dim].size);
  return tensor;
}

void set_initial(const at::Tensor& tensor, std::span<const sim::Program::Slice> slices, std::uint64_t seed) {
  tensor.zero_();
  for (const sim::Program::Slice& slice : slices) {
    const sim::TensorSpec& spec = slice.of->whole;
    const at::Tensor whole =
        at::empty(spec.shape, tensor.options().device(at::kCPU),
                  spec.channels_last ? at::MemoryFormat::ChannelsLast : at::MemoryFormat::Contiguous);
    set_initial(whole, {.name = slice.of->name, .spec = spec, .initial = slice.of->initial}, {}, seed);
    const at::Tensor piece = in_memory_order(narrowed(whole, slice.piece).contiguous(whole.suggest_memory_format()));
    tensor.narrow(0, slice.begin, slice.elements.size)
        .copy_(piece.view(-1).narrow(0, slice.elements.begin, slice.elements.size));
  }
}

void set_initial(const at::Tensor& tensor, const sim::Tensor& description, const std::vector<sim::Range>& piece,
                 std::uint64_t seed) {
  const sim::Initial& initial = description.initial;
  const bool is_batch =
      initial.kind == sim::Initial::Kind::model_input || initial.kind == sim::Initial::Kind::model_target;
  const std::int64_t rows = is_batch ? tensor.size(0) : 0, first_row = piece.empty() ? 0 : piece[0].begin;
  const std::vector<sim::Range> of_row(piece.empty() ? piece.end() : piece.begin() + 1, piece.end());
  switch (initial.kind) {
    case sim::Initial::Kind::none:
      return;
    case sim::Initial::Kind::uniform: {
      const std::uint64_t own = stream(seed, description.name);
      if (piece.empty()) return draw(tensor, initial.center, initial.bound, own);
      const at::Tensor whole = at::empty(description.whole, tensor.options().device(at::kCPU));
      draw(whole, initial.center, initial.bound, own);
      tensor.copy_(narrowed(whole, piece));
      return;
    }
    case sim::Initial::Kind::constant:
      tensor.fill_(in_range(initial.center, tensor.scalar_type()));
      return;
    case sim::Initial::Kind::runs: {
      const at::Tensor values =
          at::empty(piece.empty() ? tensor.sizes().vec() : std::vector<std::int64_t>(description.whole), at::kDouble);
      double* value = values.mutable_data_ptr<double>();
      for (const sim::Run& run : *initial.runs)
        for (std::int64_t k = 0; k < run.count; ++k)
          *value++ = in_range(run.first + run.step * static_cast<double>(k), tensor.scalar_type());
      tensor.copy_(narrowed(values, piece));
      return;
    }
    case sim::Initial::Kind::model_input: {
      const sim::Shape whole_row(description.whole.empty()
                                     ? sim::Shape()
                                     : sim::Shape(description.whole.begin() + 1, description.whole.end()));
      const std::string_view name = description.name;
      const double bound = initial.bound > 0 ? initial.bound : std::sqrt(3.0);
      for (std::int64_t row = 0; row < rows; ++row) {
        const at::Tensor to = tensor.select(0, row);
        const std::uint64_t own = stream(seed, name, first_row + row);
        const bool is_whole = piece.empty() || to.sizes() == whole_row;
        if (!tensor.is_floating_point()) {
          sim::check_internal(is_whole, "'{}' is cut along another dimension than its samples", name);
          draw_classes(to, initial.classes, own);
        } else if (is_whole) {
          draw(to, initial.center, bound, own);
        } else {
          const at::Tensor whole = at::empty(whole_row, tensor.options().device(at::kCPU));
          draw(whole, initial.center, bound, own);
          to.copy_(narrowed(whole, of_row));
        }
      }
      return;
    }
    case sim::Initial::Kind::model_target: {
      const bool is_indices = tensor.scalar_type() == at::kLong;
      std::vector<std::int64_t> shape{rows};
      const std::vector<std::int64_t> sizes =
          description.whole.empty() ? tensor.sizes().vec() : std::vector<std::int64_t>(description.whole);
      shape.insert(shape.end(), sizes.begin() + 1, sizes.end() - (is_indices ? 0 : 1));
      const at::Tensor indices = at::empty(shape, at::kLong);
      for (std::int64_t row = 0; row < rows; ++row) {
        const std::uint64_t own = stream(seed, "target", first_row + row);
        if (shape.size() == 1)
          indices.mutable_data_ptr<std::int64_t>()[row] =
              static_cast<std::int64_t>(own % static_cast<std::uint64_t>(initial.classes));
        else
          draw_classes(indices.select(0, row), initial.classes, own);
      }
      if (is_indices) {
        tensor.copy_(indices);
        return;
      }
      shape.push_back(initial.classes);
      at::Tensor one_hot = at::empty(shape, tensor.options().device(at::kCPU));
      one_hot.zero_().scatter_(-1, indices.unsqueeze(-1), 1);
      std::vector<sim::Range> mine{{0, rows}};
      mine.insert(mine.end(), of_row.begin(), of_row.end());
      tensor.copy_(piece.empty() ? one_hot : narrowed(one_hot, mine));
      return;
    }
  }
  throw sim::InternalError("initial value of kind {}", static_cast<int>(initial.kind));
}

}  // namespace backend
