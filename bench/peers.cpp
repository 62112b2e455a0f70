#include "bench/peers.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <string_view>

#include "backend/machine/network.hpp"
#include "backend/machine/scheduling.hpp"
#include "bench/python.hpp"
#include "sim/cluster/allowance.hpp"
#include "sim/cluster/world.hpp"
#include "sim/error.hpp"
#include "sim/lower/plan.hpp"
#include "sim/strategy/layout.hpp"
#include "sim/strategy/schedule/schedule.hpp"
#include "sim/strategy/zero.hpp"
#include "sim/text/spec.hpp"

namespace bench {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

std::string server() {
  const char* given = std::getenv("PARAGAUGE_PEERS");
  return std::string(given != nullptr ? given : PARAGAUGE_SOURCE_DIR "/bench/peers") + "/serve.py";
}

/// Ours, without what our own ranks and torchrun's are told, and with where the peers meet.
std::vector<std::string> environment() {
  constexpr std::array<std::string_view, 12> kNotTheirs{
      "RANK=",        "WORLD_SIZE=", "LOCAL_RANK=", "LOCAL_WORLD_SIZE=", "GROUP_",      "ROLE_",
      "TORCHELASTIC", "MASTER_",     "PARAGAUGE_",  "PYTHONPATH=",       "OMP_NUM_THR", "CUDA_DEVICE_MAX_CONNECTIONS="};
  // Free when asked; rank 0 listens on it some seconds later.
  const std::uint16_t port = backend::StoreSocket(backend::Network("", 1)).port;
  return backend::environment_with(
      {{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", std::to_string(port)}, {"PYTHONDONTWRITEBYTECODE", "1"}},
      kNotTheirs);
}

/// Reads what is there; false at the end.
bool take(int descriptor, std::string& text) {
  std::array<char, 4096> part{};
  const ssize_t count = read(descriptor, part.data(), part.size());
  if (count > 0) text.append(part.data(), static_cast<std::size_t>(count));
  return count > 0 || (count < 0 && (errno == EINTR || errno == EAGAIN));
}

/// Of what Python's faulthandler printed on a signal, where the main thread is in the peers' own code: "in all_reduce
/// (collectives.py, line 45)". Empty without.
std::string standing_at(const std::string& dump) {
  static const std::regex frame(R"re(File ".*/bench/peers/([^"/]+)", line (\d+) in (\S+))re");
  const std::size_t thread = dump.rfind("hread 0x");  // the last is the main thread
  if (thread == std::string::npos) return "";
  std::smatch found;
  const std::string frames = dump.substr(thread);
  return std::regex_search(frames, found, frame)
             ? fmt::format("in {} ({}, line {})", found.str(3), found.str(1), found.str(2))
             : "";
}

/// The last line that says anything.
std::string last_line(const std::string& text) {
  const std::size_t end = text.find_last_not_of(" \n");
  if (end == std::string::npos) return "no message";
  const std::size_t begin = text.find_last_of('\n', end);
  return text.substr(begin + 1, end - begin);  // npos + 1 is 0
}

Json attributes_of(const sim::OpKind& kind, const sim::Attributes& values) {
  Json json = Json::object();
  for (const sim::AttributeSpec& spec : kind.attributes) {
    const double value = values.at(std::string(spec.name));
    json[spec.name] = spec.integral ? Json(static_cast<std::int64_t>(value)) : Json(value);
  }
  return json;
}

Json model_to_json(const sim::Model& model) {
  Json optimizer = attributes_of(*model.optimizer.kind, model.optimizer.attributes);
  optimizer["kind"] = model.optimizer.kind->name;
  constexpr std::array kTimings{"step", "tutorial", "epoch"};  // as in sim::Timing
  Json nodes = Json::array();
  const std::vector<std::uint32_t> grads = model.grads();
  const std::vector<sim::OpInstance> ops = model.instances(model.global_batch);
  for (std::size_t n = 0; n < model.nodes.size(); ++n) {
    const sim::Node& node = model.nodes[n];
    const sim::Signature signature = ops[n].signature();
    std::vector<std::int64_t> shape = signature.output.shape;
    if (!shape.empty()) shape.erase(shape.begin());
    Json parameters = Json::object();  // first values: center and bound
    for (std::size_t p = 0; p < signature.parameters.size(); ++p) {
      const sim::ParameterSpec &own = signature.parameters[p], named = model.parameter(n, p, own);
      parameters[model.is_imported() ? named.name : own.name] = {named.initial_center, named.initial_bound};
    }
    Json written{{"name", node.name}, {"op", node.kind->name}, {"inputs", node.inputs}};
    if (model.is_imported())  // its file says what makes the module
      written["reads"] = parameters;
    else
      written.update({{"attributes", attributes_of(*node.kind, node.attributes)},
                      {"shape", shape},  // of a sample
                      {"parameters", parameters},
                      {"needs_grad", grads[n] != 0}});
    nodes.push_back(std::move(written));
  }
  Json json{{"input", model.input},
            {"classes", model.classes},
            {"global_batch", model.global_batch},
            {"dtype", sim::to_string(model.dtype)},
            {"half", sim::is_autocast(model.precision) ? sim::to_string(half_of(model.precision)) : ""},
            {"loss_scale", model.loss_scale},
            {"max_grad_norm", model.max_grad_norm},
            {"timing", kTimings.at(static_cast<std::size_t>(model.timing))},
            {"loss", model.nodes.back().kind->name},
            {"optimizer", optimizer},
            {"nodes", nodes}};
  if (model.is_imported()) json["file"] = sim::catalog_file("models", "model", model.source).string();
  return json;
}

Json stages_to_json(const sim::Model& model, const sim::Strategy& strategy) {
  const sim::ScheduleKind& schedule = sim::schedule_table().at(strategy.schedule);
  const sim::ParameterCycle cycle = strategy.kind().parameters(model, strategy);
  Json actions = Json::array();
  std::vector<std::vector<std::uint32_t>> stages_of_ranks(strategy.pp);
  for (std::uint32_t stage = 0; stage < strategy.pp; ++stage)
    actions.push_back(sim::to_text(
        schedule.stage(stage, strategy.pp, static_cast<std::int32_t>(strategy.microbatches), strategy.chunks)));
  for (std::uint32_t part = 0; part < strategy.pp * static_cast<std::uint32_t>(strategy.chunks); ++part)
    stages_of_ranks[sim::rank_of_part(part, strategy.pp, schedule.order).stage].push_back(part);
  Json json{{"kind", "replicas_of_stages"},
            {"replicas", strategy.dp},
            {"stages", sim::stages_of(model, strategy)},
            {"stages_of_ranks", stages_of_ranks},
            {"microbatches", strategy.microbatches},
            {"schedule", strategy.schedule},
            {"actions", actions},
            {"one_loss", schedule.one_loss},
            {"overlap", strategy.overlap},
            {"broadcast_buffers", strategy.broadcast_buffers},
            {"buckets_MiB", {strategy.first_bucket_MiB, strategy.bucket_MiB}},
            {"single", cycle.single},    // Heat: each gradient is summed by itself,
            {"delayed", cycle.delayed},  // and waited for in the next step
            {"zero", strategy.zero}};
  if (const auto& daso = strategy.daso)
    json["daso"] = {{"local", daso->local},
                    {"skips", daso->skips},
                    {"wait", daso->wait},
                    {"local_skips", daso->local_skips},
                    {"chunk", strategy.chunk_elements},
                    {"downcast", sim::to_string(model.dtype == sim::Dtype::f32 ? strategy.downcast : model.dtype)}};
  if (const std::optional<sim::ParameterCut> cut = sim::parameter_cut(model, strategy)) {
    json["units"] = cut->unit_of;
    json["reshard"] = cut->reshard;
    if (cut->half_parameters) {
      json["half_parameters"] = sim::to_string(half_of(model.precision));
      json["sums"] = sim::to_string(cut->half_sums ? half_of(model.precision) : sim::Dtype::f32);
    }
    json["shard"] = strategy.shard > 0 ? strategy.shard : strategy.dp;
  }
  return json;
}

/// Several projections in one parameter.
bool has_blocks(const sim::Node& node) {
  const auto any = [](const sim::Body* body) {
    return body != nullptr &&
           std::ranges::any_of(body->parameters, [](const sim::PartSpec& p) { return p.blocks_dim >= 0; });
  };
  return any(node.body) || any(node.in_parts);
}

/// Where the tensors of every node lie, by level ("S0 P"): what lowering makes of the layout, too.
Json levels_to_json(const sim::Model& model, const sim::Layout& layout) {
  const auto text = [](const sim::Placements& where) {
    std::string all;
    for (const sim::Placement& along : where) all += (all.empty() ? "" : " ") + sim::to_string(along);
    return all;
  };
  const auto texts = [&](const std::vector<sim::Placements>& of) {
    Json all = Json::array();
    for (const sim::Placements& where : of) all.push_back(text(where));
    return all;
  };
  Json levels = Json::array(), nodes = Json::array();
  for (const sim::Axis& axis : layout.mesh.axes) levels.push_back(axis.size);
  for (const sim::NodePlacements& node : sim::Plan(model, layout).placements)
    nodes.push_back({{"inputs", texts(node.inputs)},
                     {"grad_inputs", texts(node.grad_inputs)},
                     {"output", text(node.output)},
                     {"grad_output", text(node.grad_output)},
                     {"resolved", text(node.resolved)},  // where its readers find the output
                     {"parameters", texts(node.parameters)},
                     {"grad_parameters", texts(node.grad_parameters)}});
  return {{"kind", "hypar"},
          {"levels", levels},
          {"rooted", layout.rooted},
          {"input", text(layout.input)},  // before the step
          {"target", text(layout.target)},
          {"nodes", nodes}};
}

/// The dimension along which each of an imported model's parameters is cut for `tp`, as DTensors are: none of those that all
/// have, and nothing at all where DTensor can't say it (a projection that packs several, parts of unequal size).
std::optional<Json> tensor_cuts(const sim::Model& model, const sim::Strategy& strategy) {
  const sim::Layout layout = sim::layout_of(model, strategy);
  const auto tp =
      static_cast<std::size_t>(std::ranges::find(layout.mesh.axes, "tp", &sim::Axis::name) - layout.mesh.axes.begin());
  Json cuts = Json::object();
  bool cut_predictions = false;
  const sim::Plan plan(model, layout);
  const std::vector<sim::OpInstance> ops = model.instances(model.global_batch);
  for (std::size_t n = 0; n + 1 < model.nodes.size(); ++n) {
    const sim::NodePlacements& placed = plan.placements[n];
    const std::vector<sim::ParameterSpec> parameters = ops[n].signature().parameters;
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      const sim::Placement& along = placed.parameters[p][tp];
      const sim::ParameterSpec named = model.parameter(n, p, parameters[p]);
      if (along.kind != sim::Placement::Kind::shard) continue;
      const sim::Shape& shape = model.parameters.at(named.name).spec.shape;
      if (along.dim >= shape.size() || shape[along.dim] % strategy.tp != 0 || has_blocks(model.nodes[n]))
        return std::nullopt;
      cuts[named.name] = along.dim;
    }
    cut_predictions = placed.output[tp].kind == sim::Placement::Kind::shard;
  }
  return Json{
      {"kind", "tensor_parallel"}, {"degree", strategy.tp}, {"cuts", cuts}, {"cut_predictions", cut_predictions}};
}

/// Layers that are cut are played by the peer that HyPar's are.
sim::PeerKind peer_kind(const sim::Strategy& strategy) {
  return strategy.tp > 1 ? sim::PeerKind::parts : strategy.kind().peer;
}

Json strategy_to_json(const sim::Model& model, const sim::Strategy& strategy, std::string_view world) {
  const sim::PeerKind kind = peer_kind(strategy);
  Json json;
  if (kind == sim::PeerKind::stages) {
    json = stages_to_json(model, strategy);
  } else if (model.is_imported()) {
    json = tensor_cuts(model, strategy).value();
  } else {
    const sim::Layout layout = sim::layout_of(model, strategy);
    json = kind == sim::PeerKind::parts ? levels_to_json(model, layout)
                                        : Json{{"kind", "data_parallel"},
                                               {"replicas", layout.mesh.ranks()},
                                               {"bucket_MiB", layout.parameters.bucket_MiB}};
    json["one_process"] = !sim::world_kind(world).processes;
  }
  json["threads"] = strategy.threads;
  return json;
}

/// One forward and one backward of one module, and one optimizer.
bool is_one_module(const sim::Model& model, const sim::Strategy& strategy) {
  return peer_kind(strategy) == sim::PeerKind::stages && strategy.microbatches == 1 && strategy.zero == 0 &&
         (strategy.pp == 1 || strategy.dp == 1) && !strategy.daso &&
         !strategy.kind().parameters(model, strategy).single;
}

}  // namespace

bool has_peer(const sim::Model& model, const sim::Strategy& strategy, std::string_view world) {
  // Imported models are played by their modules, whole.
  if (model.is_imported()) {
    const sim::PeerKind kind = peer_kind(strategy);
    const bool other_rules = strategy.daso || strategy.kind().parameters(model, strategy).single;
    if (kind == sim::PeerKind::data_parallel || other_rules || strategy.pp * strategy.microbatches > 1) return false;
    if (kind == sim::PeerKind::parts && (strategy.tp < strategy.ranks() || strategy.sp ||
                                         !sim::world_kind(world).processes || !tensor_cuts(model, strategy)))
      return false;
  }
  // Nobody has written one of microbatches, and PyTorch has none that cuts no weights but
  // their sums, leaves small ones whole, or has units of a size.
  if (strategy.sums_each_microbatch && strategy.microbatches > 1) return false;
  // Nor one of recomputation; of mixed precision and clipping but by one device, model parallel and DDP, and FSDP2's
  // policy of modules.
  if (strategy.recompute != sim::Recompute::none) return false;
  const bool by_policy = model.is_imported() && strategy.zero == 3 && strategy.half_parameters &&
                         model.dtype == sim::Dtype::f32 && model.loss_scale == 0 && model.max_grad_norm == 0;
  if ((sim::is_autocast(model.precision) || model.max_grad_norm > 0) && !is_one_module(model, strategy) && !by_policy)
    return false;
  // Theirs have a barrier before each step, unless these reach into each other.
  if (strategy.bodies > 1 && !strategy.daso && !strategy.kind().parameters(model, strategy).delayed) return false;
  if (strategy.zero > 0 && strategy.ranks() * strategy.microbatches > strategy.dp) return false;
  const std::optional<sim::ParameterCut> cut = sim::parameter_cut(model, strategy);
  if (strategy.zero == 2 || (strategy.zero == 3 && (cut->whole_up_to > 0 || cut->unit_bytes > 0))) return false;
  if (peer_kind(strategy) == sim::PeerKind::parts && strategy.pp * strategy.microbatches > 1) return false;
  if (peer_kind(strategy) != sim::PeerKind::stages) return true;  // one for threads and one for processes
  // PyTorch takes means over replicas and microbatches.
  if (model.nodes.back().kind->is_sum && strategy.dp * strategy.microbatches > 1) return false;
  if (strategy.ranks() == 1) return true;
  const sim::ScheduleKind& schedule = sim::schedule_table().at(strategy.schedule);
  const bool by_torch = schedule.chunks > 1 || schedule.splits;  // its schedules have a process for each rank
  const bool one_process = strategy.dp == 1 && !by_torch && (strategy.microbatches == 1 || schedule.one_loss);
  return sim::world_kind(world).processes != one_process;
}

Json peer_subject(const sim::Model& model, const sim::Strategy& strategy, std::string_view world, bool best) {
  return {{"model", model_to_json(model)}, {"strategy", strategy_to_json(model, strategy, world)}, {"best", best}};
}

Peers::Peers(const Machine& machine, std::uint32_t ranks) : timeout_s_(machine.timeout_s), messages_(ranks) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    throw sim::RunError("no channel to the peers: {}", std::strerror(errno));
  channel_ = ends[0];
  const auto whole_s = static_cast<time_t>(timeout_s_);
  const timeval patience{whole_s, static_cast<suseconds_t>(1e6 * (timeout_s_ - static_cast<double>(whole_s)))};
  setsockopt(channel_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);  // what the other ranks read
  try {
    const std::vector<std::string> variables = environment();
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      std::vector<std::string> arguments{python(),   server(),       "--rank", std::to_string(rank),
                                         "--device", machine.device, "--cores"};
      for (std::uint32_t each = 0; each < ranks; ++each)
        arguments.push_back(std::to_string(backend::core_of_rank(each)));
      arguments.emplace_back("--usable");
      for (const std::uint32_t core : backend::cores_of_rank(0, sim::usable_cores()))
        arguments.push_back(std::to_string(core));
      if (machine.real_time) arguments.emplace_back("--real-time");
      processes_.emplace_back(arguments, backend::ProcessOptions{.environment = variables,
                                                                 .input = rank == 0 ? ends[1] : nothing,
                                                                 .output = rank == 0 ? ends[1] : -1,
                                                                 .capture_errors = true});
    }
  } catch (...) {
    for (const int end : {ends[0], ends[1], nothing}) close(end);
    throw;
  }
  for (const int end : {ends[1], nothing}) close(end);
}

Peers::~Peers() {
  shutdown(channel_, SHUT_WR);  // the end of rank 0's input ends all
  const auto deadline = Clock::now() + std::chrono::seconds(5);
  const auto ended = [](backend::Process& process) { return process.status().has_value(); };
  while (Clock::now() < deadline && !std::ranges::all_of(processes_, ended)) poll(nullptr, 0, 20);
  close(channel_);
}

void Peers::fail(const std::string& what) {
  processes_.clear();
  throw sim::RunError("PyTorch peers: {}", what);
}

/// ": rank 0 in all_reduce (collectives.py, line 45), rank 1 …"; of those that don't say it, the last line that they wrote.
std::string Peers::where_they_stand() {
  constexpr auto kPatience = std::chrono::seconds(2);  // of all: a busy machine, a stopped process
  std::vector<std::size_t> before;
  std::vector<pollfd> ends;
  for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
    before.push_back(messages_[rank].size());
    ends.push_back({processes_[rank].errors(), POLLIN, 0});
    kill(processes_[rank].id(), SIGUSR1);
  }
  const auto where = [&](std::size_t rank) { return standing_at(messages_[rank].substr(before[rank])); };
  const auto all_have_said = [&] {
    for (std::size_t rank = 0; rank < processes_.size(); ++rank)
      if (where(rank).empty()) return false;
    return true;
  };
  for (const auto deadline = Clock::now() + kPatience; Clock::now() < deadline && !all_have_said();) {
    poll(ends.data(), ends.size(), 100);
    for (std::size_t rank = 0; rank < ends.size(); ++rank)
      if (ends[rank].revents != 0 && !take(ends[rank].fd, messages_[rank])) ends[rank].fd = -1;
  }
  std::string all;
  for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
    std::string said = where(rank);
    if (said.empty() && before[rank] > 0) said = ": " + last_line(messages_[rank].substr(0, before[rank]));
    if (!said.empty()) all += fmt::format("{} rank {} {}", all.empty() ? ":" : ",", rank, said);
  }
  return all;
}

