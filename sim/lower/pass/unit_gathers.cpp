// ZeRO 3: the weights of a unit are gathered before they're used, and freed after that. A run is what uses them together:
// the instructions of one microbatch and pass. Those of the next runs are on their way already (prefetch).
//
//   before                                    after, prefetch=1
//                                             0 collective t0 kind=all_gather group=dp node=unit0 : unit0.own -> unit0.all
//                                             1 collective t1 kind=all_gather group=dp node=unit1 : unit1.own -> unit1.all
//                                             2 wait t0 node=unit0
//   0 compute w0 node=net1 : input net1.weight … 3 compute w0 node=net1 : input net1.weight …
//   1 compute w1 node=relu : …                4 compute w1 node=relu : …
//                                             5 wait t1 node=unit1
//   2 compute w2 node=net2 : … net2.weight …  6 compute w2 node=net2 : … net2.weight …
//
// FSDP2, and what is used in half precision, copies what it has into what is gathered; FSDP2 from there, once it is there,
// the parameters to where they're used:
//
//   0 copy w7 node=unit0 : unit0.own -> unit0.all.own
//   1 collective t0 kind=all_gather group=dp node=unit0 : unit0.all.own -> unit0.all
//   2 wait t0 node=unit0
//   3 copy w8 node=unit0 : unit0.all -> net1.weight.all net1.bias.all ; free unit0.all     views of unit0.copied
#include <algorithm>
#include <utility>

#include "sim/lower/pass/pass.hpp"

namespace sim {
namespace {

struct Run {
  std::uint32_t unit = 0;
  std::size_t begin = 0;  // its first instruction
  std::int32_t microbatch = -1;
  Pass pass = Pass::forward;
  bool again = false;                                              // for the backward
  double passed = 0;                                               // elements of all uses until its latest one
  std::uint32_t all = kNone;                                       // tensors: gathered, of this run
  std::vector<std::uint32_t> rooms{};                              // FSDP2: what the parameters are copied to
  std::vector<std::pair<std::uint32_t, std::uint32_t>> weights{};  // as they were, and views of these
};

class Gathers {
 public:
  Gathers(Draft& draft, const ParameterCut& cut) : draft_(draft), cut_(cut) {}

  void add() {
    find_runs();
    std::vector<std::uint32_t> of_unit(draft_.units.size(), 0);
    for (Run& run : runs_) give_tensors(run, of_unit[run.unit]++);
    std::vector<std::size_t> posts;  // before which instruction, by run
    for (std::uint32_t r = 0; r < runs_.size(); ++r) posts.push_back(runs_[first_ahead(r)].begin);
    std::vector<Instruction> list = std::exchange(draft_.list, {});
    std::uint32_t posted = 0, begun = 0;
    for (std::size_t i = 0; i < list.size(); ++i) {
      for (; posted < runs_.size() && posts[posted] <= i; ++posted) {
        const Run& run = runs_[posted];
        const DraftUnit& unit = draft_.units[run.unit];
        std::uint32_t own = unit.own;
        if (!run.rooms.empty() || unit.is_half) {
          const Tensor all = draft_.role.tensors[run.all];
          const TensorSpec part{all.spec.dtype, draft_.role.tensors[unit.own].spec.shape};
          own = draft_.role.add_own_view(all.name + ".own", part, run.all, cut_.axis);
          draft_.scaled_copy(unit.own, own, 1, unit.label);
        }
        draft_.post_collective(CollectiveKind::all_gather, unit.group, 0, {own}, {run.all}, unit.label);
      }
      for (; begun < runs_.size() && runs_[begun].begin == i; ++begun) {
        const Run& run = runs_[begun];
        if (run.rooms.empty()) continue;
        const DraftUnit& unit = draft_.units[run.unit];
        const TensorSpec all = draft_.role.tensors[run.all].spec;
        const auto parts = static_cast<double>(all.elements() / draft_.role.tensors[unit.own].spec.elements());
        draft_.copy("split_out", {{"parts", parts}}, all, {run.all}, run.rooms, unit.label);
      }
      Instruction instruction = std::move(list[i]);
      for (const std::uint32_t r : used_[i])
        for (const auto& [before, weight] : runs_[r].weights)
          for (std::uint32_t& tensor : instruction.reads)
            if (tensor == before) tensor = weight;
      draft_.list.push_back(std::move(instruction));
    }
  }

