#!/usr/bin/env bash
# must_not_compile.sh COMPILER FILE: the file must compile as it is, and with PARAGAUGE_WRONG the compiler must refuse it
# with the error that the file names in its comment "// error: …" (an extended regular expression).
set -euo pipefail
compiler=$1 file=$2
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export LC_ALL=C  # messages in English

expected=$(sed -n 's,^.*// \(error: .*\)$,\1,p' "$file")
[[ -n $expected ]] || { echo "$file names no error"; exit 1; }
compile=("$compiler" -std=c++20 -fsyntax-only -I "$root")
"${compile[@]}" "$file" || { echo "$file doesn't compile even without its wrong line"; exit 1; }
if found=$("${compile[@]}" -DPARAGAUGE_WRONG "$file" 2>&1); then
  echo "$file compiles with its wrong line"
  exit 1
fi
grep -qE -- "error: (${expected#error: })" <<<"$found" || { echo "$file: expected /$expected/, found:"; echo "$found"; exit 1; }
