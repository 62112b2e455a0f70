#!/usr/bin/env bash
# How well forecast is what two hosts play, under torchrun: hosts that are namespaces of this machine (bench/hosts.sh), over links
# of several rates, with a rank on each, and with two.
#
#   bench/across_hosts.sh [FOLDER [MINUTES]]   results/hosts and 25 unless given: RATE.RANKS.json; of all together hosts.json,
#                                              hosts.txt
#
# An interrupted run goes on where it stopped. Needs root; where that isn't permitted it says so and ends with status 3.
source "$(dirname "${BASH_SOURCE[0]}")/evening.sh"
export PARAGAUGE_NETWORK=${PARAGAUGE_NETWORK:-across} # not what somebody else has up
bench/hosts.sh up 2
trap 'bench/hosts.sh down' EXIT
begin results/hosts 25 "$@"

rates=(100mbit 300mbit 1gbit 3gbit 10gbit)
seconds=$((minutes * 60 / 2 / ${#rates[@]}))
# compare RANKS STRATEGIES...: so many ranks on each host, over links of this $rate.
compare() {
  local ranks=$1 strategies
  shift
  choose "$@"
  bench/hosts.sh launch torchrun "$ranks" build/bin/paragauge compare -m convnet,global_batch=64 "${strategies[@]}" -w gloo --network "$rate" \
    --rounds 8 --visits 2 --steps 1 --time-limit "$seconds" --timeout 60 --json "$out/$rate.$ranks.json" >"$out/$rate.$ranks.log"
  tail -n 2 "$out/$rate.$ranks.log"
}
for rate in "${rates[@]}"; do
  echo "across_hosts: $rate"
  bench/hosts.sh up 2 "$rate"
  compare 1 single model_parallel ddp heat heat_blocking zero3 tp
  compare 2 ddp,dp=4 zero3,dp=4 hsdp daso dp=2,tp=2 dp=2,pp=2,microbatches=2
done
build/bin/paragauge report "$out"/*bit.[12].json --compact --json "$out/hosts.json" >"$out/hosts.txt"
cat "$out/hosts.txt"
