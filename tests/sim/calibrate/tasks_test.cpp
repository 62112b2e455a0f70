#include "sim/calibrate/tasks.hpp"

#include <map>
#include <set>

#include "sim/cost/profile.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using Kind = CalibrationTask::Kind;

Job job_of(const std::string& strategy, const std::string& world = "gloo", const std::string& model = "toy_mlp",
           std::uint32_t devices = 2) {
  const Model loaded = load_model(model);
  return make_job(loaded, strategy, load_cluster("cpu_" + world, parse_strategy(strategy, loaded).ranks(), devices));
}

/// What a job's own tasks are: their ids tell world and program.
std::set<std::string> own_tasks(const std::vector<Job>& jobs, std::size_t j) {
  std::set<std::string> own;
  for (const CalibrationTask& task : calibration_tasks(jobs))
    if (std::ranges::count(task.jobs, j) == 1) own.insert(task.id);
  return own;
}

TEST(CalibrationTasks, OfAJobDontDependOnTheOthers) {
  for (const char* world : {"local", "gloo"}) {
    const std::vector<Job> others{job_of("ddp_blocking,dp=4", world),
                                  job_of("pipeline,microbatches=4", world),
                                  job_of("ddp,bucket_MiB=0.001", world),
                                  job_of("single", "local"),
                                  job_of("ddp_blocking", world, "toy_mlp,global_batch=40"),
                                  job_of("ddp_blocking,dp=4", world, "convnet,global_batch=8")};
    for (const char* strategy : {"single", "ddp_blocking", "pipeline,microbatches=2", "model_parallel"}) {
      std::vector<Job> jobs = others;
      jobs.push_back(job_of(strategy, world));
      EXPECT_EQ(own_tasks(jobs, others.size()), own_tasks({jobs.back()}, 0)) << strategy << " on " << world;
    }
  }
}

/// A rank's part of a constant, where that is cut: the first word of its part of a vocabulary.
TEST(CalibrationTasks, HaveTheRanksPartsOfConstants) {
  std::set<double> firsts;
  for (const CalibrationTask& task :
       calibration_tasks({job_of("tp", "gloo", (testing::tests_folder() / "models" / "gpt_toy.json").string())}))
    for (const Role& role : program_from_text(to_text(task.program)).roles)
      for (const Tensor& tensor : role.tensors)
        if (tensor.name.starts_with("tp.first.")) firsts.insert(tensor.initial.runs->at(0).first);
  EXPECT_EQ(firsts, (std::set<double>{0, 4}));  // of 7 words
}

TEST(CalibrationTasks, AreEnoughForEveryQuestionOfTheForecast) {
  const std::vector<Job> jobs{job_of("ddp"), job_of("pipeline,microbatches=2"), job_of("ddp_blocking,dp=4"),
                              job_of("hypar,levels=2x2,layers=dp/in"), job_of("mesh,dp=2,pp=2,zero=1")};
  for (std::size_t j = 0; j < jobs.size(); ++j) {
    std::set<std::pair<LinkKey, std::int64_t>> measured;
    std::set<std::string> works;
    for (const CalibrationTask& task : calibration_tasks(jobs)) {
      if (std::ranges::count(task.jobs, j) == 0) continue;
      if (task.kind == Kind::transfers) measured.insert({link_key(task.world, task.question), task.question.bytes});
      if (task.kind == Kind::ops)
        for (const Work& work : task.program.works) works.insert(work_key(work));
    }
    const std::vector<std::string> devices = devices_of_groups(jobs[j].program, jobs[j].cluster);
    for (const Work& work : jobs[j].program.works) EXPECT_TRUE(works.contains(work_key(work))) << work_key(work);
    for (const Role& role : jobs[j].program.roles)
      for (std::uint32_t i = 0; i < role.size(); ++i) {
        const bool collective = role.kind[i] == InstructionKind::collective;
        if (!collective && role.kind[i] != InstructionKind::send) continue;
        const std::uint32_t group = collective ? role.peer[i] : 0;
        const LinkKey key{"gloo",
                          std::string(collective ? to_string(role.collective[i]) : "send"),
                          collective ? static_cast<std::uint32_t>(jobs[j].program.groups[group].members[0].size()) : 2,
                          collective ? devices[group] : "",
                          {},
                          role.has_own_in_place(i)};
        EXPECT_TRUE(measured.contains({key, jobs[j].program.transfer_bytes(role, i)})) << key.kind;
      }
  }
}

