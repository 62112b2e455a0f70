// A Program is what each rank does in one training step, instruction by instruction. It is data: printable, parsable,
// checked before anyone executes it, and the same for the simulator and for the executor on real devices.
//
//   Program program = lower(model, strategy);
//   fmt::print("{}", to_text(program));
//   Program same = program_from_text(text);
//
// How a rank executes its list. One issuing thread goes through the list in order. `compute`, `copy`, `update` run on
// the device's compute lane (on a CPU the issuing thread itself). `send`, `recv`, `collective` are *posted* and go on
// in the communication lane once everything issued before them is done; each opens a ticket. `wait` names an open
// ticket, holds the issuing thread (on a CPU) or the compute lane (on a GPU) until its transfer is done, and closes it.
// So the only order among lanes is: posts after what was issued before, waits before what comes after.
//
// A list may have sections: a prologue, once; a body, again and again; an epilogue, once. What is in flight when a body
// ends is waited for in the next one, so that steps reach into each other; a body leaves the tickets and storages alive
// that it found, and may write again what it has freed; so may the steps of a body that has several (DASO). A list without
// sections is all body, and leaves nothing in flight. unroll.hpp makes one list of all.
//
// Tensors. A tensor is a view (dtype, shape, byte offset) of a storage. What an instruction changes in place, such as
// the weight of an update, is among its reads and among its writes. A storage is allocated when an instruction that
// writes one of its tensors is issued and freed after the instruction that lists it under `frees`; persistent storages
// (weights, buffers, states, inputs, buckets) live outside the step. Hence live bytes follow from the list alone (and
// what gloo copies for a collective, staging.hpp), and both executors agree on them exactly.
//
// Ranks lie on a mesh of named axes. Those that do the same share a Role. Who is in a rank's group follows from the
// axes that the group is named by; a message's partner is so many ranks further along one axis (pp+1: the next stage).
// A persistent tensor that is a piece of a larger one says of which and how it lies on the mesh: its first value, what
// `verify` compares it with and which samples a rank sees all follow from that. Parameters may also lie one after the
// other in one flat tensor, their unit: then it is what ranks cut into parts, whatever the parameters' shapes are.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "sim/mesh/mesh.hpp"
#include "sim/mesh/placement.hpp"
#include "sim/model/initial.hpp"
#include "sim/model/op/op.hpp"
#include "sim/program/collective.hpp"
#include "sim/strategy/daso.hpp"

