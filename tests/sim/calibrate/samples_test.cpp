#include "sim/calibrate/samples.hpp"

#include <cmath>
#include <numeric>
#include <set>

#include "sim/calibrate/probe.hpp"
#include "sim/cost/profile.hpp"
#include "sim/simulate/forecast.hpp"
#include "sim/simulate/simulate.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using Kind = CalibrationTask::Kind;

constexpr double kBusy = 1.3;  // two ranks at once slow each other down so much
// Next to nothing: while one rank posts and launches, the other's ops aren't slowed down.
constexpr double kLaunch_s = 1e-13, kFaster = 1e-6;

/// Costs that are known: the data sheet's, and slower with two busy ranks.
class Known final : public CostModel {
 public:
  explicit Known(const Cluster& cluster, double faster = 1)
      : analytic_(cost_model_table().at("analytic").make(cluster, nullptr)), faster_(faster) {}
  [[nodiscard]] ComputeCost compute(const Work& work) const override {
    const double alone_s = analytic_->compute(work).busy_s[0];
    return {{alone_s, kBusy * alone_s}};
  }
  [[nodiscard]] TransferCost transfer(const TransferQuestion& question) const override {
    TransferCost cost = analytic_->transfer(question);
    for (double* seconds : {&cost.latency_s, &cost.wire_s, &cost.rendezvous.latency_s, &cost.rendezvous.wire_s})
      *seconds *= faster_;
    return cost;
  }
  [[nodiscard]] double launch_s(std::uint32_t /*kind*/) const override { return kLaunch_s; }

 private:
  std::unique_ptr<CostModel> analytic_;
  double faster_;  // transfers
};

Job job_of(const std::string& strategy, const std::string& model = "toy_mlp", std::uint32_t devices = 2) {
  const Model loaded = load_model(model);
  Cluster cluster = testing::plain_cluster(parse_strategy(strategy, loaded).ranks());
  cluster.levels[0].size = devices;
  cluster.levels[0].link.transport = Transport::notify;
  for (std::uint32_t rank = 0; rank < cluster.place.size(); ++rank) cluster.place[rank].device = rank % devices;
  return make_job(loaded, strategy, cluster);
}

/// A visit in the simulator: steps in which everything takes these factors of its known cost.
std::vector<Timeline> visit(const CalibrationTask& task, const std::vector<double>& factors) {
  Cluster cluster = testing::plain_cluster(task.ranks());
  cluster.levels[0].link.transport = task.cluster.levels[0].link.transport;
  for (std::uint32_t rank = 0; rank < task.ranks(); ++rank) cluster.place[rank].device = rank % task.cluster.devices();
  std::vector<Timeline> steps;
  for (const double factor : factors) {
    Costs costs = costs_of(task.program, Known(cluster, task.only_computes() ? kFaster : 1), cluster);
    for (double& seconds : costs.work_s) seconds *= factor;
    for (TransferCost& transfer : costs.transfers) transfer.latency_s *= factor, transfer.wire_s *= factor;
    costs.launch_s *= factor;
    steps.push_back(simulate(task.program, costs, cluster));
  }
  return steps;
}

// Mean 1.2, median 1.
const std::vector<double> kSkewed{1, 1, 1.6};

Profile profile_of(const std::vector<Job>& jobs, std::size_t j, const std::vector<double>& factors) {
  Profile profile("core");
  for (const CalibrationTask& task : calibration_tasks(jobs))
    if (task.kind != Kind::notification && task.kind != Kind::core_share)
      add_for_job(samples_of(task, visit(task, factors)), task, jobs, j, profile);
  return profile;
}

TEST(CalibrationSamples, GiveBackTheCostsThatTheyWereSimulatedWith) {
  for (const char* strategy : {"single", "model_parallel", "pipeline,microbatches=2", "ddp_blocking", "ddp"}) {
    const Job job = job_of(strategy);
    const Profile profile = profile_of({job}, 0, {1, 1});
    const Costs known = costs_of(job.program, Known(job.cluster), job.cluster);
    const double step_s = simulate(job.program, known, job.cluster).step_s;
    EXPECT_NEAR(forecast(job.program, job.cluster, *make_cost_model("profiled", job.cluster, &profile)).step.step_s,
                step_s, 1e-2 * step_s)
        << strategy;
  }
}

