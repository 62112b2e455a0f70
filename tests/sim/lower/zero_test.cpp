// ZeRO's Programs: what is cut, what travels and what memory holds are the closed forms of the papers
// (https://arxiv.org/abs/1910.02054, section 7; https://arxiv.org/abs/2304.11277).
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "sim/lower/lower.hpp"
#include "sim/program/memory.hpp"
#include "sim/program/traffic.hpp"
#include "tests/sim/model/toys.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using testing::message_of;
using testing::toy_path;

/// toy_mlp: net1 has 110 parameters, net2 55. u1 is padded on two ranks, both are on four.
Program program_of(const std::string& strategy, const std::string& model = "toy_mlp,global_batch=16,optimizer=adam") {
  const Model parsed = load_model(model);
  return lower(parsed, parse_strategy(strategy, parsed));
}

std::size_t count(const Role& role, CollectiveKind kind) {
  std::size_t found = 0;
  for (std::uint32_t i = 0; i < role.size(); ++i)
    found += role.kind[i] == InstructionKind::collective && role.collective[i] == kind ? 1 : 0;
  return found;
}

std::vector<std::string> labels(const Program& program) {
  std::vector<std::string> all;
  for (std::uint32_t i = 0; i < program.roles[0].size(); ++i) all.push_back(program.label(program.roles[0], i));
  return all;
}

constexpr double kParameters = 165, kBytes = 4;  // of toy_mlp, f32
/// Of its units by layer, each padded to a multiple of n.
double padded(double n) { return n * std::ceil(110 / n) + n * std::ceil(55 / n); }

TEST(Zero, BytesOnTheWireAreTheClosedForms) {
  for (const double n : {2.0, 4.0, 8.0}) {
    const double f = (n - 1) / n, p = kBytes * padded(n), m = 2;
    const auto bytes = [&](const std::string& strategy) {
      const Program program = program_of(fmt::format("{},dp={}", strategy, n));
      return traffic_of(program).sent_bytes;
    };
    EXPECT_DOUBLE_EQ(bytes("ddp"), 2 * f * kBytes * kParameters);
    EXPECT_DOUBLE_EQ(bytes("zero1,units=layer"), 2 * f * p);
    EXPECT_DOUBLE_EQ(bytes("zero1,units=layer,microbatches=2"), 2 * f * p);
    EXPECT_DOUBLE_EQ(bytes("zero2,units=layer"), 2 * f * p);
    EXPECT_DOUBLE_EQ(bytes("zero2,units=layer,microbatches=2"), (m + 1) * f * p);
    EXPECT_DOUBLE_EQ(bytes("zero2,units=layer,microbatches=2,accumulate=last"), 2 * f * p);
    // The last layer's weights are still there for its backward, the first layer's backward needs none.
    const double u0 = kBytes * n * std::ceil(110 / n), u1 = kBytes * n * std::ceil(55 / n);
    EXPECT_DOUBLE_EQ(bytes("zero3"), f * (u0 + u1 + p));
    EXPECT_DOUBLE_EQ(bytes("zero3,microbatches=2"), f * (m * u0 + m * u1 + m * p));
    EXPECT_DOUBLE_EQ(bytes("zero3,microbatches=2,reshard=0"), f * (m * u0 + m * u1 + m * p));
    EXPECT_DOUBLE_EQ(bytes("deepspeed_stage_1,units=layer"), 3 * f * p);
    EXPECT_DOUBLE_EQ(bytes("deepspeed_stage_2,units=layer,microbatches=2"), (2 * m + 1) * f * p);
  }
}