/// ZeRO 1's parameters are gathered around the part that the rank has updated; ZeRO 3's come from elsewhere.
TEST(CalibrationTasks, OwnPartsLieWhereTheStepHasThem) {
  for (const auto& [strategy, in_place] :
       std::vector<std::pair<std::string, bool>>{{"zero1", true}, {"mesh,dp=2,pp=2,zero=1", true}, {"zero3", false}}) {
    int gathers = 0;
    for (const CalibrationTask& task : calibration_tasks({job_of(strategy)})) {
      if (task.kind != Kind::transfers || task.question.collective != CollectiveKind::all_gather) continue;
      EXPECT_EQ(task.question.own_in_place, in_place) << task.label;
      EXPECT_EQ(task.label.find("own is in place") != std::string::npos, in_place) << task.label;
      for (const Role& role : task.program.roles)
        for (std::uint32_t i = 0; i < role.size(); ++i)
          if (role.kind[i] == InstructionKind::collective) {
            ++gathers;
            EXPECT_EQ(role.has_own_in_place(i), in_place) << task.label;
          }
      EXPECT_EQ(to_text(program_from_text(to_text(task.program))), to_text(task.program));
    }
    EXPECT_GT(gathers, 0) << strategy;
  }
}

// What is measured among ranks that share cores is what one of a group's lists does there, alone: what several lists take
// from each other's cores the simulator knows. Who has a core each is measured as two ranks' jobs are.
TEST(CalibrationTasks, ProbesSitWhereTheGroupsDo) {
  const Job job = job_of("hypar,levels=2x2,layers=dp/in");
  std::set<std::string> seen, of_two;
  for (const CalibrationTask& task : calibration_tasks({job_of("ddp"), job_of("tp")})) of_two.insert(task.id);
  bool as_of_two = false;
  for (const CalibrationTask& task : calibration_tasks({job})) {
    if (task.kind != CalibrationTask::Kind::transfers) continue;
    const std::string& devices = task.question.devices;
    EXPECT_EQ(task.ranks(), devices.empty() ? 2 : 4) << task.label;
    EXPECT_EQ(task.shares_devices(), !devices.empty()) << task.label;
    ASSERT_EQ(task.program.groups.size(), 1);
    EXPECT_EQ(devices_of_groups(task.program, task.cluster)[0], devices) << task.label;
    seen.insert(devices);
    std::size_t busy = 0;
    for (const Role& role : task.program.roles)
      if (role.size() > 0) busy += role.ranks.size();
    EXPECT_EQ(busy, 2) << task.label;
    as_of_two |= of_two.contains(task.id);
  }
  EXPECT_EQ(seen, (std::set<std::string>{"", "0 0"}));
  EXPECT_TRUE(as_of_two);
}

TEST(CalibrationTasks, OpsRunOnAsManyRanksAsHaveACore) {
  const auto copies_of = [](const Job& job, const CalibrationScope& scope) {
    std::vector<std::pair<std::uint32_t, std::uint32_t>> copies;  // and on how many cores
    for (const CalibrationTask& task : calibration_tasks({job}, scope))
      if (task.kind == Kind::ops || task.kind == Kind::pace) copies.emplace_back(task.ranks(), task.busy_devices());
    return copies;
  };
  using Copies = std::vector<std::pair<std::uint32_t, std::uint32_t>>;
  EXPECT_EQ(copies_of(job_of("single"), {}), (Copies{{1, 1}}));
  EXPECT_EQ(copies_of(job_of("ddp_blocking"), {}), (Copies{{1, 1}, {2, 2}}));
  EXPECT_EQ(copies_of(job_of("single"), {.busy_ranks = 2}), (Copies{{1, 1}, {2, 2}}));
  EXPECT_EQ(copies_of(job_of("pipeline,microbatches=2"), {}),
            (Copies{{2, 1}, {2, 2}, {2, 2}}) /* in turns, at once, and how far ranks lie apart */);
  Job crowded = job_of("ddp_blocking,dp=4");
  crowded.cluster.scheduling = Scheduling::fair;
  EXPECT_EQ(copies_of(crowded, {}), (Copies{{1, 1}, {2, 2}}));
  crowded.cluster.scheduling = Scheduling::run_until_wait;  // each finds the caches as the others have left them
  EXPECT_EQ(copies_of(crowded, {}), (Copies{{1, 1}, {4, 2}}));
}

// With as many threads as the job's ranks have, and a core for each.
TEST(CalibrationTasks, RanksHaveTheJobsThreads) {
  const Model model = load_model("toy_mlp");
  const auto job = [&](const std::string& strategy, std::uint32_t cores) {
    return make_job(model, strategy, load_cluster("cpu_gloo", parse_strategy(strategy, model).ranks(), cores));
  };
  const Job ddp = job("ddp,threads=2,overlap=1", 4);
  std::set<std::string> works;
  for (const CalibrationTask& task : calibration_tasks({ddp}, {.other_sizes = true})) {
    SCOPED_TRACE(task.label);
    EXPECT_EQ(task.program.threads, 2U);
    for (const Work& work : task.program.works) EXPECT_EQ(work.threads, 2U);
    EXPECT_LE(task.ranks(), 2U);
    for (std::uint32_t rank = 0; rank < task.ranks(); ++rank) EXPECT_EQ(task.cluster.place[rank].device, 2 * rank);
    EXPECT_FALSE(task.shares_devices());
    if (task.kind == Kind::ops)
      for (const Work& work : task.program.works) works.insert(work_key(work));
  }
  for (const Work& work : ddp.program.works) EXPECT_TRUE(works.contains(work_key(work))) << work_key(work);
  // Two cores have a seat for one rank of two threads, however many are to be busy.
  const Job single = job("single,threads=2", 2);
  for (const CalibrationTask& task : calibration_tasks({single}, {.other_sizes = true, .busy_ranks = 2}))
    EXPECT_EQ(task.ranks(), 1U) << task.label;
  // Nothing of it is another number of threads' own.
  EXPECT_TRUE(own_tasks({job("single", 2), single}, 1) == own_tasks({single}, 0));
  for (const std::string& id : own_tasks({single}, 0)) EXPECT_FALSE(own_tasks({job("single", 2)}, 0).contains(id));
}

