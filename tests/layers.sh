#!/usr/bin/env bash
# Fails when a layer includes what lies above it (tests -> all, bench -> backend, sim; backend -> sim; sim -> nothing), and
# when a C++ file is missing in its layer's CMakeLists.txt: an unlisted test would silently never run.
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
[[ $failed == 0 ]] && echo "layers: sim <- backend <- bench <- tests holds"
exit $failed