/// Also collects what the processes write to stderr, lest they wait for us.
std::string Peers::answer_line() {
  const auto deadline = Clock::now() + std::chrono::duration<double>(timeout_s_);
  std::vector<pollfd> ends{{channel_, POLLIN, 0}};
  for (const backend::Process& process : processes_) ends.push_back({process.errors(), POLLIN, 0});
  for (;;) {
    if (const std::size_t end = received_.find('\n'); end != std::string::npos) {
      const std::string line = received_.substr(0, end);
      received_.erase(0, end + 1);
      return line;
    }
    if (Clock::now() > deadline) fail(fmt::format("no answer for {:g} s{}", timeout_s_, where_they_stand()));
    poll(ends.data(), ends.size(), 100);
    if (ends[0].revents != 0 && !take(channel_, received_)) ends[0].fd = -1;
    for (std::size_t rank = 0; rank < processes_.size(); ++rank)
      if (ends[rank + 1].revents != 0 && !take(ends[rank + 1].fd, messages_[rank])) ends[rank + 1].fd = -1;
    // A process has ended when all it wrote has been read.
    for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
      const std::optional<int> ended = processes_[rank].status();
      if (ends[rank + 1].fd >= 0 || !ended) continue;
      const int status = *ended;
      fail(fmt::format("rank {} {} {}: {}", rank, WIFSIGNALED(status) ? "died of signal" : "ended with status",
                       WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), last_line(messages_[rank])));
    }
  }
}