namespace sim {

enum class InstructionKind : std::uint8_t { compute, copy, update, send, recv, collective, wait };
inline constexpr EnumNames<InstructionKind, 7> kInstructionKinds{
    "instruction kind", {"compute", "copy", "update", "send", "recv", "collective", "wait"}};
inline std::string_view to_string(InstructionKind kind) { return kInstructionKinds.of(kind); }
/// Takes time on the compute lane.
constexpr bool is_computed(InstructionKind kind) {
  return kind == InstructionKind::compute || kind == InstructionKind::copy || kind == InstructionKind::update;
}
/// One end of a transfer between two ranks.
constexpr bool is_message(InstructionKind kind) {
  return kind == InstructionKind::send || kind == InstructionKind::recv;
}
/// Begins a transfer that a `wait` ends.
constexpr bool is_posted(InstructionKind kind) { return is_message(kind) || kind == InstructionKind::collective; }

/// What a storage is for: the rows of the memory breakdown.
/// A copy is one of a parameter in another dtype, as torch.autocast makes.
enum class TensorClass : std::uint8_t { weight, gradient, optimizer, activation, buffer, input, communication, copy };
constexpr int kTensorClasses = 8;
inline constexpr EnumNames<TensorClass, kTensorClasses> kTensorClassNames{
    "tensor class", {"weight", "gradient", "optimizer", "activation", "buffer", "input", "communication", "copy"}};
inline std::string_view to_string(TensorClass tensor_class) { return kTensorClassNames.of(tensor_class); }

struct Storage {
  std::uint32_t owner = 0;  // the tensor that spans it; the others are views of it
  std::int64_t bytes = 0;
  TensorClass tensor_class = TensorClass::activation;
  bool persistent = false;
  friend bool operator==(const Storage&, const Storage&) = default;
};

constexpr std::uint32_t kNone = 0xffffffffU;

struct Tensor {
  std::string name;
  TensorSpec spec;
  std::uint32_t storage = 0;
  std::int64_t offset_bytes = 0;
  Initial initial = {};
  /// Persistent and a piece: the shape of the whole, and where it lies, by axis. Else empty: every rank has all of it.
  Shape whole = {};
  std::vector<Placement> on = {};
  /// A view that begins so many times its own size further as the rank's coordinate on this axis says.
  std::uint32_t along = kNone;
  /// Persistent and flat: the parameters of this unit (Role::units), and padding. It has their first values.
  std::uint32_t unit = kNone;
};

/// Parameters that lie one after the other in a flat tensor: of each what the rank plays with, in memory order; or, where
/// its placement is padded, what the rank keeps of it, in the room that all have.
struct ParameterUnit {
  struct Part {
    std::string name;           // "conv1.weight"
    TensorSpec whole;           // of all ranks together
    std::vector<Placement> on;  // which piece of it the rank plays with, by axis; empty: all of it
    Initial initial;
  };
  std::string name;
  std::vector<Part> parts;
};

/// A unit of compute, shared by all instructions of the same kind, pass and shapes: the key of costs and profiles.
struct Work {
  OpInstance op;
  Pass pass = Pass::forward;
  std::uint32_t grads = kParameterGrads | 1;  // see OpKind::demand
  std::uint32_t threads = 1;                  // of the rank that runs it, each on a core of its own
  std::uint32_t kind = 0;                     // of the device that it runs on: Cluster::kind (by_kind.hpp)

  [[nodiscard]] Demand demand() const { return op.demand(pass, grads); }
  /// The forward of one.
  [[nodiscard]] bool is_loss() const {
    return op.kind->gives_loss || (op.kind->role == OpRole::loss && pass == Pass::forward);
  }
};
/// "conv2d.backward f32[16,64,32,32] kernel_size=3 … grads=0+p": unique, and the key in a Profile. Where the precision
/// isn't PyTorch's default for the op, " precision=tf32" follows, where its parameters are in half precision,
/// " parameters=half", where it has several threads, " threads=2", and of an op
/// `aten` " body=" with its text.
std::string work_key(const Work& work);
/// The inverse. ConfigError when the text is no key.
Work work_from_key(std::string_view key);

/// A communicator: each rank's is the ranks that differ from it on these axes only.
struct Group {
  Group(std::string its_name, std::uint32_t axes_mask, const Mesh& mesh);

  std::string name;                                 // of its axes, joined by +: "dp", "h0+h1"
  std::uint32_t axes = 0;                           // bit i: Mesh::axes[i]
  std::vector<std::vector<std::uint32_t>> members;  // rank lists, ascending: every rank is in one
};

/// One instruction, as a value: what Role::add takes and Role::at gives.
struct Instruction {
  InstructionKind kind = InstructionKind::compute;
  CollectiveKind collective = CollectiveKind::all_reduce;
  Reduction reduction = Reduction::sum;  // of a collective that reduces
  std::uint32_t work = kNone;            // compute, copy, update: index into Program::works
  std::uint32_t node = kNone;            // index into Program::names: the node (or bucket …) it belongs to
  std::int32_t microbatch = -1;
  std::uint32_t peer = kNone;                // send, recv: axis of the mesh; collective: group
  std::int32_t by = 0;                       // send, recv: how far along it the partner is (Mesh::shifted)
  std::uint32_t root = 0;                    // collective with a root: index in the member list
  std::uint32_t tag = 0;                     // send, recv: matches inside a (source, destination) pair, counted from 0
  std::uint32_t ticket = kNone;              // send, recv, collective: opens it (kNone: a new one); wait: closes it
  double scale = 1;                          // loss backward, class_grad: gradient of the loss; scaled_copy: factor
  std::vector<std::uint32_t> reads, writes;  // tensors
  std::vector<std::uint32_t> frees;          // storages
};

/// The instruction list of the ranks that do the same. Struct of arrays: the simulator touches only what it needs.
class Role {
 public:
  std::string name;                  // "stage0"
  std::vector<std::uint32_t> ranks;  // index → rank
  std::vector<Tensor> tensors;
  std::vector<Storage> storages;
  std::vector<ParameterUnit> units;