// On an accelerator an event before an op and one after it enclose the host's time, too, where the device waits for it; and
// what the host takes doesn't show where it waits for a place in the driver's queue.
TEST(CalibrationSamples, TellAnAsynchronousDevicesTimesFromItsHosts) {
  constexpr double kHeld_s = 1, kGap_s = 2e-6;
  Job job = job_of("single", "convnet,timing=epoch");
  job.cluster.device.asynchronous = true;
  Profile profile("gpu");
  std::map<std::string, double> op_s, issue_s;  // by work
  for (const CalibrationTask& task : calibration_tasks({job})) {
    if (task.kind != CalibrationTask::Kind::ops) continue;
    Costs costs = costs_of(task.program, Known(task.cluster), task.cluster);
    costs.gap_s = kGap_s;
    for (std::size_t work = 0; work < task.program.works.size(); ++work) {
      costs.work_s[work * costs.busy_levels] = op_s[work_key(task.program.works[work])] = 1e-5 + 1e-6 * work;
      costs.issue_s.push_back(1e-4 + 1e-5 * work);
      if (!task.program.works[work].op.kind->on_host)
        issue_s[work_key(task.program.works[work])] = costs.issue_s.back();
    }
    Timeline waits = simulate(task.program, costs, task.cluster);  // the device, for its host
    costs.issue_s.assign(costs.issue_s.size(), 0), costs.launch_s = 0;
    Timeline held = simulate(task.program, costs, task.cluster);
    RankTimeline &behind = held.ranks[0], &bound = waits.ranks[0];
    for (std::size_t i = 0; i < bound.start_s.size(); ++i) {
      if (!task.program.works[task.program.roles[0].work[i]].op.kind->on_host)
        bound.start_s[i] = i > 0 ? std::max(bound.end_s[i - 1], bound.issued_s[i - 1]) : 0;
      behind.start_s[i] += kHeld_s, behind.end_s[i] += kHeld_s;
    }
    behind.issued_s = bound.issued_s;
    behind.issued_s.back() = behind.end_s.back();  // of reading the result, for which the host waits
    add_for_job(samples_of(task, std::vector{waits, held}), task, {job}, 0, profile);
  }
  for (const auto& [key, seconds] : op_s)
    EXPECT_NEAR(profile.op_levels("gloo", key).at(1).mean_s, seconds, 1e-9) << key;
  for (const auto& [key, seconds] : issue_s) EXPECT_NEAR(profile.issue_s(key).value_or(0), seconds, 1e-12) << key;
  EXPECT_NEAR(profile.gap_s(), kGap_s, 1e-9);

  // The forecast is the host's or the device's time, whichever is longer.
  const double step_s =
      forecast(job.program, job.cluster, *make_cost_model("profiled", job.cluster, &profile)).step.step_s;
  double host_s = 0;
  for (const std::uint32_t work : job.program.roles[0].work) {
    const auto found = issue_s.find(work_key(job.program.works.at(work)));
    host_s += found == issue_s.end() ? 0 : found->second;
  }
  EXPECT_NEAR(step_s, host_s, 1e-4);  // and the last ops
}

TEST(CalibrationSamples, KnowThatAFullQueueHoldsTheHostUp) {
  const Job job = job_of("single", "resnet34,image=32");
  for (const CalibrationTask& task : calibration_tasks({job})) {
    if (task.kind != CalibrationTask::Kind::ops) continue;
    Timeline step = simulate(task.program, costs_of(task.program, Known(task.cluster), task.cluster), task.cluster);
    RankTimeline& times = step.ranks[0];
    const std::size_t ops = times.end_s.size(), queue = 140;
    ASSERT_GT(ops, queue);
    times.issued_s.clear();
    for (std::size_t i = 0; i < ops; ++i)  // 1 us each, and a place in the queue
      times.issued_s.push_back(std::max(i > 0 ? times.issued_s[i - 1] : 0, i >= queue ? times.end_s[i - queue] : 0) +
                               1e-6);
    for (const double launch_s : samples_of(task, std::vector{step}).launches) EXPECT_NEAR(launch_s, 1e-6, 1e-12);
  }
}