TEST(Zero, WeightsAreGatheredAgainForTheBackwardThatReadsThem) {
  const auto gathers = [](const std::string& strategy) {
    return count(program_of(strategy, "convnet,global_batch=8").roles[0], CollectiveKind::all_gather);
  };
  // Five layers with weights: forward all, backward all but the last, which has them (a convolution's backward takes its
  // weight even where only that one's gradient is wanted).
  EXPECT_EQ(gathers("zero3,dp=2"), 5U + 4U);
  EXPECT_EQ(gathers("zero3,dp=2,reshard=0"), 5U);
  EXPECT_EQ(gathers("zero3,dp=2,microbatches=2"), 2 * (5U + 4U));
  EXPECT_EQ(gathers("zero3,dp=2,microbatches=2,reshard=0"), 2 * 5U);
  EXPECT_EQ(gathers("zero3,dp=2,units=all"), 1U);
  EXPECT_EQ(gathers("mesh,dp=2,zero=3,pp=1,schedule=gpipe,microbatches=2,reshard=0"), 5U) << "both forwards come first";
  EXPECT_EQ(gathers("zero1,dp=2,units=layer"), 5U) << "of what was updated";
  // DeepSpeed: with these layers of 456, 2416, 48120, 10164 and 850 elements, the third is used again after 22028 others.
  EXPECT_EQ(gathers("deepspeed_stage_3,dp=2,persistence=0"), 5U);
  EXPECT_EQ(gathers("deepspeed_stage_3,dp=2,persistence=0,reuse_elements=23000"), 5U + 2U);
  EXPECT_EQ(gathers("deepspeed_stage_3,dp=2,persistence=0,reuse_elements=20000"), 5U + 3U);
  EXPECT_EQ(gathers("deepspeed_stage_3,dp=2,persistence=0,reuse_elements=0"), 5U + 4U);
  // Of FSDP2's rows everyone gets its own: all of them would be sums in the place of means.
  EXPECT_EQ(
      message_of([] { program_of("mesh,dp=2,zero=3,flat=0,wire=all"); }),
      "strategy 'mesh,dp=2,zero=3,flat=0,wire=all': wire=all needs flat=1; of FSDP2's rows everyone gets its own");
  EXPECT_EQ(message_of([] { program_of("zero3,dp=2,reduce_dtype=half", "toy_mlp,global_batch=16,precision=bf16"); }),
            "strategy 'zero3,dp=2,reduce_dtype=half': reduce_dtype=half needs param_dtype=half here");
  // A pipeline's stage keeps its weights for all microbatches.
  EXPECT_EQ(gathers("mesh,pp=2,dp=2,zero=3,schedule=1f1b,microbatches=4,cut=pool2"), 2U);
  EXPECT_GT(gathers("mesh,pp=2,dp=2,zero=3,schedule=1f1b,microbatches=4,cut=pool2,reshard=1"), 4 * 2U);
}

TEST(Zero, PersistentBytesAreTheClosedForms) {
  for (const std::int64_t n : {2, 4, 8}) {
    const auto p = static_cast<std::int64_t>(kBytes * padded(static_cast<double>(n)));
    const std::int64_t inputs = 4 * (16 / n) * (10 + 5), steps = 4 * 2;  // Adam's step, of each unit
    const auto persistent = [&](const std::string& strategy) {
      const Program program = program_of(fmt::format("{},dp={}", strategy, n));
      EXPECT_EQ(program.roles.size(), 1U) << strategy;
      return peak_memory(program.roles[0]).persistent_bytes - inputs - steps;
    };
    EXPECT_EQ(persistent("zero1,units=layer"), p + 2 * p / n);
    EXPECT_EQ(persistent("zero2,units=layer"), p + 2 * p / n);
    EXPECT_EQ(persistent("zero3,units=layer"), 3 * p / n);
    EXPECT_EQ(persistent("deepspeed_stage_1,units=layer"), p + 2 * p / n);
    EXPECT_EQ(persistent("deepspeed_stage_3,persistence=0"), 3 * p / n);
    EXPECT_EQ(persistent("deepspeed_stage_3"), p + 2 * p / n + steps / 2 - steps)
        << "small parameters stay whole, together";
  }
}

