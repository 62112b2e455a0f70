#!/usr/bin/env bash
# Sets up, builds and runs the tests; arguments go to ctest.
#
#   tests/run.sh                 all of them
#   tests/run.sh -L quick        what a minute or two can tell; also: evidence, slow, sim, … (tests/CMakeLists.txt)
#   tests/run.sh -R conv2d       by name
#   tests/run.sh --rerun-failed  what failed in the last run that ended
#   tests/run.sh -F              goes on with a run that was interrupted: only with what it had not finished, failed or not
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

"$root/bench/setup.sh"
output=$(mktemp)
trap 'rm -f "$output"' EXIT
status=0
jobs=$(($(nproc) + 1)) # ranks that wait for each other, one such test at a time, leave a core to another test
ctest --test-dir "$root/build" --output-on-failure --no-tests=error -j "$jobs" "$@" | tee "$output" || status=$?
slowest=$(sed -nE 's/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: ([^ ]+) .* ([0-9.]+) sec.*$/\2 s  \1/p' "$output" | sort -rn | sed -n '1,12p')
[[ -z $slowest ]] || printf '\nThe slowest:\n%s\n' "$slowest"
exit "$status"
