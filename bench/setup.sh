#!/usr/bin/env bash
# Installs what paragauge needs, configures and builds it. Run it again at any time: what is already there is left alone.
#
#   bench/setup.sh               everything, with tests and suites; programs land in build/bin/
#   bench/setup.sh --forecasts   build/bin/paragauge for list, describe, predict, plan and report: no LibTorch, two minutes
#   bench/setup.sh --demo        build/bin/paragauge with all of its commands: no tests, no suites
#   bench/setup.sh --no-build    up to and with the configuration of build/; also after one of the two above
#
# Each goes on from what another has built; where build/ is set up for more, it stays so. PARAGAUGE_BUILD_TYPE=Release|
# RelWithDebInfo|Debug chooses the build type (Release unless set), CMAKE_BUILD_PARALLEL_LEVEL=N how many files are compiled at
# a time (as many as cores and free memory allow unless set). Details go to build/setup.log.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

preset=dev # of CMakePresets.json
[[ ${CI:-} != true ]] || preset=ci
build=1
for argument in "$@"; do
  case $argument in
    --forecasts) preset=sim ;;
    --demo) preset=demo ;;
    --no-build) build=0 ;;
    -h | --help) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "setup: error: unknown argument '$argument': use --forecasts, --demo, --no-build or nothing" >&2; exit 2 ;;
  esac
done
build_type=${PARAGAUGE_BUILD_TYPE:-Release}
case $build_type in
  Release | RelWithDebInfo | Debug) ;;
  *) echo "setup: error: PARAGAUGE_BUILD_TYPE=$build_type: use Release, RelWithDebInfo or Debug" >&2; exit 2 ;;
esac

# Debian packages and the versions they were tested with (a prefix of Debian's version); programs, wherever they come from, and
# the packages that bring them.
packages=(nlohmann-json3-dev=3.11.2 libcli11-dev=2.1.2 libfmt-dev=9.1.0 libeigen3-dev=3.4.0)
programs=(g++:g++ cmake:cmake ninja:ninja-build)
if [[ $preset != sim ]]; then
  packages+=(libgloo-dev=0.0~git20220518) # headers only: torch's wheel has gloo's symbols but leaves its headers out
fi
if [[ $preset == dev || $preset == ci ]]; then
  packages+=(libbenchmark-dev=1.7.1 libgtest-dev=1.12.1)
  programs+=(ccache:ccache git:git clang-format:clang-format ip:iproute2)
fi
# The CUDA toolkit's part that torch's CMake files insist on, from wheels, where the machine has no toolkit of this major version.
cuda_major=13
cuda_wheels=(nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-cccl==13.0.85)

mkdir -p build
log=$root/build/setup.log
exec 9>build/setup.lock # what is started here holds it too: after a kill, the next setup waits for what goes on alone
flock -n 9 || { echo "setup: waiting for another setup in this tree"; flock 9; }
echo "== bench/setup.sh $* ($(date '+%F %T'))" >"$log"

