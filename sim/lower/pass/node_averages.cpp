// DASO (sim/strategy/daso.hpp): an epoch, in which steps differ by whether the node sums gradients, and by what ranks of
// the nodes send each other after the update. A rank's parameters go in one flat tensor, cut into chunks, of which the
// first takes the rest.
//
//   before, one step                  after, each of the epoch's
//   0 compute w0 node=fc …            0 compute w0 node=fc …
//   …                                 … the node's buckets, as DDP's: add_gradient_sums
//                                     9 update w9 …
//   of its sender: zeros,             10 copy w10 node=sent : -> sent
//   as torch.zeros; parameters        11 copy w11 node=fc.weight : fc.weight -> sent.0
//                                     …
//   are there NaNs?                   13 copy w12 node=sent : sent
//                                     14 collective t4 kind=all_reduce group=nodes node=sent : sent.chunk0 -> sent.chunk0
//                                     15 collective t5 kind=all_reduce group=nodes node=sent : sent.chunk1 -> sent.chunk1
//   `wait` steps later                22 wait t4 node=sent
//                                     23 copy w13 node=sent : fc.weight sent.0 -> fc.weight        blend
//                                     …
//                                     26 collective t6 kind=broadcast group=local root=0 node=fc.weight : fc.weight -> …
//
// The reference also broadcasts from the rank that sent before, once more, when the next one has sent; so do we. It
// divides what it has received before it adds it: one pass more, which isn't here. MPI adds bfloat16 one after the other;
// what a world does is its own.
#include <algorithm>
#include <iterator>
#include <utility>

#include "sim/error.hpp"
#include "sim/lower/pass/pass.hpp"

namespace sim {
namespace {

using List = std::vector<Instruction>;

class AveragedSteps {
 public:
  AveragedSteps(Draft& draft, const Model& model, const Layout& layout, bool mean, const GroupOf& group_of)
      : draft_(draft),
        averages_(*layout.parameters.averages),
        nodes_(layout.mesh.axes[averages_.nodes].size),
        me_(layout.mesh.coordinate(draft.role.ranks.at(0), averages_.local())),
        group_of_nodes_(group_of(1U << averages_.nodes)),
        group_of_node_(group_of(1U << averages_.local())),
        label_(draft.names->add("sent")) {
    check_internal(draft.kept.empty(), "DASO: gradients are kept for longer than they are used");
    without_sums_ = draft.list;
    with_sums_ = list_of([&] {
      draft.list = without_sums_;
      add_gradient_sums(draft, layout, mean, group_of);
    });
    if (layout.parameters.broadcast_buffers) buffers_ = list_of([&] { add_buffer_broadcast(draft, group_of_node_); });
    update_ = list_of([&] { add_updates(draft, model); });
    make_sent();
    for (std::uint32_t root = 0; root < averages_.daso.local; ++root)
      broadcasts_.push_back(list_of([&] { broadcast(root); }));
  }

  void add() {
    const DasoEpoch epoch = epoch_of(averages_.daso);
    bool has_synced = true;  // DDP shares buffers where the step before summed gradients
    const auto add_all = [&](const std::vector<DasoStep>& steps) {
      for (const DasoStep& step : steps) add_step(step, std::exchange(has_synced, step.sums_gradients));
    };
    draft_.list.clear();
    add_all({epoch.first});
    draft_.body_begin = draft_.list.size();
    add_all(epoch.body);
    draft_.body_end = draft_.list.size();
    add_all(epoch.end);
  }

 private:
  /// What `make` makes of an empty list; with waits.
  template <class Make>
  List list_of(const Make& make) {
    draft_.list.clear();
    make();
    add_waits(draft_);
    return std::exchange(draft_.list, {});
  }

  void make_sent() {
    std::vector<TensorSpec> specs;
    for (const DraftParameter& parameter : draft_.parameters) {
      specs.push_back(parameter.spec);
      if (averages_.daso.skips == 0 && parameter.spec.dtype == Dtype::f32) specs.back().dtype = averages_.downcast;
    }
    sent_ = draft_.add_flat("sent", specs);
    const TensorSpec all = draft_.role.tensors[sent_.tensor].spec;
    for (std::int64_t end = (all.elements() - 1) % averages_.chunk_elements + 1, begin = 0; begin < all.elements();
         begin = std::exchange(end, end + averages_.chunk_elements))
      chunks_.push_back({draft_.role.add_view(fmt::format("sent.chunk{}", chunks_.size()), {all.dtype, {end - begin}},
                                              sent_.tensor, begin * size_of(all.dtype)),
                         draft_.tickets++, end});
  }

  void broadcast(std::uint32_t root) {
    const std::uint32_t first = draft_.tickets;
    for (const DraftParameter& parameter : draft_.parameters) {
      const std::vector<std::uint32_t> all{parameter.weight}, at_root(root == me_ ? 1 : 0, parameter.weight);
      draft_.post_collective(CollectiveKind::broadcast, group_of_node_, root, at_root, all, label_of(parameter));
    }
    for (std::size_t p = 0; p < draft_.parameters.size(); ++p)
      draft_.wait(first + static_cast<std::uint32_t>(p), label_of(draft_.parameters[p]));
  }

