#!/usr/bin/env bash
# Faults at any moment of a run: kill -9, SIGSTOP, a cut link, a full disk, a broken profile. Each must end the run within
# the timeout, name the rank and what it was doing, keep what has been measured, and leave no process; the same command
# again does the rest. Cutting links and filling disks needs root; those parts are skipped without.
#
#   tests/bench/faults_test.sh build/bin/paragauge
set -uo pipefail
paragauge=$1
network=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/bench/network.sh
export PARAGAUGE_NETWORK=test-$$-f
scratch=$(mktemp -d)
clean_up() {
  local process
  for process in $(ours); do kill -9 "$process" 2>/dev/null; done
  [[ ! -e /run/paragauge-network.$PARAGAUGE_NETWORK ]] || "$network" down
  mountpoint -q "$scratch/disk" && umount "$scratch/disk"
  rm -rf "$scratch"
}
trap clean_up EXIT
failed=0
tries=0 # of the same fault, so far
complain() {
  echo "FAILED: $*"
  failed=1
}
if "$paragauge" list | grep -q 'built without LibTorch'; then
  echo "faults: built without LibTorch, skipped"
  exit 77
fi

# Every command line here holds the scratch folder, so its processes can be told from others.
ours() { grep -ls "[/]${scratch#/}" /proc/[0-9]*/cmdline | grep -o '[0-9]*'; } # not this grep itself
rank_process() { # RANK
  local process
  for process in $(ours); do
    grep -qsz "^RANK=$1$" "/proc/$process/environ" && echo "$process"
  done
}
nothing_left() {
  local i
  for ((i = 0; i < 50; ++i)); do
    [[ -n $(ours) ]] || return 0
    sleep 0.1
  done
  complain "$1: processes are left: $(ours | tr '\n' ' ')"
}
# The cells of a result file that have rounds, "ddp,dp=2:3 …"; fails when the file can't be read.
rounds_in() {
  python3 -c 'import json, sys
print(*[cell["strategy"] + ":" + str(len(cell["rounds"]["round"])) for cell in json.load(open(sys.argv[1]))["cells"] if cell["rounds"]])' "$1"
}
# interrupted NAME STATUS 'pattern of the message' SECONDS 'pattern of the progress' FAULT -- command...
# Starts the command, does FAULT when the pattern stands in its output, and looks at the end. Where the message has to
# name an instruction, a fault that fell between two steps is played again.
interrupted() {
  local again=("$@") name=$1 status=$2 message=$3 limit=$4 progress=$5 fault=$6 process i start ended
  shift 7
  : >"$scratch/err" # else the progress of the command before is taken for this one's
  "$@" >"$scratch/out" 2>"$scratch/err" &
  process=$!
  for ((i = 0; i < 1200; ++i)); do
    [[ -n $progress ]] || break
    grep -q "$progress" "$scratch/err" && break
    kill -0 $process 2>/dev/null || break
    sleep 0.05
  done
  $fault
  start=$(date +%s%N)
  { wait $process; } 2>/dev/null
  ended=$?
  printf '%s: status %d after %d ms: %s\n' "$name" $ended $((($(date +%s%N) - start) / 1000000)) "$(tr '\n' '|' <"$scratch/err")"
  if [[ $message == *instruction* ]] && grep -qE 'outside a step|at the end of a step|the start of the step' "$scratch/err" && ((tries++ < 3)); then
    nothing_left "$name"
    interrupted "${again[@]}"
    return
  fi
  tries=0
  ((ended == status)) || complain "$name: status $ended, expected $status"
  [[ -z $message ]] || grep -qE "$message" "$scratch/err" || complain "$name: expected a message like: $message"
  (($(date +%s%N) - start < limit * 1000000000)) || complain "$name: took longer than $limit s"
  nothing_left "$name"
}
# Steps of some tenths of a second, one after the other: once gloo's ranks are there, in the middle of one.
in_step() {
  local i
  for ((i = 0; i < 300; ++i)); do
    [[ -n $(rank_process 1) ]] && grep -qs pt_gloo_runloop /proc/"$(rank_process 1)"/task/*/comm && break
    sleep 0.1
  done
  sleep 1
}

cat >"$scratch/slow.json" <<'MODEL'
{"format": "paragauge-model-1", "name": "slow", "input": [2048], "target": {"classes": 2048}, "global_batch": 1024,
 "optimizer": {"kind": "sgd", "lr": 0.001}, "loss": "mse_loss", "nodes": [{"name": "a", "op": "linear", "out_features": 2048},
 {"name": "b", "op": "relu"}, {"name": "c", "op": "linear", "out_features": 2048}]}
MODEL
slow=("$paragauge" measure -m "$scratch/slow.json" -s ddp -w gloo --steps 500 --warmup 0 --timeout)
compare=("$paragauge" compare -m toy_mlp -s single -s ddp -w gloo --rounds 3 --timeout)

echo "-- kill -9" # noticed at once: well before the timeout, also where another test takes turns with this one
kill_rank() { in_step; kill -9 $(rank_process 1); }
interrupted "kill -9 of rank 1" 75 '^paragauge: rank 1 died \(signal 9\) in instruction [0-9]+: ' 9 '' kill_rank -- "${slow[@]}" 15
kill_now() { kill -9 $(rank_process 0); }
interrupted "kill -9 of rank 0 after the first round" 75 '^paragauge: rank 0 died \(signal 9\)' 9 'round 2/3' kill_now -- \
  "${compare[@]}" 15 --json "$scratch/kill.json"
[[ $(rounds_in "$scratch/kill.json") =~ ^single:[12]\ ddp,dp=2:[12]$ ]] || complain "rows are lost: $(rounds_in "$scratch/kill.json")"
"${compare[@]}" 15 --json "$scratch/kill.json" >"$scratch/out" 2>&1 || complain "the same command again: $(cat "$scratch/out")"
grep -q 'compare: goes on with round [23]' "$scratch/out" || complain "it began anew"
[[ $(rounds_in "$scratch/kill.json") == "single:3 ddp,dp=2:3" ]] || complain "not all rounds: $(rounds_in "$scratch/kill.json")"
kill_supervisor() { in_step; kill -9 $process; }
interrupted "kill -9 of the supervisor" 137 '' 9 '' kill_supervisor -- "${slow[@]}" 15

echo "-- SIGSTOP"
stop_rank() { in_step; kill -STOP $(rank_process 1); }
interrupted "SIGSTOP of rank 1" 75 '^paragauge: rank 1 is stopped \(by SIGSTOP or the like\) in instruction [0-9]+: ' 15 '' stop_rank -- "${slow[@]}" 3
stop_between() { kill -STOP $(rank_process 0); }
interrupted "SIGSTOP of rank 0 after the first round" 75 '^paragauge: rank 0 is stopped ' 15 'round 2/3' stop_between -- "${compare[@]}" 3 --json "$scratch/stop.json"

echo "-- SIGSTOP and kill -9 at any moment"
# A short run from its start to its end. A fault ends it in time, with one line that names the victim; or comes too late.
quick=("$paragauge" measure -m toy_mlp -s ddp -w gloo --steps 600 --timeout 2 --json "$scratch/quick.json")
both_ranks() {
  local i
  for ((i = 0; i < 200; ++i)); do
    [[ -n $(rank_process 0) && -n $(rank_process 1) ]] && return
    sleep 0.02
  done
}
lasts_ms=100000
for _ in 1 2 3; do # the first finds nothing in the page cache, any may have waited for another test
  "${quick[@]}" >"$scratch/out" 2>"$scratch/err" & both_ranks
  begin=$(date +%s%N)
  wait $! || complain "a short run: $(cat "$scratch/err")"
  took_ms=$((($(date +%s%N) - begin) / 1000000))
  ((took_ms >= lasts_ms)) || lasts_ms=$took_ms
done
declare -A hits
for signal in STOP KILL; do
  [[ $signal == STOP ]] && fate='is stopped' || fate='died \(signal 9\)'
  for victim in 0 1; do
    for ((tenth = victim; tenth <= 9; tenth += 3)); do
      "${quick[@]}" >"$scratch/out" 2>"$scratch/err" & process=$!
      both_ranks
      moment_ms=$((lasts_ms * tenth / 10))
      sleep "$(printf '%d.%03d' $((moment_ms / 1000)) $((moment_ms % 1000)))"
      kill -$signal $(rank_process $victim) 2>/dev/null
      begin=$(date +%s%N)
      { wait $process; } 2>/dev/null
      ended=$?
      after_ms=$((($(date +%s%N) - begin) / 1000000))
      said=$(grep -v '^measure: ' "$scratch/err") # its progress
      if [[ $ended == 0 && -z $said ]]; then
        continue # too late
      fi
      hits[$signal$victim]=$((${hits[$signal$victim]:-0} + 1))
      [[ $ended == 75 && $(wc -l <<<"$said") == 1 && $said =~ ^paragauge:\ rank\ $victim\ $fate\  ]] && ((after_ms < 6000 + lasts_ms)) ||
        complain "SIG$signal of rank $victim after $tenth tenths of $lasts_ms ms: status $ended after $after_ms ms: $said"
      nothing_left "SIG$signal of rank $victim"
    done
    echo "SIG$signal of rank $victim: ${hits[$signal$victim]:-0} in time; the last: $said"
    ((${hits[$signal$victim]:-0} >= 2)) || complain "most came too late"
  done
done

echo "-- errors of starting"
# starts STATUS 'the line' SECONDS command...: one line on stderr.
starts() {
  local expected_status=$1 expected=$2 limit=$3 said status begin
  shift 3
  begin=$(date +%s%N)
  said=$("$@" 2>&1 >/dev/null)
  status=$?
  said=$(grep -v '^measure: ' <<<"$said")
  [[ $status == "$expected_status" && $said == "paragauge: $expected" ]] || complain "$(printf '%s\n  expected status %d and: %s\n  got status %d: %s' "$*" "$expected_status" "$expected" "$status" "$said")"
  (($(date +%s%N) - begin < limit * 1000000000)) || complain "$*: took longer than $limit s"
}
by_hand=(env WORLD_SIZE=2 MASTER_PORT=45671 RANK=1)
measure=("$paragauge" measure -m toy_mlp -s ddp -w gloo --steps 1)
starts 75 "rank 1: nobody listens at 127.0.0.1:45671 (MASTER_ADDR, MASTER_PORT) within 2 s; is there a rank 0?" 6 \
  "${by_hand[@]}" MASTER_ADDR=127.0.0.1 "${measure[@]}" --timeout 2
starts 2 "MASTER_ADDR='no.such.host.invalid' can't be resolved: Name or service not known" 20 \
  "${by_hand[@]}" MASTER_ADDR=no.such.host.invalid "${measure[@]}"
starts 2 "2 ranks need 48 open files each; 20 are permitted (ulimit -n)" 6 prlimit --nofile=20 "${measure[@]}"
for timeout in inf 1e300 nan 0 -1 86401; do
  for world in gloo local; do
    said=$("$paragauge" measure -m toy_mlp -s ddp -w $world --timeout=$timeout 2>&1 >/dev/null)
    [[ $? == 2 && $said == *"--timeout: must be a number from 0.1 to 86400, found '$timeout'"* && $(wc -l <<<"$said") == 1 ]] ||
      complain "--timeout=$timeout: $said"
  done
done
"${measure[@]}" --timeout 86400 >"$scratch/out" 2>&1 || complain "a day: $(cat "$scratch/out")"

echo "-- out of memory on one rank, without a supervisor"
for victim in 0 1; do
  for rank in 0 1; do
    env WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=45672 RANK=$rank LOCAL_RANK=$rank "$paragauge" measure \
      -m toy_mlp -m convnet,global_batch=512 -s ddp -w gloo --warmup 3000 --steps 10 >"$scratch/out$rank" 2>"$scratch/err$rank" &
    ranks[rank]=$!
  done
  for _ in {1..400}; do # until both have come, and their threads are there
    grep -q '^measure: toy_mlp' "$scratch/err0" &&
      awk '/^Threads:/ && $2 < 5 { few = 1 } END { exit few }' /proc/"${ranks[0]}"/status /proc/"${ranks[1]}"/status && break
    sleep 0.05
  done
  sleep 0.4
  kB=$(awk '/^VmSize:/ { print $2 }' /proc/"${ranks[victim]}"/status)
  prlimit --pid "${ranks[victim]}" --as=$(((kB + (16 << 10)) << 10)) # the ConvNet asks for 12 MiB at once
  start=$(date +%s%N)
  wait "${ranks[0]}"
  status=$?
  wait "${ranks[1]}" || complain "out of memory on rank $victim: status $? of rank 1, which has nothing to say"
  said=$(grep -hv '^measure: ' "$scratch/err0" "$scratch/err1")
  [[ $status == 75 && $(wc -l <<<"$said") == 1 ]] && grep -q '^paragauge: ' "$scratch/err0" &&
    [[ $said =~ ^"paragauge: rank $victim, instruction "[0-9]+" (compute conv".*"): out of memory: the system refuses " ]] ||
    complain "out of memory on rank $victim: status $status, $said"
  (($(date +%s%N) - start < 20000000000)) || complain "out of memory on rank $victim: took longer than 20 s"
  nothing_left "out of memory on rank $victim"
done

if ((EUID == 0)); then said=$("$network" up 2 100mbit 2>&1); else said="not root"; fi
if [[ -z $said ]]; then
  echo "-- a cut link"
  cut() { ip -n "${PARAGAUGE_NETWORK}1" link set veth0 down; }
  cut_in_step() { in_step; cut; }
  slow_on_network() { "$network" up 2 100mbit && "${slow[@]}" 3 --network 100mbit; }
  interrupted "cut link" 75 '^paragauge: rank [01], instruction [0-9]+ \(' 12 '' cut_in_step -- slow_on_network
  "$network" up 2 100mbit
  interrupted "cut link after the first round" 75 'rank [01]' 60 'round 2/3' cut -- \
    "${compare[@]}" 3 --network 100mbit --json "$scratch/cut.json"
  "$network" up 2 100mbit
  "${compare[@]}" 3 --network 100mbit --json "$scratch/cut.json" >"$scratch/out" 2>&1 || complain "the same command again: $(cat "$scratch/out")"
  [[ $(rounds_in "$scratch/cut.json") == "single:3 ddp,dp=2:3" ]] || complain "not all rounds: $(rounds_in "$scratch/cut.json")"
  "$network" down
else
  echo "-- a cut link: skipped, $said"
fi

mkdir "$scratch/disk"
if said=$(mount -t tmpfs -o size=1m none "$scratch/disk" 2>&1); then
  echo "-- a full disk"
  fill() { dd if=/dev/zero of="$scratch/disk/full" bs=1k 2>/dev/null; }
  interrupted "full disk" 75 "$scratch/disk/r.json.*No space left" 120 'round 2/3' fill -- "${compare[@]}" 3 --json "$scratch/disk/r.json"
  [[ $(rounds_in "$scratch/disk/r.json") =~ ^single:[12]\ ddp,dp=2:[12]$ ]] || complain "rows are lost: $(rounds_in "$scratch/disk/r.json")"
  rm "$scratch/disk/full"
  [[ $(ls "$scratch/disk") == $'r.json\nr.profile.json' ]] || complain "half-written files are left: $(ls "$scratch/disk")"
  "${compare[@]}" 3 --json "$scratch/disk/r.json" >"$scratch/out" 2>&1 || complain "the same command again: $(cat "$scratch/out")"
  [[ $(rounds_in "$scratch/disk/r.json") == "single:3 ddp,dp=2:3" ]] || complain "not all rounds: $(rounds_in "$scratch/disk/r.json")"
else
  echo "-- a full disk: skipped, $said"
fi

echo "-- a broken profile"
cp "$scratch/kill.profile.json" "$scratch/good.json"
refused() { # NAME FILE
  local said status
  for command in "predict -m toy_mlp -s ddp --cost-model profiled --profile" "calibrate -m toy_mlp -s ddp --rounds 1 -o"; do
    cp "$2" "$scratch/before"
    said=$("$paragauge" $command "$2" 2>&1 >/dev/null)
    status=$?
    [[ $status == 2 && $said == *"$2"* && $(wc -l <<<"$said") == 1 ]] ||
      complain "$1: ${command%% *}: status $status, expected 2 and one line that names the file: $said"
    cmp -s "$2" "$scratch/before" || complain "$1: ${command%% *} has changed the file"
  done
  echo "$1: $said"
}
head -c "$(($(stat -c %s "$scratch/good.json") / 2))" "$scratch/good.json" >"$scratch/half.json"
refused "half a profile" "$scratch/half.json"
: >"$scratch/empty.json"
refused "an empty profile" "$scratch/empty.json"
head -c 5000 /dev/urandom >"$scratch/random.json"
refused "a profile of random bytes" "$scratch/random.json"
sed '0,/"mean_s": */s//&-/' "$scratch/good.json" >"$scratch/negative.json"
refused "a negative time" "$scratch/negative.json"
sed '0,/"count": *[0-9][0-9]*/s//"count": "many"/' "$scratch/good.json" >"$scratch/text.json"
refused "a text for a number" "$scratch/text.json"
nothing_left "the end"
exit $failed
