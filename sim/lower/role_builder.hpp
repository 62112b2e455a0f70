// The list of the ranks of one role: follows the schedule's actions, node by node, forward and backward. Where a value
// isn't where a node needs it, a redistribution brings it there; to and from other stages, sends and recvs.
//
//   Draft mine = RoleBuilder(plan, plan.roles[0], tables).build();   // now the passes: buffers, sums of gradients, …
#pragma once

#include "sim/lower/pass/pass.hpp"
#include "sim/lower/plan.hpp"
#include "sim/lower/redistribute.hpp"

namespace sim {

class RoleBuilder {
 public:
  RoleBuilder(const Plan& plan, const RolePlan& role, Tables& tables);

  Draft build();

 private:
  /// The output of a node that a stage of another rank reads (or has).
  struct Edge {
    std::uint32_t peer;  // Plan::part
    std::size_t chunk;   // of this rank
    int node;
    std::uint32_t tag, tensors;  // of the first microbatch; how many go between the two stages per microbatch
  };
  struct Pending {
    std::uint32_t ticket, node;
    std::int32_t microbatch;
  };
  /// A value as it lies somewhere.
  struct Held {
    const Placements* where;  // the plan's
    LocalValue value;
  };
  static std::vector<Held>::iterator find(std::vector<Held>& held, const Placements& where);
  using Key = std::pair<int, std::int32_t>;  // node (or kModelInput, kModelTarget), microbatch or kAll
  static constexpr std::int32_t kAll = -1;   // the microbatches together, as an instruction without a microbatch

  [[nodiscard]] const Node& node(int n) const { return plan_.model.nodes[static_cast<std::size_t>(n)]; }
  [[nodiscard]] const OpInstance& op(int n) const { return role_.parts->ops[static_cast<std::size_t>(n)]; }
  [[nodiscard]] const Signature& signature(int n) const { return role_.parts->signatures[static_cast<std::size_t>(n)]; }
  [[nodiscard]] const NodePlacements& placed(int n) const { return plan_.placements[static_cast<std::size_t>(n)]; }
  [[nodiscard]] bool plays(int n) const { return role_.plays[static_cast<std::size_t>(n)]; }
  [[nodiscard]] std::uint32_t grads(int n) const { return n < 0 ? 0 : plan_.grads[static_cast<std::size_t>(n)]; }
  [[nodiscard]] std::size_t chunk_of(std::uint32_t part) const {
    return static_cast<std::size_t>(plan_.rank_of(part).chunk);
  }
  [[nodiscard]] int loss_node() const { return static_cast<int>(plan_.model.nodes.size()) - 1; }
  [[nodiscard]] TensorSpec whole_spec(int source, std::int32_t mb) const;
  [[nodiscard]] std::string value_name(int source, std::int32_t mb) const;
  [[nodiscard]] std::string gradient_name(int n, std::int32_t mb) const;
  std::uint32_t name_of(int source);
  std::uint32_t add_activation(const std::string& name, const TensorSpec& spec);

  void add_edges();
  void add_tied_gradients();
  void add_persistent();
  std::uint32_t add_state(const std::string& name, const TensorSpec& spec, TensorClass tensor_class,
                          const Initial& initial, const TensorSpec& whole, const Placements& on);
  void add_parameter(int n, const ParameterSpec& part, std::size_t index);
  void add_given(int source);
  bool is_cut_like_weights(int source) const;
  void add_frozen(int source, int n);
  void add_host_work(std::string_view kind, const Attributes& attributes, const std::string& name,
                     const std::vector<std::uint32_t>& reads, const std::vector<std::uint32_t>& writes,
                     std::int32_t mb = kAll);

  [[nodiscard]] TensorSpec received_spec(int n, std::int32_t mb, const Placements& where) const;
  Pending post(InstructionKind kind, const Edge& edge, std::int32_t mb, std::uint32_t tensor);
  void wait_all(const std::vector<Pending>& pending);
  void wait_received(std::uint32_t peer, std::vector<Pending>& sends, std::int32_t mb);
  std::size_t place_of(std::uint32_t part, Action::Kind kind, std::int32_t mb);

  void hold(int source, std::int32_t mb, const Placements& where, std::uint32_t tensor);
  /// The value where it is needed; kNone where that is elsewhere.
  std::uint32_t bring(int source, std::int32_t mb, const Placements& where);
  /// An input that was gathered, and isn't kept so for the backward (Layout::regather).
  [[nodiscard]] bool is_regathered(int n, std::int32_t mb, std::size_t input) const;
  std::uint32_t regather(int source, std::int32_t mb, const Placements& where);
  /// The tensor as it was made.
  [[nodiscard]] std::uint32_t made(int source, std::int32_t mb) const;

