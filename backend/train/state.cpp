#include "backend/train/state.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "backend/op/op.hpp"
#include "backend/rank/initial.hpp"
#include "sim/error.hpp"

namespace backend {
namespace {

/// What a rank has beside the first that has the same piece.
std::string own_name(std::uint32_t rank, const std::string& name) { return fmt::format("rank{}.{}", rank, name); }

/// Adds the tensor's pieces; as `suffix` says, of the state that is like it and lies in `values`.
void add_pieces(const sim::Program& program, const sim::Role& role, std::uint32_t rank, std::uint32_t id,
                std::uint32_t values, const std::string& suffix, std::vector<StatePiece>& pieces) {
  const sim::Tensor& tensor = role.tensors[id];
  const sim::TensorSpec& spec = role.tensors[values].spec;
  const bool is_counter = spec.shape.empty();  // of steps, for all of the tensor's elements
  const auto add = [&](const std::string& name, const sim::TensorSpec& whole, std::vector<sim::Range> piece,
                       sim::Range elements, std::int64_t begin) {
    const auto is_all = [&](const sim::Range& range) {
      return range == sim::Range{0, whole.shape[static_cast<std::size_t>(&range - piece.data())]};
    };
    if (std::ranges::all_of(piece, is_all)) piece.clear();
    if (is_counter)
      pieces.push_back({name + suffix, spec, {}, {0, 1}, values, 0});
    else
      pieces.push_back(
          {name + suffix, {spec.dtype, whole.shape, whole.channels_last}, std::move(piece), elements, values, begin});
  };
  if (role.tensors[role.storages[tensor.storage].owner].unit == sim::kNone) {
    const sim::TensorSpec whole{tensor.spec.dtype, tensor.whole.empty() ? tensor.spec.shape : tensor.whole,
                                tensor.spec.channels_last};
    return add(tensor.name, whole, program.piece_of(tensor, rank), {0, tensor.spec.elements()}, 0);
  }
  for (sim::Program::Slice& slice : program.slices_of(role, tensor, rank))
    add(slice.of->name, slice.of->whole, std::move(slice.piece), slice.elements, slice.begin);
}

/// Weights to be used, which those who update them keep in another tensor of the same unit.
bool is_copy(const sim::Role& role, const sim::Tensor& tensor) {
  return tensor.unit != sim::kNone && tensor.on.empty() &&
         std::ranges::any_of(role.tensors,
                             [&](const sim::Tensor& other) { return other.unit == tensor.unit && !other.on.empty(); });
}

/// The same in the module, where two neighbours of these sizes are one.
bool is_module_of(at::IntArrayRef sizes, at::IntArrayRef in_module) {
  if (sizes.size() != in_module.size() + 1) return false;
  const auto differ = std::ranges::mismatch(sizes, in_module);
  if (differ.in2 == in_module.end() || differ.in1[0] * differ.in1[1] != *differ.in2) return false;
  return std::equal(differ.in1 + 2, sizes.end(), differ.in2 + 1, in_module.end());
}

/// The elements, where the rank has them.
at::Tensor values_of(const StatePiece& piece, const Executor& executor) {
  return in_memory_order(executor.persistent(piece.tensor)).view(-1).narrow(0, piece.begin, piece.elements.size);
}

at::Tensor as_tensor(std::string_view bytes, at::ScalarType type) {
  at::Tensor tensor = at::empty(static_cast<std::int64_t>(bytes.size() / c10::elementSize(type)), type);
  std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

/// Pieces of whole tensors as they come in, rank by rank.
class Assembly {
 public:
  /// `is_first`: nobody has brought these elements before.
  void add(const StatePiece& piece, std::uint32_t rank, std::string_view bytes) {
    const at::Tensor values = as_tensor(bytes, scalar_type(piece.whole.dtype));
    const auto [parts, is_new] = parts_.try_emplace({piece.name, key_of(piece.piece)});
    Part& part = parts->second;
    if (is_new) {
      part.values = at::empty(piece.shape(), values.options(), memory_format(piece.whole));
      part.piece = piece;
    }
    const at::Tensor room = in_memory_order(part.values).view(-1).narrow(0, piece.elements.begin, piece.elements.size);
    if (part.known.insert(piece.elements.begin).second) {
      room.copy_(values);
      part.count += piece.elements.size;
      return;
    }
    // Bits: a NaN is equal to itself.
    if (!piece.is_overwritten && std::memcmp(room.const_data_ptr(), values.const_data_ptr(), values.nbytes()) != 0)
      state_.tensors[own_name(rank, piece.name)] = values;
  }

  Safetensors state() {
    for (const auto& [key, part] : parts_) {
      sim::check_internal(part.count == part.values.numel(), "state: {} of {} elements of '{}'", part.count,
                          part.values.numel(), key.first);
      at::Tensor& whole = state_.tensors[key.first];
      if (!whole.defined()) whole = at::empty(part.piece.whole.shape, part.values.options());
      narrowed(whole, part.piece.piece).copy_(part.values);
      covered_[key.first] += part.count;
    }
    for (const auto& [name, count] : covered_)
      sim::check_internal(count == state_.tensors.at(name).numel(), "state: the ranks have {} elements of '{}', not {}",
                          count, name, state_.tensors.at(name).numel());
    return std::move(state_);
  }

 private:
  struct Part {
    StatePiece piece;
    at::Tensor values;
    std::set<std::int64_t> known{};  // where elements begin that are there
    std::int64_t count = 0;          // of them
  };
  using Key = std::vector<std::int64_t>;
  static Key key_of(const std::vector<sim::Range>& piece) {
    Key key;
    for (const sim::Range& range : piece) key.insert(key.end(), {range.begin, range.size});
    return key;
  }

  std::map<std::pair<std::string, Key>, Part> parts_;  // by name and piece
  std::map<std::string, std::int64_t> covered_;
  Safetensors state_;
};

/// What a state has for a piece: the rank's own values of it, or the whole tensor.
struct Known {
  at::Tensor values;
  bool is_own = false;
};

Known known_of(const Safetensors& state, const StatePiece& piece, std::uint32_t rank, const std::string& where) {
  const auto own = state.tensors.find(own_name(rank, piece.name));
  const auto found = own != state.tensors.end() ? own : state.tensors.find(piece.name);
  if (found == state.tensors.end()) throw sim::ConfigError("{}: has no '{}'", where, piece.name);
  Known known{found->second, found == own};
  if (!known.is_own && is_module_of(piece.whole.shape, known.values.sizes()))
    known.values = known.values.view(piece.whole.shape);
  const bool is_of_type = known.values.scalar_type() == scalar_type(piece.whole.dtype) || piece.is_copy;
  if (!is_of_type || (known.is_own ? known.values.numel() != piece.elements.size
                                   : known.values.sizes() != at::IntArrayRef(piece.whole.shape)))
    throw sim::ConfigError("{}: has '{}' as {}[{}], the model as {}", where, found->first,
                           c10::toString(known.values.scalar_type()), fmt::join(known.values.sizes(), ","),
                           to_string(piece.whole));
  return known;
}

}  // namespace

sim::Shape StatePiece::shape() const {
  if (piece.empty()) return whole.shape;
  sim::Shape sizes;
  for (const sim::Range& range : piece) sizes.push_back(range.size);
  return sizes;
}

std::vector<StatePiece> state_pieces(const sim::Program& program, std::uint32_t rank) {
  const sim::Role& role = program.roles[program.places().at(rank).role];
  std::vector<StatePiece> pieces;
  const std::vector<bool> changed = role.changed_storages();
  for (std::size_t s = 0; s < role.storages.size(); ++s) {
    const sim::Storage& storage = role.storages[s];
    if (!storage.persistent || !changed[s]) continue;
    const bool is_buffer = storage.tensor_class == sim::TensorClass::buffer;
    if (!is_buffer && storage.tensor_class != sim::TensorClass::weight) continue;
    const std::size_t before = pieces.size();
    add_pieces(program, role, rank, storage.owner, storage.owner, "", pieces);
    for (std::size_t i = before; i < pieces.size(); ++i) {
      pieces[i].is_overwritten = is_buffer && program.broadcast_buffers && !program.daso;
      pieces[i].is_copy = is_copy(role, role.tensors[storage.owner]);
    }
  }
  std::set<std::uint32_t> known;  // an unrolled list has several updates of the same
  for (std::uint32_t i = 0; i < role.size(); ++i) {
    if (role.kind[i] != sim::InstructionKind::update) continue;
    const sim::OpInstance& optimizer = program.works[role.work[i]].op;
    const std::size_t count = optimizer.inputs.size();
    const std::vector<sim::SavedSpec> states = optimizer.signature().saved;
    const std::span<const std::uint32_t> reads = role.reads(i);  // parameters, gradients, states
    for (std::size_t s = 0; s < states.size(); ++s)
      if (const std::uint32_t values = reads[2 * count + s]; known.insert(values).second)
        add_pieces(program, role, rank, reads[s % count], values, fmt::format(".{}", states[s].name), pieces);
  }
  for (const sim::Storage& storage : role.storages)  // that belongs to no parameter
    if (storage.persistent && storage.tensor_class == sim::TensorClass::optimizer && !known.contains(storage.owner))
      add_pieces(program, role, rank, storage.owner, storage.owner, "", pieces);
  return pieces;
}

void to_module_shapes(Safetensors& state, const std::map<std::string, sim::ParameterSpec>& parameters) {
  for (const auto& [name, parameter] : parameters)
    for (auto found = state.tensors.lower_bound(name); found != state.tensors.end() && found->first.starts_with(name);
         ++found)
      if ((found->first == name || found->first[name.size()] == '.') &&
          is_module_of(found->second.sizes(), parameter.spec.shape))
        found->second = found->second.view(parameter.spec.shape);
}

void check_state(const Safetensors& state, const sim::Program& program, const std::string& where) {
  for (std::uint32_t rank = 0; rank < program.ranks(); ++rank)
    for (const StatePiece& piece : state_pieces(program, rank)) static_cast<void>(known_of(state, piece, rank, where));
}

void set_state(const Safetensors& state, std::span<const StatePiece> pieces, std::uint32_t rank,
               const Executor& executor) {
  for (const StatePiece& piece : pieces) {
    const at::Tensor to = values_of(piece, executor);
    const Known known = known_of(state, piece, rank, "state");
    if (known.is_own) {
      to.copy_(known.values);
      continue;
    }
    const at::Tensor values = narrowed(known.values, piece.piece).contiguous(memory_format(piece.whole));
    to.copy_(in_memory_order(values).view(-1).narrow(0, piece.elements.begin, piece.elements.size));
  }
}

std::string packed_state(std::span<const StatePiece> pieces, const Executor& executor) {
  std::string bytes;
  for (const StatePiece& piece : pieces) {
    if (piece.is_copy) continue;
    const at::Tensor values = values_of(piece, executor).to(at::kCPU).contiguous();
    bytes.append(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
  }
  return bytes;
}

Safetensors whole_state(const sim::Program& program, std::span<const std::string> of_ranks) {
  Assembly assembly;
  for (std::uint32_t rank = 0; rank < of_ranks.size(); ++rank) {
    std::string_view bytes = of_ranks[rank];
    for (const StatePiece& piece : state_pieces(program, rank)) {
      if (piece.is_copy) continue;
      const auto size = static_cast<std::size_t>(piece.elements.size * sim::size_of(piece.whole.dtype));
      sim::check_internal(size <= bytes.size(), "rank {} has packed too little", rank);
      assembly.add(piece, rank, bytes.substr(0, size));
      bytes.remove_prefix(size);
    }
    sim::check_internal(bytes.empty(), "rank {} has packed too much", rank);
  }
  return assembly.state();
}

}  // namespace backend