// 2 and 2 bytes on the way where there were 4 and 4; 2 bytes of each weight that is used, and 4 + 4 + 4 for who updates it.
TEST(Zero, HalfParametersTravelInHalfTheBytes) {
  for (const std::int64_t n : {2, 4, 8}) {
    const double f = static_cast<double>(n - 1) / static_cast<double>(n), p = padded(static_cast<double>(n));
    const std::int64_t elements = std::llround(p), share = elements / n, inputs = 4 * (16 / n) * (10 + 5),
                       steps = 4 * 2;
    const auto program = [&](const std::string& strategy) {
      return program_of(fmt::format("{},dp={}", strategy, n), "toy_mlp,global_batch=16,precision=bf16,optimizer=adam");
    };
    const auto bytes = [&](const std::string& strategy) { return traffic_of(program(strategy)).sent_bytes; };
    const auto persistent = [&](const std::string& strategy) {
      return peak_memory(program(strategy).roles[0]).persistent_bytes - inputs - steps;
    };
    EXPECT_DOUBLE_EQ(bytes("zero1,units=layer"), (4 + 4) * f * p) << "autocast casts what is used";
    EXPECT_DOUBLE_EQ(bytes("zero1,units=layer,param_dtype=half"), (2 + 2) * f * p);
    EXPECT_DOUBLE_EQ(bytes("zero1,units=layer,param_dtype=half,reduce_dtype=f32"), (2 + 4) * f * p);
    EXPECT_DOUBLE_EQ(bytes("zero3,param_dtype=half") / bytes("zero3"), 0.5);
    EXPECT_DOUBLE_EQ(bytes("fsdp,param_dtype=half") / bytes("fsdp"), 0.5);
    EXPECT_DOUBLE_EQ(bytes("deepspeed_stage_1,units=layer"), (2 * 2 + 2) * f * p);
    EXPECT_EQ(persistent("zero1,units=layer,param_dtype=half"), 2 * elements + (4 + 8) * share);
    EXPECT_EQ(persistent("zero2,units=layer,param_dtype=half"), 2 * elements + (4 + 8) * share);
    EXPECT_EQ(persistent("zero3,units=layer,param_dtype=half"), (4 + 8) * share);
    EXPECT_EQ(persistent("deepspeed_stage_3,persistence=0"), (4 + 8) * share);
  }
  // Batch norms stay in f32, in units of their own.
  const Program program = program_of("zero3,dp=2,param_dtype=half", "resnet18,image=32,global_batch=16,precision=bf16");
  std::set<Dtype> dtypes;
  for (const Tensor& tensor : program.roles[0].tensors)
    if (tensor.name.starts_with("unit") && tensor.name.ends_with(".all")) dtypes.insert(tensor.spec.dtype);
  EXPECT_EQ(dtypes, (std::set{Dtype::f32, Dtype::bf16}));
}

/// How many units' gathered weights a rank holds at a time.
std::size_t most_whole_units(const Role& role) {
  std::set<std::uint32_t> whole;
  std::size_t most = 0;
  for (std::uint32_t i = 0; i < role.size(); ++i) {
    for (const std::uint32_t tensor : role.writes(i))
      if (const Storage& storage = role.storages[role.tensors[tensor].storage];
          storage.tensor_class == TensorClass::weight && !storage.persistent)
        whole.insert(role.tensors[tensor].storage);
    most = std::max(most, whole.size());
    for (const std::uint32_t storage : role.frees(i)) whole.erase(storage);
  }
  return most;
}

TEST(Zero, AtMostOneUnitMoreThanIsPrefetchedIsWhole) {
  for (const std::uint32_t prefetch : {0U, 1U, 2U})
    EXPECT_LE(most_whole_units(
                  program_of(fmt::format("zero3,dp=2,prefetch={}", prefetch), "convnet,global_batch=8").roles[0]),
              1 + prefetch);
}

