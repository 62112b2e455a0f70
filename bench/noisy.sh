#!/usr/bin/env bash
# Whether forecasts survive neighbours: five networks, two of which nothing was made for, each compared on a machine that is left
# alone and on one whose memory another process streams in bursts of 4 to 30 s, in turn.
#
#   bench/noisy.sh [FOLDER [MINUTES [BEFORE]]]    results/noisy and 40 unless given: NAME.quiet.json, NAME.disturbed.json,
#                                                 of all networks noisy_quiet.json, noisy_disturbed.json, noisy.txt
#
# BEFORE is the program of another version, which takes turns with this one; its files are NAME.quiet.before.json and so on.
# An interrupted run goes on where it stopped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=${1:-results/noisy} minutes=${2:-40} before=${3:-}
bench/setup.sh --demo
mkdir -p "$out"
python=.venv/bin/python
disturber=
trap '[[ -z $disturber ]] || kill "$disturber" 2>/dev/null' EXIT

# on PROGRAM FILES MODEL CUT SPLIT SECONDS
on() {
  "$1" compare -m "$3" -s single -s "model_parallel,cut=$4" -s "pipeline,cut=$4,split_size=$5" -s ddp_blocking -s ddp -w local \
    -w gloo --rounds 20 --visits 2 --steps 1 --time-limit "$6" --json "$2.json" >"$2.txt"
}
# both NAME CUT SPLIT MODEL: quiet, then disturbed; a tenth of the time each.
both() {
  local name=$1 cut=$2 split=$3 model=$4 state seconds=$((minutes * 6))
  [[ -z $before ]] || seconds=$((seconds / 2))
  for state in quiet disturbed; do
    echo "noisy: $name, $state"
    [[ $state == quiet ]] || { $python bench/disturb.py & disturber=$!; }
    [[ -z $before ]] || on "$before" "$out/$name.$state.before" "$model" "$cut" "$split" $seconds
    on build/bin/paragauge "$out/$name.$state" "$model" "$cut" "$split" $seconds
    [[ -z $disturber ]] || { kill "$disturber"; wait "$disturber" 2>/dev/null || true; disturber=; }
  done
}
sgd=optimizer=sgd:lr=0.001
both convnet pool2 16 convnet
both resnet18 layer2 4 resnet18,image=64,global_batch=8,$sgd
both cifar_c pool2 8 cifar_c,global_batch=32
both uneven half 4 bench/unseen/uneven.json
both grouped half 4 bench/unseen/grouped.json

for state in quiet disturbed ${before:+quiet.before disturbed.before}; do
  echo "$state"
  rm -f "$out/noisy_$state.json"
  build/bin/paragauge report "$out"/*."$state".json --compact --json "$out/noisy_$state.json"
done >"$out/noisy.txt"
grep -E '^(quiet|disturbed)|median|pairs|coverage' "$out/noisy.txt"
