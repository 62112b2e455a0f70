#!/usr/bin/env bash
# Commands that forecast: what they say, and bad input: one clear line (what, where, what is allowed) on stderr, and exit status 2.
#
#   tests/bench/cli_test.sh build/bin/paragauge
set -uo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/said.sh"

accepts list
says 'conv2d .*; attributes: out_channels, kernel_size, stride=1'
accepts describe resnet50,image=128
# Imported models of the catalog, by name.
accepts describe gpt2
says '^total  *124439808 '
accepts describe llama3_8b
says '^total  *8030261248 '
accepts predict -m llama3_8b,precision=bf16,global_batch=8 -s fsdp,dp=8,recompute=block -s tp,tp=8 -c dgx_h100
says '^fsdp,dp=8,recompute=block .* yes$'
accepts plan -m gpt_nano,global_batch=8 -c dgx_a100 --devices 2 --top 1
refuses "strategy 'hypar,levels=2,layers=in': model 'gpt2' has no layer to choose for: conv2d or linear, not imported ops" predict -m gpt2 -s hypar,layers=in -c dgx_a100
refuses "model 'gpt2', node 'h.0.attn.c_attn': tp=5 must divide 12" predict -m gpt2 -s tp,tp=5 -c dgx_a100
accepts describe lstm_classifier,precision=bf16
accepts predict -m convnet -s single -s ddp -s pipeline,split_size=8 -w local -w gloo --json "$scratch/r.json" --csv "$scratch/r.csv"
accepts predict -m toy_mlp -s single -c dgx_a100 --json "$scratch/other.json"
accepts report "$scratch/r.json" "$scratch/other.json" --json "$scratch/both.json"
[[ $(grep -c '"command":"predict"' "$scratch/both.json") == 2 ]] || { echo "report loses what the files say of where they were made"; failed=1; }
accepts predict -m convnet,timing=epoch -s single -s pipeline,pp=4,cut=r2,schedule=forward_only,split_size=8 -c dgx_a100_one_process --epoch 50000
grep -q '782 steps, the last with 16 samples' "$scratch/out" || { echo "predict doesn't know the last batch"; failed=1; }
accepts predict -m resnet152,global_batch=4096 -s single -c dgx_a100
grep -q 'single does not fit: needs 681 of 79 GiB (activations 680)' "$scratch/out" || { echo "predict doesn't say that it doesn't fit"; failed=1; }
accepts predict -m resnet50,global_batch=4096 -s ddp,dp=64 -s ddp,dp=8 -c dgx_a100
[[ $(wc -L <"$scratch/out") -le 100 ]] || { echo "predict prints lines of more than 100 columns"; failed=1; }
grep -q 'ddp,dp=64 on dgx_a100 skipped: NCCL takes one rank of a GPU' "$scratch/out" || { echo "predict forecasts what NCCL refuses"; failed=1; }
refuses "NCCL takes one rank of a GPU (\"Duplicate GPU detected\"): 64 ranks, but 'dgx_a100' has 8 GPUs" predict -m resnet50,global_batch=4096 -s ddp,dp=64 -c dgx_a100
accepts predict -m toy_mlp,global_batch=16 -s ddp,dp=16 -c h200_local
grep -q '16 ranks share 1 device' "$scratch/out" || { echo "predict shares devices without a word"; failed=1; }
accepts predict -m resnet50,global_batch=256 -s ddp,dp=8 -c dgx_a100
says_across 'from what the data sheet leaves open'
accepts predict -m resnet50,global_batch=256,precision=bf16,memory_format=channels_last -s single -c dgx_a100
echo '{"format": "paragauge-cluster-1", "name": "v100", "world": "nccl", "device": "v100_sxm2_16g", "devices_per_node": 1,
  "link": {"latency_us": 10, "bandwidth_GBps": 10}}' >"$scratch/v100.json"