// What is long now and then counts with how often it is: the mean, not the median; and no sample counts twice.
TEST(CalibrationSamples, GiveMeansOfEverySampleOnce) {
  const Job job = job_of("pipeline,microbatches=2");
  const Profile profile = profile_of({job}, 0, kSkewed);
  const Known known(job.cluster);
  std::map<std::string, std::int64_t> instructions;  // of the ops task, by work
  for (const CalibrationTask& task : calibration_tasks({job}))
    if (task.kind == Kind::ops && task.in_turns)
      for (const Role& role : task.program.roles)
        for (const std::uint32_t work : role.work)
          if (work != kNone) ++instructions[work_key(task.program.works[work])];
  for (const Work& work : job.program.works) {
    const std::string key = work_key(work);
    const std::map<std::uint32_t, Statistic> levels = profile.op_levels("gloo", key);
    const double alone_s = known.compute(work).busy_s[0];
    EXPECT_NEAR(levels.at(1).mean_s, 1.2 * alone_s, 1e-6 * alone_s) << key;
    EXPECT_NEAR(levels.at(2).mean_s, 1.2 * kBusy * alone_s, 0.1 * alone_s) << key;  // one ran alone for a part
    EXPECT_EQ(levels.at(1).count, 3 * instructions.at(key)) << key;
    EXPECT_GE(levels.at(2).count, 3 * instructions.at(key)) << key;  // the shorter list runs again
  }
  std::int64_t launches = 0;
  for (const auto& [key, count] : instructions) launches += 3 * count;
  EXPECT_EQ(profile.launch()->count, launches);
  EXPECT_NEAR(profile.launch()->mean_s, 1.2 * kLaunch_s, 1e-3 * kLaunch_s);
  for (const auto& [key, times] : profile.links())
    for (const auto& [bytes, size] : times.sizes) {
      const TransferCost cost = known.transfer({InstructionKind::send, {}, bytes, 2});
      EXPECT_NEAR(size.time.mean_s, 1.2 * (cost.latency_s + cost.wire_s), 1e-6 * size.time.mean_s) << bytes;
      EXPECT_EQ(size.time.count, 3 * 8) << key.kind << " " << bytes;  // of sixteen messages, half are unexpected
    }
}

TEST(CalibrationSamples, HaveTheOverheadsOfPosting) {
  const Job job = job_of("model_parallel");
  for (const CalibrationTask& task : calibration_tasks({job})) {
    if (task.kind != Kind::transfers) continue;
    std::vector<Timeline> steps = visit(task, {1, 1, 1});
    // The sender's thread goes on 7 µs after each of its posts in one step, 1 µs in the others; the receiver's 3 µs.
    for (std::size_t s = 0; s < steps.size(); ++s)
      for (std::size_t rank = 0; rank < 2; ++rank) {
        const Role& role = task.program.roles[rank];
        RankTimeline& times = steps[s].ranks[rank];
        for (std::uint32_t i = 0; i + 1 < role.size(); ++i)
          if (is_posted(role.kind[i])) {
            const double overhead_s = role.kind[i] == InstructionKind::recv ? 3e-6 : s == 0 ? 7e-6 : 1e-6;
            times.start_s[i + 1] = times.posted_s[i] + overhead_s;
            times.end_s[i + 1] = std::max(times.end_s[i + 1], times.start_s[i + 1]);
          }
      }
    Profile profile("core");
    add(samples_of(task, steps), task, profile);
    const PostTimes posts = profile.transfer(link_key("gloo", task.question), task.question.bytes)->posts;
    EXPECT_NEAR(posts.send_overhead_s, 3e-6, 1e-12);
    EXPECT_NEAR(posts.recv_overhead_s, 3e-6, 1e-12);
  }
}

