#include "sim/report/answer.hpp"

#include <cmath>

#include "sim/lower/lower.hpp"
#include "sim/report/console.hpp"
#include "sim/report/report.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

/// Eight rounds of one step; `noise` up and down.
Cell& add(Result& result, const std::string& strategy, std::optional<double> predicted_s,
          std::optional<double> measured_s, double noise = 0.001, const std::string& world = "local",
          const std::string& model = "net,global_batch=8") {
  Cell& cell = result.cell(model, strategy, world);
  cell.device = "A CPU";
  cell.ranks = cell.devices = strategy == "single" ? 1 : 2;
  for (int i = 0; i < (measured_s ? 8 : 1); ++i) {
    Round& round = cell.rounds.emplace_back();
    round.round = i;
    if (predicted_s) round.predicted["profiled"].step_s = *predicted_s;
    if (measured_s) round.measured = {{*measured_s * (1 + (i % 2 == 0 ? noise : -noise)), 0, 0, 0, 0}};
  }
  return cell;
}

void set_memory(Cell& cell, std::int64_t parameters_GiB, std::int64_t activations_GiB, std::int64_t capacity_GiB) {
  cell.memory.needed_bytes = {{"parameters", parameters_GiB * kGiB}, {"activations", activations_GiB * kGiB}};
  cell.memory.capacity_bytes = capacity_GiB * kGiB;
}

void expect_narrow(const Answer& answer) {
  for (const std::string& text : {answer.table, answer.words})
    for (const std::string& line : testing::lines_of(text)) EXPECT_LE(display_width(line), 100U) << line;
}

TEST(Answer, AClearWinner) {
  Result result;
  set_memory(add(result, "single", 1.1237 * 1.004, 1.1237), 1, 2, 10);
  set_memory(add(result, "ddp", 0.6612, 0.661), 1, 2, 10);
  set_memory(add(result, "ddp_blocking", 0.71, 0.70), 1, 1, 10);
  const Answer answer = answer_of(result);
  EXPECT_EQ(answer.table,
            "net,global_batch=8 on local, forecast by profiled\n"
            "strategy     predicted measured  error   memory fits\n"
            "ddp             661 ms   661 ms +0.0 % 3.00 GiB yes\n"
            "ddp_blocking    710 ms   700 ms +1.4 % 2.00 GiB yes\n"
            "single          1.13 s   1.12 s +0.4 % 3.00 GiB yes\n");
  EXPECT_EQ(answer.words,
            "ddp is fastest: 1.70 × single; forecast within 0.1 %; fits with 7.00 GiB to spare.\n"
            "All 3 forecasts by profiled: median error 0.4 %; 3 of 3 pairs that noise doesn't hide are in the\n"
            "right order.\n");
  EXPECT_EQ(answer.fastest, std::vector<std::size_t>{1});
}

/// With the cores that there are.
void add_threads(Result& result, const std::string& strategy, std::int64_t threads, double measured_s,
                 std::int64_t cores = 2) {
  Cell& cell = add(result, strategy, {}, measured_s);
  cell.ranks = strategy.starts_with("single") ? 1 : 2;
  cell.threads = threads;
  cell.devices = cell.ranks * threads;
  cell.cores = cores;
}

// One process uses all cores of a CPU unless it is told otherwise: that is what a strategy must beat.
TEST(Answer, TheFastestSingleIsTheBaseline) {
  Result result;
  add_threads(result, "ddp", 1, 1);
  add_threads(result, "single", 1, 1.54);
  EXPECT_EQ(answer_of(result).words,
            "ddp is fastest: 1.54 × single; single uses 1 of 2 cores; single,threads=2 isn't in this table.\n");
  Result faster = result, slower = result;
  add_threads(faster, "single,threads=2", 2, 0.96);
  EXPECT_EQ(answer_of(faster).words, "single threads=2 is fastest: 1.04 × ddp.\n");
  add_threads(slower, "single,threads=2", 2, 1.04);
  EXPECT_EQ(answer_of(slower).words, "ddp is fastest: 1.04 × single,threads=2.\n");
  Result larger;
  add_threads(larger, "ddp", 1, 1, 4);
  add_threads(larger, "single,threads=2", 2, 1.04, 4);
  EXPECT_EQ(answer_of(larger).words,
            "ddp is fastest: 1.04 × single,threads=2; single uses 2 of 4 cores; single,threads=4 isn't in this\n"
            "table.\n");
}

