// What an instruction asks for, in seconds and bytes, as if alone. The simulator turns this into time by who is active
// together.
//
//   std::unique_ptr<CostModel> model = make_cost_model("profiled", cluster, &profile);
//   Costs costs = costs_of(program, *model, cluster);  // once per program: every Work once, every transfer size once
//   Timeline timeline = simulate(program, costs, cluster);
#pragma once

#include <compare>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/cluster/cluster.hpp"
#include "sim/program/program.hpp"
#include "sim/table.hpp"

namespace sim {

class Profile;
struct GivenMemory;

/// Half the width of a 90 % interval in standard deviations.
constexpr double kNormal90 = 1.645;

/// What answered for a cost, of a cost model that reads a profile.
enum class Source : std::uint8_t {
  profile,     // what it is meant to answer from
  broader,     // the profile lacks it: other shapes, other kinds of transfers
  data_sheet,  // nothing in the profile says anything of it
};

/// How well a cost is known, by a cost model that answers for what wasn't measured.
struct Knowledge {
  double novelty = 0;        // how far the answer extrapolates: 0 not at all, 1 no measured shape is like this one
  double sd = 0;             // standard deviation of ln(true time / forecast); 0: nothing is said
  std::string kind;          // what runs, for people: "conv2d.forward 3x3 depthwise, oneDNN, f32, rank 4"
  bool kind_is_new = false;  // nothing of this kind was measured
  Source source = Source::profile;
};

/// A work as a profile of the device's has it: without TF32 (a CPU core), precision=tf32 and =ieee are f32.
Work measured_as(Work work, const Device& device);
/// Whether a rank takes TransferCost::rewriting_s to write again what it has given: not where it gives it once more
/// before, nor where an op writes it that computes for longer than it reads and writes (the roofline).
bool waits_to_rewrite(const Program& program, const Role& role, const GivenMemory& given, const Cluster& cluster);
/// The host of such a device does it, an accelerator's: that isn't shared with it, nor faster where it is.
bool is_on_host(const Work& work, const Device& device);

/// Compute of one instruction. `busy[k-1]` = device seconds when k ranks of the node compute at the same time (memory
/// and caches are shared); one entry means: no contention.
struct ComputeCost {
  std::vector<double> busy_s;
  double workspace_bytes = 0;          // beside the outputs, while it runs
  double jitter = 0;                   // standard deviation of one execution / its mean
  std::optional<double> issue_s = {};  // host time to issue it on an asynchronous device; missing: launch_s
  Knowledge knowledge = {};
};

/// What notifications between the ends of a message cost (Transport::notify; sim/simulate/step.hpp says who pays
/// for what). gloo's TCP transport notifies the other side (NOTIFY_SEND_READY, NOTIFY_RECV_READY). Receiver first: the
/// message is expected, and the sending thread writes it inside the call that posts it. Sender first: it is unexpected,
/// and gloo's thread writes it once the receiver has posted.
struct Rendezvous {
  double notification_s = 0;         // of the other rank's core per notification; 0: nothing of this is known
  double delivery_s = 0;             // from the last byte's writing until the receiver has it
  double latency_s = 0, wire_s = 0;  // of an unexpected message, from the receiver's post on
  double send_overhead_s = 0;        // host time until the thread that posts an unexpected message goes on
  [[nodiscard]] bool known() const { return notification_s > 0; }
};

/// A transfer or collective, alone on its links: fixed part plus bytes on the busiest link.
struct TransferCost {
  double latency_s = 0;  // steps × α
  double wire_s = 0;     // bytes on the wire / bandwidth: the part that shares a link with others
  /// The use of each level of the network (Cluster::levels): what it takes of the ports, or of the bus, while its bytes
  /// move. Empty: of every level that it goes over all.
  std::vector<double> use = {};
  /// Host time until the thread that posts it (a send, a collective) goes on, launch included; the same of a recv.
  double send_overhead_s = 0, recv_overhead_s = 0;
  double core_share = 0;  // of each member's core while it runs
  /// How many times as long it takes while a core at one of its ends computes: the transport's threads and the rank's
  /// displace what the other needs in the core's caches, and members seldom post at one time then.
  double beside_compute = 1;
  /// How long, from the post of a collective whose members share cores, a member's core is busy with it before the
  /// others have posted, too (the transport's threads begin). A member that posts last does that in latency_s.
  double engaged_s = 0;
  /// What a member's core takes longer, once for each collective, to write again what others have read where it lies
  /// (TransferEngine::receiver): their caches hold it since, and are told line by line. It is charged where the
  /// collective is posted, since what a rank gives has mostly been written right before.
  double rewriting_s = 0;
  Rendezvous rendezvous;       // with it, the above is of an expected message
  double jitter = 0;           // standard deviation of one execution / its mean
  double novelty = 0, sd = 0;  // of latency_s + wire_s, as in Knowledge
  Source source = Source::profile;