  Instruction compute(int n, std::int32_t mb, Pass pass, std::uint32_t grads);
  void forward(std::size_t chunk, std::int32_t mb);
  void forward_node(int n, std::int32_t mb);
  /// Nodes whose outputs aren't kept, in the model's order, and which of them are played again.
  struct Segment {
    std::vector<int> nodes;
    std::set<int> again;
  };
  const Segment& segment_of(std::size_t chunk, std::uint32_t number);
  [[nodiscard]] std::set<int> again(const std::vector<int>& segment) const;
  void recompute(const Segment& segment, std::int32_t mb);
  std::uint32_t add_output(int n, std::int32_t mb, const std::vector<std::uint32_t>& inputs);
  Instruction of_classes(std::string_view kind, std::int32_t mb, const std::vector<std::uint32_t>& reads);
  [[nodiscard]] bool logits_may_change() const;
  std::uint32_t first_of(std::int64_t units, std::uint32_t axes);
  void add_first(int n, Instruction& instruction);
  std::uint32_t add_loss_of_classes(std::int32_t mb, const std::vector<std::uint32_t>& inputs);
  Instruction in_place_of(int n, std::int32_t mb, std::string_view kind, const Attributes& attributes,
                          const std::vector<std::uint32_t>& reads);
  void post_together(int n, std::int32_t mb, CollectiveKind kind, std::uint32_t from, std::uint32_t to,
                     Reduction reduction = Reduction::sum);
  std::uint32_t add_synced_norm(int n, std::int32_t mb, std::uint32_t x);
  void backward_of_synced_norm(int n, std::int32_t mb, bool last);
  void loss_of_all();
  void backward(std::size_t chunk, std::int32_t mb, bool last);
  void parameter_gradients(std::size_t chunk, std::int32_t mb, bool last);
  void backward_node(int n, std::int32_t mb, bool last);
  void backward_of_alias(int n, std::int32_t mb);
  void add_parameter_gradients(int n, std::int32_t mb, Instruction instruction, bool last);
  [[nodiscard]] bool is_in_two(int n, std::uint32_t made) const;
  [[nodiscard]] double loss_scale(std::int32_t mb) const;
  std::uint32_t operand_tensor(int n, std::int32_t mb, const Operand& operand);
  void contribute(int n, std::int32_t mb, const Placements& where, LocalValue part);
  LocalValue gradient_of(int n, std::int32_t mb);
  void add_up(int n, std::int32_t mb, LocalValue& total, LocalValue part);

  const Plan& plan_;
  const RolePlan& role_;
  Tables& tables_;
  Draft draft_;
  Redistribution redistribution_;
  std::uint32_t free_tag_ = 0;                                      // beyond those of edges
  std::vector<Edge> before_, after_;                                // from and to other stages, by stage and node
  std::vector<std::vector<int>> nodes_;                             // of this rank, by chunk, in the model's order
  std::map<int, std::vector<std::uint32_t>> parameters_, buffers_;  // per node: indices into draft_.parameters, tensors
  std::map<std::string, std::uint32_t> parameter_of_;               // by name: index into draft_.parameters
  std::map<int, std::uint32_t> frozen_;                             // by source, where it is in a unit: the same
  std::map<std::uint32_t, int> last_summand_of_;  // by parameter: the node that gives the last part of its gradient
  std::map<Key, std::vector<Held>> values_;       // outputs, here or received; first as made
  std::map<Key, std::vector<Held>> regathered_;   // of those, for the backward
  std::map<Key, std::vector<std::uint32_t>> inputs_, saved_;         // of played nodes: tensors
  std::map<Key, std::vector<Held>> gradients_;                       // under construction
  std::set<std::pair<std::uint32_t, std::int32_t>> with_gradients_;  // parameters and microbatches that have one
  using OfChunk = std::pair<std::size_t, std::int32_t>;              // chunk, microbatch
  std::map<OfChunk, std::vector<Pending>> activation_sends_;
  std::map<std::uint32_t, std::vector<Pending>> gradient_sends_;  // by the part they go to
  std::map<std::uint32_t, std::vector<std::size_t>> places_;      // of place_of, by rank
  /// Nodes whose parameters' gradients a schedule leaves for later, and the instruction that computes them.
  std::map<OfChunk, std::vector<std::pair<int, Instruction>>> later_;
  struct OfNode {  // works; of a backward in two, that of the inputs' gradients and that of the parameters'
    std::uint32_t forward = kNone, backward = kNone, of_parameters = kNone;
  };
  std::vector<OfNode> works_;
  std::map<std::pair<std::int64_t, std::uint32_t>, std::uint32_t> firsts_;  // of first_of
  std::map<std::pair<std::size_t, std::uint32_t>, Segment> segments_;       // by chunk and number
  bool plays_again_ = false;                                                // what was played before, for the backward
  std::vector<std::uint32_t> labels_;                                       // of nodes
};

}  // namespace sim
