#!/usr/bin/env bash
# How accurate the forecasts are on this machine: every model by its strategies, on both worlds, beside plain PyTorch; the
# networks of bench/unseen; the placements of HyPar and DataParallel, and R3's pair of layers by each transition.
# The files of bench/results/ are made by this. The time limits add up to MINUTES, but a model takes one round at least; an
# interrupted run goes on where it stopped, and so does one that gave a model fewer than four rounds: these have no noise floor.
#
#   bench/accuracy.sh [FOLDER [MINUTES]]   results/accuracy and 150 unless given: NAME.json, NAME.csv,
#                                          NAME.profile.json, NAME.fit_profile.json, accuracy.csv, unseen.txt
#
# `fitted` is scored on shapes that it hasn't seen: each model is forecast from the models behind --fit-on.
source "$(dirname "${BASH_SOURCE[0]}")/evening.sh"
begin results/accuracy 150 "$@"

# compare NAME ROUNDS VISITS SHARE ARGUMENTS...: VISITS: the longer a step, the fewer a round needs; short rounds, so that
# a slow machine has its four. SHARE: of the time, in percent.
compare() {
  local name=$1 rounds=$2 visits=$3 share=$4
  shift 4
  rounds "$name" "$share" -s single "$@" --rounds "$rounds" --visits "$visits" --steps 1 --csv "$out/$name.csv"
}

# beside_peers NAME ROUNDS VISITS SHARE CUT SPLITS MODEL FIT_ON...: the first split size with every schedule, the others
# with gpipe or, where SPLITS ends in *, with every schedule too.
beside_peers() {
  local name=$1 rounds=$2 visits=$3 share=$4 cut=$5 splits=$6 model=$7
  local arguments=() schedules="gpipe 1f1b forward_only" schedule split other
  shift 7
  for other in "$@"; do arguments+=(--fit-on "$other"); done
  for split in ${splits%\*}; do
    for schedule in $schedules; do arguments+=(-s "pipeline,cut=$cut,schedule=$schedule,split_size=$split"); done
    [[ $splits == *\* ]] || schedules=gpipe
  done
  compare "$name" "$rounds" "$visits" "$share" -m "$model" -s "model_parallel,cut=$cut" "${arguments[@]}" \
    -s ddp_blocking -s ddp --peers
}

# unseen NAME: a network that nothing was made for, also with strategies of four ranks.
unseen() {
  compare "$1" 12 2 4 -m "bench/unseen/$1.json" -s model_parallel,cut=half -s pipeline,cut=half,split_size=4 \
    -s ddp_blocking -s ddp -s ddp,dp=4 -s pipeline,pp=4,cut=quarters,split_size=4
}

# both_forms LAYERS...: by each transition; sums go around, or by the root.
both_forms() {
  local layers
  forms=()
  for layers; do forms+=(-s "hypar,layers=$layers" -s "hypar,layers=$layers,form=rooted"); done
}

sgd=optimizer=sgd:lr=0.001
beside_peers resnet18_64 18 2 13 layer2 '2 1 4*' resnet18,image=64,global_batch=8,$sgd resnet34,image=64,global_batch=12,$sgd \
  resnet34,image=64,global_batch=3,$sgd resnet34,image=80,global_batch=1,$sgd resnet34,image=48,global_batch=1,$sgd \
  resnet50,image=64,global_batch=2,$sgd
beside_peers convnet 46 4 11 pool2 '16 8 32*' convnet convnet,global_batch=12 convnet,global_batch=48
beside_peers resnet50 12 1 25 layer2 '2 1 4' resnet50,image=128,global_batch=8,loss=mse_loss,$sgd \
  resnet18,image=128,global_batch=4,loss=mse_loss,$sgd resnet50,image=128,global_batch=3,loss=mse_loss,$sgd \
  resnet50,image=128,global_batch=12,loss=mse_loss,$sgd resnet34,image=144,global_batch=1,loss=mse_loss,$sgd \
  resnet50,image=112,global_batch=1,loss=mse_loss,$sgd
beside_peers vgg11 12 1 22 features.10 '4 2 1' vgg11,image=64,global_batch=8,$sgd \
  vgg16,image=48,global_batch=3,$sgd vgg16,image=48,global_batch=12,$sgd resnet18,image=64,global_batch=1,$sgd
beside_peers resnet18_96 10 2 13 layer2 '8 4 2' resnet18,image=96,global_batch=16,$sgd \
  resnet34,image=96,global_batch=12,$sgd resnet34,image=96,global_batch=3,$sgd
unseen uneven
unseen grouped
both_forms in dp+in+dp+in+dp
compare placements 12 2 5 -m convnet,global_batch=64 -s ddp -s data_parallel -s hypar,layers=dp "${forms[@]}" \
  -s ddp,dp=4 -s data_parallel,dp=4 -s hypar,levels=2x2,layers=dp/in --peers
both_forms dp+dp dp+in in+dp in+in
compare hypar_pair 12 4 3 -m hypar_pair "${forms[@]}" --peers

build/bin/paragauge report "$out"/{uneven,grouped}.json >"$out/unseen.txt"
build/bin/paragauge report "$out"/{resnet18_64,convnet,resnet50,vgg11,resnet18_96}.json --csv "$out/accuracy.csv" | tee "$out/accuracy.txt" | tail -n 60