accepts predict -m toy_mlp,precision=fp16 -s single -c "$scratch/v100.json"
refuses "device 'v100_sxm2_16g' has no rate for bf16" predict -m toy_mlp,precision=bf16 -s single -c "$scratch/v100.json"
refuses "has no rate for bf16, which 'aten.forward f32[32,1024,768] batch=32 last=1 units=12 precision=bf16' needs: peak_bf16_TFLOPps in its file" predict -m gpt2,precision=bf16 -s single -c "$scratch/v100.json"
accepts predict -m convnet -s ddp,dp=4 -w gloo --hosts 4 --devices 1
! grep -q idle "$scratch/out" || { echo "predict finds idle devices among 4 that have a rank each"; failed=1; }
says '^convnet,global_batch=64 on gloo@4hosts'
accepts predict -m convnet -s ddp -s single -w gloo --devices 8
says '^ddp,dp=2 has 2 ranks, so that 6 of 8 devices are idle; ddp,dp=8 has 8$'
! grep -q '^single.*idle' "$scratch/out" || { echo "predict says that single leaves devices idle"; failed=1; }
accepts predict -m gpt_nano -s tp -s hsdp -w gloo --devices 64
says '^tp,tp=2 has 2 ranks, so that 62 of 64 devices are idle$'
refuses "--hosts 2: ranks of world 'local' are of one process, on one host" predict -m convnet -s ddp -w local --hosts 2
refuses "5 ranks on 2 hosts of 2 ranks each" predict -m convnet,global_batch=5 -s ddp,dp=5 -w gloo --hosts 2 --devices 2
refuses "--cluster can't be combined with --hosts" predict -m convnet -s ddp -c dgx_a100 --hosts 2
# Devices of several kinds.
cat >"$scratch/mixed.json" <<'JSON'
{"format": "paragauge-cluster-2", "name": "mixed", "world": "nccl",
 "device": [{"device": "a100_sxm_80g", "count": 4}, {"device": "v100_sxm2_32g", "count": 4}],
 "levels": [{"name": "node", "size": 4, "link": {"latency_us": 5, "bandwidth_GBps": 100}},
            {"name": "network", "size": 2, "link": {"latency_us": 14, "bandwidth_GBps": 12}}]}
JSON
accepts predict -m resnet50,global_batch=512 -s ddp,dp=8 -s single -c "$scratch/mixed.json"
said=$(tr -s ' \n' '  ' <"$scratch/out")
[[ $said =~ 'the 4 v100_sxm2_32g limit: a100_sxm_80g in their place -'[1-9][0-9]' %' ]] || { echo "predict doesn't say which kind limits: $said"; failed=1; }
[[ $said == *"has devices of several kinds (4 a100_sxm_80g, 4 v100_sxm2_32g)"* ]] || { echo "predict doesn't say that the devices differ: $said"; failed=1; }
# 32 GiB of the one are too few for what fits the other.
accepts predict -m resnet152,global_batch=1600 -s ddp,dp=8 -s ddp,dp=4 -c "$scratch/mixed.json"
says 'ddp dp=8 does not fit: needs [0-9]* of 32 GiB'
accepts plan -m resnet50,global_batch=256 -c "$scratch/mixed.json" --top 3
says '^Cluster .mixed. has devices of several kinds'
refuses "and those of cluster 'mixed' are of several kinds (a100_sxm_80g, v100_sxm2_32g)" predict -m convnet -s ddp,dp=8 -c "$scratch/mixed.json" --cost-model profiled --profile "$(dirname "$0")/../../bench/results/convnet.profile.json"
accepts plan -m resnet50,global_batch=256 -c dgx_a100 --memory 8 --top 1000
says_across '174 of 318 candidates fit; what needs least of the others, .* does not'
rows_of() { grep ' yes$' | tr -s ' '; } # of the plan's table
rows_of <"$scratch/out" >"$scratch/all_rows"
# The fastest are found without forecasting all.
accepts plan -m resnet50,global_batch=256 -c dgx_a100 --memory 8
diff <(head -n 8 "$scratch/all_rows") <(rows_of <"$scratch/out") || { echo "plan passes over one of the fastest"; failed=1; }
[[ $(wc -l <"$scratch/all_rows") == 174 ]] || { echo "plan doesn't show all that fit"; failed=1; }
says_across ' candidates fit; the 8 fastest are shown (--top); [0-9]* others are slower, by what one of their microbatches takes'
[[ $(wc -L <"$scratch/out") -le 100 ]] || { echo "plan prints lines of more than 100 columns"; failed=1; }
# Who asks for a few is told that they aren't all that can't be told apart; who sees one that can is not.
accepts plan -m gpt2,precision=bf16 -c dgx_a100 --devices 8 --top 3
says_across 'more than the 3 may be as fast as the first: --top 9[.;]'
accepts plan -m gpt2,precision=bf16 -c dgx_a100 --devices 8 --top 30
grep -q 'may be as fast as the first' "$scratch/out" && { echo "plan finds ties that it tells apart"; failed=1; }
# What if: other memory, other rates; what runs has its own.
accepts predict -m resnet50,global_batch=256 -s ddp,dp=8 -c dgx_a100 --memory 2 --json "$scratch/what_if.json"
says 'ddp does not fit: needs [0-9.]* of 2.00 GiB'
grep -q '"memory_GiB":2' "$scratch/what_if.json" || { echo "a result doesn't say which memory it is of"; failed=1; }
accepts plan -m gpt2,precision=bf16 -c dgx_a100 --devices 2 --top 1 --scale flops=0.5
grep -q '^ *lm_head has rows of 50257, which half precision multiplies slowly; padded to a multiple of 8' <(tr '\n' ' ' <"$scratch/out" | sed 's/lm_head has/\nlm_head has/') ||
  { echo "plan doesn't say what padding could bring"; failed=1; }