say() { echo "setup: $*" | tee -a "$log"; }
fail() {
  echo "setup: error: $*" | tee -a "$log" >&2
  exit 1
}
trap 'echo "setup: error: line $LINENO: $BASH_COMMAND" | tee -a "$log" >&2' ERR
# step TEXT COMMAND...: runs the command with its output in the log; on failure shows the log's end and stops.
step() {
  local text=$1 start=$SECONDS
  shift
  printf '\n== %s: %s\n' "$text" "$*" >>"$log"
  if "$@" >>"$log" 2>&1; then
    say "$text: $((SECONDS - start)) s"
  else
    echo "setup: error: $text failed after $((SECONDS - start)) s; the end of $log:" >&2
    tail -n 40 "$log" >&2
    exit 1
  fi
}
# configure PRESET OPTION...: unless build/ is configured just so.
configure() {
  local command=(cmake -S "$root" --preset "$1" -DCMAKE_BUILD_TYPE="$build_type" "${@:2}")
  [[ ! -f build/build.ninja || ! -f build/setup.configure || $(<build/setup.configure) != "${command[*]}" ]] || return 0
  rm -f build/setup.configure
  step "configure ($1, $build_type)" "${command[@]}" --fresh # which keeps objects
  echo "${command[*]}" >build/setup.configure
}
# in_groups CONTROLLER FILE...: a line with what the FILEs say for each control group that this process is in, and those above;
# CONTROLLER is version 1's, '' asks version 2.
in_groups() {
  local system=${PARAGAUGE_SYSTEM_ROOT:-} group folder # where proc and sys lie, for tests
  folder=$system/sys/fs/cgroup${1:+/$1}
  group=$(sed -nE "s,^[0-9]+:([^:]+\,)*$1(\,[^:]+)*:,,p" "$system/proc/self/cgroup" 2>/dev/null | head -n 1 || true)
  while :; do
    # shellcheck disable=SC2046,SC2005 # on one line
    echo $(cd "$folder$group" 2>/dev/null && cat "${@:2}" 2>/dev/null)
    ((${#group} > 1)) || break
    group=${group%/*}
  done
}
# compile TEXT ARGUMENT...: builds with a compiler per core that this container has, fewer where memory lacks for 2 GiB each.
compile() {
  local text=$1 gib=2 jobs cores memory_kB
  cores=$({ echo "$(nproc) 1"; in_groups '' cpu.max; in_groups cpu cpu.cfs_quota_us cpu.cfs_period_us; } | # "max 100000", "-1 100000"
    awk '$1 + 0 > 0 && $2 + 0 > 0 { its = $1 < $2 ? 1 : int($1 / $2); if (!least || its < least) least = its } END { print least }')
  memory_kB=$({ awk '/^MemAvailable:/ { printf "%.0f\n", 1024 * $2 }' /proc/meminfo; in_groups '' memory.max; in_groups memory memory.limit_in_bytes; } |
    awk '$1 + 0 > 0 && (!least || $1 + 0 < least) { least = $1 + 0 } END { printf "%.0f\n", least / 1024 }')
  jobs=$((memory_kB / (gib << 20)))
  ((jobs > 0)) || jobs=1
  if ((jobs < cores)); then say "note: $jobs of $cores cores compile, since each needs $gib GiB of memory"; else jobs=$cores; fi
  step "$text" cmake --build "$root/build" -j "${CMAKE_BUILD_PARALLEL_LEVEL:-$jobs}" "${@:2}"
}
# finish TEXT: the last lines of a set-up that has built something.
finish() {
  say "programs: $(cd build && ls bin/* | sed 's,^,build/,' | paste -sd ' ')$1"
  say "to call them by name: export PATH=\"$root/build/bin:\$PATH\""
}
rank_of() { case $1 in sim) echo 1 ;; demo) echo 2 ;; dev | ci) echo 3 ;; *) echo 0 ;; esac; }
goal=$preset
# The preset that build/ is like, whoever has configured it.
configured=
has() { grep -qE "^PARAGAUGE_$1:[A-Z]+=$2\$" build/CMakeCache.txt; }
if [[ -f build/build.ninja && -f build/CMakeCache.txt ]]; then
  if has BACKEND OFF; then configured=sim; elif has TESTS OFF; then configured=demo; else configured=dev; fi
  [[ $configured != dev ]] || ! has WERROR ON || configured=ci
fi
if (($(rank_of "$configured") > $(rank_of "$goal"))); then
  say "note: build/ is set up for more (preset $configured) and stays so"
  preset=$configured
fi

# --- Debian packages ----------------------------------------------------------------------------------------------------------
wanted=()
for program in "${programs[@]}"; do
  command -v "${program%%:*}" >/dev/null || wanted+=("${program#*:}")
done
[[ $goal == sim ]] || python3 -c 'import ensurepip, venv' 2>/dev/null || wanted+=(python3 python3-venv)
installed() { dpkg-query -W -f '${db:Status-Status} ${Version}\n' "$1" 2>/dev/null | sed -n 's/^installed //p' | head -n 1; }
if command -v dpkg-query >/dev/null; then
  for package in "${packages[@]}"; do
    [[ -n $(installed "${package%%=*}") ]] || wanted+=("${package%%=*}")
  done
fi
if ((${#wanted[@]})); then
  command -v apt-get >/dev/null || fail "missing, and this is no Debian: ${wanted[*]}"
  as_root=()
  if ((EUID != 0)); then # sudo asks for a password only where somebody can type it
    { command -v sudo && { [[ -t 0 ]] || sudo -n true; }; } >/dev/null 2>&1 ||
      fail "missing Debian packages, and you are neither root nor may use sudo; as root, run: apt-get install -y ${wanted[*]}"
    as_root=(sudo)
  fi
  say "missing Debian packages: ${wanted[*]}"
  # After an interrupted installation apt-get refuses everything until this has been done.
  step "dpkg --configure -a" "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive dpkg --configure -a
  step "apt-get update" "${as_root[@]}" apt-get -o Acquire::Retries=3 update
  for i in "${!wanted[@]}"; do # ask for the tested version where the archive has it
    for package in "${packages[@]}"; do
      [[ ${package%%=*} == "${wanted[i]}" ]] || continue
      version=$(apt-cache madison "${wanted[i]}" | awk -v pin="${package#*=}" 'index($3, pin) == 1 { print $3; exit }')
      [[ -z $version ]] || wanted[i]+="=$version"
    done
  done
  step "apt-get install" "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -o Acquire::Retries=3 -o DPkg::Lock::Timeout=600 install -y --no-install-recommends "${wanted[@]}"
fi
if command -v dpkg-query >/dev/null; then
  other=0
  for package in "${packages[@]}"; do
    version=$(installed "${package%%=*}")
    echo "${package%%=*} $version" >>"$log"
    [[ $version == "${package#*=}"* ]] || { say "note: ${package%%=*} is $version, tested with ${package#*=}"; other=1; }
  done
  ((other)) || say "Debian packages: ${#packages[@]} present in the tested versions"
fi

# --- Forecasts need no more ----------------------------------------------------------------------------------------------------
if [[ $goal == sim ]]; then
  [[ $preset != sim ]] || configure sim
  if ((build)); then
    compile "build paragauge" --target paragauge
    finish "$([[ $preset != sim ]] || echo ", for list, describe, predict, plan and report")"
  fi
  exit 0
fi

# --- Python packages, LibTorch among them; sim, which needs none of them, is compiled while they come ---------------------------
python=$root/.venv/bin/python
pip=("$python" -m pip install --disable-pip-version-check --progress-bar off --retries 5)
stamp=.venv/paragauge-requirements.sha256
hash=$(sha256sum <bench/requirements.txt)
if [[ ! -x $python || ! -f $stamp || $(<"$stamp") != "$hash" ]]; then
  early=
  if ((build)) && { [[ $configured == sim ]] || [[ -z $configured ]]; }; then
    { configure sim && compile "build sim meanwhile" --target paragauge_calibrate; } &
    early=$!
  fi
  if ! "$python" -m pip --version >/dev/null 2>&1; then
    step "python -m venv .venv" python3 -m venv --clear .venv
  fi
  rm -f "$stamp"
  step "pip install -r bench/requirements.txt (500 MB the first time)" "${pip[@]}" -r bench/requirements.txt
  echo "$hash" >"$stamp"
  [[ -z $early ]] || wait "$early"
fi
site=$(echo .venv/lib/python3.*/site-packages)
torch_cmake=$root/$site/torch/share/cmake
[[ -d $torch_cmake ]] || fail "no $torch_cmake: remove .venv and run again"
say "Python packages: $(grep -c '==' bench/requirements.txt) pinned, torch $(sed -n "s/^__version__ = '\(.*\)'/\1/p" "$site/torch/version.py")"

# --- CUDA toolkit -------------------------------------------------------------------------------------------------------------
cuda=
for nvcc in "${CUDA_HOME:-/nowhere}/bin/nvcc" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc; do
  [[ -x $nvcc ]] || continue
  folder=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
  [[ -f $folder/include/cuda_runtime_api.h ]] || continue # a wrapper, or a compiler without its toolkit
  version=$("$nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\),.*/\1/p' || true)
  if [[ ${version%%.*} == "$cuda_major" ]]; then
    cuda=$folder
    say "CUDA toolkit: $cuda ($version)"
    break
  fi
  say "note: $nvcc is CUDA ${version:-of unknown version}, torch wants $cuda_major"
done
if [[ -z $cuda ]]; then
  cuda=$root/$site/nvidia/cu$cuda_major
  cuda_stamp=.venv/paragauge-cuda.txt
  if [[ ! -f $cuda_stamp || $(<"$cuda_stamp") != "${cuda_wheels[*]}" ]]; then
    step "pip install a CUDA toolkit: ${cuda_wheels[*]}" "${pip[@]}" "${cuda_wheels[@]}"
    # The wheels lack the unversioned names that a linker looks for, and lib64.
    for library in "$cuda"/lib/lib*.so.[0-9]*; do
      [[ -e ${library%%.so.*}.so ]] || ln -s "$(basename "$library")" "${library%%.so.*}.so"
    done
    [[ -e $cuda/lib64 ]] || ln -s lib "$cuda/lib64"
    echo "${cuda_wheels[*]}" >"$cuda_stamp"
  fi
  say "CUDA toolkit: from wheels, $cuda"
fi

# --- Configure, build ---------------------------------------------------------------------------------------------------------
configure "$preset" -DCMAKE_PREFIX_PATH="$torch_cmake" -DPython_EXECUTABLE="$python" \
  -DCUDAToolkit_ROOT="$cuda" -DCUDA_TOOLKIT_ROOT_DIR="$cuda" -DCMAKE_CUDA_COMPILER="$cuda/bin/nvcc"
if ((build)); then
  [[ $goal == demo ]] && target=(--target paragauge) || target=()
  compile "build${target[1]:+ ${target[1]}}" "${target[@]}"
  finish ""
fi
