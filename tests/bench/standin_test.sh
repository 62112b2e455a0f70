#!/usr/bin/env bash
# The program on the stand-in accelerator (tests/standin): calibrate, compare, train and trace from start to end, on both worlds
# that accelerators have; ranks that are killed, stopped or too many; libraries that are wrong. A race ends a program with
# status 86. Its times mean nothing, and it says so.
#
#   tests/bench/standin_test.sh build/libexec/paragauge_torch build/tests/libstandin.so build/tests/standin .venv/bin/python
set -uo pipefail
paragauge=$1 standin=$2 nccl=$3 python=$4 # nccl: the folder of the stand-in libnccl.so.2
scratch=$(mktemp -d)
trap 'pkill -9 -f "$scratch" 2>/dev/null; rm -rf "$scratch"' EXIT
failed=0
on_standin() { LD_PRELOAD=$standin LD_LIBRARY_PATH=$nccl STANDIN_DEVICES=${devices:-2} STANDIN=${mode:-mode=threads,delay_us=5} "$paragauge" "$@"; }
complain() {
  echo "FAILED: $*"
  tail -n 5 "$scratch/out" "$scratch/err"
  failed=1
}
accepts() { on_standin "$@" >"$scratch/out" 2>"$scratch/err" || complain "status $?: paragauge $*"; }
# refuses STATUS 'part of the message' argument...
refuses() {
  local status=$1 expected=$2 got
  shift 2
  on_standin "$@" >"$scratch/out" 2>"$scratch/err"
  got=$?
  [[ $got == "$status" && $(<"$scratch/err") == *"$expected"* ]] || complain "status $got instead of $status, or not '$expected': paragauge $*"
}
says() { grep -q -- "$1" "$scratch/out" "$scratch/err" || complain "doesn't say '$1'"; }
device=(--device privateuseone --timeout 30)

for mode in mode=threads,delay_us=5 mode=drawn; do
  accepts compare -m toy_mlp -s single -s ddp -s pipeline,microbatches=2 -w local -w nccl "${device[@]}" --rounds 1 --json "$scratch/$mode.json"
  says 'its times mean nothing'
  accepts measure -m convnet,global_batch=8 -s ddp -s model_parallel -w local -w nccl "${device[@]}" --steps 2 --verify
  accepts measure -m convnet,global_batch=8 -s single -w local "${device[@]}" --steps 2 --verify --graph --json "$scratch/graph.json"
  accepts measure -m convnet,global_batch=8 -s ddp -s model_parallel -w nccl "${device[@]}" --steps 2 --verify --graph --details
  says 'one launch of its captured second step'
done
accepts compare -m toy_mlp -s single -w local "${device[@]}" --rounds 1 --graph --json "$scratch/replays.json"
grep -q '"settings":"graph"' "$scratch/replays.json" || complain "a result doesn't say that its steps are replays"
refuses 2 'taken with graph true, not false' compare -m toy_mlp -s single -w local "${device[@]}" --rounds 3 --json "$scratch/replays.json"
accepts calibrate -m toy_mlp -s pipeline,microbatches=2 -w nccl "${device[@]}" --rounds 1 -o "$scratch/profile.json"
accepts trace -m toy_mlp -s pipeline,microbatches=2 -w nccl "${device[@]}" --profile "$scratch/profile.json" -o "$scratch/trace.json"
for strategy in ddp heat; do # batches are brought before a step, and between steps
  accepts train -m toy_mlp -s $strategy -w nccl "${device[@]}" --samples 90 --epochs 1 --cost-model analytic
done
accepts predict -m toy_mlp -s pipeline,microbatches=2 -w nccl --device privateuseone --cost-model fitted --profile "$scratch/profile.json"

# Ranks by torchrun.
if "$python" -c 'import torch' 2>"$scratch/err"; then
  "$python" -m torch.distributed.run --no-python --nproc_per_node=2 env LD_PRELOAD="$standin" LD_LIBRARY_PATH="$nccl" STANDIN_DEVICES=2 \
    STANDIN=mode=threads "$paragauge" measure -m toy_mlp -s ddp -w nccl "${device[@]}" --steps 2 --verify >"$scratch/out" 2>"$scratch/err" ||
    complain "status $?: ranks of torchrun"
  says 'ddp'
fi

devices=1 refuses 2 "needs a device for each rank: 2 ranks, 1 of device=privateuseone" measure -m toy_mlp -s ddp -w nccl "${device[@]}"
refuses 2 "world 'gloo' moves CPU tensors only" measure -m toy_mlp -s ddp -w gloo "${device[@]}"
refuses 2 "graph: the 2 ranks of 'ddp,dp=2' share a process in world 'local'" measure -m toy_mlp -s ddp -w local "${device[@]}" --graph
refuses 2 "world 'nccl' needs an accelerator" measure -m toy_mlp -s ddp -w nccl
STANDIN_MEMORY_MIB=8 accepts measure -m toy_mlp -m resnet18,image=64,global_batch=8 -s single -w local "${device[@]}"
says 'does not fit: needs'
STANDIN_MEMORY_MIB=8 refuses 75 'out of memory' measure -m resnet18,image=64,global_batch=8 -s single -w local "${device[@]}" --anyway
# The tests' libnccl where a real GPU is asked for, and the real one where there is none.
command -v nvidia-smi >/dev/null || refuses 2 "device=cuda" measure -m toy_mlp -s ddp -w nccl --device cuda

# A rank that is killed or stopped ends the run, and is named.
for signal in KILL STOP; do
  on_standin measure -m convnet -s ddp -w nccl --device privateuseone --timeout 3 --steps 100000 --json "$scratch/killed.json" >"$scratch/out" 2>"$scratch/err" &
  process=$!
  for ((i = 0; i < 200; ++i)); do
    victim=$(for p in $(pgrep -f "$scratch/killed.json"); do grep -qsz '^RANK=1$' "/proc/$p/environ" && echo "$p"; done)
    [[ -n $victim ]] && break
    sleep 0.1
  done
  sleep 2
  kill -"$signal" "$victim"
  started=$SECONDS
  wait "$process" && complain "a run whose rank got SIG$signal succeeds"
  ((SECONDS - started < 15)) || complain "a run whose rank got SIG$signal goes on for $((SECONDS - started)) s"
  says 'rank 1'
done

((failed == 0)) && echo "stand-in: all right"
exit $failed
