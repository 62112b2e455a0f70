#!/usr/bin/env bash
# What one machine with GPUs can show, on a machine that has torch 2.11 for Python but neither Debian's headers nor a
# network. Build here, carry, run there; every phase ends within 9 minutes and goes on where it was stopped.
#
#   bench/gpu.sh pack            here: build/gpu/ with the programs and the libraries that machine may lack
#   bench/gpu.sh run OUT [PHASE] there: all phases (or one) into folder OUT, and OUT.tar.gz of it
#   DEVICE=cpu bench/gpu.sh run OUT            the rehearsal, with models small enough for a CPU core
#   DEVICE=privateuseone bench/gpu.sh run OUT  the same on the stand-in accelerator (tests/standin); its times mean nothing
#
# Phases: tests      those that want a GPU
#         check      strategies verified in float64
#         calibrate  ops and links into a profile
#         models     networks on one device, by all three cost models: how far the data sheet's forecasts are off
#         traces     one step, predicted and measured, instruction by instruction
#         suites     ConvNet, ResNet-50 and VGG-16 in Google Benchmark
#         resnet50, splits, vgg16, convnet   R1, its sweep of split sizes, and R2, beside plain PyTorch
#         half       half precision and channels_last, beside plain PyTorch
#         transformers   imported ones, in f32 and half precision, beside plain PyTorch
#         nccl       transfers from 8 B to 1 GiB (algbw, busbw as nccl-tests), where there are 2 GPUs and more
#         graphs     ResNet-50's and the ConvNet's step, launched op by op and as one CUDA graph
#         memory     what fits: predicted beside what the allocator had
# SHARE=50 gives each comparison half of its time: as many rounds fewer.
#
# On one GPU all ranks are streams of one process (world local): what model parallelism costs in launches and copies shows,
# what a second GPU would gain does not.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

