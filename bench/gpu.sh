#!/usr/bin/env bash
# The R1 and R2 comparisons on one GPU, on a machine that has torch 2.11 for Python but neither Debian's headers nor a
# network. Build here, carry, run there; every phase ends within 9 minutes and goes on where it was stopped.
#
#   bench/gpu.sh pack            here: build/gpu/ with the program and the libraries that machine may lack
#   bench/gpu.sh run OUT [PHASE] there: all phases (or one) into folder OUT; phases: check resnet50 splits convnet
#   DEVICE=cpu bench/gpu.sh run OUT     the rehearsal, with models small enough for a CPU core
#
# All ranks are streams of one process and share the GPU (world local): what model parallelism costs in launches and
# copies shows, what a second GPU would gain does not.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

pack() {
  mkdir -p build/gpu
  cp build/bin/paragauge build/gpu/
  ldd build/bin/paragauge | awk '$3 ~ /libfmt|libgomp|libstdc/ { print $3 }' | xargs -I{} cp -L {} build/gpu/
  du -sh build/gpu
}

run() {
  out=$1 phases=${2:-check resnet50 splits convnet}
  device=${DEVICE:-cuda} python=${PARAGAUGE_PYTHON:-$(command -v python3)}
  [[ -x .venv/bin/python && $device == cpu ]] && python=.venv/bin/python
  torch=$("$python" -c 'import os, torch; print(os.path.dirname(torch.__file__))')
  export LD_LIBRARY_PATH=$torch/lib:$PWD/build/gpu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} PARAGAUGE_PYTHON=$python
  export PARAGAUGE_CATALOG_DIR=$PWD/sim/catalog
  batch=120 image=128 splits=(20 1 3 5 8 10 12 40 60)
  [[ $device == cpu ]] && batch=12 image=32 splits=(6 3 4)
  resnet50=resnet50,image=$image,global_batch=$batch,loss=mse_loss,optimizer=sgd:lr=0.001,timing=tutorial
  mkdir -p "$out"
  for phase in $phases; do "phase_$phase"; done
}

paragauge() { build/gpu/paragauge "$@" --device "$device" --timeout 120; }
compare() { # NAME ROUNDS SECONDS ARGUMENTS…
  local name=$1 rounds=$2 seconds=$3
  shift 3
  paragauge compare "$@" -w local --rounds "$rounds" --time-limit "$seconds" --peers \
    --json "$out/$name.json" --csv "$out/$name.csv" | tee "$out/$name.log" | tail -n 60
}

# Exact in float64.
phase_check() {
  paragauge measure -m toy_mlp -m convnet,global_batch=8 -m resnet18,image=32,global_batch=8 -s single -s model_parallel \
    -s pipeline,microbatches=2 -s pipeline,schedule=forward_only,microbatches=2 -s ddp -w local --steps 1 --verify |
    tee "$out/check.log" | grep verify
}
phase_resnet50() {
  local pipeline=pipeline,cut=r1,split_size=${splits[0]}
  compare resnet50 12 420 -m "$resnet50" -s single -s model_parallel,cut=r1 -s "$pipeline,schedule=forward_only" \
    -s "$pipeline,schedule=gpipe" -s "$pipeline,schedule=1f1b"
}
phase_splits() {
  local strategies=() split
  for split in "${splits[@]}"; do strategies+=(-s "pipeline,cut=r1,schedule=forward_only,split_size=$split"); done
  compare splits 8 480 -m "$resnet50" -s single "${strategies[@]}"
}
phase_convnet() {
  compare convnet 12 300 -m convnet,timing=epoch -s single -s model_parallel,pp=4,cut=r2 \
    -s pipeline,pp=4,cut=r2,schedule=forward_only,split_size=8
}

case ${1:-} in
  pack) pack ;;
  run) shift; run "${@:?bench/gpu.sh run needs a folder}" ;;
  *) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
