// ZeRO: the sums of a unit's gradients, of which each rank gets those of its part. They go as soon as the unit's last
// gradient is there, or after the backward; one unit at a time, as FSDP2's do. Replicas of what is cut (HSDP) add up
// their parts, while the next units' go and the backward goes on. The unit's own memory of the gradients lives until
// they're sent.
//
//   before                         after
//   9 compute w5 node=net2 : …     9 compute w5 node=net2 : … -> grad.relu#0 grad.net2.weight grad.net2.bias
//                                 10 copy w6 node=unit1 scale=0.5 : grad.net2.weight -> unit1.grad.0
//                                 11 copy w7 node=unit1 scale=0.5 : grad.net2.bias -> unit1.grad.1
//                                 12 copy w8 node=unit1 : -> unit1.grad.2                       what pads it, zero
//                                 13 collective t2 kind=reduce_scatter group=dp node=unit1 : unit1.grad -> unit1.sum
//  10 compute w6 node=relu : …    14 compute w9 node=relu : …
//                                 15 wait t2 node=unit1
//
// FSDP2 puts the gradients into the table of all ranks' rows, and the sum is a mean:
//
//  10 copy w6 node=unit1 : grad.net2.weight grad.net2.bias -> unit1.grad
//  11 collective t2 kind=reduce_scatter group=dp reduction=mean node=unit1 : unit1.grad -> unit1.sum
//
// DeepSpeed's first two stages give everyone all sums (all_reduce); the second keeps its part of them only.
#include <algorithm>
#include <utility>

#include "sim/lower/pass/pass.hpp"
#include "sim/lower/plan.hpp"

namespace sim {
namespace {

class Sums {
 public:
  Sums(Draft& draft, const Layout& layout, bool mean, const GroupOf& group_of)
      : draft_(draft),
        layout_(layout),
        cut_(*layout.parameters.cut),
        group_of_(group_of),
        axes_of_mean_(mean && layout.parameters.is_mean ? Plan::axes_of(layout.rows, Placement::Kind::shard) : 0) {}

  void add() {
    const std::vector<Round> rounds = rounds_in_order();
    std::vector<Instruction> list = std::exchange(draft_.list, {});
    std::size_t next = 0;
    for (std::size_t at = 0; at < list.size(); ++at) {
      draft_.list.push_back(std::move(list[at]));
      for (; !cut_.after_backward && next < rounds.size() && rounds[next].complete <= at; ++next) add(rounds[next]);
    }
    for (; next < rounds.size(); ++next) add(rounds[next]);
    settle();
  }

 private:
  /// Gradients of a unit that are summed together: of all microbatches, or of one.
  struct Round {
    std::uint32_t unit = 0;
    std::size_t number = 0, complete = 0;  // of the unit's; the instruction after which all are there
  };
  [[nodiscard]] std::uint32_t gradient(const Round& round, std::uint32_t p) const {
    const DraftParameter& parameter = draft_.parameters[p];
    return round.number == 0 ? parameter.gradient : parameter.later_gradients.at(round.number - 1);
  }

  [[nodiscard]] std::vector<Round> rounds_in_order() const {
    const std::vector<std::vector<std::size_t>> written = draft_.writes();
    std::vector<Round> rounds;
    for (std::uint32_t u = 0; u < draft_.units.size(); ++u) {
      const std::vector<std::uint32_t>& parameters = draft_.units[u].parameters;
      if (draft_.units[u].is_frozen) continue;
      for (std::size_t number = 0; number <= draft_.parameters[parameters[0]].later_gradients.size(); ++number) {
        Round& round = rounds.emplace_back(Round{u, number});
        for (const std::uint32_t p : parameters)
          round.complete = std::max(round.complete, written[gradient(round, p)].back());
      }
    }
    std::ranges::stable_sort(rounds, {}, &Round::complete);
    return rounds;
  }

  void add(const Round& round) {
    DraftUnit& unit = draft_.units[round.unit];
    const std::string name = draft_.names->at(unit.label),
                      number = round.number == 0 ? "" : fmt::format("#{}", round.number);
    const TensorSpec own{dtype_of_sums(unit), draft_.role.tensors[unit.own].spec.shape};
    const std::uint32_t grad =
        cut_.by_rows ? add_table(round, name + ".grad" + number) : add_flat(round, name + ".grad" + number);
    settle();
    flying_ = InFlight{.unit = round.unit, .is_first = round.number == 0};
    if (cut_.scatters) {
      flying_->sum = draft_.role.add_tensor(name + ".sum" + number, own, TensorClass::gradient);
      flying_->ticket =
          draft_.post_collective(CollectiveKind::reduce_scatter, unit.group, 0, {grad}, {flying_->sum}, unit.label);
      if (cut_.by_rows && (axes_of_mean_ >> cut_.axis & 1U) != 0) draft_.list.back().reduction = Reduction::mean;
    } else {
      flying_->sum = draft_.role.add_own_view(name + ".sum" + number, own, grad, cut_.axis);
      flying_->ticket = draft_.post_collective(CollectiveKind::all_reduce, unit.group, grad, unit.label);
    }
    if (!layout_.parameters.overlap) settle();
  }

