#!/usr/bin/env bash
# How well every preset is forecast that two ranks can play, and those of four, beside plain PyTorch where it has the same, on
# both worlds: a ConvNet, and an MLP whose stages are deep.
#
#   bench/family.sh [FOLDER [MINUTES]]   results/family and 60 unless given: NAME.RANKS.json; of two ranks together family.json,
#                                        family.txt; of four four_ranks.json, four_ranks.txt
#
# An interrupted run goes on where it stopped.
source "$(dirname "${BASH_SOURCE[0]}")/evening.sh"
begin results/family 60 "$@"

each=(--rounds 20 --visits 2 --steps 1)
presets=$(presets_of_two)
for model in convnet bench/unseen/deep.json; do
  name=$(basename "$model" .json)
  by_strategies "$name.2" 40 "$model" $presets
  by_strategies "$name.4" 10 "$model" ddp,dp=4 daso hsdp
done

build/bin/paragauge report "$out"/*.4.json --compact --json "$out/four_ranks.json" >"$out/four_ranks.txt"
build/bin/paragauge report "$out"/*.2.json --compact --json "$out/family.json" >"$out/family.txt"
cat "$out/four_ranks.txt" "$out/family.txt"