  /// A tensor with a storage of its own; its index.
  std::uint32_t add_tensor(std::string tensor_name, const TensorSpec& spec, TensorClass tensor_class,
                           bool persistent = false, const Initial& initial = {});
  /// Persistent, a piece of `whole` as `on` says.
  std::uint32_t add_piece(std::string tensor_name, const TensorSpec& spec, TensorClass tensor_class,
                          const Initial& initial, const Shape& whole, const std::vector<Placement>& on);
  /// A tensor inside the storage of `of`, at a multiple of its element's size.
  std::uint32_t add_view(std::string tensor_name, const TensorSpec& spec, std::uint32_t of,
                         std::int64_t offset_bytes = 0);
  /// Of equal parts of `of` the one that the rank's coordinate on the axis says.
  std::uint32_t add_own_view(std::string tensor_name, const TensorSpec& spec, std::uint32_t of, std::uint32_t axis);

  [[nodiscard]] std::uint32_t size() const { return static_cast<std::uint32_t>(kind.size()); }
  std::uint32_t add(const Instruction& instruction);  // its index
  [[nodiscard]] Instruction at(std::uint32_t index) const;
  [[nodiscard]] std::span<const std::uint32_t> reads(std::uint32_t i) const { return range(3 * i); }
  [[nodiscard]] std::span<const std::uint32_t> writes(std::uint32_t i) const { return range(3 * i + 1); }
  [[nodiscard]] std::span<const std::uint32_t> frees(std::uint32_t i) const { return range(3 * i + 2); }

  // One entry per instruction.
  std::vector<InstructionKind> kind;
  std::vector<CollectiveKind> collective;
  std::vector<Reduction> reduction;
  std::vector<std::uint32_t> work, node, peer, root, tag, ticket;
  std::vector<std::int32_t> by, microbatch;
  std::vector<double> scale;
  /// The last instruction before a wait that opens its ticket; else, and where there is none, kNone.
  std::vector<std::uint32_t> awaits;

  /// The body. kNone: to the end.
  std::uint32_t body_begin = 0, body_end = kNone;
  /// Unrolled: where the second, third, … body begins. Else empty.
  std::vector<std::uint32_t> next_bodies;
  [[nodiscard]] bool has_sections() const { return next_bodies.empty() && (body_begin > 0 || body_end < size()); }
  /// visit(instruction) in the order in which they are played, with so many bodies; unrolled, with those that there are.
  template <class Visit>
  void play(std::uint32_t bodies, const Visit& visit) const {
    const std::uint32_t end = std::min(body_end, size());
    if (!next_bodies.empty()) bodies = 1;
    for (std::uint32_t i = 0; i < body_begin; ++i) visit(i);
    for (std::uint32_t body = 0; body < bodies; ++body)
      for (std::uint32_t i = body_begin; i < end; ++i) visit(i);
    for (std::uint32_t i = end; i < size(); ++i) visit(i);
  }
  /// By storage: whether an instruction writes into it. Persistent ones that nobody writes are constants.
  [[nodiscard]] std::vector<bool> changed_storages() const;
  /// Whether a collective's member gives a part of the very tensor that it gets: its own is where it is to be.
  [[nodiscard]] bool has_own_in_place(std::uint32_t i) const;
  /// They are numbered from 0.
  [[nodiscard]] std::uint32_t tickets() const { return static_cast<std::uint32_t>(opened_.size()); }