TEST(Answer, MarksWhatTheProfileLacked) {
  Result result;
  add(result, "single", 1.1, {});
  add(result, "ddp", 0.6, {}).rounds[0].guesses["profiled"] = {"broadcast among 2 (data sheet)"};
  EXPECT_EQ(answer_of(result).table,
            "net,global_batch=8 on local, forecast by profiled\n"
            "strategy predicted\n"
            "ddp        ~600 ms\n"
            "single      1.10 s\n"
            "~ partly a guess, because the profile lacks: broadcast among 2 (data sheet)\n");
}

TEST(Answer, ATieWithinNoiseAndWhatToDo) {
  Result result;
  add(result, "single", 2, 2, 0.001);
  add(result, "mesh,dp=2", 1, 1, 0.1);
  add(result, "mesh,dp=2,overlap=0", 1, 1.01, 0.1);
  const Answer answer = answer_of(result, nullptr, "the same command with --rounds {}");
  // Halves of eight rounds of ±10 % differ by 0.51 × 10 % in expectation; (4.94 / 2)² times as many rounds are quiet.
  EXPECT_EQ(answer.words,
            "mesh and mesh blocking can't be told apart by these measurements; mesh is shown first: 2.00 ×\n"
            "single; forecast within 0.0 %.\n"
            "Noise floor up to 4.9 % in 2 of 3 rows (2 % is quiet): close other programs, or run 41 more rounds:\n"
            "the same command with --rounds 49.\n"
            "All 3 forecasts by profiled: median error 0.0 %; 2 of 2 pairs that noise doesn't hide are in the\n"
            "right order.\n");
}

TEST(Answer, SaysWherePlainPyTorchIsFasterAndBecauseOfWhat) {
  Result result;
  const auto add_peer = [&](const std::string& strategy, const std::string& executor, double step_s, double noise) {
    Result other;
    Cell peer = add(other, strategy, {}, step_s, noise);
    peer.executor = executor;
    peer.settings = executor == "pytorch" ? "" : "fused updates, channels_last";
    result.cells.push_back(peer);
  };
  for (const char* strategy : {"single", "ddp"}) add(result, strategy, {}, 1);
  add(result, "zero1", {}, 1);
  const Result ours = result;
  const auto words = [](const Result& of) { return answer_of(of).words; };
  EXPECT_EQ(words(result).find("Plain PyTorch"), std::string::npos);
  const auto with_peers = [&](double single_s, double ddp_s, double noise) {
    result = ours;
    add_peer("single", "pytorch", 1.1, 0.001);
    add_peer("ddp", "pytorch", 1.01, 0.001);
    add_peer("single", "pytorch_best", single_s, noise);
    add_peer("ddp", "pytorch_best", ddp_s, noise);
    return words(result);
  };
  EXPECT_EQ(with_peers(0.97, 0.96, 0.001).find("Plain PyTorch"), std::string::npos);  // by less than is worth a word
  EXPECT_EQ(with_peers(0.97, 0.8, 0.5).find("Plain PyTorch"), std::string::npos);     // by less than noise
  const std::string found = with_peers(0.9, 0.5, 0.001);
  EXPECT_NE(
      found.find("Plain PyTorch at its best (fused updates, channels_last) is faster in 2 of 2 rows: ddp takes it 500\n"
                 "ms, not 1.00 s. This layout is memory_format=channels_last, a key of the model.\n"),
      std::string::npos)
      << found;
}

TEST(Answer, SaysWhatTheMachineDidWhereThatMadeTheNoise) {
  Result result;
  for (const char* strategy : {"single", "mesh,dp=2"}) {
    Cell& cell = add(result, strategy, 1, 1, 0.1);
    for (Round& round : cell.rounds)
      round.speed = {.compute_s = 1e-3, .memory_alone_s = round.round == 3 ? 4.72e-3 : 4e-3};
  }
  const std::string words = answer_of(result, nullptr, "the same command with --rounds {}").words;
  EXPECT_NE(
      words.find("Noise floor up to 4.9 % in 2 of 2 rows (2 % is quiet), because this machine isn't equally fast all\n"
                 "the time: reading memory was 18 % slower in round 4 than in round 1. Forecasts are for the speed\n"
                 "that the steps met. Others use the machine: close other programs, or run 41 more rounds: the same\n"
                 "command with --rounds 49.\n"),
      std::string::npos)
      << words;
}

