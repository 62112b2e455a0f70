#include "sim/program/program.hpp"

#include <array>
#include <cstdlib>
#include <random>

#include "sim/lower/lower.hpp"
#include "sim/program/transfers.hpp"
#include "sim/simulate/simulate.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using testing::golden_text;
using testing::lines_of;
using testing::message_of;
using testing::replaced;

// ---- Small programs as files: a change of what ranks do shows as a difference of text. ----

struct Golden {
  const char *file, *model, *strategy;
};
const std::vector<Golden> kGolden{
    {"programs/toy_mlp.single.txt", "toy_mlp,global_batch=4", "single"},
    {"programs/toy_mlp.model_parallel.txt", "toy_mlp,global_batch=4", "model_parallel,cut=r1"},
    {"programs/convnet.pipeline.txt", "convnet,global_batch=4,optimizer=sgd:lr=0.1",
     "pipeline,pp=3,cut=pool1+pool2,microbatches=2"},
    {"programs/toy_mlp.ddp.txt", "toy_mlp,global_batch=4,optimizer=adam",
     "ddp_blocking,dp=2,first_bucket_MiB=0.0001,bucket_MiB=0.0002"},
    {"programs/toy_mlp.tp.txt", "toy_mlp,global_batch=4,optimizer=sgd:lr=0.1", "mesh,dp=2,tp=2"},
    {"programs/toy_mlp.zero1.txt", "toy_mlp,global_batch=4,optimizer=adam", "zero1,dp=2"},
    {"programs/toy_mlp.fsdp.txt", "toy_mlp,global_batch=4,optimizer=sgd:lr=0.1", "fsdp,dp=2,units=all"},
    {"programs/toy_mlp.zero3.txt", "toy_mlp,global_batch=4,optimizer=sgd:lr=0.1", "zero3,dp=2"},
    {"programs/toy_mlp.heat.txt", "toy_mlp,global_batch=4,optimizer=adam", "heat,dp=2"},
    {"programs/toy_mlp.daso.txt", "toy_mlp,global_batch=4", "daso,skips=1,chunk=100"},
    {"programs/toy_mlp.zbv.txt", "toy_mlp,global_batch=4", "zbv,microbatches=2"},
};

/// The example that opens program_text.cpp, without its remarks.
std::string example_of_the_text() {
  const std::string source = read_text_file(testing::tests_folder() / ".." / "sim" / "program" / "program_text.cpp");
  std::string example;
  for (const std::string& line : lines_of(source)) {
    constexpr std::string_view kBegin = "//   ";
    if (!line.starts_with("//")) break;
    if (!line.starts_with(kBegin)) continue;
    const std::string text = line.substr(kBegin.size());
    example += text.substr(0, text.find("  ")) + '\n';
  }
  return example;
}

TEST(ProgramText, ItsExampleIsAProgram) {
  const Program program = program_from_text(example_of_the_text());
  validate(program);
  EXPECT_EQ(program.ranks(), 2U);
  EXPECT_EQ(to_text(program), example_of_the_text());
}

// PARAGAUGE_UPDATE_GOLDEN=1 writes the files; read the difference before you commit it.
TEST(ProgramGolden, ProgramsAreAsWritten) {
  for (const Golden& golden : kGolden) {
    const Model model = load_model(golden.model);
    const std::string text = to_text(lower_periodic(model, parse_strategy(golden.strategy, model)));
    if (std::getenv("PARAGAUGE_UPDATE_GOLDEN") != nullptr)
      write_text_file(testing::tests_folder() / "golden" / golden.file, text);
    EXPECT_EQ(lines_of(text), lines_of(golden_text(golden.file))) << golden.file;
  }
}

// ---- Robustness: whatever the text, a Program or a ConfigError. ----

Costs unit_costs(const Program& program) {
  Costs costs;
  costs.work_s.assign(program.works.size(), 1);
  costs.transfers = {{.latency_s = 1, .wire_s = 1}};
  costs.transfer_of.assign(TransferMatching(program).participants.size(), 0);
  return costs;
}

