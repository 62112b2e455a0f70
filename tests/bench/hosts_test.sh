#!/usr/bin/env bash
# Two hosts, each with a network, a boot id, a clock and processes of its own (bench/hosts.sh), under torchrun; under mpirun and
# srun where those are installed. The results are one device's, the clocks are put on one, and who has another version, or dies,
# is named. Rank 0 reads and writes, and says what is wrong, once, and with the host's name where it is another's. 77: skipped,
# because namespaces aren't permitted here, or there is no torchrun.
#
#   tests/bench/hosts_test.sh build/bin/paragauge build/libexec/paragauge_torch
set -uo pipefail
paragauge=$1 torch_program=$2
hosts=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/bench/hosts.sh
export PARAGAUGE_NETWORK=test-$$-h
scratch=$(mktemp -d)
trap '"$hosts" down; rm -rf "$scratch"' EXIT
failed=0
complain() {
  echo "FAILED: $*"
  failed=1
}

said=$("$hosts" up 2 2>&1)
case $? in
  0) ;;
  3) trap - EXIT; rm -rf "$scratch"; echo "hosts: $said, skipped"; exit 77 ;;
  *) complain "hosts.sh up 2: $said"; exit 1 ;;
esac
# launch LAUNCHER PROGRAM ARGUMENT...: the status and time in $status and $seconds, what it says in $scratch/out and err.
launch() {
  local begin=$SECONDS
  "$hosts" launch "$1" 1 "${@:2}" >"$scratch/out" 2>"$scratch/err"
  status=$?
  seconds=$((SECONDS - begin))
  if ((status == 3)); then trap - EXIT; "$hosts" down; rm -rf "$scratch"; echo "hosts: $(<"$scratch/err"), skipped"; exit 77; fi
}
# on_both PROGRAM ARGUMENT...: the same without a launcher, by the variables that one sets: rank 0 serves the store, as under
# mpirun and srun. What rank 1 says is in out1, and must be nothing.
port=29600
on_both() {
  local variables=(WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=host0 MASTER_PORT=$((++port))) begin=$SECONDS
  "$hosts" on 1 env "${variables[@]}" RANK=1 "$@" >"$scratch/out1" 2>&1 &
  "$hosts" on 0 env "${variables[@]}" RANK=0 "$@" >"$scratch/out" 2>"$scratch/err"
  status=$?
  wait $! || complain "rank 1 of $*: status $?"
  seconds=$((SECONDS - begin))
  [[ ! -s $scratch/out1 ]] || complain "rank 1 of $*: $(cat "$scratch/out1")"
}
# refuses TEXT ARGUMENT...: in a line, and at once.
refuses() {
  on_both "$paragauge" "${@:2}"
  ((status == 2 && seconds < 10)) || complain "${*:2}: status $status after $seconds s"
  [[ $(<"$scratch/err") == "paragauge: $1"* && $(grep -c . "$scratch/err") == 1 && ! -s $scratch/out ]] ||
    complain "${*:2}: $(cat "$scratch/out" "$scratch/err")"
}
says() { grep -qF -- "$1" "$scratch/$2" || complain "no '$1' in $2: $(cat "$scratch/$2")"; }

# Rank 0 prints, once; the result has both hosts and their clocks.
launch torchrun "$paragauge" measure -m toy_mlp -s ddp -s pipeline,pp=2 -w gloo --timeout 30 --verify --json "$scratch/r.json"
((status == 0)) || complain "torchrun: status $status: $(cat "$scratch/err")"
[[ $(grep -c '^verify: every result equals' "$scratch/out") == 1 ]] || complain "not verified once: $(cat "$scratch/out")"
python3 - "$scratch/r.json" <<'PYTHON' || complain "the hosts in the result"
import json, sys
result = json.load(open(sys.argv[1]))
first, second = result["sessions"][0]["context"]["hosts"]["gloo@2hosts"]
assert (first["name"], second["name"]) == ("host0", "host1"), (first["name"], second["name"])
assert first["ranks"] == second["ranks"] == 1
assert "10.77.0.1" in first["network"] and "10.77.0.2" in second["network"], (first["network"], second["network"])
assert first["environment"]["version"] == second["environment"]["version"]
assert second["environment"]["cpu"]["usable_cores"] >= 1
assert first["clock"]["error_us"] == 0
clock = second["clock"]
off_us = 1e6 * (clock["ahead_s"] - 12345)  # as hosts.sh has shifted it
print(f"clock: {off_us:.1f} us off, known to within {clock['error_us']:.1f} us")
assert abs(off_us) <= clock["error_us"] < 2000, clock
assert {cell["world"] for cell in result["cells"]} == {"gloo@2hosts"}
PYTHON
(($(grep -c . "$scratch/out") < 40)) || complain "more than one answer: $(cat "$scratch/out")"

