#include "sim/lower/redistribute.hpp"

#include <algorithm>
#include <numeric>

#include "sim/error.hpp"

namespace sim {
namespace {

using Kind = Placement::Kind;

/// A block along this dimension lies together: nothing but it varies outside.
bool lies_together(const TensorSpec& spec, std::uint32_t dim) {
  if (dim == 0) return true;
  if (spec.channels_last) return spec.shape[0] == 1 && dim == 2;
  return std::accumulate(spec.shape.begin(), spec.shape.begin() + dim, std::int64_t{1}, std::multiplies()) == 1;
}

TensorSpec part_of_spec(TensorSpec spec, std::uint32_t dim, std::int64_t size) {
  spec.shape[dim] = size;
  return spec;
}

/// Bytes before a block that lies together.
std::int64_t offset_of(const TensorSpec& spec, std::uint32_t dim, std::int64_t begin) {
  return spec.bytes() / spec.shape[dim] * begin;
}

}  // namespace

std::vector<bool> axes_that_let_go(const Placements& from, const Placements& to) {
  std::vector<bool> lets_go(from.size(), false);
  const auto cuts_same = [](const Placement& a, const Placement& b) {
    return a.kind == Kind::shard && b.kind == Kind::shard && a.dim == b.dim;
  };
  for (std::size_t outer = 0; outer < from.size(); ++outer)
    for (std::size_t inner = outer + 1; inner < from.size(); ++inner)
      if (from[outer] != to[outer] || lets_go[outer])
        for (const Placement& of_outer : {from[outer], to[outer]})
          for (const Placement& of_inner : {from[inner], to[inner]})
            if (cuts_same(of_outer, of_inner)) lets_go[inner] = true;
  return lets_go;
}

struct Redistribution::Step {
  std::uint32_t axis = 0, at = 0;  // which, and this role's coordinate
  TensorSpec local;                // this role's part, whole along the axis
  Placement from;
  std::string name;  // of new tensors
  std::uint32_t label = kNone;
  std::int32_t microbatch = -1;
};

LocalValue Redistribution::move(LocalValue value, const TensorSpec& whole, const Placements& from, const Placements& to,
                                const std::string& name, std::uint32_t label, std::int32_t microbatch) {
  const auto axes = static_cast<std::uint32_t>(from.size());
  Placements now = from;
  const auto go = [&](std::uint32_t axis, const Placement& there) {
    if (now[axis] == there) return;
    Placements along_axis_whole = now, after = now;
    along_axis_whole[axis] = replicate();
    after[axis] = there;
    // Where another axis has it elsewhere, this role takes no part.
    if (const auto local = plan_.local(whole, along_axis_whole, role_)) {
      Step step{axis, role_.at[axis], *local, now[axis], name, label, microbatch};
      for (const Placement& placement : after)
        step.name += (&placement == &after[0] ? "." : "_") + to_string(placement);
      value = along(value, step, there);
    }
    now = after;
  };
  const std::vector<bool> lets_go = axes_that_let_go(from, to);
  for (std::uint32_t axis = axes; axis-- > 0;)
    if (lets_go[axis]) go(axis, to[axis].kind == Kind::rooted ? to[axis] : replicate());
  for (std::uint32_t axis = axes; axis-- > 0;)
    if (!lets_go[axis]) go(axis, to[axis]);
  for (std::uint32_t axis = 0; axis < axes; ++axis) go(axis, to[axis]);
  return value;
}

LocalValue Redistribution::along(LocalValue value, const Step& step, const Placement& to) {
  const bool is_first = step.at == 0;
  switch (step.from.kind) {
    case Kind::replicate:
      if (to.kind == Kind::shard) return own_part(value, step, to);
      check_internal(to.kind == Kind::rooted, "{} to {}", to_string(step.from), to_string(to));
      return to.root == step.at ? value : LocalValue{};
    case Kind::shard:
      return from_shard(value, step, to);
    case Kind::partial: {
      if (to.kind == Kind::rooted) {
        value = from_sum(value, step, to);
        return to.root == step.at ? value : LocalValue{};
      }
      if (!plan_.layout.rooted) return from_sum(value, step, to);
      value = from_sum(value, step, rooted(0));
      // The others have their summands still, and get the sum in their place.
      const std::uint32_t tensor = value.tensor;
      collective(CollectiveKind::broadcast, step, 0, is_first ? std::vector{tensor} : std::vector<std::uint32_t>(),
                 {tensor});
      return to.kind == Kind::shard ? own_part(value, step, to) : value;
    }
    case Kind::rooted:
      return from_root(value, step, to);
    case Kind::own:
      break;
  }
  throw InternalError("a tensor in {} can't be moved", to_string(step.from));
}

LocalValue Redistribution::from_shard(LocalValue value, const Step& step, const Placement& to) {
  const Placement& from = step.from;
  if (to.kind == Kind::shard && to.dim == from.dim) {
    if (ranges(step, step.local.shape, from) == ranges(step, step.local.shape, to)) return value;
    return own_part(from_shard(value, step, replicate()), step, to);
  }
  if (to.kind == Kind::shard) {
    const TensorSpec after = part_of_spec(step.local, to.dim, ranges(step, step.local.shape, to)[step.at].size);
    const std::vector<std::uint32_t> sent = blocks(value.tensor, step, to);
    const Target got = target(step, after, from);
    collective(CollectiveKind::all_to_all, step, 0, sent, got.blocks);
    unpack(got, step, from);
    return {got.whole};
  }
  if (to.kind == Kind::rooted && to.root != step.at) {
    collective(CollectiveKind::gather, step, to.root, {value.tensor}, {});
    return {};
  }
  const Target got = target(step, step.local, from);
  if (to.kind == Kind::rooted)
    collective(CollectiveKind::gather, step, to.root, {value.tensor}, got.blocks);
  else
    collective(CollectiveKind::all_gather, step, 0, {value.tensor}, got.blocks);
  unpack(got, step, from);
  return {got.whole};
}

/// Sums the value, in place but where each gets a part.
LocalValue Redistribution::from_sum(LocalValue value, const Step& step, const Placement& to) {
  if (to.kind == Kind::shard) {
    const TensorSpec own = part_of_spec(step.local, to.dim, ranges(step, step.local.shape, to)[step.at].size);
    const std::vector<std::uint32_t> sent = blocks(value.tensor, step, to);
    const std::uint32_t sum = add(step, own);
    collective(CollectiveKind::reduce_scatter, step, 0, sent, {sum});
    return {sum};
  }
  if (!value.exclusive) {
    const std::uint32_t copy = add(step, step.local);
    draft_.scaled_copy(value.tensor, copy, 1, step.label);
    value = {copy};
  }
  const bool is_reduce = to.kind == Kind::rooted, gets = !is_reduce || to.root == step.at;
  collective(is_reduce ? CollectiveKind::reduce : CollectiveKind::all_reduce, step, is_reduce ? to.root : 0,
             {value.tensor}, gets ? std::vector{value.tensor} : std::vector<std::uint32_t>());
  return value;
}

LocalValue Redistribution::from_root(LocalValue value, const Step& step, const Placement& to) {
  const std::uint32_t root = step.from.root;
  const bool has_it = root == step.at;
  check_internal(to.kind != Kind::rooted, "from {} to {}", to_string(step.from), to_string(to));
  if (to.kind == Kind::replicate) {
    if (!has_it) value = {add(step, step.local)};
    collective(CollectiveKind::broadcast, step, root, has_it ? std::vector{value.tensor} : std::vector<std::uint32_t>(),
               {value.tensor});
    return value;
  }
  const std::vector<std::uint32_t> sent = has_it ? blocks(value.tensor, step, to) : std::vector<std::uint32_t>();
  const std::uint32_t own =
      add(step, part_of_spec(step.local, to.dim, ranges(step, step.local.shape, to)[step.at].size));
  collective(CollectiveKind::scatter, step, root, sent, {own});
  return {own};
}

/// A view where it lies together.
LocalValue Redistribution::own_part(LocalValue value, const Step& step, const Placement& to) {
  const Range range = ranges(step, step.local.shape, to)[step.at];
  const TensorSpec spec = part_of_spec(step.local, to.dim, range.size);
  if (lies_together(step.local, to.dim)) {
    value.tensor = add_view(step.name, spec, value.tensor, offset_of(step.local, to.dim, range.begin));
    return value;
  }
  const std::uint32_t slice = add(step, spec);
  add_copy("slice",
           {{"dim", to.dim}, {"begin", static_cast<double>(range.begin)}, {"size", static_cast<double>(range.size)}},
           step.local, step, {value.tensor}, {slice});
  return {slice};
}

std::vector<Range> Redistribution::ranges(const Step& step, const Shape& shape, const Placement& cut) const {
  const Axis& axis = plan_.layout.mesh.axes[step.axis];
  std::vector<Range> all;
  for (std::uint32_t c = 0; c < axis.size; ++c) all.push_back(part(shape[cut.dim], cut.unit, axis, c));
  return all;
}

bool Redistribution::is_even(const Step& step, const Shape& shape, const Placement& cut) const {
  const std::vector<Range> all = ranges(step, shape, cut);
  return all.front().size == all.back().size;
}

/// What a member gives of a tensor, a block for each: where they are equal and lie together, the tensor itself.
std::vector<std::uint32_t> Redistribution::blocks(std::uint32_t whole, const Step& step, const Placement& cut) {
  const TensorSpec spec = draft_.role.tensors[whole].spec;
  if (!lies_together(spec, cut.dim)) return packed(whole, step, cut);
  if (is_even(step, spec.shape, cut)) return {whole};
  std::vector<std::uint32_t> views;
  for (const Range& range : ranges(step, spec.shape, cut))
    views.push_back(add_view(fmt::format("{}.to{}", step.name, views.size()), part_of_spec(spec, cut.dim, range.size),
                             whole, offset_of(spec, cut.dim, range.begin)));
  return views;
}

std::vector<std::uint32_t> Redistribution::packed(std::uint32_t whole, const Step& step, const Placement& cut) {
  const TensorSpec spec = draft_.role.tensors[whole].spec;
  Step packed_step = step;
  packed_step.name += ".packed";
  const std::uint32_t storage = add(packed_step, spec.flat());
  std::vector<std::uint32_t> views;
  std::int64_t offset = 0;
  const std::vector<Range> all = ranges(step, spec.shape, cut);
  for (const Range& range : all) {
    const TensorSpec block = part_of_spec(spec, cut.dim, range.size);
    views.push_back(add_view(fmt::format("{}.to{}", packed_step.name, views.size()), block, storage, offset));
    offset += block.bytes();
  }
  add_copy("pack",
           {{"dim", cut.dim}, {"parts", static_cast<double>(all.size())}, {"block", static_cast<double>(all[0].size)}},
           spec, step, {whole}, views);
  if (is_even(step, spec.shape, cut)) return {storage};
  return views;
}

Redistribution::Target Redistribution::target(const Step& step, const TensorSpec& spec, const Placement& cut) {
  Target made;
  made.lies_together = lies_together(spec, cut.dim);
  made.whole = add(step, spec);
  std::uint32_t storage = made.whole;
  if (!made.lies_together) {
    Step packed_step = step;
    packed_step.name += ".blocks";
    storage = add(packed_step, spec.flat());
  }
  std::int64_t offset = 0;
  for (const Range& range : ranges(step, spec.shape, cut)) {
    const TensorSpec block = part_of_spec(spec, cut.dim, range.size);
    made.parts.push_back(add_view(fmt::format("{}.from{}", step.name, made.parts.size()), block, storage, offset));
    offset += block.bytes();
  }
  made.blocks = is_even(step, spec.shape, cut) ? std::vector{storage} : made.parts;
  return made;
}

void Redistribution::unpack(const Target& target, const Step& step, const Placement& cut) {
  if (target.lies_together) return;
  const TensorSpec spec = draft_.role.tensors[target.whole].spec;
  const std::vector<Range> all = ranges(step, spec.shape, cut);
  add_copy("unpack",
           {{"dim", cut.dim}, {"parts", static_cast<double>(all.size())}, {"block", static_cast<double>(all[0].size)}},
           spec, step, target.parts, {target.whole});
}

void Redistribution::collective(CollectiveKind kind, const Step& step, std::uint32_t root,
                                const std::vector<std::uint32_t>& reads, const std::vector<std::uint32_t>& writes) {
  const std::uint32_t ticket = draft_.post({.kind = InstructionKind::collective,
                                            .collective = kind,
                                            .node = step.label,
                                            .microbatch = step.microbatch,
                                            .peer = tables_.group(1U << step.axis),
                                            .root = root,
                                            .reads = reads,
                                            .writes = writes});
  if (writes.empty()) draft_.wait(ticket, step.label, step.microbatch);  // nothing here would ask for it: add_waits
}

std::string Redistribution::unused(std::string name) {
  while (!names_.insert(name).second) name += "'";
  return name;
}

std::uint32_t Redistribution::add(const Step& step, const TensorSpec& spec) {
  return draft_.role.add_tensor(unused(step.name), spec, TensorClass::activation);
}

std::uint32_t Redistribution::add_view(const std::string& name, const TensorSpec& spec, std::uint32_t of,
                                       std::int64_t offset_bytes) {
  return draft_.role.add_view(unused(name), spec, of, offset_bytes);
}

void Redistribution::add_copy(std::string_view kind, const Attributes& attributes, const TensorSpec& x,
                              const Step& step, const std::vector<std::uint32_t>& reads,
                              const std::vector<std::uint32_t>& writes) {
  const OpKind& op_kind = op_table().at(kind);
  draft_.list.push_back({.kind = InstructionKind::copy,
                         .work = draft_.works->add({{&op_kind, attributes, {x}}, Pass::forward, 0}),
                         .node = step.label,
                         .microbatch = step.microbatch,
                         .reads = reads,
                         .writes = writes});
}

}  // namespace sim