/// In half precision a block's linear layers differentiate with copies of their weights; its norms want theirs, once the
/// block's are freed. The embedding, which is the head's weight too, is whole all the time.
TEST(Zero, HalfPrecisionFreesWhatItsBackwardWantsAgain) {
  for (const char* preset : {"fsdp", "zero3"})
    for (const char* precision : {"ieee", "bf16"}) {
      const auto role = [&](const char* reshard) {
        return program_of(fmt::format("{},dp=2,reshard={}", preset, reshard),
                          fmt::format("gpt_nano,global_batch=4,precision={}", precision))
            .roles[0];
      };
      const std::size_t blocks = 4;
      EXPECT_LE(most_whole_units(role("1")), 4U) << preset << " " << precision;
      EXPECT_GT(most_whole_units(role("0")), blocks) << preset << " " << precision;
      EXPECT_GE(count(role("1"), CollectiveKind::all_gather), count(role("0"), CollectiveKind::all_gather) + blocks)
          << preset << " " << precision;
    }
}

TEST(Zero, ManyRanksAreOneRole) {
  for (const char* strategy : {"zero1,dp=64", "zero2,dp=64", "zero3,dp=64", "hsdp,replicas=8,shard=8"}) {
    const Program program = program_of(strategy, "toy_mlp,global_batch=64");
    EXPECT_EQ(program.roles.size(), 1U) << strategy;
    EXPECT_EQ(program.ranks(), 64U);
  }
}

TEST(Zero, UnitsAreLayersBlocksSizesOrPrefixes) {
  const Model model = load_model("resnet18,image=64,global_batch=8");
  const auto units = [&](const std::string& key) {
    std::vector<std::size_t> sizes;
    for (const ParameterUnit& unit : lower(model, parse_strategy("zero3,dp=2" + key, model)).roles[0].units)
      sizes.push_back(unit.parts.size());
    return sizes;
  };
  // conv1, bn1, eight blocks (three with a convolution and batch norm beside), fc.
  EXPECT_EQ(units(""), (std::vector<std::size_t>{1, 2, 6, 6, 6, 3, 6, 6, 3, 6, 6, 3, 6, 2}));
  EXPECT_EQ(units(",units=all"), (std::vector<std::size_t>{62}));
  EXPECT_EQ(units(",units=layer").size(), 41U) << "20 convolutions, 20 batch norms, a linear layer";
  EXPECT_EQ(units(",units=layer4+fc"), (std::vector<std::size_t>{45, 15, 2})) << "the root's first";
  const std::vector<std::size_t> by_size = units(",units=10MiB");
  EXPECT_EQ(std::accumulate(by_size.begin(), by_size.end(), 0U), 62U);
  EXPECT_EQ(by_size.size(), 4U) << "of 44.6 MiB; the parameter that makes one full is in it";
  EXPECT_EQ(units(",units=2621440"), by_size) << "elements";
}

/// A unit smaller than the ranks: some have nothing but padding.
TEST(Zero, APartMayBeAllPadding) {
  const Program program = program_of("zero3,dp=4,units=layer", "resnet18,image=64,global_batch=8");
  const Program tiny = program_of("zero2,dp=8,units=0.00001MiB", "toy_mlp,global_batch=8");
  const Role& role = tiny.roles[0];
  EXPECT_EQ(role.units[0].parts[0].name, "net2.bias");
  const auto own = std::ranges::find(role.tensors, "unit0.own", &Tensor::name);
  EXPECT_EQ(own->spec.elements(), 1);
  EXPECT_EQ(tiny.slices_of(role, *own, 4).size(), 1U);
  EXPECT_EQ(tiny.slices_of(role, *own, 5).size(), 0U);
  EXPECT_EQ(message_of([&] { validate(program); }), "no error");
}