/// 2: valid and executed, 1: a Program that validate refuses, 0: no Program; anything but a ConfigError escapes.
int execute(const std::string& text) {
  int stage = 0;
  try {
    const Program program = program_from_text(text);
    EXPECT_EQ(to_text(program_from_text(to_text(program))), to_text(program));
    stage = 1;
    validate(program);
    stage = 2;
    simulate(program, unit_costs(program), testing::plain_cluster(program.ranks()));
  } catch (const ConfigError& error) {
    EXPECT_NE(stage, 2) << error.what();
  }
  return stage;
}

TEST(ProgramText, EveryPrefixIsReadOrRefused) {
  for (const Golden& golden : kGolden) {
    const std::string text = golden_text(golden.file);
    ASSERT_EQ(execute(text), 2) << golden.file;
    for (std::size_t length = 0; length < text.size(); ++length) {
      SCOPED_TRACE(fmt::format("{} up to byte {}", golden.file, length));
      execute(text.substr(0, length));
      if (HasFailure()) return;
    }
  }
}

/// Instruction numbers put right, so that a changed list gets past the parser.
std::string renumbered(const std::string& text) {
  std::string result;
  int next = 0;
  for (std::string line : lines_of(text)) {
    if (line.starts_with("role")) next = 0;
    if (const std::size_t digits = line.find_first_not_of("0123456789"); digits > 0 && digits != std::string::npos)
      line.replace(0, digits, std::to_string(next++));
    result += line + "\n";
  }
  return result;
}

std::string mutated(std::string text, std::mt19937& random) {
  const auto below = [&](std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random); };
  static constexpr std::string_view kPieces[] = {
      "0", "7",  "-1",     "99999999999", "4294967295", "nan", "1e308", " ",      "\n", "#",    "=",       ",",
      ":", "->", "; free", "wait t0",     "[",          "]",   "+",     "f32[1]", "w",  "w999", "ranks=0", "\0"};
  for (std::size_t edits = 1 + below(3); edits > 0; --edits) {
    std::vector<std::string> lines = lines_of(text);
    const std::size_t line = below(lines.size()), other = below(lines.size());
    std::string& at = lines[line];
    const std::size_t column = below(at.size() + 1);
    switch (below(7)) {
      case 0:  // a byte changes
        if (column < at.size()) at[column] = static_cast<char>(below(256));
        break;
      case 1:
        at.insert(column, kPieces[below(std::size(kPieces))]);
        break;
      case 2:
        at.erase(column, 1 + below(8));
        break;
      case 3:
        std::swap(lines[line], lines[other]);
        break;
      case 4:
        lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(line));
        break;
      case 5:
        lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(line), std::string(lines[other]));
        break;
      case 6: {  // one number instead of another
        const std::size_t digit = at.find_first_of("0123456789", column);
        if (digit != std::string::npos) at[digit] = static_cast<char>('0' + below(10));
        break;
      }
    }
    text = fmt::to_string(fmt::join(lines, "\n"));
    if (text.empty()) return text;
  }
  return below(4) == 0 ? text : renumbered(text);
}

TEST(ProgramText, RandomMutationsAreReadOrRefused) {
  std::mt19937 random(20240611);
  std::array<int, 3> outcomes{};
  for (const Golden& golden : kGolden) {
    const std::string text = golden_text(golden.file);
    for (int i = 0; i < 2000; ++i) {
      const std::string mutant = mutated(text, random);
      ++outcomes.at(static_cast<std::size_t>(execute(mutant)));
      ASSERT_FALSE(HasFailure()) << golden.file << ", mutation " << i << ":\n" << mutant;
    }
  }
  // All three happen, else the mutations don't reach far enough.
  for (int count : outcomes) EXPECT_GT(count, 100) << fmt::format("{}", fmt::join(outcomes, " "));
}

// ---- The parser's errors. ----

const std::string kText = R"(paragauge-program-2
model m,global_batch=2
strategy s
mesh rank=2
partition global_batch=2 microbatches=2
group data rank
work relu.forward f32[4] inplace=0
work linear.backward f32[2,4] bias=1 out_features=3 grads=0+p
role one ranks=0
tensor x f32[4] input persistent of=[8] on=S0 model_input
tensor y f32[4] activation
view y.half f32[2] y +8
0 compute w0 node=a mb=1 scale=0.5 : x -> y
1 send t0 to=rank+1 tag=0 node=a : y.half
2 wait t0 : ; free y
3 collective t1 kind=broadcast group=data root=0 : x -> x
4 wait t1
role two ranks=1
tensor z f32[2] buffer persistent constant=1
tensor x f32[4] weight persistent uniform=0,0.5
0 recv t0 from=rank-1 tag=0 node=a : -> z
1 wait t0
2 collective t1 kind=broadcast group=data root=0 : x -> x
3 wait t1
)";