TEST(CalibrationTasks, OtherSizesAreNobodysOwn) {
  std::map<std::int64_t, bool> own;
  std::size_t memory = 0;
  for (const CalibrationTask& task : calibration_tasks({job_of("ddp_blocking")}, {.other_sizes = true})) {
    memory += task.kind == Kind::memory;
    EXPECT_TRUE(task.kind != Kind::memory || task.jobs.empty());
    if (task.kind == Kind::transfers && task.question.collective == CollectiveKind::all_reduce)
      own[task.question.bytes] = !task.jobs.empty();
  }
  EXPECT_EQ(memory, 2U);
  EXPECT_TRUE(own.at(4096));
  for (std::int64_t bytes = 4 * 4096; bytes <= 64 << 20; bytes *= 4) EXPECT_FALSE(own.at(bytes)) << bytes;
}

TEST(CalibrationTasks, ShareTheVerySameOneOnly) {
  // A pipeline of one microbatch computes what model parallel does; another batch is another task.
  const std::vector<Job> jobs{job_of("model_parallel"), job_of("pipeline,microbatches=1"),
                              job_of("model_parallel", "gloo", "toy_mlp,global_batch=40")};
  std::vector<std::vector<std::size_t>> ops;
  std::set<std::string> ids;
  const std::vector<CalibrationTask> tasks = calibration_tasks(jobs, {.other_sizes = true});
  for (const CalibrationTask& task : tasks) {
    ids.insert(task.id);
    if (task.kind == Kind::ops && task.busy_devices() == 1) ops.push_back(task.jobs);
  }
  EXPECT_EQ(ops, (std::vector<std::vector<std::size_t>>{{0, 1}, {2}}));
  EXPECT_EQ(ids.size(), tasks.size());
}

TEST(CalibrationTasks, NotificationsAreOfTransportsThatNotify) {
  Job job = job_of("pipeline,microbatches=2");
  const auto notified = [&] {
    return std::ranges::count_if(calibration_tasks({job}), [](const CalibrationTask& task) {
      return task.kind == Kind::notification || task.has_unexpected();
    });
  };
  EXPECT_EQ(notified(), 3);  // two sizes of messages, and the notification itself
  job.cluster.levels[0].link.transport = Transport::none;
  EXPECT_EQ(notified(), 0);
}

/// Members that share cores leave nothing of them anyway.
TEST(CalibrationTasks, TransfersAreProbedBesideComputeWhereEachMemberHasACore) {
  const std::string deep = (testing::tests_folder().parent_path() / "bench/unseen/deep.json").string();
  const auto beside = [&](const char* strategy, std::uint32_t devices) {
    return std::ranges::count_if(calibration_tasks({job_of(strategy, "gloo", deep, devices)}),
                                 [](const auto& task) { return task.label.ends_with("beside compute"); });
  };
  EXPECT_GT(beside("ddp,dp=2", 2), 1);
  EXPECT_GT(beside("ddp,dp=4", 4), 1);
  EXPECT_EQ(beside("ddp,dp=4", 2), 0);
  EXPECT_GT(beside("hsdp", 2), 1) << "two by two on different cores";
}

TEST(CalibrationTasks, WhatTransfersTakeIsAskedOfTwoRanksWithACoreEach) {
  std::vector<std::uint32_t> ranks;
  for (const CalibrationTask& task :
       calibration_tasks({job_of("ddp_blocking,dp=4"), job_of("pipeline,microbatches=2")}))
    if (task.kind == Kind::notification || task.kind == Kind::core_share) {
      ranks.push_back(task.ranks());
      EXPECT_FALSE(task.shares_devices());
    }
  EXPECT_EQ(ranks, (std::vector<std::uint32_t>{2, 2}));
  for (const CalibrationTask& task : calibration_tasks({job_of("single"), job_of("ddp_blocking", "local")}))
    EXPECT_TRUE(task.only_computes() || task.kind == Kind::transfers) << task.label;
}

}  // namespace
}  // namespace sim