slow=$(awk '$1 ~ /^[a-z0-9_]*,/ && $3 ~ /s$/ { print $2; exit }' "$scratch/out")
accepts plan -m gpt2,precision=bf16 -c dgx_a100 --devices 2 --top 1
[[ $slow != $(awk '$1 ~ /^[a-z0-9_]*,/ && $3 ~ /s$/ { print $2; exit }' "$scratch/out") ]] || { echo "plan's --scale changes nothing"; failed=1; }
refuses "plan: --scale can't be combined with --measure: what runs is as fast as it is" plan -m convnet -w local --scale flops=2 --measure 1
# Every number of devices, and what is left out, is said and kept.
accepts plan -m resnet18,image=64,global_batch=64 -c dgx_a100 --devices 3 --top 1000 --json "$scratch/three.json" --csv "$scratch/three.csv"
says '^Left out: tp = 2; dp = 3 of [0-9]* strategies; [0-9]* other presets (--details: why)\.$'
grep -q '^data_parallel,dp=3 ' "$scratch/out" || { echo "plan doesn't use three devices"; failed=1; }
grep -q '"skip_reason":"strategy .*must divide' "$scratch/three.json" || { echo "a plan's file doesn't say what was skipped"; failed=1; }
grep -q '"told_from_fastest":"\(yes\|no\)"' "$scratch/three.json" || { echo "a plan's file doesn't say what can't be told apart"; failed=1; }
grep -q 'skipped' "$scratch/three.csv" || { echo "a plan's table doesn't say what was skipped"; failed=1; }
accepts plan -m resnet18,image=64,global_batch=64 -c dgx_a100 --devices 3 --details
says_across 'Left out: .*with dp = 3 (64 samples don.t divide)'
accepts plan -m convnet -c dgx_a100 --memory 0.001
grep -q '^0 of [0-9]* candidates fit; what needs least is shown' "$scratch/out" || { echo "plan doesn't say what needs least"; failed=1; }
accepts plan -m gpt2 -c dgx_a100 --devices 2 --top 1
grep -q '^With precision=tf32 [a-z0-9_,=]* takes [0-9.]* ms, with precision=bf16 [0-9.]* ms; another' "$scratch/out" || { echo "plan doesn't say what faster arithmetic brings"; failed=1; }
accepts plan -m resnet50,global_batch=256 -c dgx1 --devices 2 --top 1
grep -q '^With precision=fp16,memory_format=channels_last .* takes' "$scratch/out" || { echo "plan doesn't say what a V100's fp16 brings"; failed=1; }
accepts plan -m resnet50,global_batch=256 -c dgx_a100 --devices 2 --top 1
says_across ' With memory_format=channels_last [a-z0-9_,=]* takes [0-9.]* ms, with .*precision=bf16,memory_format=channels_last [0-9.]* ms; another'
accepts plan -m resnet50,global_batch=256,precision=bf16,memory_format=channels_last -c dgx_a100 --devices 2 --top 1
! grep -q '^With ' "$scratch/out" || { echo "plan proposes what was given"; failed=1; }
for other in gpt2,precision=bf16 gpt2,precision=f32 convnet,dtype=f64; do
  accepts plan -m $other -c dgx_a100 --devices 2 --top 1
  ! grep -q '^With precision' "$scratch/out" || { echo "plan of $other proposes a precision"; failed=1; }