TEST(ProgramText, IsReadAsWritten) {
  const Program program = program_from_text(kText);
  validate(program);
  EXPECT_EQ(program.model, "m,global_batch=2");
  EXPECT_EQ(program.global_batch, 2);
  EXPECT_EQ(program.microbatches, 2);
  ASSERT_EQ(program.roles.size(), 2U);
  const Role& one = program.roles[0];
  EXPECT_EQ(one.tensors[0].initial.kind, Initial::Kind::model_input);
  EXPECT_EQ(one.tensors[0].whole, (Shape{8}));
  EXPECT_EQ(one.tensors[0].on, std::vector{shard(0)});
  EXPECT_EQ(one.tensors[2].storage, one.tensors[1].storage);
  EXPECT_EQ(one.tensors[2].offset_bytes, 8);
  EXPECT_EQ(one.scale[0], 0.5);
  EXPECT_EQ(one.microbatch[0], 1);
  EXPECT_EQ(program.partner(one, 0, 1), 1U);
  EXPECT_EQ(program.partner(program.roles[1], 1, 0), 0U);
  EXPECT_EQ(program.roles[1].tensors[1].initial.bound, 0.5);
  EXPECT_EQ(program.works[1].grads, kParameterGrads | 1);
  EXPECT_EQ(program.transfer_bytes(one, 1), 8);
  EXPECT_EQ(program.label(one, 0), "compute a forward mb=1");
  EXPECT_EQ(program.label(one, 2), "wait for send a to two");
  EXPECT_EQ(program.label(one, 3), "broadcast");
  EXPECT_EQ(to_text(program), kText);
}

TEST(ProgramText, ThreadsOfItsRanks) {
  const Model model = load_model("toy_mlp");
  const Program one = lower(model, parse_strategy("ddp", model)),
                two = lower(model, parse_strategy("ddp,threads=2", model));
  EXPECT_EQ(to_text(one).find("threads"), std::string::npos);
  EXPECT_EQ(two.threads, 2U);
  for (const Work& work : two.works) {
    EXPECT_EQ(work.threads, 2U);
    EXPECT_EQ(work_from_key(work_key(work)).threads, 2U);
  }
  const Program again = program_from_text(to_text(two));
  EXPECT_EQ(again.threads, 2U);
  EXPECT_EQ(to_text(again), to_text(two));
  // But for that they are the same.
  Program of_two = two;
  of_two.set_threads(1);
  EXPECT_EQ(to_text(of_two), replaced(to_text(one), one.strategy, two.strategy));
  const auto with = [&](std::string_view from, std::string_view to) {
    return message_of([&] { program_from_text(replaced(to_text(two), from, to)); });
  };
  EXPECT_EQ(with("threads 2\n", ""), "program text, line 7: a work of threads=2, but the ranks have 1");
  EXPECT_EQ(with("threads 2\n", "threads 0\n"), "program text, line 4: threads=0 must be from 1 to 1024");
  EXPECT_EQ(with("threads 2\n", "threads two\n"), "program text, line 4: 'two' is not a valid number of threads");
}