 private:
  [[nodiscard]] std::span<const std::uint32_t> range(std::uint32_t slot) const {
    return {pool_.data() + begin_[slot], pool_.data() + begin_[slot + 1]};
  }
  std::vector<std::uint32_t> begin_{0};  // 3 ranges per instruction: reads, writes, frees
  std::vector<std::uint32_t> pool_;
  std::vector<std::uint32_t> opened_;  // by ticket: the last instruction that opened it
};

/// Ranks that do the same at the same time (fold.hpp).
struct RankClasses {
  std::vector<std::uint32_t> of;     // by rank: its class
  std::vector<std::uint32_t> first;  // by class: the rank that plays for all of them
  std::vector<std::uint32_t> size;   // by class: how many they are
};

struct Program {
  std::string model;     // load_model's text
  std::string strategy;  // the canonical strategy text
  std::int64_t global_batch = 0;
  Mesh mesh;
  // How one device would execute the same partition (the reference of `verify`): piece by piece of the batch, each in
  // so many microbatches. It matters to ops that depend on the cut (batch norm).
  std::vector<Placement> rows;  // of the batch's samples, by axis: its pieces
  std::int64_t microbatches = 1;
  bool one_loss = false;           // on a piece's microbatches together, not one each
  std::uint32_t draw_axes = 0;     // beside rows': along which ranks draw random numbers of their own
  bool broadcast_buffers = false;  // before every step, all pieces take the first one's running statistics
  std::int64_t steps = 1;          // training steps in each body
  /// The pieces are those of the nodes' ranks, which have parameters of their own; the lists play an epoch.
  std::optional<Daso> daso = {};
  std::uint32_t threads = 1;  // of each rank, and so of all works
  std::vector<Work> works;
  std::vector<std::string> names;
  std::vector<Group> groups;
  std::vector<Role> roles;
  /// Folded: of each class one rank plays.
  std::optional<RankClasses> classes = {};