done
accepts plan -m convnet -w local --devices 2 --top 1
! grep -q '^With precision' "$scratch/out" || { echo "plan proposes a precision that cores emulate"; failed=1; }
accepts plan -m vgg16,global_batch=256 -c dgx_a100_pair --method hypar
grep -q 'HyPar.s model: 2.13 GB; all dp 16.6 GB; all in 275 GB' "$scratch/out" || { echo "plan doesn't say what HyPar communicates"; failed=1; }
grep -q '^classifier.0 .* in in in in$' "$scratch/out" || { echo "plan doesn't show HyPar's choices"; failed=1; }
chosen=$(grep -o -m 1 '^hypar,levels=2x2x2x2,layers=13\*dp+3\*in[^ ]*' "$scratch/out")
accepts predict -m vgg16,global_batch=256 -s "$chosen" -c dgx_a100_pair
accepts plan -m convnet -c dgx_a100 --devices 4 --method layers --json "$scratch/layers.json"
grep -q 'devices tried; no single change makes the best one better$' "$scratch/out" || { echo "plan doesn't say what it tried"; failed=1; }
[[ $(wc -L <"$scratch/out") -le 100 ]] || { echo "plan prints lines of more than 100 columns"; failed=1; }
grep -q '"method":"layers"' "$scratch/layers.json" || { echo "a plan's file doesn't say the method"; failed=1; }
accepts plan -m resnet18,image=64,global_batch=64 -c dgx_a100 --devices 2 --method layers
[[ $(wc -L <"$scratch/out") -le 100 ]] || { echo "plan prints lines of more than 100 columns"; failed=1; }
accepts plan -m lenet_c -c dgx_a100_pair --method layers --memory 0.001
grep -q '^0 of [0-9]* candidates fit; what needs least is shown' "$scratch/out" || { echo "plan doesn't say what needs least"; failed=1; }
accepts predict -m lstm_classifier -s ddp -c dgx_a100
says '^lstm: forecast, and played here, step by step, [0-9]* kernels'
accepts predict -m gpt_nano -s ddp -c dgx_a100
! grep -q 'step by step' "$scratch/out" || { echo "predict sees steps in a transformer"; failed=1; }
accepts predict -m lstm_classifier -s ddp -w local
! grep -q 'step by step' "$scratch/out" || { echo "predict speaks of cuDNN on a CPU"; failed=1; }
accepts predict -m convnet -s ddp -w gloo --network 100mbit
grep -q 'gloo@100mbit' "$scratch/out" || { echo "predict doesn't know the network"; failed=1; }
accepts predict -m convnet -s single -s ddp -c cpu_gloo --devices 4
says_across "single uses 1 of 4 cores; single,threads=4 isn't in this table"
accepts predict -m convnet -s single,threads=4 -s ddp -s ddp,threads=2 -c cpu_gloo --devices 4
grep -q "1 of 4 cores" "$scratch/out" && { echo "predict misses all cores where they are"; failed=1; }
accepts plan -m convnet -c cpu_local --devices 4 --top 1000
grep -q "^single,threads=4 " "$scratch/out" || { echo "plan doesn't offer one process with all cores"; failed=1; }
accepts predict -m toy_mlp -s dp=2,pp=2,microbatches=2 -c dgx_a100 --program
accepts predict -m convnet -s single -s ddp,dp=8 -c dgx_a100 --graph
grep -q 'forecast with one launch' "$scratch/out" || { echo "predict doesn't say how it forecasts replays"; failed=1; }