TEST(CalibrationSamples, HaveWhatWritingTakesThatOthersHaveRead) {
  Job job = job_of("ddp");
  job.cluster.levels[0].link.engine = TransferEngine::receiver;
  job.cluster.levels[0].link.transport = Transport::none;
  int links = 0;
  for (const CalibrationTask& task : calibration_tasks({job})) {
    if (task.kind != Kind::transfers) continue;
    ++links;
    std::vector<Timeline> steps = visit(task, {1, 1, 1});
    const Role& role = task.program.roles[0];
    std::set<std::uint32_t> given;
    for (std::uint32_t i = 0; i < role.size(); ++i)
      if (role.kind[i] == InstructionKind::collective) given.insert(role.reads(i)[0]);
    for (std::size_t s = 0; s < steps.size(); ++s)  // 4 us longer, and in one step much longer
      for (RankTimeline& times : steps[s].ranks)
        for (std::uint32_t i = 0; i < role.size(); ++i)
          if (is_computed(role.kind[i]) && given.contains(role.writes(i)[0])) times.end_s[i] += s == 0 ? 9e-4 : 4e-6;
    Profile profile("core");
    add(samples_of(task, steps), task, profile);
    const LinkKey key = link_key("gloo", task.question);
    EXPECT_NEAR(profile.transfer(key, task.question.bytes)->posts.rewriting_s, 4e-6, 1e-12);
    EXPECT_NEAR(transfer_cost(profile, task.cluster, key, task.question.bytes)->rewriting_s, 4e-6, 1e-12);
  }
  EXPECT_EQ(links, 2) << "the gradients' sum, and the smallest";
}

// How long they take beside compute, in a queue of two, isn't what they take alone.
TEST(CalibrationSamples, TakeTransfersBesideComputeForWhatTheyTakeOfIt) {
  const std::string deep = (testing::tests_folder().parent_path() / "bench/unseen/deep.json").string();
  int beside = 0;
  for (const CalibrationTask& task : calibration_tasks({job_of("zero3", deep)})) {
    if (!task.label.ends_with("beside compute")) continue;
    ++beside;
    std::vector<Timeline> steps = visit(task, {1, 1, 1});
    const CalibrationSamples before = samples_of(task, steps);
    for (Timeline& step : steps)
      for (std::uint32_t rank = 0; rank < task.ranks(); ++rank) {
        const Role& role = task.program.roles[task.program.places()[rank].role];
        for (std::uint32_t i = 0; i < role.size(); ++i)
          if (role.kind[i] == InstructionKind::collective && !is_waited_for_at_once(role, i))
            step.ranks[rank].end_s[i] += 1e-3;
      }
    const CalibrationSamples after = samples_of(task, steps);
    EXPECT_EQ(after.link.transfers, before.link.transfers);
    EXPECT_EQ(after.link.core_times.size(), steps.size());
    Profile profile("core");
    add(after, task, profile);
    EXPECT_DOUBLE_EQ(profile.transfer(link_key("gloo", task.question), task.question.bytes)->posts.core_time,
                     mean_of(after.link.core_times));
  }
  EXPECT_GT(beside, 2);
}

/// Every time of a visit that begins late, as where four ranks wait for two cores.
std::vector<Timeline> with_waits(std::vector<Timeline> steps) {
  std::size_t number = 0;
  for (Timeline& step : steps)
    for (RankTimeline& rank : step.ranks)
      for (std::size_t i = 0; i < rank.end_s.size(); ++i)
        if (++number % 3 == 0) rank.end_s[i] += 0.01;
  return steps;
}

// Strategies of four ranks on two cores, and of other models, leave the profile of the others as it is.
TEST(CalibrationSamples, OfRanksThatShareCoresAreInNoOtherForecast) {
  for (const char* strategy : {"single", "ddp_blocking", "pipeline,microbatches=2"}) {
    const std::vector<Job> alone{job_of(strategy)};
    std::vector<Job> together = alone;
    for (const char* other : {"ddp_blocking,dp=4", "ddp,dp=4", "dp=2,pp=2"}) together.push_back(job_of(other));
    Profile expected("core"), profile("core");
    for (const CalibrationTask& task : calibration_tasks(alone))
      add_for_job(samples_of(task, visit(task, kSkewed)), task, alone, 0, expected);
    bool four = false;
    for (const CalibrationTask& task : calibration_tasks(together)) {
      std::vector<Timeline> steps = visit(task, kSkewed);
      if (task.shares_devices()) steps = with_waits(std::move(steps));
      four |= task.shares_devices();
      add_for_job(samples_of(task, steps), task, together, 0, profile);
    }
    EXPECT_TRUE(four);
    EXPECT_EQ(profile.to_json(), expected.to_json()) << strategy;
  }
}

