// From one placement of a tensor to another: one transfer per axis at most, and copies where blocks don't lie together.
//
//   from\to   R                      S(j)                               @s
//   R         -                      slice (a view where it can be)     others drop it
//   S(i)      all_gather, unpack     pack, all_to_all, unpack           gather, unpack
//   P         all_reduce             pack, reduce_scatter               reduce
//   @r        broadcast              pack, scatter                      -
//
// Where the layout is rooted, a sum goes to the first coordinate and from there to those who need it (P→@0→R→…). Axes
// that cut one dimension after each other are undone from the innermost out, and cut again from the outermost in.
#pragma once

#include <set>
#include <string>

#include "sim/lower/pass/pass.hpp"
#include "sim/lower/plan.hpp"

namespace sim {

/// A tensor of a role, or nothing (kNone) where it lies elsewhere.
struct LocalValue {
  std::uint32_t tensor = kNone;
  bool exclusive = true;  // its storage is this value's alone: it may be changed in place
};

/// Inner axes that cut a dimension which an outer one is about to cut differently: along them each rank first gets all
/// of it, and then takes its part.
std::vector<bool> axes_that_let_go(const Placements& from, const Placements& to);

class Redistribution {
 public:
  Redistribution(const Plan& plan, const RolePlan& role, Tables& tables, Draft& draft)
      : plan_(plan), role_(role), tables_(tables), draft_(draft) {}

  /// `whole`: the whole tensor. `name`: of new tensors, with where they lie. Label and microbatch: of the instructions.
  LocalValue move(LocalValue value, const TensorSpec& whole, const Placements& from, const Placements& to,
                  const std::string& name, std::uint32_t label, std::int32_t microbatch);

 private:
  struct Step;  // along one axis

  LocalValue along(LocalValue value, const Step& step, const Placement& to);
  LocalValue from_shard(LocalValue value, const Step& step, const Placement& to);
  LocalValue from_sum(LocalValue value, const Step& step, const Placement& to);
  LocalValue from_root(LocalValue value, const Step& step, const Placement& to);
  LocalValue own_part(LocalValue value, const Step& step, const Placement& to);
  std::vector<std::uint32_t> blocks(std::uint32_t whole, const Step& step, const Placement& cut);
  std::vector<std::uint32_t> packed(std::uint32_t whole, const Step& step, const Placement& cut);
  /// Where a whole tensor's blocks go; `unpack` puts them together.
  struct Target {
    std::uint32_t whole = kNone;
    std::vector<std::uint32_t> blocks;  // as written
    std::vector<std::uint32_t> parts;   // of those, each
    bool lies_together = true;
  };
  Target target(const Step& step, const TensorSpec& spec, const Placement& cut);
  void unpack(const Target& target, const Step& step, const Placement& cut);
  void collective(CollectiveKind kind, const Step& step, std::uint32_t root, const std::vector<std::uint32_t>& reads,
                  const std::vector<std::uint32_t>& writes);
  [[nodiscard]] std::vector<Range> ranges(const Step& step, const Shape& shape, const Placement& cut) const;
  [[nodiscard]] bool is_even(const Step& step, const Shape& shape, const Placement& cut) const;
  std::string unused(std::string name);
  std::uint32_t add(const Step& step, const TensorSpec& spec);
  std::uint32_t add_view(const std::string& name, const TensorSpec& spec, std::uint32_t of, std::int64_t offset_bytes);
  void add_copy(std::string_view kind, const Attributes& attributes, const TensorSpec& x, const Step& step,
                const std::vector<std::uint32_t>& reads, const std::vector<std::uint32_t>& writes);

  const Plan& plan_;
  const RolePlan& role_;
  Tables& tables_;
  Draft& draft_;
  std::set<std::string> names_;  // of tensors made here
};

}  // namespace sim