 private:
  void find_runs() {
    std::vector<std::uint32_t> of_weight(draft_.role.tensors.size(), kNone),
        of_gradient = of_weight, latest(draft_.units.size(), kNone);  // units; runs
    for (std::uint32_t u = 0; u < draft_.units.size(); ++u)
      for (const std::uint32_t p : draft_.units[u].parameters) {
        const DraftParameter& parameter = draft_.parameters[p];
        if (!draft_.units[u].is_gathered) continue;
        of_weight[parameter.weight] = u;
        if (!parameter.is_frozen) of_gradient[parameter.gradient] = u;
        for (const std::uint32_t later : parameter.later_gradients) of_gradient[later] = u;
      }
    used_.resize(draft_.list.size());
    for (std::size_t i = 0; i < draft_.list.size(); ++i) {
      const Instruction& instruction = draft_.list[i];
      const bool again = !instruction.writes.empty() && draft_.again.contains(instruction.writes[0]);
      for (const std::uint32_t tensor : instruction.reads) {
        const std::uint32_t unit = of_weight[tensor];
        if (unit == kNone) continue;
        const Work& work = draft_.works->at(instruction.work);
        const Pass pass = work.op.kind->of_backward ? Pass::backward : work.pass;
        std::uint32_t& run = latest[unit];
        const bool is_new = run == kNone || !goes_on(run, instruction.microbatch, pass, again);
        if (is_new) {
          run = static_cast<std::uint32_t>(runs_.size());
          runs_.push_back({unit, i});
        }
        Run& now = runs_[run];
        if (is_new || !(now.microbatch == instruction.microbatch && now.pass == pass && now.again == again))
          passed_ += static_cast<double>(draft_.role.tensors[draft_.units[unit].all].spec.elements());
        now.again = again;
        now.microbatch = instruction.microbatch;
        now.pass = pass;
        now.passed = passed_;
        if (used_[i].empty() || used_[i].back() != run) used_[i].push_back(run);
      }
      // A backward that needs no weights is one, too, but doesn't keep those that have been freed.
      for (const std::uint32_t tensor : instruction.writes)
        if (const std::uint32_t unit = of_gradient[tensor]; unit != kNone && latest[unit] != kNone)
          if (is_kept(latest[unit]) || is_last(latest[unit])) runs_[latest[unit]].pass = Pass::backward;
    }
  }

  /// The unit's last run has its weights still when this pass of the microbatch asks for them. A backward, or a forward
  /// that is played again, which follows at once finds those of the forward; where they aren't freed in between, all do.
  [[nodiscard]] bool goes_on(std::uint32_t run, std::int32_t microbatch, Pass pass, bool again) const {
    const Run& last = runs_[run];
    if (last.microbatch == microbatch && last.pass == pass && (last.again == again || is_kept(run))) return true;
    if (is_kept(run)) return !cut_.reshard_after_backward || last.pass == Pass::forward || pass == Pass::backward;
    return is_last(run) && last.microbatch == microbatch && (pass == Pass::backward || again);
  }

  /// Whether its weights aren't freed between its latest use and now.
  [[nodiscard]] bool is_kept(std::uint32_t run) const {
    return !cut_.reshard || passed_ - runs_[run].passed < cut_.reuse_elements;
  }

  /// The unit's own tensors where it is its first run, with none before; copies of them, of a later one.
  void give_tensors(Run& run, std::uint32_t before) {
    const DraftUnit& unit = draft_.units[run.unit];
    if (before == 0) {
      run.all = unit.all;
      run.rooms = unit.rooms;
      return;
    }
    Role& role = draft_.role;
    const auto again = [&](std::uint32_t tensor) {
      const Tensor one = role.tensors[tensor];
      return role.add_tensor(fmt::format("{}#{}", one.name, before), one.spec, role.storages[one.storage].tensor_class);
    };
    run.all = again(unit.all);
    const std::uint32_t weights = unit.rooms.empty() ? run.all : again(unit.copied);
    const auto view_again = [&](std::uint32_t tensor) {
      const Tensor one = role.tensors[tensor];
      return role.add_view(fmt::format("{}#{}", one.name, before), one.spec, weights, one.offset_bytes);
    };
    for (const std::uint32_t room : unit.rooms) run.rooms.push_back(view_again(room));
    for (const std::uint32_t p : unit.parameters)
      run.weights.emplace_back(draft_.parameters[p].weight, view_again(draft_.parameters[p].weight));
  }

  /// Whether this run and the next are of one layer, of what is trained and of what isn't.
  [[nodiscard]] bool are_together(std::uint32_t run) const {
    const std::uint32_t a = runs_[run].unit, b = runs_[run + 1].unit;
    const auto layer = [&](std::uint32_t unit) {
      return cut_.unit_of.at(draft_.parameters[draft_.units[unit].parameters[0]].of);
    };
    const bool is_one_frozen = draft_.units[a].is_frozen || draft_.units[b].is_frozen;
    return a != b && is_one_frozen && cut_.unit_bytes == 0 && layer(a) == layer(b);
  }

  /// Nothing but its layer's other runs comes after it.
  [[nodiscard]] bool is_last(std::uint32_t run) const {
    while (run + 1 < runs_.size() && are_together(run)) ++run;
    return run + 1 == runs_.size();
  }

  /// The run before which this one's weights are sent for.
  [[nodiscard]] std::uint32_t first_ahead(std::uint32_t run) const {
    std::uint32_t ahead = 0, layers = 0;
    double elements = 0;
    for (; ahead < run; ++ahead) {
      if (!are_together(run - ahead - 1) && ++layers > cut_.prefetch) break;
      elements += static_cast<double>(draft_.role.tensors[draft_.units[runs_[run - ahead].unit].all].spec.elements());
      if (cut_.prefetch_elements > 0 && elements > cut_.prefetch_elements) break;
    }
    return run - ahead;
  }

  Draft& draft_;
  const ParameterCut& cut_;
  std::vector<Run> runs_;                         // by their beginnings
  double passed_ = 0;                             // elements of units, each time that one is used
  std::vector<std::vector<std::uint32_t>> used_;  // by instruction: runs
};

}  // namespace

void add_unit_gathers(Draft& draft, const ParameterCut& cut) { Gathers(draft, cut).add(); }

}  // namespace sim
