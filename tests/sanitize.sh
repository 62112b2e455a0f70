#!/usr/bin/env bash
# Builds the tests with sanitizers in a folder of their own and runs them.
#
#   tests/sanitize.sh [address|thread] [--sim] [CTEST ARGUMENTS...]
#
# address (the default): AddressSanitizer, LeakSanitizer and UndefinedBehaviorSanitizer in build-asan/; thread:
# ThreadSanitizer in build-tsan/. With the backend when bench/setup.sh has configured build/ (its flags are taken from
# there), without it otherwise or with --sim. PARAGAUGE_SANITIZE_BUILD is another build folder, PARAGAUGE_SANITIZE_JOBS
# the number of jobs (all cores unless set).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

fail() {
  echo "sanitize: error: $*" >&2
  exit 2
}
kind=address
if [[ ${1:-} != -* && -n ${1:-} ]]; then
  kind=$1
  shift
fi
case $kind in
  address) sanitizers="address;undefined" build=$root/build-asan ;;
  thread) sanitizers=thread build=$root/build-tsan ;;
  *) fail "unknown sanitizer '$kind': use address or thread" ;;
esac
build=${PARAGAUGE_SANITIZE_BUILD:-$build}
jobs=${PARAGAUGE_SANITIZE_JOBS:-$(nproc)}
sim_only=0
if [[ ${1:-} == --sim ]]; then
  sim_only=1
  shift
fi

# The flags that bench/setup.sh gave cmake: where LibTorch, Python and the CUDA toolkit lie.
backend=(-DPARAGAUGE_BACKEND=OFF)
what="without the backend"
if ((!sim_only)) && [[ -f $root/build/CMakeCache.txt ]]; then
  cached() { sed -n "s/^$1:[A-Z]*=//p" "$root/build/CMakeCache.txt" | head -n 1; }
  if [[ $(cached PARAGAUGE_BACKEND) == ON ]]; then
    backend=(-DPARAGAUGE_BACKEND=ON)
    for name in CMAKE_PREFIX_PATH Python_EXECUTABLE CUDAToolkit_ROOT CUDA_TOOLKIT_ROOT_DIR CMAKE_CUDA_COMPILER; do
      backend+=("-D$name=$(cached $name)")
    done
    what="with the backend"
  fi
fi
if ((!sim_only)) && [[ ${backend[0]} == *OFF ]]; then
  echo "sanitize: build/ isn't configured with the backend (bench/setup.sh does that): sim only"
fi

mkdir -p "$build"
echo "sanitize: $sanitizers, $what, in $build"
# RelWithDebInfo: the longer tests want speed, the reports want lines.
if ! cmake -S "$root" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo "-DPARAGAUGE_SANITIZE=$sanitizers" \
  "${backend[@]}" >"$build/sanitize.log" 2>&1 ||
  ! cmake --build "$build" -j "$jobs" >>"$build/sanitize.log" 2>&1; then
  tail -n 40 "$build/sanitize.log" >&2
  fail "the build failed: $build/sanitize.log"
fi

# LibTorch is not instrumented. Leaks: what it keeps until the process ends is named in lsan.supp. Threads: races that only
# it is part of are named in tsan.supp; races in our code are found as far as our locks, atomics and threads are seen, which
# is all of them. OpenMP's barriers aren't seen; the ranks have one thread each anyway.
export ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1:check_initialization_order=1
export LSAN_OPTIONS=suppressions=$root/tests/lsan.supp:print_suppressions=0
export UBSAN_OPTIONS=print_stacktrace=1
# ThreadSanitizer wants its own address layout: a kernel with more random bits than it knows makes it abort. And no
# real-time threads: its locks spin, which never ends when a time-shared thread of the same core holds one.
prefix=()
if [[ $kind == thread ]]; then
  export OMP_NUM_THREADS=1 TSAN_OPTIONS=suppressions=$root/tests/tsan.supp:second_deadlock_stack=1:history_size=5
  no_random_layout=(setarch "$(uname -m)" -R) no_real_time=(setpriv --bounding-set=-sys_nice)
  if "${no_random_layout[@]}" true 2>/dev/null; then prefix+=("${no_random_layout[@]}"); fi
  if "${no_real_time[@]}" true 2>/dev/null; then prefix+=("${no_real_time[@]}"); fi
fi
# Not style, must_not_compile and the header test: the compiler's sanitizer changes nothing in them.
exec "${prefix[@]}" ctest --test-dir "$build" --output-on-failure --no-tests=error -j "$jobs" --timeout 1200 \
  -LE 'style|plots' -E 'must_not_compile|sim[.]headers' "$@"