TEST(Answer, NothingFits) {
  Result result;
  set_memory(add(result, "single", 24.35, {}), 25, 655, 80);
  EXPECT_EQ(answer_of(result).words, "single does not fit: needs 680 of 80 GiB (activations 655).\n");
  set_memory(add(result, "ddp", 13, {}), 25, 330, 80);
  const Answer answer = answer_of(result);
  EXPECT_EQ(answer.table,
            "net,global_batch=8 on local, forecast by profiled\n"
            "strategy predicted  memory fits\n"
            "ddp         13.0 s 355 GiB no\n"
            "single      24.4 s 680 GiB no\n"
            "ddp does not fit: needs 355 of 80 GiB (activations 330)\n"
            "single does not fit: needs 680 of 80 GiB (activations 655)\n");
  EXPECT_EQ(answer.words,
            "nothing fits; what needs least, ddp, does not fit: needs 355 of 80 GiB (activations 330).\n");
  EXPECT_TRUE(answer.fastest.empty());
}

TEST(Answer, WhatDoesNotFitIsNotCalledFastest) {
  Result result;
  set_memory(add(result, "single", 2, {}), 1, 2, 4);
  set_memory(add(result, "ddp", 1, {}), 1, 4, 4);
  const Answer answer = answer_of(result);
  EXPECT_TRUE(answer.words.starts_with("single is fastest of what fits: no track record")) << answer.words;
  EXPECT_NE(answer.words.find("What holds the others back:\n  ddp: "), std::string::npos) << answer.words;
  EXPECT_EQ(answer.fastest, std::vector<std::size_t>{0});
}

TEST(Answer, OneStrategyOnly) {
  Result result;
  add(result, "single", {}, 3.4e-6, 0.001);
  const Answer answer = answer_of(result);
  EXPECT_EQ(answer.table, "net,global_batch=8 on local\nstrategy measured\nsingle    3.40 µs\n");
  EXPECT_EQ(answer.words, "single takes 3.40 µs.\n");
}

/// The words without what holds the others back.
std::string sentences(const Answer& answer) { return answer.words.substr(0, answer.words.find("What holds")); }

TEST(Answer, PredictedOnlySaysWhereItsIntervalIsFrom) {
  Result result;
  add(result, "single", 1.0, {});
  add(result, "ddp_blocking", 0.8, {});
  add(result, "ddp", 0.79, {});
  // Without any record nothing is known of their order.
  EXPECT_EQ(sentences(answer_of(result)),
            "ddp, ddp_blocking and single can't be told apart by this forecast; ddp is shown first: no track\n"
            "record for this device (A CPU): how far the forecast may be off isn't known.\n");
  const TrackRecord record{{"A CPU", {{"profiled", {100, 0, 0.02, 0.01}}}}};
  EXPECT_EQ(sentences(answer_of(result, &record)),
            "ddp and ddp_blocking can't be told apart by this forecast; ddp is shown first: 1.27 × single; 90 %\n"
            "interval 764 ms to 817 ms, from the track record of 100 forecasts on A CPU.\n");
  const TrackRecord elsewhere{{"Another CPU", {{"profiled", {100, 0, 0.02, 0.1}}}},
                              {"A third CPU", {{"profiled", {100, 0, 0.02, 0.05}}}}};
  EXPECT_EQ(sentences(answer_of(result, &elsewhere)),
            "ddp and ddp_blocking can't be told apart by this forecast; ddp is shown first: 1.27 × single; no\n"
            "track record for this device (A CPU): how far the forecast may be off isn't known; ratios to single\n"
            "were off by 10 % on Another CPU.\n");
}