TEST(ProgramText, SaysWhichLineIsWrong) {
  const auto with = [](const std::string& from, const std::string& to) {
    return message_of([&] { program_from_text(replaced(kText, from, to)); });
  };
  const auto line = [](int number, const std::string& text) {
    return fmt::format("program text, line {}: {}", number, text);
  };
  EXPECT_EQ(message_of([] { program_from_text(""); }), line(1, "expected 'paragauge-program-2'"));
  EXPECT_EQ(with("program-2", "program-3"), line(1, "expected 'paragauge-program-2'"));
  EXPECT_EQ(with("program-2", "program-1"),
            line(1, "'paragauge-program-1' is an older format than 'paragauge-program-2'; lower the strategy again"));
  EXPECT_EQ(with("group data", "grope data"), line(6,
                                                   "unknown item 'grope'; known: model, strategy, threads, mesh, "
                                                   "partition, daso, group, work, role, unit, part, tensor, view, "
                                                   "prologue, body, epilogue, "
                                                   "an instruction's number"));
  // partition, group, role
  EXPECT_EQ(with("microbatches=2", "microbatches"), line(5, "'microbatches' is not key=value"));
  EXPECT_EQ(with("microbatches=2", "microbatches=two"), line(5, "'two' is not a valid whole number"));
  EXPECT_EQ(with("microbatches=2", "microbatches=0"), line(5, "microbatches=0 must be from 1 to 2^40"));
  EXPECT_EQ(
      with("microbatches=2", "replicas=1"),
      line(5, "unknown key 'replicas'; known: global_batch, microbatches, rows, draws, one_loss, broadcast_buffers"));
  EXPECT_EQ(with("microbatches=2", "rows=S"),
            line(5, "'S' is no placement; known: R, S0, S1/64, S0+, P, P.mean, P.max, @0, @last, own"));
  EXPECT_EQ(with("microbatches=2", "rows=S0,R"), line(5, "2 placements on a mesh of 1 axes"));
  EXPECT_EQ(with("microbatches=2", "rows=S4"), line(5, "S4 of the samples, which have one dimension"));
  EXPECT_EQ(with("microbatches=2", "rows=@2"), line(5, "'@2' is outside of axis rank=2"));
  EXPECT_EQ(with("mesh rank=2", "mesh rank"), line(4, "'rank' is not axis=size"));
  EXPECT_EQ(with("mesh rank=2", "mesh rank=0"), line(4, "rank=0 makes 0 ranks; allowed: 1 to 1048576"));
  EXPECT_EQ(with("mesh rank=2", "mesh a=2048 b=1024"), line(4, "b=1024 makes 2097152 ranks; allowed: 1 to 1048576"));
  EXPECT_EQ(with("mesh rank=2", "mesh rank=2 rank=2"), line(4, "the axis 'rank' is there already"));
  EXPECT_EQ(with("mesh rank=2", "mesh rank=2/even"), line(4, "unknown rest 'even'; known: forbidden, to_last, chunks"));
  EXPECT_EQ(with("group data rank", "group data dp"), line(6, "unknown axis 'dp'"));
  EXPECT_EQ(with("group data rank", "group data rank 1"), line(6, "'1' after the axes"));
  EXPECT_EQ(with("group data rank", "group"), line(6, "ends where a name is expected"));
  EXPECT_EQ(with("role one ranks=0", "role one"), line(9, "ends where ranks=… is expected"));
  EXPECT_EQ(with("role one ranks=0", "role one 0"), line(9, "expected ranks=…, found '0'"));
  EXPECT_EQ(with("role one ranks=0", "role one ranks="), line(9, "'' is not a valid rank"));
  // work
  EXPECT_EQ(with("relu.forward", "relu"), line(7, "'relu' is not op.pass"));
  EXPECT_EQ(with("relu.forward", "rela.forward"), line(7, "unknown op kind 'rela'; known: " + op_table().names()));
  EXPECT_EQ(with("relu.forward", "relu.back"), line(7, "unknown pass 'back'; known: forward, backward, update"));
  EXPECT_EQ(with("f32[4] inplace=0", "f32[0] inplace=0"),
            line(7, "'f32[0]' is not a tensor type; sizes are positive integers, at most 2^40 elements"));
  EXPECT_EQ(with("f32[4] inplace=0", "inplace=0"), line(7, "op 'relu' takes 1 inputs, found 0"));
  EXPECT_EQ(with("inplace=0", "inplace=maybe"), line(7, "'maybe' is not a valid number"));
  EXPECT_EQ(with("inplace=0", "outplace=0"), line(7, "work: op 'relu' has no attribute 'outplace'; known: inplace"));
  EXPECT_EQ(with("f32[2,4] bias", "f32[2,4,1] bias"),
            line(8, "op 'linear' needs an input [batch, features], found [batch, 4, 1]; put a 'flatten' before it"));
  EXPECT_EQ(with("grads=0+p", "grads=0+q"), line(8, "'q' is not a valid input"));
  EXPECT_EQ(with("grads=0+p", "grads=31"), line(8, "input 31 of grads must be from 0 to 30"));
  // tensor, view
  EXPECT_EQ(with("role one ranks=0\n", ""), line(9, "comes before the first role"));
  EXPECT_EQ(with("tensor y f32[4]", "tensor x f32[4]"), line(11, "the tensor 'x' is there already"));
  EXPECT_EQ(with("tensor y f32[4]", "tensor y f33[4]"),
            line(11, "unknown dtype 'f33'; known: f32, f64, bf16, f16, i64, i32, bool"));
  EXPECT_EQ(with("f32[4] activation", "f32[4] active"), line(11, "unknown tensor class 'active'"));
  EXPECT_EQ(with("f32[4] activation", "f32[4]"), line(11, "ends where a tensor class is expected"));
  EXPECT_EQ(with("of=[8] on=S0", "of=[8]"),
            line(10, "of=shape and on=placements belong together, at a persistent tensor"));
  EXPECT_EQ(with("on=S0", "on=S1"), line(10, "S1 of a tensor with 1 dimensions"));
  EXPECT_EQ(with("model_input", "random"),
            line(10,
                 "unknown item 'random'; known: persistent, of=shape, on=placements, "
                 "unit=name, uniform=center,bound, constant=x, "
                 "values=runs, model_input, model_input=classes, model_input=center,bound, model_target=classes"));
  EXPECT_EQ(with("model_input", "model_input=1,0"), line(10, "model_input=1,0 needs a bound above 0"));
  EXPECT_EQ(with("uniform=0,0.5", "uniform=0"),
            line(20,
                 "unknown item 'uniform=0'; known: persistent, of=shape, "
                 "on=placements, unit=name, uniform=center,bound, constant=x, "
                 "values=runs, model_input, model_input=classes, model_input=center,bound, model_target=classes"));
  EXPECT_EQ(with("f32[2] y +8", "f32[2] q +8"), line(12, "unknown tensor 'q'"));
  EXPECT_EQ(with("f32[2] y +8", "f32[2] y 8"), line(12, "expected +offset, found '8'"));
  EXPECT_EQ(with("f32[2] y +8", "f32[2] y +12"), line(12, "view 'y.half' reaches beyond 'y'"));
  EXPECT_EQ(with("f32[2] y +8", "f32[2] y +-8"), line(12, "view 'y.half' reaches beyond 'y'"));
  EXPECT_EQ(with("f32[2] y +8", "f32[2] y +9223372036854775807"), line(12, "view 'y.half' reaches beyond 'y'"));
  EXPECT_EQ(with("f32[2] y +8", "f32[2] y +6"),
            line(12, "view 'y.half' begins at byte 6 of 'y', which is no multiple of the 4 bytes of f32"));
  EXPECT_EQ(with("f32[2] y +8", "f64[1] y +4"),
            line(12, "view 'y.half' begins at byte 4 of 'y', which is no multiple of the 8 bytes of f64"));
  // instructions
  EXPECT_EQ(with("2 wait t0", "3 wait t0"), line(15, "instruction 3 where 2 is expected"));
  EXPECT_EQ(with("0 compute", "0 compote"),
            line(13, "unknown instruction kind 'compote'; known: compute, copy, update, send, recv, collective, wait"));
  EXPECT_EQ(with("0 compute w0", "0 compute w2"), line(13, "work w2 of 2"));
  EXPECT_EQ(with("0 compute w0", "0 compute wx"), line(13, "'x' is not a valid work"));
  EXPECT_EQ(with("0 compute w0", "0 compute"), line(13, "'compute' needs a work"));
  EXPECT_EQ(with("2 wait t0", "2 wait w0 t0"), line(15, "'wait' takes no work"));
  EXPECT_EQ(with("mb=1", "mb"), line(13, "'mb' is not key=value"));
  EXPECT_EQ(with("mb=1", "mb=first"), line(13, "'first' is not a valid microbatch"));
  EXPECT_EQ(with("mb=1", "batch=1"),
            line(13, "unknown key 'batch'; known: node, mb, to, from, group, root, tag, scale, kind, reduction"));
  EXPECT_EQ(with(": x -> y", ": x -> q"), line(13, "unknown tensor 'q'"));
  EXPECT_EQ(with("; free y", "; y"), line(15, "expected 'free' after ';'"));
  EXPECT_EQ(with("to=rank+1", "to=three"), line(14, "'three' is not axis+distance or axis-distance"));
  EXPECT_EQ(with("to=rank+1", "to=stage+1"), line(14, "unknown axis 'stage'"));
  EXPECT_EQ(with("to=rank+1", "to=rank+2"), line(14, "2 along rank=2"));
  EXPECT_EQ(with("to=rank+1", "to=rank-x"), line(14, "'x' is not a valid distance"));
  EXPECT_EQ(with("1 send t0 to=rank+1", "1 send t0"), line(14, "'send' needs to=…"));
  EXPECT_EQ(with("1 send t0 to=rank+1", "1 send t0 from=rank+1"), line(14, "'send' needs to=…"));
  EXPECT_EQ(with("2 wait t0", "2 wait t0 to=rank+1"), line(15, "'wait' takes no to=…"));
  EXPECT_EQ(with("2 wait t0", "2 wait"), line(15, "'wait' needs a ticket"));
  EXPECT_EQ(with("0 compute w0", "0 compute w0 t0"), line(13, "'compute' takes no ticket"));
  EXPECT_EQ(with("1 send t0", "1 send"), line(14, "'send' needs a ticket"));
  EXPECT_EQ(with("1 send t0", "1 send t2"), line(14, "opens t2; allowed: up to t1, the number of the instruction"));
  EXPECT_EQ(with("1 send t0", "1 send tx"), line(14, "'x' is not a valid ticket"));
  EXPECT_EQ(with(": y.half", ": y y.half"), line(14, "'send' reads one tensor"));
  EXPECT_EQ(with(": -> z", ": z"), line(21, "'recv' writes one tensor"));
  EXPECT_EQ(with("group=data", "group=tensor"), line(16, "unknown group 'tensor'"));
  EXPECT_EQ(with("kind=broadcast", "kind=scan"),
            line(16,
                 "unknown collective 'scan'; known: all_reduce, broadcast, reduce, all_gather, reduce_scatter, "
                 "all_to_all, scatter, gather"));
  EXPECT_EQ(with("kind=broadcast", "kind=broadcast reduction=max"), line(16, "'broadcast' takes no reduction"));
  EXPECT_EQ(with("2 wait t0", "2 wait t0 reduction=max"), line(15, "'wait' takes no reduction"));
  EXPECT_EQ(with("kind=broadcast", "kind=reduce reduction=least"),
            line(16, "unknown reduction 'least'; known: sum, mean, max"));
}