// What was measured among ranks that share cores comes out again when they share them in the simulator: their parts of a
// copy go one after the other, and who isn't the first waits for the core.
TEST(CalibrationSamples, OfRanksThatShareCoresAreOfOneTransferAlone) {
  for (const TransferEngine engine : {TransferEngine::receiver, TransferEngine::background})
    for (const CollectiveKind kind : {CollectiveKind::all_reduce, CollectiveKind::broadcast})
      for (const std::uint32_t ranks : {2U, 3U, 4U}) {
        SCOPED_TRACE(fmt::format("{} among {}, engine {}", to_string(kind), ranks, static_cast<int>(engine)));
        CalibrationTask task{.kind = Kind::transfers, .world = "gloo", .cluster = testing::plain_cluster(ranks)};
        task.question = {InstructionKind::collective, kind, 4096, ranks};
        task.program = transfer_probe(task.question, 4, {1e6}, false);
        task.cluster.levels[0].size = 2;
        task.cluster.levels[0].link.engine = engine;
        task.cluster.scheduling = Scheduling::run_until_wait;
        for (std::uint32_t rank = 0; rank < ranks; ++rank) task.cluster.place[rank].device = rank % 2;
        const auto known = cost_model_table().at("analytic").make(task.cluster, nullptr);
        const Costs costs = costs_of(task.program, *known, task.cluster);
        Profile profile("core");
        add(samples_of(task, std::vector{simulate(task.program, costs, task.cluster)}), task, profile);
        const LinkKey link = link_key("gloo", task.question);
        const TransferCost found = *transfer_cost(profile, task.cluster, link, 4096),
                           right = known->transfer(task.question);
        EXPECT_NEAR(found.latency_s + found.wire_s, right.latency_s + right.wire_s, 1e-9);
      }
}

// How long a rank that is ready waits for its core after another's post there: until the transport's threads are done.
TEST(CalibrationSamples, WhatBeginningACollectiveTakesOfASharedCore) {
  constexpr double e = 50e-6;
  CalibrationTask task{.kind = Kind::transfers, .world = "gloo", .cluster = job_of("ddp_blocking,dp=4").cluster};
  task.cluster.scheduling = Scheduling::run_until_wait;
  task.question = {InstructionKind::collective, CollectiveKind::all_reduce, 4096, 4};
  task.program = transfer_probe(task.question, /*repeats=*/1, {1e6}, false);
  const Costs costs = costs_of(task.program, Known(task.cluster), task.cluster);
  const Timeline free = simulate(task.program, costs, task.cluster);
  const auto engaged_s = [&](const Timeline& step) {
    Profile profile("core");
    add(samples_of(task, std::vector{step}), task, profile);
    return profile.transfer(link_key("gloo", task.question), 4096)->posts.engaged_s;
  };
  const Role& role = task.program.roles[0];
  const auto post =
      static_cast<std::size_t>(std::ranges::find(role.kind, InstructionKind::collective) - role.kind.begin());
  const double at_once_s = free.ranks[2].start_s[0] - free.ranks[0].posted_s[post];
  EXPECT_NEAR(engaged_s(free), at_once_s, 1e-9);
  EXPECT_LT(at_once_s, 0.2 * e);
  Timeline later = free;  // ranks 2 and 3 have the cores of 0 and 1 so much later, and with them all that follows is
  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    RankTimeline& times = later.ranks[rank];
    for (std::vector<double>* moments : {&times.posted_s, &times.start_s, &times.end_s})
      for (std::size_t i = 0; i < moments->size(); ++i)
        if (rank >= 2 || i > post + 1 || (i == post && moments != &times.posted_s) ||
            (i == post + 1 && moments == &times.end_s))
          (*moments)[i] += e;
  }
  EXPECT_NEAR(engaged_s(later), at_once_s + e, 1e-9);
}