// 1.01 × is no order by a data sheet, and 2.5 × is one. Every one of a few strategies has its reason.
TEST(Answer, FastestOnlyWithGroundAndWhyTheOthersAreNot) {
  const TrackRecord record{{"Another CPU", {{"profiled", {100, 0, 0.3, 0.1845}}}}};
  Result tie;
  add(tie, "single", 4.91e-3, {}).rounds[0].predicted["profiled"] = {4.91e-3, 4.80e-3, 0, 0, 0.11e-3};
  add(tie, "model_parallel,pp=2", 4.84e-3, {}).rounds[0].predicted["profiled"] = {4.84e-3, 2.42e-3, 0.1e-3, 2.27e-3,
                                                                                  0.05e-3};
  EXPECT_EQ(answer_of(tie, &record).words,
            "model_parallel and single can't be told apart by this forecast; model_parallel is shown first: no\n"
            "track record for this device (A CPU): how far the forecast may be off isn't known; ratios to single\n"
            "were off by 18 % on Another CPU.\n"
            "What holds each back:\n"
            "  model_parallel: devices wait for each other 47 % of the step (bubble)\n"
            "  single: one of 2 devices\n");
  Result result;
  Cell& ddp = add(result, "ddp,dp=4", 0.074, {});
  ddp.ranks = ddp.devices = 4;
  ddp.replicas = 4;
  ddp.rounds[0].predicted["profiled"] = {0.074, 0.070, 0.003, 0, 0.001};
  Cell& pipeline = add(result, "pipeline,pp=4,schedule=gpipe,microbatches=4", 0.182, {});
  pipeline.ranks = pipeline.devices = 4;
  pipeline.microbatches = 4;
  pipeline.global_batch = 8;
  pipeline.rounds[0].predicted["profiled"] = {0.182, 0.090, 0.012, 0.080, 0};
  Cell& slow = add(result, "data_parallel,dp=4", 0.3, {});
  slow.ranks = slow.devices = 4;
  slow.rounds[0].predicted["profiled"] = {0.3, 0.075, 0.22, 0.005, 0};
  const Answer answer = answer_of(result, &record);
  EXPECT_TRUE(answer.words.starts_with("ddp is fastest: ")) << answer.words;
  // 90 ms of each of 4 devices are 1.3 × ddp's 70.
  EXPECT_EQ(answer.words.substr(answer.words.find("What holds")),
            "What holds the others back:\n"
            "  pipeline: devices wait for each other 44 % of the step (bubble); its ops, on 2 samples at a\n"
            "    time, take 1.3 × the device time of those of ddp\n"
            "  data_parallel: 73 % of the step is communication that no compute hides\n");
  expect_narrow(answer);
  EXPECT_EQ(assess(result, &record).cells[0].forecasts.at("profiled").told_from_fastest, std::nullopt);
  EXPECT_EQ(assess(result, &record).cells[1].forecasts.at("profiled").told_from_fastest, true);
  EXPECT_EQ(assess(tie, &record).cells[0].forecasts.at("profiled").told_from_fastest, false);
}

// As `plan` shows them: many that are alike.
TEST(Answer, ManyThatCantBeToldApartAreCounted) {
  const TrackRecord record{{"A CPU", {{"profiled", {100, 0, 0.02, 0.1}}}}};
  Result result;
  for (int dp = 2; dp < 10; ++dp) add(result, fmt::format("ddp,dp={}", dp), 1 + 0.001 * dp, {});
  const Answer answer = answer_of(result, &record);
  EXPECT_TRUE(
      answer.words.starts_with("ddp dp=2, ddp dp=3, ddp dp=4 and 5 more can't be told apart by this forecast; "
                               "ddp dp=2 is shown\nfirst: 90 %"))
      << answer.words;
}

TEST(Answer, MeasuredOnlyInOneRound) {
  Result result;
  for (const auto& [strategy, seconds] : {std::pair("single", 0.12), {"ddp", 0.1}}) {
    Cell& cell = result.cell("net,global_batch=8", strategy, "local");
    cell.rounds.push_back({.measured = {{seconds, 0, 0, 0, 0}, {seconds, 0, 0, 0, 0}}});
  }
  EXPECT_EQ(answer_of(result).words,
            "ddp was fastest, this time: 1.20 × single.\n"
            "One round doesn't tell how much of a difference is noise: `paragauge compare` takes rounds.\n");
  EXPECT_EQ(testing::lines_of(answer_of(result, nullptr, "--rounds {}").words).back(),
            "4 rounds or more tell how much of a difference is noise: --rounds 8.");
}