pack() {
  mkdir -p build/gpu
  cp build/libexec/paragauge_torch build/gpu/paragauge # all commands, with LibTorch
  cp build/libexec/paragauge_cuda.so build/gpu/          # which loads this beside it
  cp build/bin/paragauge_suite build/bin/paragauge_parts_suite build/tests/backend_tests build/gpu/
  strip build/gpu/*
  ldd build/bin/paragauge_suite build/tests/backend_tests | awk '$3 ~ /libfmt|libgomp|libbenchmark|libgtest/ { print $3 }' | sort -u | xargs -I{} cp -L {} build/gpu/
  du -sh build/gpu
}

run() {
  out=${1%/} phases=${2:-tests check calibrate models traces suites resnet50 splits vgg16 convnet half transformers nccl graphs memory}
  device=${DEVICE:-cuda} python=${PARAGAUGE_PYTHON:-$(command -v python3)}
  [[ -x .venv/bin/python && $device != cuda ]] && python=.venv/bin/python
  torch=$("$python" -c 'import os, torch; print(os.path.dirname(torch.__file__))')
  export LD_LIBRARY_PATH=$torch/lib:$torch/../nvidia/nccl/lib:$PWD/build/gpu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} PARAGAUGE_PYTHON=$python
  export PARAGAUGE_CATALOG_DIR=$PWD/sim/catalog PARAGAUGE_PEERS=$PWD/bench/peers
  batch=120 image=128 splits=(20 1 3 5 8 10 12 40 60) largest=1073741824 peers=(--peers) worlds=(-w local) gpus=2
  four=(-s ddp,dp=4) transformers=(gpt2,global_batch=8 bert_base,global_batch=32 vit_b_16,global_batch=32)
  [[ $device != cpu ]] || gpus=0
  if [[ $device == cuda ]]; then
    gpus=$(nvidia-smi --list-gpus | wc -l)
  else
    batch=12 image=32 splits=(6 3 4) largest=65536 transformers=(gpt_nano)
  fi
  if [[ $device == privateuseone ]]; then
    export LD_PRELOAD=$PWD/build/tests/libstandin.so LD_LIBRARY_PATH=$PWD/build/tests/standin:$LD_LIBRARY_PATH STANDIN_DEVICES=$gpus
    peers=() # Python has no such device
    four=()  # it returns no memory: four copies of VGG-16 take more than 23 GiB
  fi
  resnet50=resnet50,image=$image,global_batch=$batch,loss=mse_loss,optimizer=sgd:lr=0.001,timing=tutorial
  mkdir -p "$out"
  local status failed=()
  for phase in $phases; do
    echo "gpu: $phase ($SECONDS s)"
    set +e # what one phase can't do, the next may
    (
      set -e
      "phase_$phase"
    )
    status=$?
    set -e
    ((status == 0)) || failed+=("$phase: status $status")
  done
  ((${#failed[@]} == 0)) || printf 'gpu: failed in %s\n' "${failed[@]}" | tee "$out/failed.log"
  tar -czf "$out.tar.gz" -C "$(dirname "$out")" "$(basename "$out")"
  ((${#failed[@]} == 0))
}

paragauge() { build/gpu/paragauge "$@" --device "$device" --timeout 120; }
compare() { # NAME ROUNDS SECONDS ARGUMENTS…
  local name=$1 rounds=$2 seconds=$(($3 * ${SHARE:-100} / 100))
  shift 3
  paragauge compare "$@" "${worlds[@]}" --rounds "$rounds" --time-limit "$seconds" "${peers[@]}" \
    --json "$out/$name.json" --csv "$out/$name.csv" | tee "$out/$name.log" | tail -n 60
}

# Exact in float64.
phase_check() {
  paragauge measure -m toy_mlp -m convnet,global_batch=8 -m resnet18,image=32,global_batch=8 -s single -s model_parallel \
    -s pipeline,microbatches=2 -s pipeline,schedule=forward_only,microbatches=2 -s ddp -s zero1 -s zero3 -s fsdp -w local --steps 1 --verify |
    tee "$out/check.log" | grep verify
  paragauge measure -m gpt_nano -m llama_nano -s single -s ddp -s zero3 -s tp -s model_parallel -w local --steps 1 --verify |
    tee -a "$out/check.log" | grep verify
  [[ $device == cpu ]] || paragauge measure -m convnet,global_batch=8 -m resnet18,image=32,global_batch=8 -s single -w local --steps 1 \
    --verify --graph | tee -a "$out/check.log" | grep verify
}
phase_tests() {
  [[ $device == cuda ]] || return 0
  local status=0
  build/gpu/backend_tests --gtest_filter='*Cuda*' >"$out/tests.log" 2>&1 || status=$?
  tail -n 3 "$out/tests.log"
  return $status
}
phase_calibrate() {
  paragauge calibrate -m "$resnet50" -m convnet -s single -s model_parallel -s ddp "${worlds[@]}" --rounds 2 -o "$out/profile.json" >"$out/calibrate.log"
}
# Whatever a forecast from data sheets must know by itself: little and much parallelism, layers bound by arithmetic, by
# memory and by launches.
phase_models() {
  local models=() text
  for text in convnet sfc,global_batch=256 "alexnet_tower,global_batch=$batch" "vgg11,image=$image,global_batch=$((batch / 4))" \
    "vgg16,image=$image,global_batch=$batch" "resnet18,image=$image,global_batch=$batch" "resnet50,image=$image,global_batch=$((batch / 4))" \
    "resnet50,image=$image,global_batch=$batch" "resnet101,image=$image,global_batch=$((batch / 2))"; do
    models+=(-m "$text")
  done
  for text in "resnet34,image=$image,global_batch=$((batch / 2))" "vgg13,image=$image,global_batch=$((batch / 2))" \
    lenet_c,global_batch=512 sfc,global_batch=1024; do
    models+=(--fit-on "$text")
  done
  local peers=()
  compare models 5 120 "${models[@]}" -s single
}
phase_traces() {
  local text
  for text in "resnet50,image=$image,global_batch=$((batch / 4))" "resnet50,image=$image,global_batch=$batch" convnet; do
    paragauge trace -m "$text" -s single -w local -o "$out/trace_${text//[^a-z0-9]/_}.json" | tee -a "$out/traces.log"
  done
  paragauge trace -m "resnet50,image=$image,global_batch=$batch" -s pipeline,cut=r1,schedule=forward_only,split_size=${splits[0]} \
    -w local -o "$out/trace_pipeline.json" | tee -a "$out/traces.log"
}
phase_suites() {
  [[ $device != privateuseone ]] || return 0 # hours: every kernel waits for its turn
  timeout 500 build/gpu/paragauge_suite --device "$device" --benchmark_filter='measured/(convnet|resnet50|vgg16),' \
    --benchmark_out="$out/suite.csv" --benchmark_out_format=csv >"$out/suite.log"
}
phase_resnet50() {
  local pipeline=pipeline,cut=r1,split_size=${splits[0]}
  compare resnet50 12 150 -m "$resnet50" -s single -s model_parallel,cut=r1 -s "$pipeline,schedule=forward_only" \
    -s "$pipeline,schedule=gpipe" -s "$pipeline,schedule=1f1b"
}
phase_splits() {
  local strategies=() split
  for split in "${splits[@]}"; do strategies+=(-s "pipeline,cut=r1,schedule=forward_only,split_size=$split"); done
  compare splits 8 150 -m "$resnet50" -s single "${strategies[@]}"
}
phase_vgg16() {
  compare vgg16 8 120 -m "vgg16,image=$image,global_batch=$batch" -s single -s model_parallel -s ddp -s zero3 -s fsdp "${four[@]}"
}
phase_convnet() {
  compare convnet 12 100 -m convnet,timing=epoch -s single -s model_parallel,pp=4,cut=r2 \
    -s pipeline,pp=4,cut=r2,schedule=forward_only,split_size=8
}
phase_half() {
  local network=resnet50,image=$image,global_batch=$batch last=memory_format=channels_last
  compare half 5 120 -m "$network" -m "$network,$last" -m "$network,precision=bf16" -m "$network,precision=bf16,$last" \
    -m "vgg16,image=$image,global_batch=$batch,precision=bf16" -m "vgg16,image=$image,global_batch=$batch,precision=bf16,$last" \
    -s single
}
phase_transformers() {
  local models=() transformer
  for transformer in "${transformers[@]}"; do models+=(-m "$transformer" -m "$transformer,precision=bf16"); done
  compare transformers 5 120 "${models[@]}" -s single
}
phase_nccl() {
  if [[ $device == cpu ]] || ((gpus < 2)); then
    echo "gpu: nccl needs two GPUs; device $device here: $gpus" | tee "$out/nccl.log"
    return 0
  fi
  timeout 500 build/gpu/paragauge_parts_suite --device "$device" -w nccl --ranks "$gpus" --largest "$largest" \
    --benchmark_filter=collective --benchmark_out="$out/nccl.csv" --benchmark_out_format=csv >"$out/nccl.log"
}
phase_graphs() {
  if [[ $device == cpu ]]; then
    echo "gpu: graphs needs an accelerator: a CPU core executes each instruction itself"
    return
  fi
  local graph peers=()
  for graph in "" --graph; do
    compare "graphs${graph:+_captured}" 5 60 -m "resnet50,image=$image,global_batch=$batch" -m convnet -s single $graph
  done
}
phase_memory() {
  local batches=() size
  for size in 1 2 4; do batches+=(-m "resnet50,image=$image,global_batch=$((batch * size))"); done
  paragauge measure "${batches[@]}" -s single -w local --steps 2 --json "$out/memory.json" --csv "$out/memory.csv" >"$out/memory.log"
}

case ${1:-} in
  pack) pack ;;
  run) shift; run "${@:?bench/gpu.sh run needs a folder}" ;;
  *) sed -n '2,22s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
