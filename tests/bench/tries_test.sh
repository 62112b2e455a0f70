#!/usr/bin/env bash
# Nasty tries at files and arguments. Each failed once: a device or a link was replaced by a file, results were overwritten or
# lost without a word, a wrong value was taken for another, a message was unreadable, or the exit status said "all is well".
#
#   tests/bench/tries_test.sh build/bin/paragauge          77: a private /dev isn't permitted here; all else is well
set -uo pipefail
paragauge=$(realpath "$1")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" || exit 1
tries=0 failed=0 skipped=0
check() { # NAME command...: the command must succeed
  local name=$1
  shift
  ((++tries))
  "$@" && return
  ((++failed))
  printf 'FAILED: %s\n' "$name"
}
# refuses STATUS 'part of the message' argument...: one line of at most 300 bytes, all of them printable, and that status.
refuses() {
  local expected_status=$1 expected=$2 said status
  shift 2
  said=$("$paragauge" "$@" 2>&1 >/dev/null)
  status=$?
  ((++tries))
  [[ $status == "$expected_status" && $said == *"$expected"* && ${#said} -le 300 && $(wc -l <<<"$said") == 1 ]] && return
  ((++failed))
  printf 'FAILED: paragauge %s\n  expected status %d and one line with: %s\n  got status %d: %s\n' "$*" "$expected_status" "$expected" $status "$said"
}
run() { "$paragauge" "$@" >out 2>err; }
predict() { run predict -m toy_mlp -s single "$@"; }
is_result() { grep -q '"format": "paragauge-result' "$1"; }
only() { # what the folder holds, hidden files too
  local folder=$1
  shift
  [[ $(ls -A "$folder" | sort | tr '\n' ' ') == "$(printf '%s\n' "$@" | sort | tr '\n' ' ')" ]]
}
fails_with() { # STATUS 'part of the message' command...
  local status=$1 said=$2
  shift 2
  "$@"
  [[ $? == "$status" ]] && grep -qF -- "$said" err
}

# ---- Output files
mkdir links && echo old >links/target && ln -s target links/link && ln -s links/link far && ln -s unborn links/dangling
predict --csv far
check "a link to a link stays one" test -L far -a -L links/link
check "a link's target is rewritten" grep -q toy_mlp links/target
predict --json links/dangling
check "a link that leads nowhere stays one" test -L links/dangling
check "its target is made" is_result links/unborn
check "nothing is left beside them" only links target link dangling unborn

echo secret >private && chmod 600 private
predict --json private
check "a file keeps its mode" [ "$(stat -c %a private)" = 600 ]
if ((EUID == 0)); then
  chown 65534:65534 private
  predict --json private
  check "a file keeps its owner" [ "$(stat -c %u:%g private)" = 65534:65534 ]
fi

mkdir folder && mkdir folder/d
fails_with 75 "folder/d: can't be written: Is a directory" predict --json folder/d
check "a folder as output is refused and leaves nothing" [ $? = 0 -a "$(ls -A folder)" = d ]
check "it is refused before anything is forecast" [ ! -s out ]

mkfifo pipe
timeout 20 cat pipe >received &
reader=$!
predict --json pipe
check "a named pipe stays one" [ -p pipe ]
[[ -p pipe ]] || kill $reader
wait $reader 2>/dev/null
check "what is written into a named pipe arrives" is_result received
"$paragauge" predict -m toy_mlp -s single --json /proc/self/fd/1 >both 2>err
check "standard output, redirected into a file, can be the result file, after the table" grep -qz 'What limits.*"format": "paragauge-result' both
"$paragauge" predict -m toy_mlp -s single --csv >(cat >substituted) >out 2>err
sleep 0.2
check "a process can be the output" grep -q toy_mlp substituted

mkdir hostile && echo untouched >victim
bash -c 'ln -s ../victim "hostile/r.json.part$$" && exec "$0" predict -m toy_mlp -s single --json hostile/r.json >out' "$paragauge"
check "a link planted under the foreseen name of a part isn't followed" [ "$(cat victim)" = untouched -a ! -L hostile/r.json ]
mkdir trap && ln -s ../victim trap/.r.json.lock
check "a link planted as a lock isn't followed" fails_with 75 "trap/r.json: can't be written: .r.json.lock beside it: Too many levels of symbolic links" predict --json trap/r.json

mkdir small && echo before >small/r.csv
fails_with 75 "small/r.csv: can't be written: File too large" \
  bash -c 'ulimit -f 1; "$0" predict -m toy_mlp -s single --csv small/r.csv >/dev/full 2>err || exit $?' "$paragauge"
check "a limit of the file size ends with a message, the old file and nothing beside it" [ $? = 0 -a "$(cat small/r.csv)" = before -a "$(ls -A small)" = r.csv ]
long=$(printf 'x%.0s' {1..244}).json
check "the longest of names" predict --json "$long"
check "is written under this name" is_result "$long"

mkdir busy
exec 8>busy/.r.json.lock && flock 8
check "a file that another command writes is refused" fails_with 75 "busy/r.json: another paragauge command is writing this file" predict --json busy/r.json
check "by another spelling, too" fails_with 75 "another paragauge command" predict --json busy/../busy/./r.json
check "and as a profile" fails_with 75 "another paragauge command" run calibrate -m toy_mlp -s single -w local --rounds 1 -o busy/r.json
exec 8>&-
predict --json busy/r.json
check "the lock that a killed command leaves locks nobody out and is tidied up" only busy r.json

predict --json one.json
refuses 2 "x and ./x are the same file" predict -m toy_mlp -s single --json x --csv ./x
ln -s one.json two.json && ln one.json three.json
refuses 2 "are the same file" predict -m toy_mlp -s single --json one.json --csv two.json
refuses 2 "are the same file" predict -m toy_mlp -s single --json one.json --csv three.json
refuses 2 "one.json is read, too" report one.json --json one.json
refuses 2 "two.json is read, too" report one.json --csv two.json
refuses 2 "one.json is read, too" predict -m toy_mlp -s single --cost-model fitted --profile one.json --json one.json
cat >m.json <<'MODEL'
{"format": "paragauge-model-1", "name": "bad\u001b[31m\u009bname", "input": [4], "target": {"classes": 2}, "global_batch": 4,
 "optimizer": {"kind": "sgd", "lr": 0.1}, "loss": "mse_loss", "nodes": [{"name": "a\u001b]0;title\u0007", "op": "linear", "out_features": 2}]}
MODEL
cp m.json own.json
refuses 2 "own.json is read, too" predict -m own.json,global_batch=8 -s single --json own.json

# ---- Standard output
for command in list "describe toy_mlp" "predict -m toy_mlp -s single" "predict -m toy_mlp -s single --program" "report one.json" "predict --help"; do
  "$paragauge" $command >/dev/full 2>err
  check "$command on a full disk" [ $? = 75 -a "$(cat err)" = "paragauge: standard output can't be written: No space left on device" ]
done
"$paragauge" list 2>err | true
check "into a closed pipe" [ "${PIPESTATUS[0]}" = 75 -a "$(cat err)" = "paragauge: standard output can't be written: Broken pipe" ]
"$paragauge" list >&- 2>err
check "into nothing" [ $? = 75 -a "$(cat err)" = "paragauge: standard output can't be written: Bad file descriptor" ]

# ---- Names that hold control characters
no_controls() { ! LC_ALL=C grep -qP '[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]' "$@"; }
cp m.json $'e\e[31m.json'
for command in describe "predict -s single --json $scratch/named.json -m"; do
  run $command m.json
  check "${command%% *}: names in a file" no_controls out err
  run $command $'e\e[31m.json'
  check "${command%% *}: the name of a file" no_controls out err
done
run predict -m m.json -s single --program
check "the Program's names" no_controls out
run report named.json
check "names in a result" no_controls out err
for wrong in $'\e[31mconvnet' $'e\e[31m' $'no\e[31m.json' $'e\e[31m.json,image=4'; do
  run describe "$wrong"
  check "an error's names" no_controls err
done

# ---- Flags that contradict each other
p=(predict -m toy_mlp -s single)
for other in "-w gloo" "--device cuda" "--network 1gbit"; do
  refuses 2 "--cluster can't be combined with --" "${p[@]}" -c dgx_a100 $other
done
refuses 2 "--profile is read by --cost-model fitted and profiled only, found analytic" "${p[@]}" --profile one.json
for other in "--json x" "--csv x" "--epoch 5" "--scale flops=2" "--cost-model analytic"; do
  refuses 2 "--program can't be combined with ${other%% *}" "${p[@]}" --program $other
done
refuses 2 "device=cuda needs world=local" "${p[@]}" --device cuda -w gloo

# ---- Wrong values
for option in -c --scale --json --csv --network --cost-model; do
  refuses 2 "must not be empty" "${p[@]}" "$option" ""
done
refuses 2 "--strategy: must not be empty" predict -m toy_mlp -s ""
refuses 2 "--devices: must be a whole number from 1 to 1048576, found '0'" "${p[@]}" --devices 0
refuses 2 "--ranks: must be a whole number from 1 to 1048576, found '0'" "${p[@]}" --ranks 0
for value in 0 -1 9223372036854775808 1e3 0x10 5. ' 5'; do
  refuses 2 "--epoch: must be a whole number from 1 to 1000000000000, found '$value'" "${p[@]}" "--epoch=$value"
done
refuses 2 "--rows: must be a whole number from 1 to 10000000, found '0'" describe toy_mlp --rows 0
for command in measure compare; do
  refuses 2 "--steps: must be a whole number from 1 to 1000000, found '0'" $command -m toy_mlp -s single --steps 0
  refuses 2 "--steps: must be a whole number from 1 to 1000000, found '4294967297'" $command -m toy_mlp -s single --steps 4294967297
done
refuses 2 "--rounds: must be a whole number from 1 to 100000, found '0'" compare -m toy_mlp -s single --rounds 0
refuses 2 "--seed: must be a whole number from 0 to 4294967295, found '-1'" compare -m toy_mlp -s single --seed=-1
for value in inf nan 1e300 0 -1 1s; do
  refuses 2 "--timeout: must be a number from 0.1 to 86400, found '$value'" measure -m toy_mlp -s ddp -w gloo "--timeout=$value"
done
refuses 2 "--time-limit: must be a number from 0 to 10000000, found 'nan'" compare -m toy_mlp -s single --time-limit nan
refuses 2 "network=999999999999999999999gbit must be a number with kbit, mbit or gbit (100mbit, 1gbit, 2.5gbit) up to 8000gbit" \
  "${p[@]}" -w gloo --network 999999999999999999999gbit
refuses 2 "model 'toy_mlp,loss=huber': 'huber' is not a loss; known: mse_loss, cross_entropy" describe toy_mlp,loss=huber
predict -s single -s single,microbatches=1 -w local local --json twice.json
check "a strategy and a world given twice are used once" \
  python3 -c 'import json; (cell,) = json.load(open("twice.json"))["cells"]; assert len(cell["rounds"]["round"]) == 1'

# ---- What was meant
refuses 2 "a command is missing; known: list, describe, import, predict"
refuses 2 "unknown command 'foo'; known: list, describe, import, predict" foo
refuses 2 "; did you mean 'predict'?" prdict -m toy_mlp -s single
refuses 2 "unknown option '--hlep'; did you mean '--help'?" --hlep
refuses 2 "predict: unknown option '--jsn'; did you mean '--json'?" "${p[@]}" --jsn x
refuses 2 "predict: unknown option '--modle'; did you mean '--model'?" predict --modle=toy_mlp -s single
refuses 2 "predict: unexpected argument 'toy_mlp'" predict toy_mlp -s single
for wrong in "model=-m resnet51 -s single=resnet50" "model=-m toymlp -s single=toy_mlp" "strategy=-m toy_mlp -s pipelin=pipeline" "cluster=-m toy_mlp -s single -c dgx_a10=dgx_a100" \
  "world=-m toy_mlp -s single -w glo=gloo" "cost model=-m toy_mlp -s single --cost-model analitic=analytic" \
  "device=-m toy_mlp -s single --device cud=cuda" "schedule=-m toy_mlp -s pipeline,schedule=gpip=gpipe"; do
  name=${wrong##*=} arguments=${wrong#*=}
  refuses 2 "; did you mean '$name'?" predict ${arguments%=*}
done
refuses 2 "; did you mean 'overlap'?" predict -m toy_mlp -s ddp,overlpa=1
refuses 2 "; did you mean 'bandwidth'?" "${p[@]}" --scale bandwith=2

# ---- Devices, in a /dev of our own
in_dev() { # 'commands' that may say "$0" for paragauge
  local status
  mkdir dev
  unshare -m bash -c 'mount -t tmpfs none dev && mknod -m 666 dev/null c 1 3 && mknod -m 666 dev/full c 1 7 &&
    mknod -m 666 dev/urandom c 1 9 && ln -s /proc/self/fd/1 dev/stdout && mount --move dev /dev || exit 99
    '"$1" "$paragauge" 2>err
  status=$?
  rmdir dev
  return $status
}
if in_dev true; then
  predict_in='"$0" predict -m toy_mlp -s single'
  check "/dev/null stays a device, and nothing lies beside it" in_dev "$predict_in --csv /dev/null >out && [ -c /dev/null ] && [ \$(ls -A /dev | wc -l) = 4 ]"
  check "both outputs may be /dev/null" in_dev "$predict_in --json /dev/null --csv /dev/null >out && [ -c /dev/null ]"
  check "/dev/stdout stays a link, and gets the table" in_dev "$predict_in --csv /dev/stdout >out && [ -L /dev/stdout ] && grep -q '^toy_mlp\|,toy_mlp\|\"toy_mlp' out"
  check "/dev/full stays a device, and says that it is full" in_dev "$predict_in --json /dev/full >out 2>err; [ \$? = 75 -a -c /dev/full ] && grep -q \"/dev/full: can't be written: No space left on device\" err"
else
  echo "tries: a private /dev isn't permitted: $(cat err)"
  skipped=1
fi

echo "tries: $((tries - failed)) of $tries are good"
((failed == 0)) || exit 1
((skipped == 0)) || exit 77
