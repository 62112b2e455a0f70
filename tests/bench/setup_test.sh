#!/usr/bin/env bash
# bench/setup.sh on odd machines: without root, without network, interrupted, with more cores than memory. In a tree of its own,
# on a PATH that has only what is put there: cmake notes how it is called, apt-get must never be.
#
#   tests/bench/setup_test.sh
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failed=0
complain() {
  echo "FAILED: $*"
  tail -n 8 "$scratch/out"
  failed=1
}
mkdir -p "$scratch/bench" "$scratch/path"
cp "$root/bench/setup.sh" "$scratch/bench"
for program in awk basename bash cat date dirname env flock grep head ls mkdir nproc paste rm sed tail tee touch; do
  real=$(command -v $program) && ln -s "$real" "$scratch/path"
done
fake() { # NAME: a program with the body that stdin has
  { printf '#!/bin/bash\n'; cat; } >"$scratch/path/$1"
  chmod +x "$scratch/path/$1"
}
fake g++ </dev/null
fake ninja </dev/null
fake sudo <<<'exit 1'
fake apt-get <<<'touch apt-get-was-called; exit 1'
fake dpkg-query <<<'echo "installed 1.0"'
fake cmake <<'CMAKE'
echo "$*" >>calls
[[ ! -f broken ]] || exit 1
mkdir -p build/bin
[[ $* != *--preset* ]] || { touch build/build.ninja; echo "PARAGAUGE_BACKEND:STRING=OFF" >build/CMakeCache.txt; }
[[ $* != *--build* ]] || touch build/bin/paragauge
CMAKE
chmod -R a+rwX "$scratch"
# As nobody, where the test has the rights of root.
as_nobody=()
((EUID != 0)) || as_nobody=(setpriv --reuid=65534 --regid=65534 --clear-groups)
setup() { # STATUS argument...
  local expected=$1 got
  shift
  rm -f "$scratch/calls"
  (cd "$scratch" && PATH=$scratch/path "${as_nobody[@]/setpriv/$(command -v setpriv)}" "$scratch/bench/setup.sh" "$@") >"$scratch/out" 2>&1 </dev/null
  got=$?
  [[ $got == "$expected" ]] || complain "setup.sh $*: status $got, expected $expected"
}
says() { grep -qF -- "$1" "$scratch/out" || complain "doesn't say '$1'"; }
calls() { grep -qE -- "$1" "$scratch/calls" || complain "cmake isn't called with $1, but: $(cat "$scratch/calls" 2>&1)"; }
calls_not() { ! grep -qE -- "$1" "$scratch/calls" 2>/dev/null || complain "cmake is called with $1"; }

setup 2 --forecast
says "unknown argument '--forecast': use --forecasts, --demo, --no-build or nothing"

echo "-- without root"
mv "$scratch/path/ninja" "$scratch/ninja"
fake dpkg-query <<<'[[ ${@: -1} != libfmt-dev ]] || exit 1; echo "installed 1.0"'
setup 1 --forecasts
says "as root, run: apt-get install -y ninja-build libfmt-dev"
calls_not .
mv "$scratch/ninja" "$scratch/path/ninja"
fake dpkg-query <<<'echo "installed 1.0"'

echo "-- everything is there: neither root nor network"
touch "$scratch/broken"
setup 1 --forecasts
says "configure (sim, Release) failed"
rm "$scratch/broken"
setup 0 --forecasts
calls "--preset sim .*--fresh"
calls "--build .* --target paragauge"
says "note: libfmt-dev is 1.0, tested with 9.1.0"
says "export PATH=\"$scratch/build/bin:\$PATH\""
setup 0 --forecasts
calls_not --preset
[[ ! -e $scratch/apt-get-was-called ]] || complain "apt-get is called where nothing is missing"

echo "-- more cores than memory, and one core"
rm "$scratch/path/nproc"
fake nproc <<<'echo 100000'
setup 0 --forecasts
says "of 100000 cores compile, since each needs 2 GiB of memory"
fake nproc <<<'echo 1'
setup 0 --forecasts
calls "--build .* -j 1 "

echo "-- a container's limits: its own control group's, and those above"
fake nproc <<<'echo 8'
export PARAGAUGE_SYSTEM_ROOT=$scratch/system
groups=$scratch/system/sys/fs/cgroup
mkdir -p "$scratch/system/proc/self" "$groups"/{a/b,cpu/a/b,memory/a/b}
printf '5:cpuset:/\n4:memory:/a/b\n3:cpu,cpuacct:/a/b\n0::/\n' >"$scratch/system/proc/self/cgroup"
echo 9223372036854771712 >"$groups/memory/a/b/memory.limit_in_bytes"
echo -1 >"$groups/cpu/a/b/cpu.cfs_quota_us"
echo 350000 >"$groups/cpu/a/cpu.cfs_quota_us"
for folder in a/b a; do echo 100000 >"$groups/cpu/$folder/cpu.cfs_period_us"; done
setup 0 --forecasts
calls "--build .* -j 3 "
echo $((4 << 30)) >"$groups/memory/memory.limit_in_bytes"
setup 0 --forecasts
says "note: 2 of 3 cores compile, since each needs 2 GiB of memory"
rm -r "$groups"/{cpu,memory}
echo '0::/a/b' >"$scratch/system/proc/self/cgroup"
echo max >"$groups/a/b/memory.max"
echo "max 100000" >"$groups/a/b/cpu.max"
echo "250000 100000" >"$groups/a/cpu.max"
setup 0 --forecasts
calls "--build .* -j 2 "
echo "50000 100000" >"$groups/cpu.max"
setup 0 --forecasts
calls "--build .* -j 1 "
unset PARAGAUGE_SYSTEM_ROOT

echo "-- a build with a backend stays one"
echo "PARAGAUGE_BACKEND:STRING=ON" >"$scratch/build/CMakeCache.txt"
setup 0 --forecasts
says "note: build/ is set up for more (preset dev) and stays so"
calls_not --preset
calls "--build .* --target paragauge"

((failed == 0)) && echo "setup: all right"
exit $failed