refuses "unknown model 'resnet51'; known: alexnet_tower, bert_base, cifar_c, convnet" describe resnet51
refuses "unknown key 'img'; known: image" describe resnet50,img=128
refuses "image=0 must be a whole number from 1" describe resnet50,image=0
refuses "unknown strategy 'zero'; did you mean 'zero1'?" predict -m convnet -s zero
refuses "unknown key 'tq'; known: dp" predict -m convnet -s dp=2,tq=2
refuses "cut 'layer9' is no node of model 'resnet50'" predict -m resnet50 -s model_parallel,cut=layer9
refuses "split_size=5 must divide the 64 samples" predict -m convnet -s pipeline,split_size=5
refuses "dp=3 must divide global_batch=64" predict -m convnet -s ddp,dp=3
refuses "strategy 'ddp' has 2 ranks, which must be ranks=4" predict -m convnet -s ddp --ranks 4
refuses "strategy 'ddp,dp=2,threads=3': 2 ranks of 3 threads need 6 cores; this machine has 4" predict -m convnet -s ddp,threads=3 -c cpu_gloo --devices 4
refuses "threads=2 is for ranks on CPU cores; 'dgx_a100' computes on a100_sxm_80g" predict -m convnet -s single,threads=2 -c dgx_a100
refuses "network=fast must be a number with kbit, mbit or gbit" predict -m convnet -s ddp -w gloo --network fast
refuses "network=1gbit is for ranks that are processes" predict -m convnet -s ddp -w local --network 1gbit
refuses "graph: a CPU core executes each instruction itself, nothing is launched; allowed: device=cuda" predict -m convnet -s single --graph
refuses "graph: 'convnet,global_batch=64,timing=epoch' works on the host in every step, which a replay leaves out" predict -m convnet,timing=epoch -s single -c dgx_a100 --graph
refuses "graph: the 2 ranks of 'ddp,dp=2' share a process in world 'local'" predict -m convnet -s ddp -c dgx_a100_one_process --graph
refuses "--graph can't be combined with --peers: plain PyTorch launches op by op" compare -m convnet -s single --graph --peers
refuses "unknown option '--graph'" trace -m convnet -s single --graph -o "$scratch/t.json"
refuses "unknown option '--ranks'" plan -m convnet -c dgx_a100 --ranks 4
accepts predict -m convnet -s heat,dp=8 -c dgx_a100 --details
! grep -q -- ' -0 %' "$scratch/out" || { echo "predict prints -0 %"; failed=1; }
exec {pipe}> >(exec true)
wait $! # whoever reads has gone before anything is said
"$paragauge" describe resnet50 >&$pipe 2>&1
[[ $? == 75 ]] || { echo "nobody who reads what is said isn't an error"; failed=1; }
refuses "--devices 9 but 'dgx_a100' has 8" plan -m convnet -c dgx_a100 --devices 9
refuses "can't be combined with --measure" plan -m convnet -c dgx_a100 --measure 2
refuses "plan: --profile is read by --cost-model" plan -m convnet -w local --profile "$scratch/none.json"
refuses "plan: say how many GPUs: --devices" plan -m convnet -w nccl --device cuda
accepts plan -m convnet -w nccl --device cuda --devices 4
grep -q '[dp]p=4 ' "$scratch/out" || { echo "plan doesn't take as many GPUs as there are"; failed=1; }
refuses "unknown method 'magic'; known: candidates, hypar, layers" plan -m convnet -c dgx_a100 --method magic
refuses "their number must be 2, 4, 8, … 256; found 6" plan -m convnet -c dgx_a100 --devices 6 --method hypar
refuses "model 'resnet18' is no chain: node 'layer1.0.add' reads" plan -m resnet18 -c dgx_a100 --method hypar
refuses "2 devices or more, found 1" plan -m convnet -c dgx_a100 --devices 1 --method layers
echo '{"format": "paragauge-model-1", "name": "tiny", "input": [2], "target": {"classes": 2}, "optimizer": {"kind": "sgd", "lr": 1}, "loss": "cross_entropy", "nodes": [{"name": "fc", "op": "linear", "out_features": 2}]}' >"$scratch/tiny.json"
refuses "model 'tiny' can't be cut into parts for 8 devices: " plan -m "$scratch/tiny.json" -c dgx_a100 --method layers
refuses "layers=0 must be a whole number from 1" predict -m convnet -s "hypar,layers=0*dp"
refuses "unknown cluster 'dgx'; known: cpu_gloo" predict -m convnet -s single -c dgx
refuses "unknown cost model 'magic'; known: analytic, fitted, profiled" predict -m convnet -s single --cost-model magic
refuses "unknown schedule 'zigzag'; known: gpipe" predict -m convnet -s pipeline,schedule=zigzag
refuses "needs a profile" predict -m convnet -s single --cost-model profiled
refuses "can't be read" predict -m convnet -s single --cost-model profiled --profile "$scratch/none.json"
echo '{"format": "paragauge-profile-2", "device"' >"$scratch/cut.json"
refuses "truncated" predict -m convnet -s single --cost-model profiled --profile "$scratch/cut.json"
echo '{"format": "paragauge-profile-0"}' >"$scratch/old.json"
refuses "is older than 'paragauge-profile-3'" predict -m convnet -s single --cost-model profiled --profile "$scratch/old.json"
# A profile is believed where it was measured: the committed ones as if on this machine, and on another one.
results=$(dirname "${BASH_SOURCE[0]}")/../../bench/results
cpu=$(awk -F '\t*: ' '$1 == "cpu family" { family = $2 } $1 == "model" { model = $2 } $1 == "model name" { print $2 ", family " family ", model " model; exit }' /proc/cpuinfo)
for profile in convnet.profile resnet18_64.fit_profile; do
  sed "s/\"model\":\"[^\"]*\"/\"model\":\"$cpu\"/" "$results/$profile.json" >"$scratch/$profile.json"