Peers::Answer Peers::run(const sim::Model& model, const sim::Strategy& strategy, std::string_view world, bool best,
                         std::uint32_t warmup_steps, std::uint32_t steps) {
  if (processes_.empty()) throw sim::RunError("PyTorch peers: they have failed before");
  Json cores = Json::array();
  for (std::uint32_t rank = 0; rank < strategy.ranks(); ++rank)
    cores.push_back(backend::cores_of_rank(rank, strategy.threads));
  const Json request{{"subject", peer_subject(model, strategy, world, best)},
                     {"cores", cores},
                     {"warmup_steps", warmup_steps},
                     {"steps", steps},
                     {"seed", 1}};  // backend::RunRequest's
  const std::string line = request.dump() + "\n";
  // Fails where rank 0 has died or stands still: then there is no answer.
  for (std::size_t sent = 0; sent < line.size();) {
    const ssize_t part = send(channel_, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (part < 0) break;
    sent += static_cast<std::size_t>(part);
  }
  const std::string text = answer_line();
  const nlohmann::json answer = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!answer.is_object()) fail(fmt::format("'{}' is no answer", text));
  if (answer.contains("error"))
    throw sim::ConfigError("PyTorch peers: {}", answer["error"].get_ref<const std::string&>());
  if (answer.contains("skipped")) return {.skipped = answer["skipped"].get<std::string>()};
  std::vector<double> losses;
  for (const nlohmann::json& loss : answer.at("loss"))
    losses.push_back(loss.is_null() ? std::numeric_limits<double>::quiet_NaN() : loss.get<double>());
  return {.step_s = answer.at("step_s").get<std::vector<double>>(),
          .losses = std::move(losses),
          .resident_peak_bytes = answer.at("resident_peak_bytes").get<std::int64_t>(),
          .settings = answer.at("settings").get<std::string>()};
}

}  // namespace bench
