#!/usr/bin/env bash
# How well forecast is what was imported: two transformers, MobileNet and a U-Net by single, DDP, ZeRO 3, a pipeline and, the
# transformers, tensor parallel, on 2 and 4 ranks.
#
#   bench/own_models.sh [FOLDER [MINUTES]]   results/own_models and 60 unless given: NAME.json, the model; NAME.RANKS.json; of all
#                                            together own_models.json, own_models.txt
#
# An interrupted run goes on where it stopped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=${1:-results/own_models} minutes=${2:-60}
bench/setup.sh --demo
mkdir -p "$out"

# import NAME ARGUMENTS...
import() {
  local name=$1
  shift
  [[ -f $out/$name.json ]] || build/bin/paragauge import "$@" --name "$name" -o "$out/$name.json"
}

# compare NAME RANKS SHARE STRATEGIES...: SHARE: of the time, in percent.
compare() {
  local name=$1 ranks=$2 seconds=$((minutes * 60 * $3 / 100)) strategies=() strategy
  shift 3
  for strategy in "$@"; do strategies+=(-s "$strategy"); done
  echo "own models: $name on $ranks ranks"
  build/bin/paragauge compare -m "$out/$name.json" "${strategies[@]}" -w local -w gloo --rounds 40 --steps 2 \
    --time-limit "$seconds" --timeout 300 --json "$out/$name.$ranks.json" >"$out/$name.$ranks.log"
  tail -n 2 "$out/$name.$ranks.log"
}

import gpt_nano catalog:gpt_nano
import llama_nano catalog:llama_nano
import unet catalog:unet
import mobilenet --torchvision mobilenet_v3_large --input 'f32[B,3,64,64]' --global-batch 16
two=(single ddp zero3 1f1b)
four=(ddp,dp=4 zero3,dp=4 dp=2,pp=2,microbatches=2)
compare gpt_nano 2 16 "${two[@]}" tp
compare llama_nano 2 18 "${two[@]}" tp
compare mobilenet 2 18 "${two[@]}"
compare unet 2 18 "${two[@]}"
compare gpt_nano 4 7 "${four[@]}" dp=2,tp=2
compare llama_nano 4 8 "${four[@]}" dp=2,tp=2
compare mobilenet 4 7 "${four[@]}"
compare unet 4 8 "${four[@]}"

build/bin/paragauge report "$out"/*.[24].json --compact --json "$out/own_models.json" >"$out/own_models.txt"
cat "$out/own_models.txt"
