#!/usr/bin/env bash
# How well forecast is what is cut among ranks: ZeRO's stages, FSDP, tensor parallel and combinations on 2 and 4 ranks, beside
# PyTorch's own (fully_shard, ZeroRedundancyOptimizer) in the same rounds. Three networks: a ConvNet, ResNet-18, and an MLP
# that is bound by its weights.
#
#   bench/space.sh [FOLDER [MINUTES]]   results/space and 60 unless given: NAME.RANKS.json, of all together space.json, space.txt
#
# An interrupted run goes on where it stopped.
source "$(dirname "${BASH_SOURCE[0]}")/evening.sh"
begin results/space 60 "$@"

each=(--rounds 20 --visits 2 --steps 1)
resnet18=resnet18,image=64,global_batch=8,optimizer=sgd:lr=0.001:momentum=0.9 wide=bench/unseen/wide.json
sharded=(single ddp zero1 zero2 zero3 fsdp)
combined=(zero3,dp=4 fsdp,dp=4 hsdp dp=2,pp=2,microbatches=2,zero=1)
by_strategies convnet.2 20 convnet "${sharded[@]}" tp
by_strategies wide.2 20 "$wide" "${sharded[@]}" tp
by_strategies resnet18.2 20 "$resnet18" "${sharded[@]}"
by_strategies convnet.4 14 convnet "${combined[@]}" dp=2,tp=2,zero=3 pp=2,tp=2,microbatches=2
by_strategies wide.4 14 "$wide" "${combined[@]}" dp=2,tp=2,zero=3 pp=2,tp=2,microbatches=2
by_strategies resnet18.4 12 "$resnet18" "${combined[@]}"

build/bin/paragauge report "$out"/*.[24].json --compact --json "$out/space.json" >"$out/space.txt"
cat "$out/space.txt"
