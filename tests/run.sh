#!/usr/bin/env bash
# Sets up, builds and runs the tests; arguments go to ctest: tests/run.sh -L sim, tests/run.sh -R conv2d.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

"$root/bench/setup.sh"
exec ctest --test-dir "$root/build" --output-on-failure --no-tests=error -j "$(nproc)" "$@"