TEST(Answer, ProbesTellOfNoiseWhereRoundsAreTooFew) {
  Result result;
  for (const auto& [strategy, ranks, compute_ms] :
       {std::tuple("single", 1, 1.0), {"ddp,dp=2", 2, 1.5}, {"tp,tp=2", 2, 2.1}, {"zero3,dp=2", 2, 1.6}}) {
    Cell& cell = result.cell("net,global_batch=8", strategy, "local");
    cell.ranks = ranks;
    cell.rounds.push_back({.measured = {{0.1, 0, 0, 0, 0}}, .speed = MachineSpeed{.compute_s = 1e-3 * compute_ms}});
  }
  const auto noise = [&] {
    const std::string words = answer_of(result, nullptr, "--rounds {}").words;
    return words.substr(std::min(words.find("These numbers"), words.find("4 rounds")));
  };
  EXPECT_EQ(noise(),
            "These numbers are noisy, because this machine isn't equally fast all the time: computing was 40 %\n"
            "slower beside tp than beside ddp. Forecasts are for the speed that the steps met. Others use the\n"
            "machine: close other programs. 4 rounds or more tell how much of a difference is noise: --rounds 8.\n");
  result.cells[2].rounds[0].speed->compute_s = 1.7e-3;
  EXPECT_EQ(noise(), "4 rounds or more tell how much of a difference is noise: --rounds 8.\n");
}

TEST(Answer, SharedDevicesAreNeverSilent) {
  Result result;
  add(result, "single", 2, {});
  Cell& cell = add(result, "ddp,dp=16", 1, {});
  cell.ranks = 16, cell.devices = 8;
  const Answer answer = answer_of(result);
  EXPECT_NE(answer.table.find("\nddp: 16 ranks share 8 devices\n"), std::string::npos) << answer.table;
  EXPECT_NE(answer.words.find("; 16 ranks share 8 devices"), std::string::npos) << answer.words;
}

// Two models, two worlds, three cost models, a peer, long names: 100 columns, every row's strategy whole.
TEST(Answer, IsNarrowWhateverIsAsked) {
  Result result;
  const std::string pipeline = "pipeline,pp=2,schedule=forward_only,microbatches=4,cut=layer2,first_bucket_MiB=0.01";
  for (const char* model : {"resnet18,global_batch=8,image=64,loss=cross_entropy,optimizer=sgd:lr=0.001:momentum=0.9",
                            "convnet,global_batch=64"})
    for (const char* world : {"local", "gloo@100mbit"})
      for (const std::string& strategy : {std::string("single"), pipeline, pipeline + ",overlap=0"}) {
        Cell& cell =
            add(result, strategy, 0.5, model[0] == 'c' ? std::nullopt : std::optional(0.5), 0.05, world, model);
        for (Round& round : cell.rounds) round.predicted["fitted"].step_s = round.predicted["analytic"].step_s = 12.3;
        set_memory(cell, 1, 20, 20);
        cell.ranks = 4;
        result.cell(model, strategy, world, "pytorch").rounds.push_back({.measured = {{0.6, 0, 0, 0, 0}}});
      }
  result.cell("convnet,global_batch=64", "ddp,dp=64", "local").skipped = "64 ranks on 2 cores";
  result.cell("convnet,global_batch=64", "single", "local", "pytorch").skipped = "no such thing";
  const Answer answer = answer_of(result, nullptr, "the same command with --rounds {}");
  expect_narrow(answer);
  EXPECT_NE(answer.table.find("\nddp,dp=64 on local skipped: 64 ranks on 2 cores\n"), std::string::npos);
  EXPECT_NE(answer.table.find("\nsingle on local by plain PyTorch skipped: no such thing\n"), std::string::npos);
  // Forecasts alone stand side by side; beside a measurement there's the best one.
  EXPECT_NE(answer.table.find(" profiled fitted analytic "), std::string::npos) << answer.table;
  EXPECT_NE(answer.table.find(" predicted measured  error pytorch "), std::string::npos) << answer.table;
  EXPECT_EQ(answer.words.find("fastest"), std::string::npos);
}

TEST(Answer, DevicesThatNeedDifferentMemory) {
  Result result;
  Cell& cell = add(result, "data_parallel,dp=4", 0.5, std::nullopt);
  const auto give = [&](std::int64_t root_MiB, std::int64_t others_MiB) {
    cell.memory.by_device = {{"0", 1, {{"parameters", root_MiB << 20}}},
                             {"1-3", 3, {{"parameters", others_MiB << 20}}}};
    cell.memory.needed_bytes = cell.memory.by_device[0].needed_bytes;
    cell.memory.capacity_bytes = 80 * kGiB;
    return answer_of(result).table;
  };
  EXPECT_NE(give(2385, 1055).find(" 1.03 to 2.33 GiB yes\n"), std::string::npos);
  EXPECT_NE(give(2385, 300).find(" 300 MiB to 2.33 GiB yes\n"), std::string::npos);
  EXPECT_NE(give(2385, 2384).find(" 2.33 GiB yes\n"), std::string::npos);  // as shown they are alike
  EXPECT_EQ(give(2385, 2384).find(" to "), std::string::npos);
  give(2385, 1055);
  const std::string details = to_console(make_report(result), Detail::full);
  EXPECT_NE(details.find("\ndata_parallel,dp=4 needs rank 0: 2.33 GiB; ranks 1-3: 1.03 GiB\n"), std::string::npos)
      << details;
  EXPECT_NE(to_csv(make_report(result)).find(",\"rank 0: 2.33 GiB; ranks 1-3: 1.03 GiB\","), std::string::npos);
}

