// What the examples in backend's headers don't declare themselves (tests/examples/extract.sh). Compiled, never linked.
#pragma once

#include <ATen/core/stack.h>
#include <ATen/ops/convolution.h>
#include <fmt/format.h>
#include <poll.h>

#include <nlohmann/json.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "backend/calibrate.hpp"
#include "backend/machine/clock.hpp"
#include "backend/machine/environment.hpp"
#include "backend/machine/graph.hpp"
#include "backend/machine/network.hpp"
#include "backend/rank/execute.hpp"
#include "backend/rank/progress.hpp"
#include "backend/rank/run.hpp"
#include "backend/rank/verify.hpp"
#include "backend/train/evaluate.hpp"
#include "backend/train/feed.hpp"
#include "backend/train/state.hpp"
#include "backend/world/world.hpp"
#include "sim/cost/profile.hpp"

namespace backend {

extern sim::Model model;
extern sim::Program program;
extern sim::Role role;
extern sim::Work work;
extern sim::TensorSpec spec;
extern sim::Profile profile;
extern std::vector<sim::Job> jobs;
extern Calibrator::SessionOf session_of;
extern RunRequest request;
extern RunResult result;
extern Reference reference;
extern Communicator& communicator;
extern Completion done;
extern Executor executor;
extern Progress progress;
extern ProgressBoard board;
extern RankReport rank0s, rank1s;
extern nlohmann::json context;
extern at::Tensor tensor, x, weight, bias;
extern std::vector<at::Tensor> reads, writes, inputs, parameters, buffers;
extern std::vector<std::int64_t> stride, padding, dilation;
extern std::vector<double> losses;
extern std::vector<RoundTrip> round_trips;
extern std::vector<sim::RankTimeline> timelines;
extern std::vector<std::vector<VerifiedTensor>> rows_of_all_ranks;
extern std::vector<std::string> argv;
extern double scale, timeout_s, moment_s;
extern c10::Stream stream;
extern torch::jit::Stack stack;
extern SessionOptions options;
extern std::unique_ptr<Session> session;
extern Training training;
extern DataSource source;
extern Dataset dataset;
extern std::vector<std::uint32_t> samples;
extern std::vector<std::string> packed;  // of ranks
extern std::string state;
extern std::int64_t steps;
extern std::uint64_t seed;
extern std::uint32_t rank, ranks, piece, partner;

// A local world's Transfer, and what its LocalCommunicator has.
struct Transfer {
  explicit Transfer(std::span<const std::uint32_t> ranks);
  struct Party {
    std::uint32_t finished;
  };
};
extern Transfer::Party party;
std::uint32_t step();
void ring(std::uint32_t rank);
template <class Ready, class Missing>
void wait_until(Ready /*ready*/, Missing /*missing*/) {}

}  // namespace backend