// One file for all jobs: ranks that share a core are never late.
TEST(CalibrationSamples, OfRanksThatShareCoresAreNotLate) {
  const Job job = job_of("ddp_blocking,dp=4");
  for (const CalibrationTask& task : calibration_tasks({job})) {
    if (task.kind != Kind::transfers) continue;
    ASSERT_TRUE(task.shares_devices());
    const std::vector<Timeline> steps = visit(task, {1, 1, 1, 1, 1});
    const CalibrationSamples quiet = samples_of(task, steps), waits = samples_of(task, with_waits(steps));
    EXPECT_EQ(waits.interruptions, Interruptions());
    EXPECT_EQ(waits.late_transfers, LateTransfers());
    // Nor does waiting for the core belong to the collective: the simulator lets the ranks wait again.
    EXPECT_EQ(waits.link.transfers.size(), quiet.link.transfers.size());
    for (std::size_t k = 0; k < waits.link.transfers.size(); ++k)
      EXPECT_NEAR(waits.link.transfers[k], quiet.link.transfers[k], 1e-9);
  }
}

// Two of four ranks meet over the network, the others are idle: nobody shares the core that each host has.
TEST(CalibrationSamples, OfRanksBesideIdleOnesAreOfTwoHosts) {
  Job job = job_of("daso,nodes=2,local=2");
  Cluster host = job_of("ddp", "toy_mlp", 1).cluster;
  job.cluster = with_hosts(host, 2, 4, host.link());
  std::size_t over = 0;
  for (const CalibrationTask& task : calibration_tasks({job})) {
    if (task.kind != Kind::transfers) continue;
    const CalibrationSamples samples = samples_of(task, visit(task, {1, 1}));
    EXPECT_FALSE(samples.link.transfers.empty());
    if (task.question.members != 2 || task.question.spread.empty()) continue;
    EXPECT_FALSE(task.shares_devices());
    ++over;
  }
  EXPECT_GT(over, 0U);
}

// Four ranks on two hosts of a core each share these, wherever the members of a collective lie.
TEST(CalibrationSamples, OfTwoRanksOnEachHostAreFinite) {
  const std::string deep = (testing::tests_folder().parent_path() / "bench/unseen/deep.json").string();
  for (const char* strategy : {"ddp,dp=4", "zero3,dp=4", "hsdp", "daso,nodes=2,local=2"}) {
    Job job = job_of(strategy, deep);
    const Cluster host = job_of("ddp", "toy_mlp", 1).cluster;
    job.cluster = with_hosts(host, 2, 4, host.link());
    for (const CalibrationTask& task : calibration_tasks({job})) {
      if (task.kind != Kind::transfers) continue;
      EXPECT_FALSE(task.shares_devices() && task.label.ends_with("beside compute")) << task.label;
      const CalibrationSamples samples = samples_of(task, visit(task, {1, 1}));
      ASSERT_FALSE(samples.link.transfers.empty()) << task.label;
      for (const double seconds : samples.link.transfers) EXPECT_TRUE(std::isfinite(seconds)) << task.label;
    }
  }
}

// A rank's share of the task's step, by the costs that it was simulated with; it tells rounds that were slower.
TEST(CalibrationSamples, SumUpWhatARoundTook) {
  const Job job = job_of("ddp");
  const Known known(job.cluster);
  for (const CalibrationTask& task : calibration_tasks({job})) {
    const std::optional<double> once = seconds_of(task, samples_of(task, visit(task, {1, 1})));
    EXPECT_EQ(once.has_value(), task.kind == Kind::ops) << task.label;
    if (!once) continue;
    EXPECT_NEAR(*seconds_of(task, samples_of(task, visit(task, {1.2, 1.2}))), 1.2 * *once, 1e-6 * *once);
    CalibrationSamples incomplete = samples_of(task, visit(task, {1}));
    incomplete.works.erase(incomplete.works.begin());
    EXPECT_EQ(seconds_of(task, incomplete), std::nullopt);
    if (task.ranks() > 1) continue;
    double expected_s = 0;
    for (const std::uint32_t work : task.program.roles[0].work)
      if (work != kNone) expected_s += known.compute(task.program.works[work]).busy_s.at(0);
    EXPECT_NEAR(*once, expected_s, 1e-6 * expected_s);
  }
}

