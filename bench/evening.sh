# What the scripts share that measure for an evening: accuracy.sh, across_hosts.sh, family.sh, own_models.sh and space.sh source
# it (and demo.sh for the last two). They are called with [FOLDER [MINUTES]]; an interrupted run goes on where it stopped.
#
#   begin results/space 60 "$@"          sets out and minutes, builds, makes the folder
#   rounds NAME SHARE ARGUMENTS...       `paragauge compare` on both worlds for SHARE percent of the time, into $out/NAME.json
#   by_strategies NAME SHARE MODEL STRATEGIES...      the same beside plain PyTorch, also with the options $each
#   choose STRATEGIES...                 sets strategies to a -s for each
#   presets_of_two                       every preset that two ranks play, but `pipeline` and `mesh`, which are others with keys
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

begin() {
  out=${3:-$1} minutes=${4:-$2}
  bench/setup.sh --demo
  mkdir -p "$out"
}

rounds() {
  local name=$1 seconds=$((minutes * 60 * $2 / 100))
  shift 2
  echo "$(basename "$0" .sh): $name"
  build/bin/paragauge compare "$@" -w local -w gloo --time-limit "$seconds" --timeout 300 --json "$out/$name.json" >"$out/$name.log"
  tail -n 2 "$out/$name.log"
}

by_strategies() {
  local name=$1 share=$2 model=$3 strategies
  shift 3
  choose "$@"
  rounds "$name" "$share" -m "$model" "${strategies[@]}" "${each[@]}" --peers
}

choose() {
  local strategy
  strategies=()
  for strategy; do strategies+=(-s "$strategy"); done
}

presets_of_two() {
  build/bin/paragauge list | sed -n '/^strategies/,/^keys of/p' | awk '/^  [a-z0-9_]+ /{print $1}' | grep -vxE 'daso|hsdp|pipeline|mesh'
}
