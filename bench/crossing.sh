#!/usr/bin/env bash
# A network that matters: where strategies cross as the link between two ranks gets slower. Predicted and measured, with
# links calibrated like any other. About 25 minutes on a 2-core machine; an interrupted run goes on.
#
#   bench/crossing.sh [FOLDER]     results/crossing unless given: crossing.json, crossing.csv, crossing.png, crossing.svg
#
# Needs root (network namespaces); where that isn't permitted it says so and ends with status 3.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=${1:-results/crossing}
bench/setup.sh --demo
mkdir -p "$out"
trap 'bench/network.sh down' EXIT
files=()
for rate in 1gbit 2gbit 4gbit 5gbit 6gbit 8gbit 10gbit 12gbit 16gbit; do
  bench/network.sh up 2 "$rate"
  echo "crossing: $rate"
  build/bin/paragauge compare -m resnet18,image=96,global_batch=16,optimizer=sgd:lr=0.001 -s single -s model_parallel,cut=layer2 \
    -s pipeline,cut=layer2,split_size=8 -s pipeline,cut=layer2,schedule=1f1b,split_size=8 -s ddp_blocking -s ddp \
    -w gloo --network "$rate" --rounds 10 --visits 3 --steps 1 --time-limit 180 --json "$out/$rate.json" >"$out/$rate.log"
  tail -n 1 "$out/$rate.log"
  files+=("$out/$rate.json")
done
build/bin/paragauge report "${files[@]}" --compact --json "$out/crossing.json" --csv "$out/crossing.csv"
.venv/bin/python plots/crossing.py "$out/crossing.json" --presets pipeline ddp ddp_blocking model_parallel --out "$out/crossing"
