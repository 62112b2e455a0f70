#!/usr/bin/env bash
# The main job, from nothing: installs, builds, predicts, measures, verifies and plots on this machine, in about a quarter
# of an hour where the downloads are quick, with as many rounds as that allows.
#
#   bench/demo.sh                results/*.json, results/*.csv, results/plots/*.png
#   bench/demo.sh --fresh        forget earlier results; else an interrupted run goes on where it stopped
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/evening.sh" # choose, presets_of_two; from the checkout's root on
case ${1:-} in
  '') ;;
  --fresh) rm -rf results ;;
  *) echo "demo: error: unknown argument '$1': use --fresh or nothing" >&2; exit 2 ;;
esac

# limit PERCENT: a compare's share of the time that is left, less what trainings and plots take; a minute at least.
limit() {
  local seconds=$(((900 - 120 - SECONDS) * $1 / 100))
  echo $((seconds > 60 ? seconds : 60))
}

bench/setup.sh --demo
paragauge=build/bin/paragauge
mkdir -p results/plots

echo "demo: verify: every strategy gives what one device gives (float64)"
$paragauge measure -m toy_mlp -m convnet,global_batch=8 -s single -s model_parallel -s pipeline,microbatches=2 \
  -s pipeline,schedule=1f1b,microbatches=2 -s pipeline,schedule=forward_only,microbatches=2 -s ddp_blocking -s ddp -w local -w gloo --steps 1 --verify --csv results/verify.csv |
  grep '^verify'

# R1: ResNet-50 at 128x128 with the tutorial's cut, loss and optimizer; the batch is what a CPU core can do.
resnet50=resnet50,image=128,global_batch=8,loss=mse_loss,optimizer=sgd:lr=0.001
echo "demo: ResNet-50"
$paragauge compare -m $resnet50 -s single -s model_parallel,cut=r1 -s pipeline,cut=r1,split_size=1 -s pipeline,cut=r1,split_size=2 \
  -s pipeline,cut=r1,split_size=4 -s pipeline,cut=r1,split_size=8 -s ddp_blocking -s ddp \
  -w local --rounds 8 --steps 2 --time-limit $(limit 55) --json results/resnet50.json --csv results/resnet50.csv
echo "demo: a small network by all that two ranks can play, beside plain PyTorch where it has the same"
presets=$(presets_of_two)
choose $presets
$paragauge compare -m convnet "${strategies[@]}" -w gloo --peers --rounds 12 --visits 2 --time-limit $(limit 100) --json results/family.json --csv results/family.csv
echo "demo: timelines"
$paragauge trace -m $resnet50 -s pipeline,cut=r1,split_size=2 -w local -o results/pipeline.trace.json
echo "demo: loss curves: who trains the same, and who doesn't (float64)"
for strategy in single model_parallel gpipe,microbatches=8 ddp zero3 tp heat daso,skips=2; do
  $paragauge train -m convnet,dtype=f64 -s $strategy -w local --samples 1920 --epochs 6 -o results/loss_${strategy%%,*}.json
done

python=.venv/bin/python
$python plots/step_times.py results/resnet50.json --out results/plots/step_times
$python plots/step_times.py results/family.json --out results/plots/family
$python plots/split_size.py results/resnet50.json --out results/plots/split_size
$python plots/errors.py results/resnet50.json --out results/plots/errors_resnet50
$python plots/errors.py results/family.json --out results/plots/errors_family
$python plots/timeline.py results/pipeline.trace.json --out results/plots/timeline
$python plots/loss_curves.py results/loss_{single,model_parallel,gpipe,ddp,zero3,tp,heat,daso}.json --out results/plots/loss_curves
echo "demo: results/ holds the tables (.csv, .json) and results/plots/ the figures (.png, .svg)"