TEST(Role, ATensorMayHaveTheShapeOfAnother) {
  Role role;
  role.add_tensor("first", {Dtype::f32, {2, 3}}, TensorClass::activation);
  for (int i = 0; i < 40; ++i)  // the tensors move as their number grows
    role.add_tensor(fmt::format("like {}", i), role.tensors[0].spec, TensorClass::activation);
  for (const Storage& storage : role.storages) EXPECT_EQ(storage.bytes, 24);
}

TEST(Role, AViewBeginsAtAnElement) {
  Role role;
  const std::uint32_t whole = role.add_tensor("whole", {Dtype::i64, {4}}, TensorClass::communication);
  const std::uint32_t second = role.add_view("second", {Dtype::f32, {2}}, whole, 4);
  EXPECT_EQ(role.tensors[second].offset_bytes, 4);
  EXPECT_THROW(role.add_view("odd", {Dtype::f32, {1}}, whole, 2), InternalError);
  EXPECT_THROW(role.add_view("between", {Dtype::f64, {1}}, second, 0), InternalError);
}

TEST(WorkKey, NamesThePrecisionWhereItIsntTheDefault) {
  const std::string linear = "linear.backward f32[2,4] bias=1 out_features=3 grads=p";
  EXPECT_EQ(work_from_key(linear).op.precision, Precision::f32);
  for (const Precision precision : {Precision::tf32, Precision::ieee, Precision::bf16, Precision::fp16}) {
    Work work = work_from_key(linear);
    work.op.precision = precision;
    EXPECT_EQ(work_key(work), fmt::format("{} precision={}", linear, to_string(precision)));
    EXPECT_EQ(work_from_key(work_key(work)).op, work.op);
    std::vector<Work> works;
    WorkTable table(works);
    EXPECT_NE(table.add(work), table.add(work_from_key(linear)));
  }
  EXPECT_EQ(message_of([] { (void)work_from_key("relu.forward f32[2,4] inplace=0 precision=tf32"); }),
            "work 'relu.forward f32[2,4] inplace=0 precision=tf32': program text, line 1: op 'relu' has no precision");
  EXPECT_EQ(message_of([&] { (void)work_from_key(linear + " precision=f16"); }),
            "work '" + linear +
                " precision=f16': program text, line 1: unknown precision 'f16'; known: f32, tf32, ieee, "
                "bf16, fp16");
}

