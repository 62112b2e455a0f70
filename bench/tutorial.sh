#!/usr/bin/env bash
# PyTorch's two model-parallel tutorials as they are timed there, at a size that a CPU core can do, beside plain PyTorch;
# and what data sheets say of the published machines. About 7 minutes on a 2-core machine.
#
#   bench/tutorial.sh [FOLDER]     results/tutorial unless given: resnet50.json, convnet.json, *.png, published.txt
#
# ResNet-50 (R1): the batch is made inside the timed step; 10 repeats of 3 batches; error bars are the population standard
# deviation. Four-device ConvNet on CIFAR-10 (R2): every step reads the loss and counts the correct predictions; an epoch
# is 781 steps of 64 samples and one of 16.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=${1:-results/tutorial}
bench/setup.sh --demo
mkdir -p "$out"
paragauge=build/bin/paragauge

resnet50=resnet50,loss=mse_loss,optimizer=sgd:lr=0.001,timing=tutorial
convnet=convnet,optimizer=adam:lr=0.001,timing=epoch
pipeline=pipeline,pp=4,cut=r2,schedule=forward_only,split_size=8
echo "tutorial: ResNet-50"
$paragauge compare -m $resnet50,image=128,global_batch=8 -s single -s model_parallel,cut=r1 \
  -s pipeline,cut=r1,schedule=forward_only,split_size=2 -w local --rounds 10 --steps 3 --time-limit 240 --peers \
  --json "$out/resnet50.json" | tail -n 30
echo "tutorial: ConvNet"
$paragauge compare -m $convnet,global_batch=64 -m $convnet,global_batch=16 -s single -s model_parallel,pp=4,cut=r2 -s $pipeline \
  -w local --rounds 10 --time-limit 120 --peers --json "$out/convnet.json" | tail -n 30
for name in resnet50 convnet; do
  .venv/bin/python plots/step_times.py "$out/$name.json" --cost-model profiled --out "$out/step_times_$name"
done
{
  echo "Neither machine is named; forecast is k80_one_process, as sim/catalog/clusters describes it."
  echo "R1, published: one GPU 3.75 s, model parallel 4.02 s (+7 %), pipelined 2.51 s (-33 %), best 2.43 s for 3 batches"
  $paragauge predict -m $resnet50,image=128,global_batch=120 -s single -s model_parallel,cut=r1 \
    -s pipeline,cut=r1,schedule=forward_only,split_size=20 -s pipeline,cut=r1,schedule=forward_only,split_size=12 \
    -c k80_one_process --epoch 360
  echo "R2, published: one GPU 14.3 s, four 15.0 s, pipelined 25.9 s for an epoch"
  $paragauge predict -m $convnet,global_batch=64 -s single -s model_parallel,pp=4,cut=r2 -s $pipeline \
    -c k80_one_process --epoch 50000
} >"$out/published.txt"
grep -A 4 -e published -e 'An epoch' "$out/published.txt"