/// Whatever is cut how: together the ranks have every element of every parameter once, and each the part it says.
TEST(Zero, SlicesCoverEveryParameter) {
  for (const std::string name : {std::string("toy_mlp"), std::string("convnet"), toy_path("gpt_toy")})
    for (const char* strategy :
         {"zero1,dp=2", "zero3,dp=4", "zero3,dp=4,units=layer", "zero2,dp=8,units=0.001MiB", "hsdp,replicas=2,shard=4",
          "fsdp,dp=4", "fsdp,dp=8,units=layer", "mesh,dp=4,tp=2,zero=3,flat=0", "mesh,dp=2,pp=2,zero=3,flat=0",
          "mesh,dp=2,pp=2,zero=3", "mesh,dp=2,tp=2,zero=3", "mesh,dp=2,pp=2,tp=2,zero=2"}) {
      if (name == toy_path("gpt_toy") && std::string_view(strategy).find("pp=") != std::string_view::npos)
        continue;  // a tied weight on two stages
      SCOPED_TRACE(name + " " + strategy);
      const Program program = program_of(strategy, name + ",global_batch=8");
      const auto places = program.places();
      std::map<std::string, std::set<std::pair<std::vector<std::int64_t>, std::int64_t>>>
          found;  // piece, element of it
      for (std::uint32_t rank = 0; rank < program.ranks(); ++rank) {
        const Role& role = program.roles[places[rank].role];
        for (const Tensor& tensor : role.tensors) {
          if (!tensor.name.ends_with(".own") || role.tensors[role.storages[tensor.storage].owner].unit == kNone)
            continue;
          std::int64_t end = 0;
          for (const Program::Slice& slice : program.slices_of(role, tensor, rank)) {
            EXPECT_GE(slice.begin, end) << "one after the other";
            end = slice.begin + slice.elements.size;
            std::vector<std::int64_t> piece;
            for (const Range& range : slice.piece) piece.insert(piece.end(), {range.begin, range.size});
            for (std::int64_t e = 0; e < slice.elements.size; ++e)
              found[slice.of->name].insert({piece, slice.elements.begin + e});
          }
          EXPECT_LE(end, tensor.spec.elements());
        }
      }
      const Model model = load_model(name + ",global_batch=8");
      const std::vector<OpInstance> ops = model.instances(8);
      for (std::size_t n = 0; n < ops.size(); ++n)
        for (std::size_t p = 0; const ParameterSpec& own : ops[n].signature().parameters) {
          const ParameterSpec parameter = model.parameter(n, p++, own);
          EXPECT_EQ(std::ssize(found[parameter.name]), parameter.spec.elements()) << parameter.name;
        }
    }
}

TEST(Zero, SumsGoWhileTheBackwardGoesOn) {
  const auto position = [](const std::string& strategy, const std::string& label) {
    const std::vector<std::string> all = labels(program_of(strategy));
    const auto found = std::ranges::find(all, label);
    EXPECT_NE(found, all.end()) << label;
    return found - all.begin();
  };
  const std::string backward = "compute net1 backward";
  EXPECT_LT(position("zero2,dp=2,units=layer", "reduce_scatter unit1"), position("zero2,dp=2,units=layer", backward));
  EXPECT_GT(position("zero2,dp=2,units=layer", "wait for reduce_scatter unit1"),
            position("zero2,dp=2,units=layer", backward));
  EXPECT_LT(position("zero2,dp=2,units=layer,overlap=0", "wait for reduce_scatter unit1"),
            position("zero2,dp=2,units=layer,overlap=0", backward));
  EXPECT_GT(position("zero1,dp=2,units=layer", "reduce_scatter unit1"), position("zero1,dp=2,units=layer", backward));
}