TEST(Answer, SaysWhereOnlyTheForeachTemporariesDontFit) {
  CellMemory memory;
  memory.needed_bytes = {{"parameters", 4 * kGiB}, {"optimizer temporaries", kGiB}};
  memory.fused_needed_bytes = 4 * kGiB;
  memory.capacity_bytes = 4 * kGiB;
  EXPECT_EQ(fit_text(memory),
            "does not fit: needs 5.00 of 4.00 GiB (parameters 4.00; with the optimizer's fused=True it fits)");
  memory.capacity_bytes = 3 * kGiB;
  EXPECT_EQ(fit_text(memory), "does not fit: needs 5.00 of 3.00 GiB (parameters 4.00)");
}

// On the catalog: what used to be 24 s without a word.
TEST(Answer, AResNetThatIsTooLargeForOneA100) {
  const Model model = load_model("resnet152,global_batch=4096");
  const Program program = lower(model, parse_strategy("single", model));
  Cell cell;
  place(cell, program, load_cluster("dgx_a100", 1));
  EXPECT_EQ(fit_text(cell.memory), "does not fit: needs 681 of 79 GiB (activations 680)");
  cell.memory.capacity_bytes = 1 << 20;
  cell.memory.needed_bytes = {{"activations", 3 << 20}};
  EXPECT_EQ(fit_text(cell.memory), "does not fit: needs 3.00 of 1.00 MiB (activations 3.00)");
  EXPECT_EQ(cell.device, "a100_sxm_80g");
}

TEST(Answer, SixtyFourRanksOnEightDevices) {
  const Model model = load_model("resnet50,global_batch=4096");
  const Program program = lower(model, parse_strategy("ddp,dp=64", model));
  Cell cell;
  cell.ranks = program.ranks();
  place(cell, program, load_cluster("dgx_a100", 64));
  EXPECT_EQ(sharing_text(cell), "64 ranks share 8 devices");
  Cell one;
  place(one, program, load_cluster("dgx_a100", 64, 64));
  EXPECT_EQ(sharing_text(one), "");
  EXPECT_EQ(cell.memory.needed(), 8 * one.memory.needed().value());
}

// At a space or after a '+', whatever is broken where: every word is there, and none is glued to the next.
TEST(Console, WrapLosesNoWord) {
  const std::string text =
      "all of hypar,layers=dp+in+out+in+in+out+in+dp is fastest: 2 × in+out+dp+dp+in+out+dp is not";
  for (std::size_t width = 5; width < 100; ++width) {
    std::string joined;
    for (const std::string& line : wrap(text, ' ', width))
      joined += (joined.empty() || joined.ends_with('+') ? "" : " ") + line;
    EXPECT_EQ(joined, text) << width;
  }
  EXPECT_EQ(wrap("a bb+cc+dd is", ' ', 6), (std::vector<std::string>{"a", "bb+cc+", "dd is"}));
}

TEST(Console, UnitsAPersonReads) {
  EXPECT_EQ(readable_seconds(0.661), "661 ms");
  EXPECT_EQ(readable_seconds(3.4e-6), "3.40 µs");
  EXPECT_EQ(readable_seconds(0.9999), "1.00 s");
  EXPECT_EQ(readable_seconds(0.0999), "99.9 ms");
  EXPECT_EQ(readable_seconds(0.09999), "100 ms");
  EXPECT_EQ(readable_seconds(12345), "12345 s");
  EXPECT_EQ(readable_seconds(2e-9), "2.00 ns");
  EXPECT_EQ(readable_bytes(0.97 * 1073741824), "0.97 GiB");
  EXPECT_EQ(readable_bytes(680.0 * 1073741824), "680 GiB");
  EXPECT_EQ(readable_bytes(0), "0 B");
  EXPECT_EQ(readable_bytes(300.0 * 1048576), "300 MiB");
}

}  // namespace
}  // namespace sim
