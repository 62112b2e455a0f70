#!/usr/bin/env bash
# Commands that measure: what they say, keep and go on with, and bad input: one clear line on stderr, and exit status 2.
#
#   tests/bench/cli_measured_test.sh build/bin/paragauge
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/said.sh"

if "$paragauge" list | grep -q 'built without LibTorch'; then
  refuses "built without LibTorch" measure -m toy_mlp -s single
  exit $failed
fi
refuses "precision=fp16: LibTorch doesn't train in f16 on a CPU" measure -m convnet,precision=fp16 -s single -w local
accepts measure -m toy_mlp,precision=fp16,max_grad_norm=1 -s zero1,param_dtype=half,recompute=full -w local --anyway --verify --steps 2
accepts measure -m unet,global_batch=2,memory_format=channels_last -s ddp -w local --verify --steps 2
refuses "a rank of 1000 threads needs 1000 cores; this machine has $(nproc)" measure -m toy_mlp -s single,threads=1000
accepts measure -m toy_mlp -s single -s ddp -w local --steps 2
# A file of this machine, and of one whose driver says other things.
accepts machine -o "$scratch/box.json"
says '^measured: a core of '
accepts predict -m convnet -s single -s ddp -c "$scratch/box.json"
accepts plan -m convnet -c "$scratch/box.json"
mkdir "$scratch/driver"
cat >"$scratch/driver/nvidia-smi" <<'DRIVER'
#!/bin/sh
case $1 in
  nvlink) printf 'GPU 0: NVIDIA H200 (UUID: GPU-1)\n\t Link 0: 26.562 GB/s\n\t Link 1: 26.562 GB/s\nGPU 1: %s (UUID: GPU-2)\n' "$SECOND"
          printf '\t Link 0: 26.562 GB/s\n\t Link 1: 26.562 GB/s\n\t Link 2: <inactive>\n' ;;
  *) printf 'NVIDIA H200, 143771 MiB, 5, 16\n%s, 40960 MiB, 4, 16\n' "$SECOND" ;;