/// FSDP2: each parameter by its rows, so that the last ranks may have none of it; what is gathered is copied out.
TEST(Zero, FsdpCutsEachParameterByItsRows) {
  const Program program = program_of("fsdp,dp=4,units=all", "toy_mlp,global_batch=8");
  const Role& role = program.roles[0];
  // net1: 10 rows of 10 and of 1: 3, 3, 3, 1; net2: 5 rows of 10 and of 1: 2, 2, 1, 0.
  const auto own = std::ranges::find(role.tensors, "unit0.own", &Tensor::name);
  EXPECT_EQ(own->spec.elements(), 3 * 10 + 3 + 2 * 10 + 2);
  std::vector<std::vector<std::int64_t>> rows(4), begins(4);
  for (std::uint32_t rank = 0; rank < 4; ++rank)
    for (const Program::Slice& slice : program.slices_of(role, *own, rank)) {
      rows[rank].push_back(slice.elements.size / (slice.piece.size() == 2 ? slice.piece[1].size : 1));
      begins[rank].push_back(slice.begin);
    }
  EXPECT_EQ(rows[0], (std::vector<std::int64_t>{3, 3, 2, 2}));
  EXPECT_EQ(begins[0], (std::vector<std::int64_t>{0, 30, 33, 53}));
  EXPECT_EQ(rows[2], (std::vector<std::int64_t>{3, 3, 1, 1}));
  EXPECT_EQ(rows[3], (std::vector<std::int64_t>{1, 1}));
  EXPECT_EQ(begins[3], (std::vector<std::int64_t>{0, 30})) << "the same room as the others'";
  EXPECT_EQ(count(role, CollectiveKind::all_gather), 1U);
  const std::vector<std::string> all = labels(program);
  EXPECT_EQ(all[0], "copy unit0 scaled_copy");
  EXPECT_EQ(all[1], "all_gather unit0");
  EXPECT_EQ(all[3], "copy unit0 split_out");
  for (std::uint32_t i = 0; i < role.size(); ++i)
    if (role.kind[i] == InstructionKind::collective && role.collective[i] == CollectiveKind::reduce_scatter) {
      EXPECT_EQ(role.reduction[i], Reduction::mean);
    }
  EXPECT_DOUBLE_EQ(traffic_of(program, role).sent_bytes,
                   3. / 4 * 2 * 4 * static_cast<double>(4 * own->spec.elements()));
}

/// Queries, keys and values in one are 24 rows of the module's, though their layer reads three blocks of 8.
TEST(Zero, FsdpCutsPackedParametersByTheRowsOfTheirModule) {
  const auto own = [](const Program& program, const std::string& parameter, std::uint32_t rank) {
    const Role& role = program.roles[program.places()[rank].role];
    for (const Tensor& tensor : role.tensors)
      if (tensor.name.ends_with(".own"))
        for (const Program::Slice& slice : program.slices_of(role, tensor, rank))
          if (slice.of->name == parameter) return slice.elements;
    return Range{};
  };
  const Program program = program_of("fsdp,dp=16", toy_path("gpt_toy") + ",global_batch=16");
  EXPECT_EQ(own(program, "h.0.attn.c_attn.weight", 5), (Range{5 * 2 * 8, 2 * 8})) << "24 rows of 8: 2 on each of 12";
  EXPECT_EQ(own(program, "h.0.attn.c_attn.bias", 5), (Range{10, 2}));
  EXPECT_EQ(own(program, "h.0.attn.c_attn.weight", 12), Range());
  // Two of four heads: 12 rows of 8, 6 on each rank.
  const Program both = program_of("mesh,dp=2,tp=2,zero=3,flat=0", toy_path("gpt_toy") + ",global_batch=16");
  const auto dp =
      static_cast<std::uint32_t>(std::ranges::find(both.mesh.axes, "dp", &Axis::name) - both.mesh.axes.begin());
  for (std::uint32_t rank = 0; rank < 4; ++rank)
    EXPECT_EQ(own(both, "h.0.attn.c_attn.weight", rank),
              (Range{both.mesh.coordinate(rank, dp) * std::int64_t{48}, 48}));
}

