#!/usr/bin/env bash
# Fuzzes the readers of sim with libFuzzer, AddressSanitizer and UndefinedBehaviorSanitizer, one target after the other.
#
#   tests/fuzz/run.sh [INPUTS per target, default 1000000] [TARGET...]
#
# One line per target: inputs, seconds, crashes. Exit status 1 when there was a crash, a hang (10 s) or a leak, or more
# than 512 MiB were used; the input lies in build-fuzz/found/<target>/ then. Put a small one (libFuzzer's
# -minimize_crash=1) into tests/fuzz/regressions/<target>/: the tests fuzz.* play it from then on.
# PARAGAUGE_FUZZ_BUILD is another build folder, PARAGAUGE_FUZZ_SECONDS ends each target after that time, and
# PARAGAUGE_FUZZ_HANG is another limit for a hang: beside others' work, in seconds of the wall clock.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=${PARAGAUGE_FUZZ_BUILD:-$root/build-fuzz}

fail() {
  echo "fuzz: error: $*" >&2
  exit 2
}
inputs=1000000
if [[ ${1:-} =~ ^[0-9]+$ ]]; then
  inputs=$1
  shift
fi
targets=("$@")
if ((${#targets[@]} == 0)); then
  for source in "$root"/tests/fuzz/*.cpp; do
    name=$(basename "$source" .cpp)
    [[ $name == replay ]] || targets+=("$name")
  done
fi
for target in "${targets[@]}"; do
  [[ $target != replay && -f $root/tests/fuzz/$target.cpp ]] || fail "unknown target '$target': see tests/fuzz/*.cpp"
done

# --- clang with libFuzzer -----------------------------------------------------------------------------------------------------
works() {
  local folder result=0
  command -v "$1" >/dev/null || return 1
  folder=$(mktemp -d)
  {
    echo '#include <ranges>'
    echo 'extern "C" int LLVMFuzzerTestOneInput(const unsigned char* d, unsigned long) { return !std::views::split("a", *d).empty() && false; }'
  } >"$folder/x.cpp"
  "$1" -std=c++20 -fsanitize=fuzzer,address,undefined "$folder/x.cpp" -o "$folder/x" >/dev/null 2>&1 || result=1
  rm -rf "$folder"
  return $result
}
find_clang() {
  for clang in clang++-16 clang++; do  # clang 14 can't compile the ranges of GCC 12's library
    if works "$clang"; then return 0; fi
  done
  return 1
}
if ! find_clang; then
  packages=(clang-16 libclang-rt-16-dev)
  as_root=()
  if ((EUID != 0)); then as_root=(sudo); fi
  if ! command -v apt-get >/dev/null || ! command -v "${as_root[0]:-true}" >/dev/null; then
    fail "no clang with libFuzzer; on Debian 12, as root: apt-get install -y ${packages[*]}"
  fi
  echo "fuzz: installing ${packages[*]}"
  mkdir -p "$build"
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${packages[@]}" \
    >"$build/setup.log" 2>&1 || fail "apt-get install ${packages[*]} failed: $build/setup.log"
  find_clang || fail "clang++ can't link -fsanitize=fuzzer,address,undefined though ${packages[*]} are installed"
fi

# --- Build --------------------------------------------------------------------------------------------------------------------
mkdir -p "$build"
if ! cmake -S "$root" -B "$build" -G Ninja -DCMAKE_CXX_COMPILER="$clang" -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DPARAGAUGE_BACKEND=OFF -DPARAGAUGE_FUZZ=ON "-DPARAGAUGE_SANITIZE=address;undefined" \
  -DCMAKE_CXX_FLAGS="-fsanitize=fuzzer-no-link" >"$build/build.log" 2>&1 ||
  ! cmake --build "$build" -j "${PARAGAUGE_FUZZ_JOBS:-1}" --target "${targets[@]/#/fuzz_}" >>"$build/build.log" 2>&1; then
  tail -n 40 "$build/build.log" >&2
  fail "the build failed: $build/build.log"
fi
python3 "$root/tests/fuzz/seeds.py" "$build/seeds"

# --- Run ----------------------------------------------------------------------------------------------------------------------
# A freed block stays poisoned for a while (AddressSanitizer's quarantine); that isn't the target's memory.
export ASAN_OPTIONS=quarantine_size_mb=16:detect_leaks=1:allocator_may_return_null=0
export UBSAN_OPTIONS=print_stacktrace=1
failed=0
printf '%-10s %10s %8s %8s %12s\n' target inputs seconds crashes inputs_per_s
for target in "${targets[@]}"; do
  corpus=$build/corpus/$target found=$build/found/$target log=$build/$target.log
  mkdir -p "$corpus" "$found"
  folders=("$corpus" "$build/seeds/$target")
  if [[ -d $root/tests/fuzz/regressions/$target ]]; then folders+=("$root/tests/fuzz/regressions/$target"); fi
  start=$SECONDS crashes=0
  "$build/tests/fuzz/fuzz_$target" -runs="$inputs" -max_total_time="${PARAGAUGE_FUZZ_SECONDS:-0}" -max_len=8192 \
    -timeout="${PARAGAUGE_FUZZ_HANG:-10}" -rss_limit_mb=512 -dict="$build/seeds/$target.dict" -artifact_prefix="$found/" -print_final_stats=1 \
    "${folders[@]}" >"$log" 2>&1 || crashes=1
  seconds=$((SECONDS - start))
  executed=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  executed=${executed:-$(sed -n 's/^#\([0-9]*\).*/\1/p' "$log" | tail -n 1)}
  printf '%-10s %10s %8s %8s %12s\n' "$target" "${executed:-0}" "$seconds" "$crashes" "$((${executed:-0} / (seconds > 0 ? seconds : 1)))"
  if ((crashes)); then
    failed=1
    grep -m 3 -E 'ERROR|SUMMARY|broken promise|what\(\)|runtime error|Test unit written' "$log" | sed 's/^/  /' || true
    echo "  $log, $found/"
  fi
done
exit $failed
