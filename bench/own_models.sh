#!/usr/bin/env bash
# How well forecast is what was imported: two transformers, MobileNet and a U-Net by single, DDP, ZeRO 3, a pipeline and, the
# transformers, tensor and sequence parallel, on 2 and 4 ranks, beside their modules in plain PyTorch (DistributedDataParallel,
# fully_shard, parallelize_module) in the same rounds.
#
#   bench/own_models.sh [FOLDER [MINUTES]]   results/own_models and 60 unless given: NAME.RANKS.json; of all together
#                                            own_models.json, own_models.txt
#
# An interrupted run goes on where it stopped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=${1:-results/own_models} minutes=${2:-60}
bench/setup.sh --demo
mkdir -p "$out"

# compare NAME MODEL RANKS SHARE STRATEGIES...: SHARE: of the time, in percent.
compare() {
  local name=$1 model=$2 ranks=$3 seconds=$((minutes * 60 * $4 / 100)) strategies=() strategy
  shift 4
  for strategy in "$@"; do strategies+=(-s "$strategy"); done
  echo "own models: $name on $ranks ranks"
  build/bin/paragauge compare -m "$model" "${strategies[@]}" -w local -w gloo --rounds 40 --steps 2 \
    --time-limit "$seconds" --timeout 300 --peers --json "$out/$name.$ranks.json" >"$out/$name.$ranks.log"
  tail -n 2 "$out/$name.$ranks.log"
}

mobilenet=$out/mobilenet.json  # of images that two cores can do in 0.1 s
[[ -f $mobilenet ]] ||
  build/bin/paragauge import --torchvision mobilenet_v3_large --input 'f32[B,3,64,64]' --global-batch 16 -o "$mobilenet"
two=(single ddp zero3 1f1b)
four=(ddp,dp=4 zero3,dp=4 dp=2,pp=2,microbatches=2)
compare gpt_nano gpt_nano 2 18 "${two[@]}" tp tp,sp=1
compare llama_nano llama_nano 2 20 "${two[@]}" tp tp,sp=1
compare mobilenet "$mobilenet" 2 20 "${two[@]}"
compare unet unet 2 18 "${two[@]}"
compare gpt_nano gpt_nano 4 6 "${four[@]}" dp=2,tp=2,sp=1
compare llama_nano llama_nano 4 6 "${four[@]}" dp=2,tp=2,sp=1
compare mobilenet "$mobilenet" 4 6 "${four[@]}"
compare unet unet 4 6 "${four[@]}"

build/bin/paragauge report "$out"/*.[24].json --compact --json "$out/own_models.json" >"$out/own_models.txt"
cat "$out/own_models.txt"