  /// The gradients one after the other, each a summand of the mean.
  std::uint32_t add_flat(const Round& round, const std::string& name) {
    const DraftUnit& unit = draft_.units[round.unit];
    const TensorSpec all{dtype_of_sums(unit), draft_.role.tensors[unit.all].spec.shape};
    std::vector<TensorSpec> specs;
    for (const std::uint32_t p : unit.parameters)
      specs.push_back({all.dtype, draft_.parameters[p].spec.shape, draft_.parameters[p].spec.channels_last});
    std::int64_t padding = all.elements();
    for (const TensorSpec& spec : specs) padding -= spec.elements();
    if (padding > 0) specs.push_back({all.dtype, {padding}});
    const Draft::Flat flat = draft_.add_flat(name, specs);
    const double scale = 1.0 / layout_.mesh.ranks_along(unit.sum_axes & axes_of_mean_);
    for (std::size_t k = 0; k < unit.parameters.size(); ++k)
      draft_.scaled_copy(gradient(round, unit.parameters[k]), flat.slices[k], scale, unit.label);
    if (padding > 0) draft_.fill(flat.slices.back(), unit.label);
    return flat.tensor;
  }

  /// Each rank's rows together.
  std::uint32_t add_table(const Round& round, const std::string& name) {
    const DraftUnit& unit = draft_.units[round.unit];
    const TensorSpec all{dtype_of_sums(unit), draft_.role.tensors[unit.all].spec.shape};
    const std::uint32_t table = draft_.role.add_tensor(name, all, TensorClass::communication);
    std::vector<std::uint32_t> gradients;
    for (const std::uint32_t p : unit.parameters) {
      const DraftParameter& parameter = draft_.parameters[p];
      std::uint32_t own = gradient(round, p);
      if (parameter.is_packed) {
        const TensorSpec as_rows{draft_.role.tensors[own].spec.dtype,
                                 {parameter.rows(), parameter.spec.elements() / parameter.rows()}};
        own = draft_.role.add_view(draft_.role.tensors[own].name + ".rows", as_rows, own, 0);
      }
      gradients.push_back(own);
    }
    const auto parts = static_cast<double>(all.elements() / draft_.role.tensors[unit.own].spec.elements());
    draft_.copy("chunk_in", {{"parts", parts}}, all, gradients, {table}, unit.label);
    return table;
  }

  [[nodiscard]] bool is_widened(const DraftUnit& unit) const { return unit.is_half && cut_.half_sums; }
  /// In which gradients travel.
  [[nodiscard]] Dtype dtype_of_sums(const DraftUnit& unit) const {
    return draft_.role.tensors[is_widened(unit) ? unit.all : unit.own].spec.dtype;
  }

  /// Waits for what is on its way, and adds it up.
  void settle() {
    if (!flying_) return;
    const InFlight sent = *std::exchange(flying_, {});
    DraftUnit& unit = draft_.units[sent.unit];
    draft_.wait(sent.ticket, unit.label);
    const std::uint32_t rest = unit.sum_axes & ~(1U << cut_.axis);
    for (const std::uint32_t axes : {rest & axes_of_mean_, rest & ~axes_of_mean_}) {
      if (axes == 0) continue;
      const std::uint32_t ticket =
          draft_.post_collective(CollectiveKind::all_reduce, group_of_(axes), sent.sum, unit.label);
      if (cut_.by_rows && (axes & axes_of_mean_) != 0) draft_.list.back().reduction = Reduction::mean;
      if (!layout_.parameters.overlap) draft_.wait(ticket, unit.label);
    }
    std::uint32_t sum = sent.sum;
    if (is_widened(unit)) sum = copied(sum, ".f32", unit);
    if (!sent.is_first) return draft_.accumulate(unit.sum, sum, unit.label);
    // The part is kept, the other sums aren't.
    if (sum == sent.sum && !cut_.scatters && !cut_.after_backward) sum = copied(sum, ".own", unit);
    unit.sum = sum;
  }
  std::uint32_t copied(std::uint32_t sum, const char* ending, const DraftUnit& unit) {
    const std::string name = draft_.role.tensors[sum].name + ending;
    const std::uint32_t copy = draft_.role.add_tensor(name, draft_.role.tensors[unit.own].spec, TensorClass::gradient);
    draft_.scaled_copy(sum, copy, 1, unit.label);
    return copy;
  }

  struct InFlight {
    std::uint32_t unit = 0, sum = kNone, ticket = kNone;
    bool is_first = true;
  };
  Draft& draft_;
  const Layout& layout_;
  const ParameterCut& cut_;
  const GroupOf& group_of_;
  const std::uint32_t axes_of_mean_;
  std::optional<InFlight> flying_;
};

}  // namespace

void add_unit_sums(Draft& draft, const Layout& layout, bool mean, const GroupOf& group_of) {
  Sums(draft, layout, mean, group_of).add();
}

}  // namespace sim
