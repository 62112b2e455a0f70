#include "sim/strategy/strategy.hpp"

#include "sim/lower/lower.hpp"
#include "sim/strategy/layout.hpp"
#include "tests/sim/model/toys.hpp"
#include "tests/sim/testing.hpp"

namespace sim {
namespace {

using testing::message_of;
using testing::small_model;
using testing::strategy_texts;

TEST(Strategy, TextRoundTrip) {
  for (const std::string& name : testing::written_models()) {
    const Model model = small_model(name);
    for (const std::string& text : strategy_texts(model)) {
      SCOPED_TRACE(name + " " + text);
      const Strategy s = parse_strategy(text, model), again = parse_strategy(s.text(), model);
      EXPECT_EQ(again.text(), s.text());
      EXPECT_EQ(again.preset, s.preset);
      EXPECT_EQ(again.dp, s.dp);
      EXPECT_EQ(again.pp, s.pp);
      EXPECT_EQ(again.schedule, s.schedule);
      EXPECT_EQ(again.microbatches, s.microbatches);
      EXPECT_EQ(again.cut, s.cut);
      EXPECT_EQ(again.first_bucket_MiB, s.first_bucket_MiB);
      EXPECT_EQ(again.bucket_MiB, s.bucket_MiB);
      EXPECT_EQ(again.broadcast_buffers, s.broadcast_buffers);
      EXPECT_EQ(again.overlap, s.overlap);
      EXPECT_EQ(again.zero, s.zero);
      EXPECT_EQ(again.shard, s.shard);
      EXPECT_EQ(again.units, s.units);
      EXPECT_EQ(again.flat, s.flat);
      EXPECT_EQ(again.prefetch, s.prefetch);
      EXPECT_EQ(again.prefetch_elements, s.prefetch_elements);
      EXPECT_EQ(again.persistence, s.persistence);
      EXPECT_EQ(again.reuse_elements, s.reuse_elements);
      EXPECT_EQ(again.reshard, s.reshard);
      EXPECT_EQ(again.sums_each_microbatch, s.sums_each_microbatch);
      EXPECT_EQ(again.scatters, s.scatters);
    }
  }
}

TEST(Strategy, ReplicasOfHybridsHaveTheirDevicesSamples) {
  const Model model = load_model("convnet,device_batch=32");
  EXPECT_EQ(with_global_batch(model, "ddp,dp=4").global_batch, 4 * 32);
  EXPECT_EQ(with_global_batch(model, "hsdp").global_batch, 2 * 2 * 32);
  EXPECT_EQ(with_global_batch(model, "mesh,zero=3,replicas=4").global_batch, 4 * 2 * 32);
  EXPECT_EQ(
      message_of([] { parse_strategy("hsdp,replicas=1048576,shard=1048576", small_model("toy_mlp")); }),
      "strategy 'hsdp,replicas=1048576,shard=1048576': replicas=1048576 times shard=1048576 must be at most 1048576 "
      "ranks");
}

// Where it places stages, or splits backwards, a schedule is another one for a single microbatch, too.
TEST(Strategy, SchedulesOfOneMicrobatch) {
  const Model model = load_model("convnet");
  EXPECT_EQ(parse_strategy("mesh,pp=2,schedule=1f1b", model).text(), "mesh,pp=2");
  EXPECT_EQ(parse_strategy("mesh,pp=2,schedule=zbv", model).text(), "mesh,pp=2,schedule=zbv");
  EXPECT_EQ(parse_strategy("mesh,pp=2,schedule=zbv", model).chunks, 2);
  EXPECT_EQ(parse_strategy("mesh,pp=2,schedule=interleaved,chunks=2", model).chunks, 2);
}

// For whatever is in the table.
TEST(Strategy, EveryKindHasAnExample) {
  for (const StrategyKind& kind : strategy_table()) {
    EXPECT_FALSE(kind.description.empty()) << kind.name;
    const Strategy s = parse_strategy(kind.example, small_model("toy_mlp"));
    EXPECT_EQ(s.preset, kind.name) << kind.example;
    for (const std::string& name : testing::written_models())
      EXPECT_EQ(message_of([&] { parse_strategy(kind.example, load_model(name + ",global_batch=4")); }), "no error");
  }
}

TEST(Strategy, PresetsAndDegrees) {
  const Model model = small_model("toy_mlp");
  const auto parse = [&](std::string_view text) { return parse_strategy(text, model); };
  EXPECT_EQ(parse("single").ranks(), 1U);
  EXPECT_EQ(parse("ddp,dp=4").ranks(), 4U);
  EXPECT_EQ(parse("dp").text(), "data_parallel,dp=2");  // as Lightning calls it
  EXPECT_EQ(parse("dp=2,pp=3").ranks(), 6U);
  EXPECT_EQ(parse("dp=2,pp=3").text(), "mesh,dp=2,pp=3");
  EXPECT_EQ(parse("pipeline,split_size=4").text(), "pipeline,pp=2,schedule=gpipe,microbatches=2");
  EXPECT_EQ(parse("dp=2,split_size=2").microbatches, 2);  // of the replica's 4 samples
  EXPECT_EQ(parse("model_parallel,cut=r1").text(), "model_parallel,pp=2,cut=relu");
  EXPECT_EQ(parse("model_parallel,cut=relu").text(), "model_parallel,pp=2,cut=relu");
  EXPECT_EQ(parse("model_parallel,cut=balanced").text(), "model_parallel,pp=2");
  EXPECT_EQ(parse("mesh,pp=3,cut=net1+relu").cut, (std::vector<std::string>{"net1", "relu"}));
  EXPECT_EQ(parse("ddp,bucket_MiB=0.5,broadcast_buffers=0").text(), "ddp,dp=2,bucket_MiB=0.5,broadcast_buffers=0");
  // PyTorch's DDP overlaps; `overlap=1` is how it was said once.
  EXPECT_TRUE(parse("ddp").overlap);
  EXPECT_EQ(parse("ddp,dp=2,overlap=1").text(), "ddp,dp=2");
  EXPECT_FALSE(parse("ddp_blocking").overlap);
  EXPECT_EQ(parse("ddp_blocking,dp=4").text(), "ddp_blocking,dp=4");
  EXPECT_TRUE(parse("dp=2").overlap);
  EXPECT_EQ(parse("dp=2,pp=2,overlap=0").text(), "mesh,dp=2,pp=2,overlap=0");
  EXPECT_EQ(parse("pp=2,overlap=1").text(), "mesh,pp=2");
  // Without a pipeline microbatches take turns: F B F B.
  EXPECT_EQ(parse("single,microbatches=4").text(), "single,schedule=1f1b,microbatches=4");
  EXPECT_EQ(parse("dp=2,microbatches=2").schedule, "1f1b");
  EXPECT_EQ(parse("dp=2,pp=2,microbatches=2").schedule, "gpipe");
  EXPECT_EQ(parse("single,schedule=gpipe,microbatches=4").schedule, "gpipe");
  EXPECT_EQ(parse("ddp,split_size=2").text(), "ddp,dp=2,microbatches=2");
  EXPECT_EQ(parse("single,schedule=1f1b").text(), "single");
  // PyTorch's defaults.
  EXPECT_EQ(parse("ddp").first_bucket_MiB, 1);
  EXPECT_EQ(parse("ddp").bucket_MiB, 25);
  EXPECT_TRUE(parse("ddp").broadcast_buffers);
}

TEST(Strategy, ThreadsOfARank) {
  const Model model = small_model("toy_mlp");
  for (const StrategyKind& kind : strategy_table()) {
    const Strategy one = parse_strategy(kind.name, model);
    const Strategy four = parse_strategy(std::string(kind.name) + ",threads=4", model);
    EXPECT_EQ(one.threads, 1U);
    EXPECT_EQ(one.text().find("threads"), std::string::npos);
    EXPECT_EQ(four.threads, 4U);
    EXPECT_EQ(four.ranks(), one.ranks());
    EXPECT_EQ(parse_strategy(four.text(), model).threads, 4U) << four.text();
    EXPECT_EQ(parse_strategy(std::string(kind.name) + ",threads=1", model).text(), one.text());
  }
  EXPECT_EQ(parse_strategy("single,threads=2", model).text(), "single,threads=2");
  EXPECT_EQ(parse_strategy("threads=2,dp=2", model).text(), "mesh,dp=2,threads=2");
}

TEST(Strategy, SaysWhatIsWrong) {
  const Model model = small_model("toy_mlp");
  const auto message = [&](std::string_view text) { return message_of([&] { parse_strategy(text, model); }); };
  EXPECT_EQ(message("dpp,dp=2"), "unknown strategy 'dpp'; did you mean 'ddp'? `paragauge list` names all");
  EXPECT_EQ(message("nothing_like_it"), "unknown strategy 'nothing_like_it'; known: " + strategy_table().names());
  EXPECT_EQ(
      message("single,dp=2"),
      "strategy 'single,dp=2': 'single' takes no 'dp', but ddp, ddp_blocking, heat, heat_blocking, data_parallel, "
      "zero1, zero2, zero3, "
      "fsdp, "
      "deepspeed_stage_1, deepspeed_stage_2, deepspeed_stage_3, mesh do; known: schedule, microbatches, split_size, "
      "recompute, threads, bodies");
  EXPECT_EQ(
      message("ddp,pp=2"),
      "strategy 'ddp,pp=2': 'ddp' takes no 'pp', but model_parallel, pipeline, gpipe, 1f1b, interleaved, "
      "zero_bubble, zbv, "
      "mesh do; known: dp, microbatches, "
      "split_size, first_bucket_MiB, bucket_MiB, overlap, broadcast_buffers, accumulate, recompute, threads, bodies");
  EXPECT_EQ(message("data_parallel,form=rooted"),
            "strategy 'data_parallel,form=rooted': 'data_parallel' takes no 'form', but hypar does; known: dp, "
            "bucket_MiB, threads, bodies");
  EXPECT_EQ(message("data_parallel,dq=2"),
            "strategy 'data_parallel,dq=2': unknown key 'dq'; known: dp, bucket_MiB, threads, bodies");
  EXPECT_EQ(message("single,threads=0"),
            "strategy 'single,threads=0': threads=0 must be a whole number from 1 to 1024");
  EXPECT_EQ(message("ddp,dp=1"), "strategy 'ddp,dp=1': dp=1 must be at least 2");
  EXPECT_EQ(message("model_parallel,pp=1"), "strategy 'model_parallel,pp=1': pp=1 must be at least 2");
  EXPECT_EQ(message("pipeline,pp=1"), "strategy 'pipeline,pp=1': pp=1 must be at least 2");
  EXPECT_EQ(message("tp,tp=1"), "strategy 'tp,tp=1': tp=1 must be at least 2");
  EXPECT_EQ(message("tp,dp=2"),
            "strategy 'tp,dp=2': 'tp' takes no 'dp', but ddp, ddp_blocking, heat, heat_blocking, data_parallel, zero1, "
            "zero2, zero3, fsdp, "
            "deepspeed_stage_1, "
            "deepspeed_stage_2, deepspeed_stage_3, mesh do; known: tp, sp, microbatches, split_size, recompute, "
            "threads, bodies");
  EXPECT_EQ(message("dp=2,order=dp-pp"),
            "strategy 'dp=2,order=dp-pp': order=dp-pp must name each of pp, dp, tp once, joined by -");
  EXPECT_EQ(message("dp=1024,pp=1024,tp=2"),
            "strategy 'dp=1024,pp=1024,tp=2': dp=1024 must divide global_batch=8 of model 'toy_mlp'; near: dp=8, or "
            "global_batch=1024");
  EXPECT_EQ(message("pp=1024,tp=2048"),
            "strategy 'pp=1024,tp=2048': dp=1 times pp=1024 times tp=2048 must be at most 1048576 ranks");
  EXPECT_EQ(message("ddp,overlap=0"), "strategy 'ddp,overlap=0': ddp overlaps; use ddp_blocking");
  EXPECT_EQ(message("ddp,dp=0"), "strategy 'ddp,dp=0': dp=0 must be a whole number from 1 to 1048576");
  EXPECT_EQ(message("ddp,dp=two"), "strategy 'ddp,dp=two': dp=two must be a whole number from 1 to 1048576");
  EXPECT_EQ(message("ddp,dp=2,dp=4"), "strategy 'ddp,dp=2,dp=4': 'dp' is given twice");
  EXPECT_EQ(message("ddp,dp"), "strategy 'ddp,dp': 'dp' has no '='; expected key=value");
  EXPECT_EQ(
      message("ddp,dp=3"),
      "strategy 'ddp,dp=3': dp=3 must divide global_batch=8 of model 'toy_mlp'; near: dp=2 or 4, or global_batch=6 "
      "or 9");
  EXPECT_EQ(message("ddp,dp=16"),
            "strategy 'ddp,dp=16': dp=16 must divide global_batch=8 of model 'toy_mlp'; near: dp=8, or "
            "global_batch=16");
  EXPECT_EQ(message("pipeline,split_size=3"),
            "strategy 'pipeline,split_size=3': split_size=3 must divide the 8 samples per replica of model 'toy_mlp'");
  EXPECT_EQ(
      message("pipeline,split_size=16"),
      "strategy 'pipeline,split_size=16': split_size=16 must divide the 8 samples per replica of model 'toy_mlp'");
  EXPECT_EQ(message("dp=2,microbatches=8"),
            "strategy 'dp=2,microbatches=8': microbatches=8 must divide the 4 samples per replica of model 'toy_mlp'");
  EXPECT_EQ(message("pipeline,split_size=2,microbatches=4"),
            "strategy 'pipeline,split_size=2,microbatches=4': give split_size or microbatches, not both");
  EXPECT_EQ(message("pipeline,schedule=1f2b"),
            "unknown schedule '1f2b'; known: " + schedule_table().names() + "; did you mean '1f1b'?");
  EXPECT_EQ(message("ddp,bucket_MiB=-1"),
            "strategy 'ddp,bucket_MiB=-1': bucket_MiB=-1 must be a number from 0 to 1048576");
  EXPECT_EQ(message("ddp,broadcast_buffers=yes"),
            "strategy 'ddp,broadcast_buffers=yes': broadcast_buffers=yes must be a whole number from 0 to 1");
  EXPECT_EQ(message("model_parallel,pp=3,cut=r1"),
            "strategy 'model_parallel,pp=3,cut=r1': cut names 1 nodes, so pp must be 2, found pp=3");
  EXPECT_EQ(message("model_parallel,cut=net1+relu"),
            "strategy 'model_parallel,cut=net1+relu': cut names 2 nodes, so pp must be 3, found pp=2");
}

TEST(Strategy, SaysWhatZeroCanNotDo) {
  const Model model = small_model("toy_mlp");
  const auto message = [&](std::string_view text) {
    return message_of([&] { (void)layout_of(model, parse_strategy(text, model)); });
  };
  EXPECT_EQ(message("mesh,zero=3"), "strategy 'mesh,zero=3': zero=3 needs dp of at least 2, found dp=1");
  EXPECT_EQ(message("zero3,dp=1"), "strategy 'zero3,dp=1': dp=1 must be at least 2");
  EXPECT_EQ(message("zero1,zero=2"), "strategy 'zero1,zero=2': zero1 is zero=1; use mesh,zero=2");
  EXPECT_EQ(message("zero2,wire=all"),
            "strategy 'zero2,wire=all': wire must be scatter; all_reduce into shards is deepspeed_stage_2");
  EXPECT_EQ(message("deepspeed_stage_1,wire=scatter"),
            "strategy 'deepspeed_stage_1,wire=scatter': wire must be all; reduce_scatter is zero1");
  EXPECT_EQ(message("mesh,dp=4,replicas=2,shard=2"),
            "strategy 'mesh,dp=4,replicas=2,shard=2': give dp, or replicas and shard, not both");
  EXPECT_EQ(message("hsdp,replicas=3,shard=2"),
            "strategy 'hsdp,replicas=3,shard=2': replicas=3 times shard=2 must divide global_batch=8 of model "
            "'toy_mlp'; near: dp=4 or 8, or global_batch=6 or 12");
  EXPECT_EQ(message("mesh,replicas=2,shard=2"),
            "strategy 'mesh,replicas=2,shard=2': replicas needs zero=1, 2 or 3, found zero=0");
  EXPECT_EQ(message("mesh,shard=4"), "strategy 'mesh,shard=4': shard needs zero=1, 2 or 3, found zero=0");
  EXPECT_EQ(message("mesh,dp=2,prefetch=2"),
            "strategy 'mesh,dp=2,prefetch=2': prefetch needs zero=1, 2 or 3, found zero=0");
  EXPECT_EQ(message("mesh,dp=2,zero=2,reshard=0"),
            "strategy 'mesh,dp=2,zero=2,reshard=0': reshard needs zero=3, found zero=2");
  EXPECT_EQ(message("mesh,dp=2,zero=2,bucket_MiB=5"),
            "strategy 'mesh,dp=2,zero=2,bucket_MiB=5': bucket_MiB is DDP's; with zero=2 give units");
  EXPECT_EQ(
      message("zero3,units=h"),
      "strategy 'zero3,dp=2,units=h': units 'h' matches no node of model 'toy_mlp'; allowed: layer, block, all, a "
      "size such as 25MiB, or a prefix such as net1");
  EXPECT_EQ(message("zero3,units=-1MiB").substr(0, 45), "strategy 'zero3,dp=2,units=-1MiB': units '-1M");
  EXPECT_EQ(message("zero3,accumulate=never"),
            "strategy 'zero3,accumulate=never': accumulate=never must be every or last");
  EXPECT_EQ(
      message("zero1,prefetch=1"),
      "strategy 'zero1,prefetch=1': 'zero1' takes no 'prefetch', but zero3, fsdp, hsdp, mesh do; known: dp, zero, "
      "microbatches, split_size, accumulate, recompute, threads, bodies, wire, units, overlap, broadcast_buffers, "
      "param_dtype, "
      "reduce_dtype");
  EXPECT_EQ(message("zero3,param_dtype=half"),
            "strategy 'zero3,param_dtype=half': param_dtype=half needs a model with precision=bf16 or fp16");
  EXPECT_EQ(message("ddp,param_dtype=f32").substr(0, 65),
            "strategy 'ddp,param_dtype=f32': 'ddp' takes no 'param_dtype', but");
  EXPECT_EQ(message("mesh,dp=2,reduce_dtype=f32"),
            "strategy 'mesh,dp=2,reduce_dtype=f32': reduce_dtype needs zero=1, 2 or 3, found zero=0");
  EXPECT_EQ(message("zero3,param_dtype=bf16"),
            "strategy 'zero3,param_dtype=bf16': param_dtype=bf16 must be f32 or half");
  const Model half = load_model("toy_mlp,precision=fp16");
  EXPECT_EQ(
      message_of([&] { parse_strategy("deepspeed_stage_3,param_dtype=f32", half); }),
      "strategy 'deepspeed_stage_3,param_dtype=f32': DeepSpeed makes the whole model half precision; zero1, zero2 "
      "and zero3 don't");
  for (const char* text : {"zero3,dp=2,param_dtype=half", "zero1,dp=2,param_dtype=half,reduce_dtype=f32",
                           "deepspeed_stage_2,dp=2,reduce_dtype=f32"})
    EXPECT_EQ(parse_strategy(text, half).text(), text);
}

TEST(Strategy, SaysWhichCutIsWrong) {
  const Model model = small_model("toy_mlp");
  const auto message = [&](std::string_view text) {
    return message_of([&] { (void)stages_of(model, parse_strategy(text, model)); });
  };
  EXPECT_EQ(message("model_parallel,cut=relu"), "no error");
  EXPECT_EQ(message("model_parallel,cut=rellu"),
            "strategy 'model_parallel,pp=2,cut=rellu': cut 'rellu' is no node of model 'toy_mlp'; allowed: balanced, "
            "r1, or node names such as 'net2' joined by '+' (see `paragauge describe`)");
  EXPECT_EQ(message("model_parallel,pp=3,cut=relu+"),
            "strategy 'model_parallel,pp=3,cut=relu+': cut '' is no node of model 'toy_mlp'; allowed: balanced, r1, "
            "or node names such as 'net2' joined by '+' (see `paragauge describe`)");
  EXPECT_EQ(message("model_parallel,cut=layer1"),
            "strategy 'model_parallel,pp=2,cut=layer1': cut 'layer1' is no node of model 'toy_mlp'; allowed: balanced, "
            "r1, or node names such as 'net2' joined by '+' (see `paragauge describe`)");
  EXPECT_EQ(message("model_parallel,pp=3,cut=relu+net1"),
            "strategy 'model_parallel,pp=3,cut=relu+net1': cut 'net1' leaves a stage of model 'toy_mlp' empty; cuts go "
            "in the model's order");
  EXPECT_EQ(message("model_parallel,pp=3,cut=relu+relu"),
            "strategy 'model_parallel,pp=3,cut=relu+relu': cut 'relu' leaves a stage of model 'toy_mlp' empty; cuts go "
            "in the model's order");
  EXPECT_EQ(message("model_parallel,cut=loss"),
            "strategy 'model_parallel,pp=2,cut=loss': cut 'loss' leaves a stage of model 'toy_mlp' empty; cuts go in "
            "the model's order");
  EXPECT_EQ(message("model_parallel,pp=5"),
            "strategy 'model_parallel,pp=5': pp=5 stages, but model 'toy_mlp' has 4 nodes");
}

// torch.chunk(9, 8) makes parts of 2, 2, 2, 2 and 1: five of nn.DataParallel's eight devices have something to do.
TEST(Strategy, DataParallelUsesAsManyDevicesAsThereAreChunks) {
  const auto devices = [](int samples) {
    const Model model = load_model(fmt::format("linear_dp,global_batch={}", samples));
    return parse_strategy("data_parallel,dp=8", model).ranks();
  };
  EXPECT_EQ(devices(8), 8U);
  EXPECT_EQ(devices(9), 5U);
  EXPECT_EQ(devices(17), 6U);
  EXPECT_EQ(devices(20), 7U);
  EXPECT_EQ(devices(23), 8U);
  EXPECT_EQ(devices(3), 3U);
  const Model model = load_model("linear_dp,global_batch=9");
  const Strategy strategy = parse_strategy("data_parallel,dp=8", model);
  EXPECT_EQ(strategy.text(), "data_parallel,dp=5");
  EXPECT_EQ(remark_on(strategy, model),
            "data_parallel,dp=5: the 9 samples are 5 parts (torch.chunk); 3 of 8 devices have none");
  EXPECT_EQ(remark_on(parse_strategy(strategy.text(), model), model), "");
}

TEST(Strategy, WhatIsntTrainedIsntCutByTp) {
  Model model = load_model(testing::toy_path("gpt_toy"));
  const auto remark = [&](const char* strategy) { return remark_on(parse_strategy(strategy, model), model); };
  EXPECT_EQ(remark("tp"), "");
  model.given.push_back({.name = "base", .spec = {Dtype::f32, {1000}}, .is_frozen = true});
  for (const char* strategy : {"ddp,dp=2", "mesh,tp=2,dp=2,zero=3"}) EXPECT_EQ(remark(strategy), "") << strategy;
  EXPECT_EQ(remark("mesh,tp=2,dp=2").substr(0, 45), "mesh,dp=2,tp=2: what isn't trained, 35 % of t");
}

TEST(Strategy, RepeatedLayersAreCounted) {
  const Model model = load_model("convnet");
  const auto text = [&](std::string_view given) { return parse_strategy(given, model).text(); };
  EXPECT_EQ(text("hypar,layers=2*dp+3*in"), "hypar,levels=2,layers=dp+dp+3*in");
  EXPECT_EQ(text("hypar,levels=2x2,layers=dp+dp+dp+out+out/in"), "hypar,levels=2x2,layers=3*dp+out+out/in");
  EXPECT_EQ(text("hypar,layers=1*dp"), "hypar,levels=2,layers=dp");
  EXPECT_EQ(parse_strategy("hypar,layers=2*dp+3*in", model).layers,
            (std::vector<std::vector<std::string>>{{"dp", "dp", "in", "in", "in"}}));
}

TEST(Strategy, SaysWhichLayersDontFit) {
  const auto message = [](const char* model_text, std::string_view text) {
    const Model model = load_model(model_text);
    return message_of([&] { (void)lower(model, parse_strategy(text, model)); });
  };
  EXPECT_EQ(
      message("convnet", "hypar,layers=dp+in"),
      "strategy 'hypar,levels=2,layers=dp+in': 2 layers, but model 'convnet' has 5; give one choice for all or one "
      "for each");
  EXPECT_EQ(
      message("convnet", "hypar,layers=9*in"),
      "strategy 'hypar,levels=2,layers=9*in': 9 layers, but model 'convnet' has 5; give one choice for all or one "
      "for each");
  EXPECT_EQ(message("convnet", "hypar,layers=0*in"),
            "strategy 'hypar,layers=0*in': layers=0 must be a whole number from 1 to 10000");
  EXPECT_EQ(message("convnet", "hypar,layers=9999*in+in+in"),
            "strategy 'hypar,layers=9999*in+in+in': more than 10000 layers");
  EXPECT_EQ(message("convnet", "hypar,layers=mp"),
            "strategy 'hypar,levels=2,layers=mp': layer 'mp' is not one of dp, in, out");
  EXPECT_EQ(message("convnet", "hypar,levels=2x2,layers=dp/in/out"),
            "strategy 'hypar,levels=2x2,layers=dp/in/out': layers for 3 levels, but 2 levels; give one list for all or "
            "one for each");
  EXPECT_EQ(message("convnet", "hypar,levels=2x1"),
            "strategy 'hypar,levels=2x1': levels=1 must be a whole number from 2 to 1048576");
  EXPECT_EQ(
      message("convnet", "hypar,layers=dp+dp+dp+dp+in,microbatches=2"),
      "strategy 'hypar,microbatches=2,levels=2,layers=4*dp+in': with microbatches the first layer, the loss "
      "and batch norms must have the same samples, but level0 cuts them for some of these only; choose dp for the "
      "first and the last layer, or for neither");
  EXPECT_EQ(
      message("convnet,global_batch=10", "hypar,layers=dp,microbatches=2"),
      "strategy 'hypar,microbatches=2,levels=2,layers=dp': its 2 parts of the batch must divide the 5 samples of a "
      "microbatch of 'convnet'");
  EXPECT_EQ(message("convnet", "hypar,form=square"),
            "strategy 'hypar,form=square': form=square must be derived or rooted");
  EXPECT_EQ(message("convnet", "hypar,levels=4,layers=in"),
            "model 'convnet', node 'conv1': level0=4 parts of 3 would leave one empty");
  EXPECT_EQ(message("convnet,global_batch=1", "data_parallel,dp=6"),
            "strategy 'data_parallel,dp=6': the 1 sample of global_batch=1 is played by one device; use single");
  EXPECT_EQ(message("convnet,timing=tutorial", "data_parallel"),
            "strategy 'data_parallel,dp=2': timing=tutorial makes each rank's samples where they are used; allowed: "
            "timing=step, timing=epoch");
  EXPECT_EQ(message((testing::tests_folder() / ".." / "bench" / "unseen" / "grouped.json").c_str(), "hypar,layers=in"),
            "model 'grouped', node 'stage1.0.conv2': op 'conv2d' has no rule 'input'; known: batch, groups");
}

}  // namespace
}  // namespace sim
