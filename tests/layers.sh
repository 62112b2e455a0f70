#!/usr/bin/env bash
# Fails when a layer includes what lies above it (tests -> all, bench -> backend, sim; backend -> sim; sim -> nothing), when
# a folder of sim includes one that comes later in the data flow, and when a C++ file is missing in its layer's CMakeLists.txt: an unlisted test would silently never run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

failed=0
# forbid LAYER WHAT: no file in LAYER may #include a path that starts with WHAT (an extended regular expression).
forbid() {
  [[ -d $1 ]] || return 0
  local found
  found=$(grep -rnE --include='*.hpp' --include='*.h' --include='*.cpp' --include='*.cu' \
    "^[[:space:]]*#[[:space:]]*include[[:space:]]*[<\"](\.\./)*($2)" "$1" || true)
  if [[ -n $found ]]; then
    printf 'layers: %s/ must not include:\n%s\n' "$1" "$found"
    failed=1
  fi
}
# The folders of sim as the data flows: each may include itself, those before it, and the words on top (sim/*.hpp).
flow=(text mesh model strategy cluster program lower cost simulate calibrate plan report)
for ((i = 0; i < ${#flow[@]}; ++i)); do
  later=$(IFS='|'; echo "${flow[*]:i+1}")
  [[ -z $later ]] || forbid "sim/${flow[i]}" "sim/($later)/"
done
for folder in sim/*/; do
  [[ " ${flow[*]} catalog " == *" $(basename "$folder") "* ]] || { echo "layers: $folder has no place in the data flow: ${flow[*]}"; failed=1; }
done
words=$(grep -nE '^#include "sim/[a-z_]+/' sim/*.hpp sim/*.cpp || true)
[[ -z $words ]] || { printf 'layers: the words on top of sim must not include its folders:\n%s\n' "$words"; failed=1; }
forbid sim 'backend/|bench/|tests/|torch/|ATen/|c10/|c10d/|caffe2/|gloo/|cuda|cublas|cudnn|cupti|nccl|nvml'
forbid backend 'bench/|tests/'
forbid bench 'tests/'
for layer in sim backend bench tests; do
  for file in $(cd "$layer" && find . -path ./must_not_compile -prune -o \( -name '*.cpp' -o -name '*.hpp' \) -print | sed 's,^\./,,' | sort); do
    grep -qE "(^|[[:space:](])${file//./\\.}([[:space:])]|$)" "$layer/CMakeLists.txt" && continue
    echo "layers: $layer/$file is not listed in $layer/CMakeLists.txt"
    failed=1
  done
done
[[ $failed == 0 ]] && echo "layers: sim (${flow[*]}) <- backend <- bench <- tests holds"
exit $failed