TEST(WorkKey, NamesWhatDiffers) {
  const auto key = [](const std::string& kind, Pass pass, std::uint32_t grads) {
    const OpKind& row = op_table().at(kind);
    const Attributes attributes =
        complete_attributes(row, kind == "linear" ? Attributes{{"out_features", 3}} : Attributes{}, "");
    return work_key({{&row, attributes, {{Dtype::f32, {2, 4}}}}, pass, grads});
  };
  EXPECT_EQ(key("linear", Pass::forward, 0), "linear.forward f32[2,4] bias=1 out_features=3");
  EXPECT_EQ(key("linear", Pass::forward, 1), "linear.forward f32[2,4] bias=1 out_features=3");
  EXPECT_EQ(key("linear", Pass::backward, 1), "linear.backward f32[2,4] bias=1 out_features=3 grads=0+");
  EXPECT_EQ(key("linear", Pass::backward, kParameterGrads), "linear.backward f32[2,4] bias=1 out_features=3 grads=p");
  EXPECT_EQ(key("linear", Pass::backward, kParameterGrads | 1),
            "linear.backward f32[2,4] bias=1 out_features=3 grads=0+p");
  EXPECT_EQ(key("relu", Pass::forward, 0), "relu.forward f32[2,4] inplace=0");
  const OpKind& linear = op_table().at("linear");
  const Attributes three = complete_attributes(linear, {{"out_features", 3}}, "");
  EXPECT_EQ(work_key({{&linear, three, {{Dtype::f32, {2, 4}}}}, Pass::backward, 1, /*threads=*/2}),
            "linear.backward f32[2,4] bias=1 out_features=3 grads=0+ threads=2");
  std::vector<Work> works;
  WorkTable table(works);
  const OpKind& relu = op_table().at("relu");
  const Work work{{&relu, complete_attributes(relu, {}, ""), {{Dtype::f32, {2, 4}}}}, Pass::forward, 0};
  EXPECT_EQ(table.add(work), 0U);
  EXPECT_EQ(table.add(work), 0U);
  EXPECT_EQ(works.size(), 1U);
  // Elementwise: one work per dtype, size and attributes, whatever the shape.
  const Attributes in_place{{"inplace", 1}}, fresh{{"inplace", 0}};
  const auto elementwise = [&](const Attributes& attributes, const TensorSpec& spec) {
    return table.add_elementwise(relu, attributes, Pass::forward, spec);
  };
  EXPECT_EQ(elementwise(fresh, {Dtype::f32, {2, 4}}), 1U);
  EXPECT_EQ(elementwise(fresh, {Dtype::f32, {8}}), 1U);
  EXPECT_EQ(elementwise(in_place, {Dtype::f32, {8}}), 2U);
  EXPECT_EQ(elementwise(fresh, {Dtype::f32, {4, 2}}), 1U);
  EXPECT_EQ(elementwise(fresh, {Dtype::f64, {8}}), 3U);
  EXPECT_EQ(elementwise(fresh, {Dtype::f32, {9}}), 4U);
  EXPECT_EQ(work_key(works[2]), "relu.forward f32[8] inplace=1");
}

TEST(NameTable, HoldsEachNameOnce) {
  std::vector<std::string> names{"fc", "loss"};
  NameTable table(names);
  EXPECT_EQ(table.add("loss"), 1U);
  EXPECT_EQ(table.add("relu"), 2U);
  EXPECT_EQ(table.add("fc"), 0U);
  EXPECT_EQ(table.add("relu"), 2U);
  EXPECT_EQ(names, (std::vector<std::string>{"fc", "loss", "relu"}));
}

}  // namespace
}  // namespace sim