# A cluster file of both, by which both are forecast.
launch torchrun "$paragauge" machine -o "$scratch/pair.json" --timeout 30
((status == 0)) || complain "machine: status $status: $(cat "$scratch/err")"
[[ $(grep -c 'is written: ' "$scratch/out") == 1 ]] || complain "machine doesn't answer once: $(cat "$scratch/out")"
python3 - "$scratch/pair.json" <<'PYTHON' || complain "the cluster of both hosts"
import json, sys
pair = json.load(open(sys.argv[1]))
node, network = pair["levels"]
assert (node["name"], network["name"], network["size"]) == ("node", "network", 2), pair["levels"]
assert "host0: " in pair["description"] and "host1: " in pair["description"], pair["description"]
assert abs(network["link"]["bandwidth_GBps"] - 0.94 * 10 / 8) < 0.02, network  # a veth says that it has 10 Gbit/s
assert network["link"]["source"].startswith("a guess: 94 % of 10 Gbit/s"), network
PYTHON
"$paragauge" predict -m toy_mlp -s ddp,dp=2 -c "$scratch/pair.json" >"$scratch/out" 2>&1 || complain "the cluster of both hosts isn't read: $(cat "$scratch/out")"

# The other commands. host1 has none of rank 0's files; /run is each host's own.
on_both "$paragauge" compare -m toy_mlp -s ddp -s pipeline,pp=2 -w gloo --network 10gbit --timeout 30 --rounds 1 --json "$scratch/c.json"
((status == 0)) || complain "compare: status $status: $(cat "$scratch/err")"
python3 - "$scratch/c.json" <<'PYTHON' || complain "what compare has measured"
import json, sys
cells = json.load(open(sys.argv[1]))["cells"]
assert [cell["strategy"].split(",")[0] for cell in cells] == ["ddp", "pipeline"], cells
assert all(cell["world"] == "gloo@2hosts@10gbit" and "profiled" in cell["rounds"]["predicted"] for cell in cells), cells
PYTHON
on_both "$paragauge" plan -m toy_mlp -w gloo --top 2 --measure 1
((status == 0)) && says "gloo@2hosts, forecast by profiled" out || complain "plan: status $status: $(cat "$scratch/err")"
train=("$paragauge" train -m toy_mlp -s ddp -w gloo --timeout 30 --samples 200 --cost-model analytic --checkpoint /run/c.safetensors)
on_both "${train[@]}" --epochs 1
((status == 0)) || complain "train: status $status: $(cat "$scratch/err")"
on_both "${train[@]}" --epochs 2
says "train: goes on after epoch 1 of 2" out
on_both "${train[@]}" --epochs 2
((status == 0 && seconds < 10)) && says "has its 2 epochs already" out || complain "trained already: $status after $seconds s"
"$hosts" on 1 test -e /run/c.safetensors && complain "rank 1 has written a checkpoint"