esac
DRIVER
chmod +x "$scratch/driver/nvidia-smi"
export SECOND='NVIDIA H200'
PATH=$scratch/driver:$PATH accepts machine -o "$scratch/gpus.json"
says '^data sheet: NVIDIA H200 (sim/catalog/devices/h200_sxm.json)'
says '^guess: between the GPUs of a host 40.9 GB/s, 3.1 us: 77 % of the NVLinks. 53.12 GB/s'
accepts predict -m resnet50,global_batch=64 -s ddp -c "$scratch/gpus.json"
PATH=$scratch/driver:$PATH accepts machine -w gloo -o "$scratch/cores.json"
grep -q '"world": "gloo"' "$scratch/cores.json" || { echo "machine doesn't write what it is told to"; failed=1; }
export SECOND='NVIDIA Next'
PATH=$scratch/driver:$PATH refuses "next.json is written, but can't be read yet: NVIDIA Next isn't in sim/catalog/devices: to its 'device' add peak_f32_TFLOPps and memory_bandwidth_GBps, and" machine -o "$scratch/next.json"
refuses "next.json: device[1]: device: 'peak_f32_TFLOPps' is missing" predict -m resnet50,global_batch=64 -s ddp -c "$scratch/next.json"
refuses "world 'local': a machine's file is of nccl (GPUs) or gloo (CPU cores)" machine -w local -o "$scratch/local.json"
if ! command -v nvidia-smi >/dev/null; then refuses "has no GPU that its driver lists" machine -w nccl -o "$scratch/none.json"; fi
refuses "--output is required" machine
# What can't fit isn't started. (A row of --json, too: the measured one stays beside it.)
accepts measure -m toy_mlp -m resnet50,global_batch=1000000 -s single -w local --steps 2 --json "$scratch/unfit.json"
grep -q 'single on local skipped: does not fit: needs .* are free' "$scratch/out" || { echo "measure starts what can't fit"; failed=1; }
[[ $(grep -c '"skipped":"does not fit' "$scratch/unfit.json") == 1 ]] || { echo "measure doesn't keep what it skips"; failed=1; }
accepts compare -m toy_mlp -m resnet50,global_batch=1000000 -s single -w local --rounds 1
grep -q 'single on local skipped: does not fit: needs .* are free' "$scratch/out" || { echo "compare starts what can't fit"; failed=1; }
refuses "does not fit: needs" measure -m resnet50,global_batch=1000000 -s single -w local --verify
refuses "does not fit: needs" calibrate -m resnet50,global_batch=1000000 -s single -w local --rounds 1 -o "$scratch/unfit.profile.json"
refuses "does not fit: needs" trace -m resnet50,global_batch=1000000 -s single -w local -o "$scratch/unfit.trace.json"
accepts measure -m toy_mlp -s single -w local --steps 2 --anyway
accepts compare -m toy_mlp,timing=tutorial -s single -s pipeline,microbatches=4 -w local --rounds 1
accepts plan -m toy_mlp --devices 2 -w local --method layers --measure 1 --json "$scratch/plan.json"
grep -q 'measured' "$scratch/out" || { echo "plan doesn't run its choice"; failed=1; }
grep -q '"measured"' "$scratch/plan.measured.json" || { echo "plan doesn't keep what it measured"; failed=1; }
accepts calibrate -m toy_mlp -s ddp -w local --rounds 1 -o "$scratch/profile.json"
accepts predict -m toy_mlp -s ddp -w local --cost-model profiled --profile "$scratch/profile.json"
accepts calibrate -m toy_mlp,global_batch=6 -m toy_mlp,global_batch=7 -s single -w local --rounds 1 -o "$scratch/two.json"
grep -q 'linear.forward f32\[7,10\]' "$scratch/two.json" || { echo "calibrate took one model's task for another's"; failed=1; }
# A model's file that has changed is measured anew; times of other conditions aren't mixed in, and nothing is lost.
cp "$(dirname "${BASH_SOURCE[0]}")/../../sim/catalog/models/toy_mlp.json" "$scratch/changes.json"
accepts calibrate -m "$scratch/changes.json" -s single -w local --rounds 1 -o "$scratch/changes.profile.json"
sed -i 's/"out_features": 10/"out_features": 12/' "$scratch/changes.json"
accepts calibrate -m "$scratch/changes.json" -s single -w local --rounds 1 -o "$scratch/changes.profile.json"
accepts predict -m "$scratch/changes.json" -s single -w local --cost-model profiled --profile "$scratch/changes.profile.json"
sed 's/"SCHED_FIFO"/"another"/; s/"time-shared"/"another"/' "$scratch/changes.profile.json" >"$scratch/elsewhere.json"
cp "$scratch/elsewhere.json" "$scratch/before.json"
refuses "elsewhere.json: measured with scheduling=another, this run has" calibrate -m toy_mlp -s single -w local --rounds 1 -o "$scratch/elsewhere.json"
cmp -s "$scratch/before.json" "$scratch/elsewhere.json" || { echo "a refused calibrate changed the profile"; failed=1; }
accepts compare -m toy_mlp -s single -s ddp -w local --rounds 1 --json "$scratch/compare.json"
accepts compare -m toy_mlp -s single -s ddp -w local --rounds 2 --json "$scratch/compare.json" # goes on with round 2
grep -q 'goes on with round 2' "$scratch/out" || { echo "compare didn't resume"; failed=1; }
accepts compare -m toy_mlp -s model_parallel -w local --rounds 2 --json "$scratch/compare.json" # one more; nothing is lost
for strategy in ddp model_parallel; do accepts predict -m toy_mlp -s $strategy -w local --cost-model profiled --profile "$scratch/compare.profile.json"; done
cp "$scratch/profile.json" "$scratch/mine.profile.json"
refuses "mine.profile.json is there, but $scratch/mine.json, beside which it would be written, isn't" compare -m toy_mlp -s single -w local --json "$scratch/mine.json"
refuses "is a result of 'compare' (2 rounds), which 'predict' neither goes on with nor replaces" predict -m toy_mlp -s single --json "$scratch/compare.json"
refuses "is a result of 'compare' (2 rounds), which 'measure' neither goes on with nor replaces" measure -m toy_mlp -s single -w local --json "$scratch/compare.json"
refuses "taken with options/real_time true, not false" compare -m toy_mlp -s single -s ddp -w local --rounds 3 --no-real-time --json "$scratch/compare.json"
accepts trace -m toy_mlp -s pipeline,microbatches=2 -w local -o "$scratch/trace.json"
refuses "unknown world 'mpi'; known: local, gloo" measure -m toy_mlp -s single -w mpi
refuses "strategy 'ddp' has 2 ranks, which must be ranks=3" measure -m toy_mlp -s ddp -w local --ranks 3
echo '{"format": "paragauge-result-4", "cells"' >"$scratch/cut.json"
refuses "truncated" compare -m toy_mlp -s single -w local --json "$scratch/cut.json"
command -v nvidia-smi >/dev/null || refuses "cuda" measure -m toy_mlp -s single --device cuda
exit $failed
