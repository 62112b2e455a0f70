#!/usr/bin/env bash
# What tests of the command line share; for bash's `source`, with the program as $1.
#   refuses 'part of the message' argument...     status 2, and one line on stderr with this part
#   accepts argument...                           status 0; what it prints is in $scratch/out
#   says 'pattern'                                of what the last accepted command printed, in a line of it
#   says_across 'pattern'                         the same, wherever its lines break
#   exit $failed
paragauge=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0
refuses() {
  local expected=$1 said status
  shift
  said=$("$paragauge" "$@" 2>&1 >/dev/null)
  status=$?
  if [[ $status != 2 || $said != *"$expected"* || $(wc -l <<<"$said") != 1 ]]; then
    printf 'paragauge %s\n  expected status 2 and one line with: %s\n  got status %d: %s\n' "$*" "$expected" "$status" "$said"
    failed=1
  fi
}
accepts() {
  "$paragauge" "$@" >"$scratch/out" 2>&1 || { printf 'paragauge %s\n  failed: %s\n' "$*" "$(cat "$scratch/out")"; failed=1; }
}

says() { found_in "$scratch/out" "$1"; }
says_across() { found_in <(tr '\n' ' ' <"$scratch/out") "$1"; }
found_in() { grep -q -- "$2" "$1" || { printf "doesn't say '%s': %s\n" "$2" "$(cat "$scratch/out")"; failed=1; }; }