refuses "unknown strategy 'foo'; known: single" measure -m toy_mlp -s foo -w gloo
refuses "measure: unknown option '--bar'" measure -m toy_mlp -s ddp -w gloo --bar
refuses "/run/none.json: can't be read" calibrate -m /run/none.json -s ddp -w gloo -o "$scratch/p.json"
refuses "strategy 'ddp,dp=4' has 4 ranks, and 2 have been launched" compare -m toy_mlp -s ddp,dp=4 -w gloo
refuses "world 'local' has its ranks in one process, and 2 have been launched; use --world gloo or nccl" measure -m toy_mlp -s ddp
refuses "compare: --peers start on one host, and these ranks are on 2" compare -m toy_mlp -s ddp -w gloo --peers
"$hosts" on 0 sh -c 'mkdir /run/data; for name in data_batch_1 test_batch; do head -c 307300 /dev/zero >/run/data/$name.bin; done'
refuses "rank 1 on host1: /run/data: has no data_batch_1.bin" train -m convnet,timing=epoch -s ddp -w gloo --data /run/data
"$hosts" on 1 sh -c 'mkdir /run/data; for name in data_batch_1 test_batch; do { head -c 307299 /dev/zero; echo; } >/run/data/$name.bin; done'
refuses "rank 1 on host1: /run/data: its samples differ from those of rank 0 on host0" train -m convnet,timing=epoch -s ddp -w gloo --data /run/data

# Another version, on host1: the same program with another checksum of its sources.
checksum=$(LC_ALL=C grep -aoP '\x00\K[0-9a-f]{64}(?=\x00)' "$torch_program" | head -n 1)
mkdir -p "$scratch/other/bin" "$scratch/other/libexec"
cp "$paragauge" "$scratch/other/bin/"
LC_ALL=C sed "s/$checksum/$(printf '0%.0s' {1..12})${checksum:12}/" "$torch_program" >"$scratch/other/libexec/$(basename "$torch_program")"
chmod +x "$scratch/other/libexec/"*
launch torchrun sh -c 'program=$1; [ "$(hostname)" = host0 ] || program=$2; shift 2; exec "$program" "$@"' sh \
  "$paragauge" "$scratch/other/bin/paragauge" measure -m toy_mlp -s ddp -w gloo --timeout 30
((status != 0)) || complain "another version is accepted"
[[ $(grep -c '^paragauge: ' "$scratch/err") == 1 ]] || complain "not one line: $(cat "$scratch/err")"
says "paragauge: rank 1 on host1 has another version (" err
says ", sources 000000000000," err
says ") than rank 0 on host0 (" err

# host1 dies in the second strategy: what is measured stays, and the error says who, where and in what.
(for _ in {1..300}; do
  ! grep -q '^measure: .* pipeline' "$scratch/err" 2>/dev/null || break
  sleep 0.1
done
sleep 0.3
"$hosts" kill 1) &
: >"$scratch/err"
# Its steps take milliseconds; the toy's are so short that ranks mostly wait for a step to begin.
launch torchrun "$paragauge" measure -m convnet -s ddp -s pipeline,pp=2 -w gloo --timeout 5 --warmup 0 --steps 500 --json "$scratch/k.json"
wait
((status != 0)) || complain "a host that dies isn't noticed"
# Between two steps there is no instruction.
grep -qE '^paragauge: rank 0 on host0(, instruction [0-9]+|: the start of the step failed)' "$scratch/err" || complain "not who, where, in what: $(cat "$scratch/err")"
says "rank 1 on host1" err
says "; no word from rank 1 on host1" err
python3 - "$scratch/k.json" <<'PYTHON' || complain "what was measured hasn't stayed"
import json, sys
cells = json.load(open(sys.argv[1]))["cells"]
assert [cell["strategy"] for cell in cells] == ["ddp,dp=2"], cells
assert len(cells[0]["rounds"]["round"]) == 1
PYTHON

"$hosts" up 2 || complain "up doesn't replace what is there"
for launcher in mpirun srun; do
  command -v "$launcher" >/dev/null && { [[ $launcher != srun ]] || command -v slurmctld >/dev/null; } || { echo "$launcher isn't installed"; continue; }
  launch "$launcher" "$paragauge" measure -m toy_mlp -s ddp -w gloo --timeout 30 --verify
  ((status == 0)) || complain "$launcher: status $status: $(cat "$scratch/err")"
  [[ $(grep -c '^verify: every result equals' "$scratch/out") == 1 ]] || complain "$launcher: not verified once: $(cat "$scratch/out")"
done
"$hosts" down || complain "down"
compgen -G "/run/netns/$PARAGAUGE_NETWORK*" >/dev/null && complain "namespaces are left"
[[ ! -e /run/paragauge-hosts.$PARAGAUGE_NETWORK ]] || complain "a state is left"
exit $failed