  [[nodiscard]] std::uint32_t ranks() const;
  /// Who is simulated: every rank, numbered as it is, or where the program is folded, one of each class, in its order.
  [[nodiscard]] std::uint32_t players() const {
    return classes ? static_cast<std::uint32_t>(classes->first.size()) : ranks();
  }
  [[nodiscard]] std::uint32_t player_of(std::uint32_t rank) const { return classes ? classes->of[rank] : rank; }
  [[nodiscard]] std::uint32_t rank_of(std::uint32_t player) const { return classes ? classes->first[player] : player; }
  /// How many ranks it plays for.
  [[nodiscard]] std::uint32_t ranks_of(std::uint32_t player) const { return classes ? classes->size[player] : 1; }
  /// Sets the threads of each rank, also in the works.
  void set_threads(std::uint32_t of_rank);
  /// Whether steps reach into each other, or a body is more than one, and the lists hold only one body.
  [[nodiscard]] bool is_periodic() const;
  /// How many bodies the lists hold: several where unrolled.
  [[nodiscard]] std::size_t bodies() const { return roles.empty() ? 1 : roles[0].next_bodies.size() + 1; }
  /// Training steps from the lists' beginning to their end: of an unrolled program with what its prologue and epilogue
  /// make together.
  [[nodiscard]] std::int64_t steps_in_list() const;
  /// The samples of the batch's pieces, each once, ascending. ConfigError where the batch can't be cut so.
  [[nodiscard]] std::vector<Range> batch_pieces() const;
  /// Which of them a rank sees.
  [[nodiscard]] std::uint32_t batch_piece(std::uint32_t rank) const;
  /// Ranks of one number draw the same: those that see one piece, unless they draw apart along `draw_axes`.
  [[nodiscard]] std::uint32_t draw_number(std::uint32_t rank) const;
  /// What `rank` has of `tensor.whole`; nothing where it says that it has all of it.
  [[nodiscard]] std::vector<Range> piece_of(const Tensor& tensor, std::uint32_t rank) const;
  /// Where `rank` has the tensor in its storage.
  [[nodiscard]] std::int64_t offset_bytes(const Tensor& tensor, std::uint32_t rank) const;
  /// Some elements of a parameter, in a tensor of its unit.
  struct Slice {
    const ParameterUnit::Part* of = nullptr;
    std::vector<Range> piece;  // of the parameter, by dimension, what the rank plays with; empty: all of it
    Range elements;            // of that piece, in memory order
    std::int64_t begin = 0;    // in the tensor
  };
  /// How many elements of its unit's tensor a part takes at `rank`.
  [[nodiscard]] std::int64_t elements_of(const ParameterUnit::Part& part, std::uint32_t rank) const;
  /// What `rank` has in a tensor of a unit, or in a view of one; nothing where it is neither.
  [[nodiscard]] std::vector<Slice> slices_of(const Role& role, const Tensor& tensor, std::uint32_t rank) const;
  /// player → (role, index among the role's players).
  struct Place {
    std::uint32_t role = 0, index = 0;
  };
  [[nodiscard]] std::vector<Place> places() const;
  /// The rank at the other end of a send or recv.
  [[nodiscard]] std::uint32_t partner(const Role& role, std::uint32_t rank, std::uint32_t instruction) const {
    return mesh.shifted(rank, role.peer[instruction], role.by[instruction]);
  }
  /// Bytes that a send, recv or collective instruction reads or writes, whichever is more. The largest of a transfer's
  /// instructions is nccl-tests' size s.
  [[nodiscard]] std::int64_t transfer_bytes(const Role& role, std::uint32_t instruction) const;
  /// "compute layer1.0.conv1 backward mb=2", for messages and reports.
  [[nodiscard]] std::string label(const Role& role, std::uint32_t instruction) const;
};

/// Text form: complete, one line per tensor and instruction. program_from_text(to_text(p)) executes exactly like p.
std::string to_text(const Program& program);
/// ConfigError with the line number when the text is not a Program.
Program program_from_text(std::string_view text);

/// Adds works without repeating equal ones.
class WorkTable {
 public:
  explicit WorkTable(std::vector<Work>& works);
  std::uint32_t add(const Work& work);
  /// Adds the work of an op whose cost depends on the number of elements only: every input is `like`, flat. Cheap
  /// enough to be asked per instruction.
  std::uint32_t add_elementwise(const OpKind& kind, const Attributes& attributes, Pass pass, const TensorSpec& like);
  [[nodiscard]] const Work& at(std::uint32_t work) const { return works_.at(work); }

 private:
  std::vector<Work>& works_;
  /// The order of what work_key says, without writing it.
  struct Before {
    bool operator()(const Work& a, const Work& b) const;
  };
  std::map<Work, std::uint32_t, Before> index_;
  std::map<std::tuple<const OpKind*, Dtype, std::int64_t>, std::uint32_t> elementwise_;  // kind, dtype, elements
};

/// Adds names without repeating equal ones: one table for all roles of a program, beside its WorkTable.
class NameTable {
 public:
  explicit NameTable(std::vector<std::string>& names);
  std::uint32_t add(std::string_view name);
  [[nodiscard]] const std::string& at(std::uint32_t name) const { return names_.at(name); }

 private:
  std::vector<std::string>& names_;
  std::map<std::string, std::uint32_t, std::less<>> index_;
};

/// ConfigError when the Program can't be executed: ranks or groups that don't fit; collectives in different order among
/// the members of a group, or of different tensors; sends without receives; a deadlock (sends block until received: the
/// strictest transport); a read of bytes that weren't written or of a freed tensor; a write to bytes that a transfer
/// uses; a change in place that isn't listed as a write; a storage freed twice or never; a ticket that is open already,
/// or not open where it is waited for, or never closed; a body that leaves others open or alive than it found. The
/// message names rank and instruction (of a program with sections: where they lie in it unrolled, two bodies long).
void validate(const Program& program);

}  // namespace sim
