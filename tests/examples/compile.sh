#!/usr/bin/env bash
# compile.sh COMPILER LAYER INCLUDE_FOLDER...: the examples of the layer's headers must compile.
set -euo pipefail
compiler=$1 layer=$2
shift 2
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
source=$(mktemp --suffix .cpp)
trap 'rm -f "$source"' EXIT
"$root/tests/examples/extract.sh" "tests/examples/$layer.hpp" "$layer" >"$source"
"$compiler" -std=c++20 -fsyntax-only -w "${@/#/-isystem}" -I "$root" "$source"
echo "examples: $(grep -c '^#line' "$source") headers of $layer"
