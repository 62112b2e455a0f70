#include "sim/program/program.hpp"

#include <algorithm>

#include "sim/error.hpp"

namespace sim {

Group::Group(std::string its_name, std::uint32_t axes_mask, const Mesh& mesh)
    : name(std::move(its_name)), axes(axes_mask) {
  const auto is_first = [&](std::uint32_t rank) {
    for (std::uint32_t axis = 0; axis < mesh.axes.size(); ++axis)
      if ((axes >> axis & 1U) != 0 && mesh.coordinate(rank, axis) != 0) return false;
    return true;
  };
  for (std::uint32_t rank = 0; rank < mesh.ranks(); ++rank)
    if (is_first(rank)) members.push_back(mesh.members(rank, axes));
}

std::string work_key(const Work& work) {
  std::string key = fmt::format("{}.{}", work.op.kind->name, to_string(work.pass));
  for (const TensorSpec& input : work.op.inputs) key += " " + to_string(input);
  for (const auto& [name, value] : work.op.attributes) key += fmt::format(" {}={}", name, value);
  if (work.pass == Pass::backward) {
    key += " grads=";
    for (std::size_t i = 0; i < work.op.inputs.size(); ++i)
      if (work.grads & (1U << i)) key += fmt::format("{}+", i);
    key += (work.grads & kParameterGrads) ? "p" : "";
  }
  if (work.op.precision != Precision::f32) key += fmt::format(" precision={}", to_string(work.op.precision));
  if (work.op.half_parameters) key += " parameters=half";
  if (work.threads > 1) key += fmt::format(" threads={}", work.threads);
  if (work.op.body != nullptr) key += " body=" + work.op.body->text;
  return key;
}

std::uint32_t Role::add_tensor(std::string tensor_name, const TensorSpec& spec, TensorClass tensor_class,
                               bool persistent, const Initial& initial) {
  const auto id = static_cast<std::uint32_t>(tensors.size());
  storages.push_back({id, spec.bytes(), tensor_class, persistent});  // first: `spec` may be a tensor's of this role
  tensors.push_back({std::move(tensor_name), spec, static_cast<std::uint32_t>(storages.size() - 1), 0, initial});
  return id;
}

std::vector<bool> Role::changed_storages() const {
  std::vector<bool> changed(storages.size(), false);
  for (std::uint32_t i = 0; i < size(); ++i)
    for (const std::uint32_t tensor : writes(i)) changed[tensors[tensor].storage] = true;
  return changed;
}

std::uint32_t Role::add_piece(std::string tensor_name, const TensorSpec& spec, TensorClass tensor_class,
                              const Initial& initial, const Shape& whole, const std::vector<Placement>& on) {
  const std::uint32_t id = add_tensor(std::move(tensor_name), spec, tensor_class, /*persistent=*/true, initial);
  tensors[id].whole = whole;
  tensors[id].on = on;
  return id;
}

std::uint32_t Role::add_view(std::string tensor_name, const TensorSpec& spec, std::uint32_t of,
                             std::int64_t offset_bytes) {
  const Tensor& base = tensors[of];
  check_internal(offset_bytes >= 0 && base.offset_bytes + offset_bytes + spec.bytes() <= storages[base.storage].bytes,
                 "view '{}' reaches beyond '{}'", tensor_name, base.name);
  check_internal((base.offset_bytes + offset_bytes) % size_of(spec.dtype) == 0,
                 "view '{}' begins at byte {} of '{}', which is no multiple of the {} bytes of {}", tensor_name,
                 offset_bytes, base.name, size_of(spec.dtype), to_string(spec.dtype));
  const auto id = static_cast<std::uint32_t>(tensors.size());
  tensors.push_back({std::move(tensor_name), spec, base.storage, base.offset_bytes + offset_bytes, {}});
  return id;
}

std::uint32_t Role::add_own_view(std::string tensor_name, const TensorSpec& spec, std::uint32_t of,
                                 std::uint32_t axis) {
  const std::uint32_t id = add_view(std::move(tensor_name), spec, of);
  tensors[id].along = axis;
  return id;
}

bool Role::has_own_in_place(std::uint32_t i) const {
  if (kind[i] != InstructionKind::collective) return false;
  return std::ranges::any_of(reads(i), [&](std::uint32_t read) {
    return std::ranges::any_of(writes(i), [&](std::uint32_t written) {
      return read != written && tensors[read].storage == tensors[written].storage;
    });
  });
}

std::uint32_t Role::add(const Instruction& instruction) {
  const std::uint32_t index = size();
  kind.push_back(instruction.kind);
  collective.push_back(instruction.collective);
  reduction.push_back(instruction.reduction);
  work.push_back(instruction.work);
  node.push_back(instruction.node);
  peer.push_back(instruction.peer);
  by.push_back(instruction.by);
  root.push_back(instruction.root);
  tag.push_back(instruction.tag);
  ticket.push_back(instruction.ticket);
  awaits.push_back(kNone);
  if (is_posted(instruction.kind)) {
    if (instruction.ticket == kNone) ticket.back() = static_cast<std::uint32_t>(opened_.size());
    if (ticket.back() >= opened_.size()) opened_.resize(ticket.back() + 1, kNone);
    opened_[ticket.back()] = index;
  } else if (instruction.kind == InstructionKind::wait && instruction.ticket < opened_.size()) {
    awaits.back() = opened_[instruction.ticket];
  }
  microbatch.push_back(instruction.microbatch);
  scale.push_back(instruction.scale);
  for (const auto* operands : {&instruction.reads, &instruction.writes, &instruction.frees}) {
    pool_.insert(pool_.end(), operands->begin(), operands->end());
    begin_.push_back(static_cast<std::uint32_t>(pool_.size()));
  }
  return index;
}

Instruction Role::at(std::uint32_t i) const {
  const auto list = [](std::span<const std::uint32_t> ids) { return std::vector(ids.begin(), ids.end()); };
  return {kind[i], collective[i], reduction[i], work[i],  node[i],        microbatch[i],   peer[i],       by[i],
          root[i], tag[i],        ticket[i],    scale[i], list(reads(i)), list(writes(i)), list(frees(i))};
}

std::uint32_t Program::ranks() const {
  std::size_t count = 0;
  for (const Role& role : roles) count += role.ranks.size();
  return static_cast<std::uint32_t>(count);
}

void Program::set_threads(std::uint32_t of_rank) {
  threads = of_rank;
  for (Work& work : works) work.threads = of_rank;
}

bool Program::is_periodic() const {
  return bodies() == 1 && (steps > 1 || std::ranges::any_of(roles, &Role::has_sections));
}

/// Each computes its losses: what lies outside the bodies, too.
std::int64_t Program::steps_in_list() const {
  if (bodies() == 1) return steps;
  for (const Role& role : roles) {
    std::int64_t losses = 0, in_bodies = 0;
    for (std::uint32_t i = 0; i < role.size(); ++i) {
      if (role.work[i] == kNone || !works[role.work[i]].is_loss()) continue;
      ++losses;
      if (i >= role.body_begin && i < role.body_end) ++in_bodies;
    }
    const std::int64_t in_body = in_bodies / static_cast<std::int64_t>(bodies());
    if (in_body > 0) return losses * steps / in_body;
  }
  return steps * static_cast<std::int64_t>(bodies());
}

namespace {

/// What a rank sees of the batch.
Range samples_of(const Program& program, std::uint32_t rank) {
  if (program.rows.empty()) return {0, program.global_batch};
  const auto ranges = piece({program.global_batch}, program.rows, program.mesh, rank);
  return ranges ? ranges->at(0) : Range{0, program.global_batch};
}

}  // namespace

std::vector<Range> Program::batch_pieces() const {
  std::map<std::int64_t, Range> pieces;  // by their beginnings
  for (std::uint32_t rank = 0; rank < mesh.ranks(); ++rank) {
    const Range samples = samples_of(*this, rank);
    pieces[samples.begin] = samples;
  }
  std::vector<Range> list;
  for (const auto& [begin, samples] : pieces) list.push_back(samples);
  return list;
}

std::uint32_t Program::batch_piece(std::uint32_t rank) const {
  const std::vector<Range> pieces = batch_pieces();
  return static_cast<std::uint32_t>(std::ranges::find(pieces, samples_of(*this, rank)) - pieces.begin());
}

std::uint32_t Program::draw_number(std::uint32_t rank) const {
  std::uint32_t part = 0;
  for (std::uint32_t axis = 0; axis < mesh.axes.size(); ++axis)
    if (draw_axes >> axis & 1U) part = part * mesh.axes[axis].size + mesh.coordinate(rank, axis);
  return batch_piece(rank) + part * static_cast<std::uint32_t>(batch_pieces().size());
}

std::vector<Range> Program::piece_of(const Tensor& tensor, std::uint32_t rank) const {
  if (tensor.on.empty()) return {};
  const auto ranges = piece(tensor.whole, tensor.on, mesh, rank);
  check_internal(ranges.has_value(), "rank {} has '{}', which lies elsewhere", rank, tensor.name);
  return *ranges;
}

std::int64_t Program::offset_bytes(const Tensor& tensor, std::uint32_t rank) const {
  return tensor.offset_bytes + (tensor.along == kNone ? 0 : tensor.spec.bytes() * mesh.coordinate(rank, tensor.along));
}

namespace {

/// What a rank has of a part of its unit.
struct Held {
  std::vector<Range> piece;  // by dimension; empty: all of it
  Range elements;            // of the piece, in memory order: its own rows, where it is cut by rows
  std::int64_t room = 0;     // elements that these take in the unit
};

/// ConfigError where that is nothing.
Held held_by(const Program& program, const ParameterUnit::Part& part, std::uint32_t rank) {
  if (part.on.empty()) return {{}, {0, part.whole.elements()}, part.whole.elements()};
  const auto ranges = piece(part.whole.shape, part.on, program.mesh, rank);
  if (!ranges) throw ConfigError("program: rank {} has nothing of '{}' of its unit", rank, part.name);
  Held held{*ranges, {}, 1};
  for (const Range& range : held.piece) held.room *= range.size;
  held.elements = {0, held.room};
  for (std::uint32_t axis = 0; axis < part.on.size(); ++axis) {
    if (!part.on[axis].by_rows) continue;
    std::int64_t rows = 1;
    for (std::uint32_t dim = 0; dim <= part.on[axis].dim; ++dim) rows *= held.piece.at(dim).size;
    const std::int64_t each = rows == 0 ? 0 : held.room / rows;
    const Range own = rows_of(rows, program.mesh.axes[axis], program.mesh.coordinate(rank, axis));
    held.elements = {own.begin * each, own.size * each};
    held.room = padded_part(rows, program.mesh.axes[axis]) * each;
  }
  return held;
}

}  // namespace

std::int64_t Program::elements_of(const ParameterUnit::Part& part, std::uint32_t rank) const {
  return held_by(*this, part, rank).room;
}

std::vector<Program::Slice> Program::slices_of(const Role& role, const Tensor& tensor, std::uint32_t rank) const {
  const Tensor& owner = role.tensors[role.storages[tensor.storage].owner];
  if (owner.unit == kNone) return {};
  const std::vector<Range> mine = piece_of(owner, rank);
  const std::int64_t begin =
                         (mine.empty() ? 0 : mine[0].begin) + offset_bytes(tensor, rank) / size_of(tensor.spec.dtype),
                     end = begin + tensor.spec.elements();
  std::vector<Slice> slices;
  std::int64_t first = 0;  // of a part, in the unit
  for (const ParameterUnit::Part& part : role.units[owner.unit].parts) {
    Held held = held_by(*this, part, rank);
    const std::int64_t from = std::max(begin, first), to = std::min(end, first + held.elements.size);
    if (from < to)
      slices.push_back({&part, std::move(held.piece), {held.elements.begin + from - first, to - from}, from - begin});
    first += held.room;
  }
  return slices;
}

std::vector<Program::Place> Program::places() const {
  std::vector<Place> places(players());
  for (std::uint32_t r = 0; r < roles.size(); ++r) {
    std::uint32_t index = 0;
    for (const std::uint32_t rank : roles[r].ranks)
      if (const std::uint32_t player = player_of(rank); rank_of(player) == rank) places.at(player) = {r, index++};
  }
  return places;
}

std::int64_t Program::transfer_bytes(const Role& role, std::uint32_t i) const {
  const auto bytes_of = [&](std::span<const std::uint32_t> tensors) {
    std::int64_t bytes = 0;
    for (const std::uint32_t tensor : tensors) bytes += role.tensors[tensor].spec.bytes();
    return bytes;
  };
  return std::max(bytes_of(role.reads(i)), bytes_of(role.writes(i)));
}

namespace {

/// The role at the other end of a send or recv, or, where that is the same one, in which direction.
std::string partner_name(const Program& program, const Role& role, std::uint32_t i) {
  if (role.peer[i] >= program.mesh.axes.size()) return "nobody";
  if (!role.ranks.empty() && role.ranks[0] < program.mesh.ranks())
    for (const Role& other : program.roles)
      if (other.name != role.name &&
          std::ranges::find(other.ranks, program.partner(role, role.ranks[0], i)) != other.ranks.end())
        return other.name;
  return fmt::format("{}{:+}", program.mesh.axes[role.peer[i]].name, role.by[i]);
}

}  // namespace

std::string Program::label(const Role& role, std::uint32_t i) const {
  const InstructionKind kind = role.kind[i];
  if (kind == InstructionKind::wait)
    return "wait for " + (role.awaits[i] == kNone ? fmt::format("t{}", role.ticket[i]) : label(role, role.awaits[i]));
  std::string text(kind == InstructionKind::collective ? to_string(role.collective[i]) : to_string(kind));
  if (role.node[i] != kNone) text += " " + names[role.node[i]];
  if (role.work[i] != kNone && works[role.work[i]].op.kind->role != OpRole::optimizer) {
    const Work& done = works[role.work[i]];
    text += fmt::format(" {}", done.op.kind->role == OpRole::helper ? done.op.kind->name : to_string(done.pass));
  }
  if (kind == InstructionKind::send) text += " to " + partner_name(*this, role, i);
  if (kind == InstructionKind::recv) text += " from " + partner_name(*this, role, i);
  if (role.microbatch[i] >= 0 && microbatches > 1) text += fmt::format(" mb={}", role.microbatch[i]);
  return text;
}

WorkTable::WorkTable(std::vector<Work>& works) : works_(works) {
  for (std::uint32_t i = 0; i < works.size(); ++i) index_.emplace(works[i], i);
}

bool WorkTable::Before::operator()(const Work& a, const Work& b) const {
  const auto grads = [](const Work& work) {
    return work.pass == Pass::backward ? work.grads & (kParameterGrads | ((1U << work.op.inputs.size()) - 1)) : 0;
  };
  const std::uint32_t a_grads = grads(a), b_grads = grads(b);
  return std::tie(a.op.kind, a.op.body, a.pass, a_grads, a.threads, a.op.inputs, a.op.attributes, a.op.precision,
                  a.op.half_parameters) < std::tie(b.op.kind, b.op.body, b.pass, b_grads, b.threads, b.op.inputs,
                                                   b.op.attributes, b.op.precision, b.op.half_parameters);
}

std::uint32_t WorkTable::add(const Work& work) {
  const auto [entry, is_new] = index_.emplace(work, static_cast<std::uint32_t>(works_.size()));
  if (is_new) works_.push_back(work);
  return entry->second;
}

std::uint32_t WorkTable::add_elementwise(const OpKind& kind, const Attributes& attributes, Pass pass,
                                         const TensorSpec& like) {
  const std::tuple key(&kind, like.dtype, like.elements());
  if (const auto known = elementwise_.find(key);
      known != elementwise_.end() && works_[known->second].op.attributes == attributes)
    return known->second;
  const std::vector<TensorSpec> inputs(static_cast<std::size_t>(kind.inputs), like.flat());
  return elementwise_[key] = add({{&kind, attributes, inputs}, pass, 0});
}

NameTable::NameTable(std::vector<std::string>& names) : names_(names) {
  for (std::uint32_t i = 0; i < names.size(); ++i) index_.emplace(names[i], i);
}

std::uint32_t NameTable::add(std::string_view name) {
  if (const auto known = index_.find(name); known != index_.end()) return known->second;
  const auto index = static_cast<std::uint32_t>(names_.size());
  names_.emplace_back(name);
  index_.emplace(name, index);
  return index;
}

}  // namespace sim