  [[nodiscard]] double use_of(std::size_t level) const { return level < use.size() ? use[level] : use.empty() ? 1 : 0; }
};

/// TransferCost::sd of CPU cores' links by a data sheet: as the committed profiles' are (tests/sim/cost/fitted_test.cpp).
constexpr double kCoreLinkSd = 1.15;

struct TransferQuestion {
  InstructionKind kind = InstructionKind::send;  // send (a point-to-point pair) or collective
  CollectiveKind collective = CollectiveKind::all_reduce;
  std::int64_t bytes = 0;
  std::uint32_t members = 2;
  /// How its ends or members lie (Cluster::spread) where they aren't all in one group
  /// of the innermost level; else empty.
  std::vector<std::uint32_t> spread = {};
  /// The device of every member of a collective, numbered as they come ("0 0"), where ranks share devices and these do so
  /// in another way than ranks 0, 1, … would; else empty. Of a group's member lists the first's.
  std::string devices = {};
  /// A collective of parts, on one host: the member's own lies where it is to be (Role::has_own_in_place) and isn't copied.
  bool own_in_place = false;
  friend auto operator<=>(const TransferQuestion&, const TransferQuestion&) = default;
};

/// TransferQuestion::devices of every group of a program.
std::vector<std::string> devices_of_groups(const Program& program, const Cluster& cluster);

class CostModel {
 public:
  virtual ~CostModel() = default;
  /// ConfigError when the model can't know (no peak rate for a dtype).
  [[nodiscard]] virtual ComputeCost compute(const Work& work) const = 0;
  [[nodiscard]] virtual TransferCost transfer(const TransferQuestion& question) const = 0;
  /// Host seconds to issue one instruction on a device of this kind (Cluster::kind).
  [[nodiscard]] virtual double launch_s(std::uint32_t kind) const = 0;
  /// Of an asynchronous device: from an instruction's end to the next one's begin, where the host is ahead.
  [[nodiscard]] virtual double gap_s() const { return 0; }
  /// What slows one rank for as long as a step and not the others: standard deviation of a rank's compute time / its
  /// mean.
  [[nodiscard]] virtual double rank_jitter() const { return 0; }
  /// What all costs are wrong by together: standard deviation of ln(true time / forecast).
  [[nodiscard]] virtual double common_sd() const { return 0; }
  /// What a reader of the forecasts must know of where they come from; whole sentences.
  [[nodiscard]] virtual std::vector<std::string> remarks() const { return {}; }
};

struct CostModelKind {
  std::string_view name;
  std::string_view equation;
  std::string_view knows_from;  // whose gaps its intervals are for: "the profile", "the data sheet"
  bool needs_profile = false;
  bool for_other_shapes = false;  // answers for shapes that the profile lacks: scored with a profile that lacks them
  std::unique_ptr<CostModel> (*make)(const Cluster&, const Profile*);
};
const Table<CostModelKind>& cost_model_table();
/// A cost model for every program on the cluster: what it knows of a profile takes longer to find out than a forecast.
/// `name`: a row of the table; ConfigError when it needs a profile and there is none.
std::unique_ptr<CostModel> make_cost_model(std::string_view name, const Cluster& cluster,
                                           const Profile* profile = nullptr);
// Its rows.
CostModelKind analytic_cost_model();
CostModelKind fitted_cost_model();
CostModelKind profiled_cost_model();

/// The costs of one program as flat arrays: what the simulator reads.
struct Costs {
  std::uint32_t busy_levels = 1;            // k = 1…busy_levels
  std::vector<double> work_s;               // [work × busy_levels + k − 1]
  std::vector<TransferCost> transfers;      // one per distinct question
  std::vector<std::string> transfer_names;  // like transfers: "broadcast among 2"
  std::vector<std::uint32_t> transfer_of;   // [transfer of a TransferMatching] → transfers
  std::vector<double> transfer_counts;      // like transfers: how many of all ranks' are such
  std::vector<bool> rewritten;              // [transfer of a TransferMatching]: waits_to_rewrite; empty: none
  double launch_s = 0;                      // of devices of the first kind
  std::vector<double> launch_of_kind;       // [Cluster::kind], where there are several; else empty
  std::vector<double> issue_s;              // [work]: host time of an asynchronous device, or empty: launch_s each
  double gap_s = 0;                         // CostModel::gap_s
  std::vector<Knowledge> knowledge;         // [work]
  std::vector<double> workspace_bytes;      // [work]
  std::vector<double> jitter;               // [work], or empty: none
  double rank_jitter = 0;                   // of a rank's whole step
  double common_sd = 0;                     // CostModel::common_sd

  [[nodiscard]] double launch_of(std::uint32_t kind) const {
    return launch_of_kind.empty() ? launch_s : launch_of_kind.at(kind);
  }
};
/// The costs of the program as it is on the cluster: with devices of several kinds cut by them (by_kind.hpp).
Costs costs_of(const Program& program, const CostModel& model, const Cluster& cluster);

}  // namespace sim