  void send() {
    draft_.fill(sent_.tensor, label_);
    for (std::size_t p = 0; p < draft_.parameters.size(); ++p)
      draft_.scaled_copy(draft_.parameters[p].weight, sent_.slices[p], 1, label_of(draft_.parameters[p]));
    draft_.copy("count_nans", {}, draft_.role.tensors[sent_.tensor].spec, {sent_.tensor}, {}, label_);
    for (const Chunk& chunk : chunks_)
      draft_.list.push_back({.kind = InstructionKind::collective,
                             .collective = CollectiveKind::all_reduce,
                             .node = label_,
                             .peer = group_of_nodes_,
                             .ticket = chunk.ticket,
                             .reads = {chunk.tensor},
                             .writes = {chunk.tensor}});
  }

  /// Chunk by chunk, what has arrived.
  template <class Take>
  void receive(const Take& take) {
    std::size_t next = 0;
    std::int64_t elements = 0;  // until the next parameter's end
    for (const Chunk& chunk : chunks_) {
      draft_.wait(chunk.ticket, label_);
      std::vector<std::size_t> arrived;
      for (; next < draft_.parameters.size(); ++next) {
        const std::int64_t size = draft_.parameters[next].spec.elements();
        if (elements + size > chunk.end) break;
        elements += size;
        arrived.push_back(next);
      }
      if (!arrived.empty()) take(arrived);
    }
    draft_.list.back().frees.push_back(draft_.role.tensors[sent_.tensor].storage);
  }

  /// _gs_rcv_update_params: it is closer to the others' the longer it has waited.
  void blend(const std::vector<std::size_t>& arrived, std::int64_t waited) {
    const double own = waited > 0 ? 2 * static_cast<double>(waited) : 1, all = nodes_ + own;
    std::vector<std::uint32_t> weights, reads;
    std::int64_t elements = 0;
    for (const std::size_t p : arrived) {
      weights.push_back(draft_.parameters[p].weight);
      elements += draft_.parameters[p].spec.elements();
    }
    reads = weights;
    for (const std::size_t p : arrived) reads.push_back(sent_.slices[p]);
    draft_.copy("blend", {{"keep", own / all}, {"take", 1 / all}},
                {draft_.parameters[arrived[0]].spec.dtype, {elements}}, reads, weights, label_);
  }

  void take_mean(const std::vector<std::size_t>& arrived) {
    for (const std::size_t p : arrived)
      draft_.scaled_copy(sent_.slices[p], draft_.parameters[p].weight, 1.0 / nodes_, label_of(draft_.parameters[p]));
  }

  void add_step(const DasoStep& step, bool shares_buffers) {
    List list = std::exchange(draft_.list, {});
    if (shares_buffers) extend(buffers_);
    extend(step.sums_gradients ? with_sums_ : without_sums_);
    extend(update_);
    for (const NodeSync& sync : step.syncs) {
      if (sync.kind == NodeSync::Kind::broadcast) extend(broadcasts_[sync.rank]);
      if (sync.rank != me_) continue;
      if (sync.kind == NodeSync::Kind::send) send();
      if (sync.kind == NodeSync::Kind::blend) receive([&](const auto& arrived) { blend(arrived, sync.waited); });
      if (sync.kind == NodeSync::Kind::mean) receive([&](const auto& arrived) { take_mean(arrived); });
    }
    extend(draft_.last);
    std::vector<bool> stays(draft_.role.storages.size(), false);
    stays[draft_.role.tensors[sent_.tensor].storage] = true;
    add_frees(draft_, draft_.list, stays);
    std::ranges::move(draft_.list, std::back_inserter(list));
    draft_.list = std::move(list);
  }

  void extend(const List& more) { draft_.list.insert(draft_.list.end(), more.begin(), more.end()); }

  [[nodiscard]] std::uint32_t label_of(const DraftParameter& parameter) const {
    return draft_.names->add(parameter.name);
  }

  struct Chunk {
    std::uint32_t tensor, ticket;
    std::int64_t end;  // in elements
  };

  Draft& draft_;
  const NodeAverages& averages_;
  const std::uint32_t nodes_, me_;  // how many; which rank of one
  const std::uint32_t group_of_nodes_, group_of_node_, label_;
  List without_sums_, with_sums_, buffers_, update_;
  std::vector<List> broadcasts_;  // by root
  Draft::Flat sent_;
  std::vector<Chunk> chunks_;
};

}  // namespace

void add_averaged_steps(Draft& draft, const Model& model, const Layout& layout, bool mean, const GroupOf& group_of) {
  AveragedSteps(draft, model, layout, mean, group_of).add();
}

}  // namespace sim