done
for cost_model in profiled fitted; do
  for profile in convnet.profile resnet18_64.fit_profile; do
    accepts plan -m convnet --devices 2 -w local -w gloo --cost-model $cost_model --profile "$scratch/$profile.json"
  done
done
accepts plan -m convnet --devices 2 -w local --cost-model profiled --profile "$scratch/convnet.profile.json"
says '^~ partly a guess, because the profile lacks: '
sed "s/\"model\":\"[^\"]*\"/\"model\":\"Another CPU\"/" "$results/convnet.profile.json" >"$scratch/another.json"
refuses "the profile was measured on 'Another CPU', and cluster 'cpu_gloo' has '$cpu': calibrate there, or leave --profile and --cost-model out: the data sheet is used" predict -m convnet -s ddp -w gloo --cost-model profiled --profile "$scratch/another.json"
refuses "the profile was measured on '$cpu', and cluster 'dgx_a100' has 'NVIDIA A100-SXM4-80GB'" plan -m convnet -c dgx_a100 --cost-model fitted --profile "$scratch/convnet.profile.json"
cat >"$scratch/two_pcs.json" <<<'{"format": "paragauge-cluster-1", "name": "two_pcs", "world": "gloo", "device": "cpu_core", "nodes": 2, "devices_per_node": 1, "link": {"latency_us": 200, "bandwidth_GBps": 0.1}}'
accepts predict -m convnet -s single -s ddp -c "$scratch/two_pcs.json" --cost-model fitted --profile "$scratch/convnet.profile.json"
says "^Transfers are forecast from the links that the file of cluster 'two_pcs' states"
says "^Cluster 'two_pcs' doesn't say which CPU its 'cpu_core' is"
# What takes longer than a moment says so; what would take minutes is refused.
accepts predict -m convnet,global_batch=20000 -s single,microbatches=20000 -c dgx_a100
says 'predict: single.*microbatches=20000: [0-9]* instructions to go through'
refuses "1000000 microbatches in 1 roles make a Program of" predict -m resnet50,global_batch=1000000 -s single,microbatches=1000000 -c dgx_a100
# One strategy that can't be is a row.
accepts predict -m convnet -s single -s ddp,dp=3 -w local
says '^ddp,dp=3 on local skipped: .*dp=3 must divide global_batch=64'
refuses "dp=3 must divide global_batch=64" predict -m convnet -s ddp,dp=3 -s ddp,dp=5
echo '{"format": "paragauge-model-1", "name": "x", "input": [4' >"$scratch/model.json"
refuses "truncated" describe "$scratch/model.json"
exit $failed