// fully_shard and DeepSpeed's stage 3 cut all of a module's parameters, LoRA's base, too. It is read in the forward only
// here, so gathered once; nobody sums or updates it.
TEST(Zero, WhatIsntTrainedIsCutToo) {
  Model model = load_model(toy_path());  // its table c2, f32[4,8], is frozen
  const auto program = [&](const char* strategy) { return lower(model, parse_strategy(strategy, model)); };
  const auto sent = [&](const char* strategy) { return traffic_of(program(strategy)).sent_bytes; };
  std::map<std::string, double> bytes;
  for (const char* strategy : {"zero3,dp=2", "fsdp,dp=2", "zero2,dp=2", "ddp,dp=2"}) {
    SCOPED_TRACE(strategy);
    const Program of = program(strategy);
    bytes[strategy] = sent(strategy);
    const bool is_cut = std::string_view(strategy) == "zero3,dp=2" || std::string_view(strategy) == "fsdp,dp=2";
    const Role& role = of.roles[0];
    const std::vector<bool> changed = role.changed_storages();
    std::int64_t kept = 0;  // elements
    for (std::size_t s = 0; s < role.storages.size(); ++s) {
      const Tensor& owner = role.tensors[role.storages[s].owner];
      const bool is_table = owner.name == "c2" || (owner.unit != kNone && role.units[owner.unit].parts[0].name == "c2");
      if (!role.storages[s].persistent || !is_table) continue;
      kept += owner.spec.elements();
      EXPECT_FALSE(changed[s]);
      EXPECT_EQ(role.storages[s].tensor_class, TensorClass::weight);
    }
    EXPECT_EQ(kept, is_cut ? 16 : 32);
  }
  std::ranges::find(model.given, "c2", &Given::name)->is_frozen = false;
  for (const auto& [strategy, before] : bytes)
    EXPECT_DOUBLE_EQ(before - sent(strategy.c_str()),
                     strategy.starts_with("zero3") || strategy.starts_with("fsdp") ? 64 : 0);
}

// What is gathered ahead is bounded by prefetch, also where units of a size lie side by side with what isn't trained.
TEST(Zero, FrozenUnitsDontLiftPrefetch) {
  Model model = load_model(toy_path());
  const auto peak = [&](const char* keys) {
    const Program program =
        lower(model, parse_strategy(fmt::format("zero3,dp=2,units=0.0001MiB,prefetch={}", keys), model));
    const Role& role = program.roles[0];
    std::uint32_t first_wait = 0, posted = 0;
    while (role.kind[first_wait] != InstructionKind::wait) ++first_wait;
    for (std::uint32_t i = 0; i < first_wait; ++i)
      posted +=
          role.kind[i] == InstructionKind::collective && role.collective[i] == CollectiveKind::all_gather ? 1U : 0U;
    return posted;
  };
  EXPECT_EQ(peak("1"), 2U);
  EXPECT_EQ(peak("2"), 3U);
}

TEST(Zero, HybridSharesOutWithinGroupsAndSumsBetweenThem) {
  const Program program = program_of("hsdp,replicas=2,shard=4,units=layer");
  const Role& role = program.roles[0];
  EXPECT_EQ(program.mesh.axes[1].name, "replicas");
  EXPECT_EQ(program.mesh.axes[2].name, "shard");
  EXPECT_EQ(count(role, CollectiveKind::reduce_scatter), 2U);
  EXPECT_EQ(count(role, CollectiveKind::all_reduce), 2U);
  const double p = kBytes * 4 * (3 * 11 + 2 * 11);  // rows of net1 and net2
  EXPECT_DOUBLE_EQ(traffic_of(program, role).sent_bytes, 3. / 4 * 2 * p + 2 * (2 - 1) / 2 * p / 4);
  // The first unit's sum between groups goes while the second's goes within them, as FSDP2's does on its own stream.
  std::uint32_t first = 0, beside = 0;
  while (role.kind[first] != InstructionKind::collective || role.collective[first] != CollectiveKind::all_reduce)
    ++first;
  for (std::uint32_t i = first + 1; role.kind[i] != InstructionKind::wait || role.ticket[i] != role.ticket[first]; ++i)
    beside += role.kind[i] == InstructionKind::collective ? 1 : 0;
  EXPECT_GE(beside, 1U);
  const Role blocking = program_of("hsdp,replicas=2,shard=4,units=layer,overlap=0").roles[0];
  for (std::uint32_t i = 0; i < blocking.size(); ++i)
    if (blocking.kind[i] == InstructionKind::collective && blocking.collective[i] != CollectiveKind::all_gather) {
      EXPECT_EQ(blocking.kind[i + 1], InstructionKind::wait) << i;
    }
}

}  // namespace
}  // namespace sim