// What takes one of several alike long in every step is no interruption.
TEST(CalibrationSamples, WhatIsAlwaysSlowIsNotInterrupted) {
  for (const CalibrationTask& task : calibration_tasks({job_of("single,microbatches=4")})) {
    if (task.kind != Kind::ops) continue;
    std::vector<Timeline> steps = visit(task, {1, 1, 1, 1, 1, 1});
    const Role& role = task.program.roles[0];
    const auto first =
        static_cast<std::size_t>(std::ranges::find(role.kind, InstructionKind::compute) - role.kind.begin());
    for (Timeline& step : steps)
      for (std::vector<double>* times : {&step.ranks[0].start_s, &step.ranks[0].end_s})
        for (std::size_t i = first + (times == &step.ranks[0].start_s); i < role.size(); ++i) (*times)[i] += 1e-3;
    const CalibrationSamples slow = samples_of(task, steps);
    EXPECT_EQ(slow.interruptions.lost_s, 0);
    steps.back().ranks[0].end_s.back() += 0.01;  // but the last op of the last step is
    EXPECT_NEAR(samples_of(task, steps).interruptions.lost_s, 0.01, 1e-6);
  }
}

// Who waits is woken late now and then: no op takes longer for it.
TEST(CalibrationSamples, TellLateTransfersApart) {
  std::size_t late = 0;
  for (const CalibrationTask& task : calibration_tasks({job_of("ddp,dp=2")})) {
    if (task.kind != Kind::transfers) continue;
    std::vector<Timeline> steps = visit(task, {1, 1, 1, 1, 1, 1});
    const CalibrationSamples quiet = samples_of(task, steps);
    EXPECT_EQ(quiet.late_transfers, (LateTransfers{static_cast<std::int64_t>(quiet.link.transfers.size()), 0}));
    const Role& role = task.program.roles[0];
    for (std::uint32_t i = role.size(); i-- > 0;)
      if (role.kind[i] == InstructionKind::wait) {
        steps.back().ranks[1].end_s[i] += 1e-3;
        break;
      }
    const CalibrationSamples samples = samples_of(task, steps);
    EXPECT_NEAR(samples.late_transfers.lost_s, 1e-3, 1e-6) << task.label;
    EXPECT_EQ(samples.late_transfers.count, quiet.late_transfers.count);
    EXPECT_EQ(samples.interruptions, Interruptions());
    EXPECT_NEAR(std::ranges::max(samples.link.transfers), std::ranges::max(quiet.link.transfers), 1e-9);
    ++late;
  }
  EXPECT_GT(late, 0U);
}

TEST(CalibrationSamples, TellInterruptionsApart) {
  const std::vector<Job> jobs{job_of("ddp_blocking"), job_of("ddp,bucket_MiB=0.0001"), job_of("single")};
  for (const CalibrationTask& task : calibration_tasks(jobs)) {
    if (task.kind != Kind::ops || task.ranks() != 2) continue;
    std::vector<Timeline> steps = visit(task, {1, 1, 1, 1, 1, 1});
    const Role& role = task.program.roles[0];
    for (std::uint32_t i = 0, late = 0; i < role.size(); ++i) {  // 1 ms into the last op of one rank's last step
      late += role.kind[i] == InstructionKind::update;
      if (role.kind[i] == InstructionKind::update && i + 1 == role.size()) steps.back().ranks[1].end_s[i] += 1e-3;
    }
    const CalibrationSamples samples = samples_of(task, steps);
    EXPECT_NEAR(samples.interruptions.lost_s, 1e-3, 1e-6);
    for (const std::size_t j : {0UL, 1UL, 2UL}) {
      Profile profile("core");
      add_for_job(samples, task, jobs, j, profile);
      // Of as many ranks: the machine is the same for both. One rank: another matter.
      EXPECT_EQ(profile.ops() > 0, std::ranges::count(task.jobs, j) == 1);
      EXPECT_EQ(profile.to_json().find("played_s") != std::string::npos, j < 2);
    }
  }
}

