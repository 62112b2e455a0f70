#!/usr/bin/env bash
# How well forecast is what was imported: two transformers, MobileNet and a U-Net by single, DDP, ZeRO 3, a pipeline and, the
# transformers, tensor and sequence parallel, on 2 and 4 ranks, beside their modules in plain PyTorch (DistributedDataParallel,
# fully_shard, parallelize_module) in the same rounds; and five more on one device.
#
#   bench/own_models.sh [FOLDER [MINUTES]]   results/own_models and 60 unless given: NAME.RANKS.json; of all together
#                                            own_models.json, own_models.txt
#
# An interrupted run goes on where it stopped.
source "$(dirname "${BASH_SOURCE[0]}")/evening.sh"
begin results/own_models 60 "$@"

each=(--rounds 40 --steps 2)
mobilenet=$out/mobilenet.json  # of images that two cores can do in 0.1 s
[[ -f $mobilenet ]] ||
  build/bin/paragauge import --torchvision mobilenet_v3_large --input 'f32[B,3,64,64]' --global-batch 16 -o "$mobilenet"
mobilenet=$mobilenet,memory_format=channels_last unet=unet,memory_format=channels_last
two=(single ddp zero3 1f1b)
four=(ddp,dp=4 zero3,dp=4 dp=2,pp=2,microbatches=2)
by_strategies gpt_nano.2 15 gpt_nano "${two[@]}" tp tp,sp=1
by_strategies llama_nano.2 17 llama_nano "${two[@]}" tp tp,sp=1
by_strategies mobilenet.2 17 "$mobilenet" "${two[@]}"
by_strategies unet.2 15 "$unet" "${two[@]}"
by_strategies gpt_nano.4 5 gpt_nano "${four[@]}" dp=2,tp=2,sp=1
by_strategies llama_nano.4 5 llama_nano "${four[@]}" dp=2,tp=2,sp=1
by_strategies mobilenet.4 5 "$mobilenet" "${four[@]}"
by_strategies unet.4 5 "$unet" "${four[@]}"
by_strategies lstm_classifier.1 2 lstm_classifier single
by_strategies bert_base.1 4 bert_base,global_batch=2 single
by_strategies vit_b_16.1 4 vit_b_16,global_batch=2 single
by_strategies densenet121.1 3 densenet121,global_batch=2,memory_format=channels_last single
by_strategies efficientnet_b0.1 3 efficientnet_b0,global_batch=4,memory_format=channels_last single

build/bin/paragauge report "$out"/*.[124].json --compact --json "$out/own_models.json" >"$out/own_models.txt"
cat "$out/own_models.txt"