TEST(CalibrationSamples, KnowHowFarRanksLieApart) {
  for (const char* strategy : {"ddp_blocking", "pipeline,microbatches=2"}) {
    std::uint32_t told = 0;
    for (const CalibrationTask& task : calibration_tasks({job_of(strategy)})) {
      if (!task.only_computes()) continue;
      std::vector<Timeline> steps = visit(task, {1, 1, 1});
      for (Timeline& step : steps)
        if (task.ranks() == 2) {
          RankTimeline& slow = step.ranks[1];  // by a tenth, so that two ranks are 0.1/1.05 of their mean apart
          for (auto* times : {&slow.posted_s, &slow.start_s, &slow.end_s})
            for (double& seconds : *times) seconds *= 1.1;
          step.step_s = std::max(step.step_s, slow.end_of_step_s *= 1.1);
        }
      const RankSpread spread = samples_of(task, steps).rank_spread;
      if (spread.count == 0) continue;  // alone, or beside another list
      ++told;
      EXPECT_EQ(spread.count, 3);
      EXPECT_NEAR(spread.difference, 0.1 / 1.05, 1e-9) << task.label;
    }
    EXPECT_EQ(told, 1U) << strategy;
  }
}

// Two lists at once: the shorter begins again until the longer is done, and what is then alone doesn't count.
TEST(CalibrationSamples, OfAllRolesAtOnceAreWhatRanBesideTheOthers) {
  for (const char* strategy : {"pipeline,microbatches=2,cut=net1", "pipeline,microbatches=2,cut=relu"}) {
    const Job job = job_of(strategy);
    for (const CalibrationTask& task : calibration_tasks({job})) {
      if (task.kind != Kind::ops || task.in_turns) continue;
      const std::vector<Timeline> steps = visit(task, {1});
      double until_s = steps[0].step_s;
      for (std::size_t r = 0; r < 2; ++r) {
        double last_s = 0;
        for (std::uint32_t i = 0; i < task.program.roles[r].size(); ++i)
          if (is_computed(task.program.roles[r].kind[i])) last_s = steps[0].ranks[r].end_s[i];
        until_s = std::min(until_s, last_s);
      }
      const CalibrationSamples samples = samples_of(task, steps);
      std::size_t counted = 0, beside = 0, all = 0;
      for (const auto& [key, seconds] : samples.works) counted += seconds.size();
      for (std::size_t r = 0; r < 2; ++r)
        for (std::uint32_t i = 0; i < task.program.roles[r].size(); ++i) {
          const RankTimeline& times = steps[0].ranks[r];
          if (!is_computed(task.program.roles[r].kind[i])) continue;
          ++all;
          beside += times.start_s[i] < until_s;
        }
      EXPECT_LE(counted, beside);
      EXPECT_GE(counted + 1, beside) << "one may be alone for its greater part";
      EXPECT_LT(counted, all);
      EXPECT_EQ(samples.works.size(), task.program.works.size()) << "each has run beside the others";
    }
  }
}

TEST(CalibrationSamples, KnowWhatProcessesHoldBesideTheirTensors) {
  const Job job = job_of("ddp_blocking");
  for (const CalibrationTask& task : calibration_tasks({job})) {
    if (task.kind != Kind::ops || task.ranks() != 2) continue;
    const std::vector workspace(2, std::vector<std::int64_t>(task.program.roles[0].size(), 1000));
    const std::vector<std::int64_t> residents{500'000'000, 400'000'000};
    CalibrationSamples apart, one;
    add_memory(task, workspace, residents, apart);
    add_memory(task, workspace, std::span(residents).first(1), one);
    ASSERT_EQ(apart.process_bytes.size(), 2U);
    ASSERT_EQ(one.process_bytes.size(), 1U);
    const double held = 5e8 - apart.process_bytes[0];
    EXPECT_GT(held, 0);
    EXPECT_DOUBLE_EQ(4e8 - apart.process_bytes[1], held);
    EXPECT_DOUBLE_EQ(5e8 - one.process_bytes[0], 2 * held);  // threads of one process
    for (const auto& [key, bytes] : apart.workspaces) EXPECT_EQ(bytes, 1000) << key;
  }
}

}  // namespace
}  // namespace sim
