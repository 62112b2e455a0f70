#!/usr/bin/env bash
# Installs what paragauge needs, configures and builds it. Run it again at any time: what is already there is left alone.
#
#   bench/setup.sh              everything; programs land in build/bin/
#   bench/setup.sh --no-build   up to and with the configuration of build/
#
# PARAGAUGE_BUILD_TYPE=Release|RelWithDebInfo|Debug chooses the build type (Release unless set). Details go to build/setup.log.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

# Debian packages and the versions they were tested with (a prefix of Debian's version).
packages=(
  nlohmann-json3-dev=3.11.2 libcli11-dev=2.1.2 libfmt-dev=9.1.0 libeigen3-dev=3.4.0
  libbenchmark-dev=1.7.1 libgtest-dev=1.12.1
  libgloo-dev=0.0~git20220518 # headers only: torch's wheel has gloo's symbols but leaves its headers out
)
# Programs, wherever they come from, and the packages that bring them.
programs=(g++:g++ cmake:cmake ninja:ninja-build ccache:ccache git:git clang-format:clang-format ip:iproute2)
# The CUDA toolkit's part that torch's CMake files insist on, from wheels, where the machine has no toolkit of this major version.
cuda_major=13
cuda_wheels=(nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-cccl==13.0.85)

build=1
for argument in "$@"; do
  case $argument in
    --no-build) build=0 ;;
    -h | --help) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "setup: error: unknown argument '$argument': use --no-build or nothing" >&2; exit 2 ;;
  esac
done
build_type=${PARAGAUGE_BUILD_TYPE:-Release}
case $build_type in
  Release | RelWithDebInfo | Debug) ;;
  *) echo "setup: error: PARAGAUGE_BUILD_TYPE=$build_type: use Release, RelWithDebInfo or Debug" >&2; exit 2 ;;
esac

mkdir -p build
log=$root/build/setup.log
exec 9>build/setup.lock
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
  if "$@" >>"$log" 2>&1 9>&-; then
    say "$text: $((SECONDS - start)) s"
  else
    echo "setup: error: $text failed after $((SECONDS - start)) s; the end of $log:" >&2
    tail -n 40 "$log" >&2
    exit 1
  fi
}

# --- Debian packages ----------------------------------------------------------------------------------------------------------
wanted=()
for program in "${programs[@]}"; do
  command -v "${program%%:*}" >/dev/null || wanted+=("${program#*:}")
done
python3 -c 'import ensurepip, venv' 2>/dev/null || wanted+=(python3 python3-venv)
installed() { dpkg-query -W -f '${db:Status-Status} ${Version}\n' "$1" 2>/dev/null | sed -n 's/^installed //p' | head -n 1; }
if command -v dpkg-query >/dev/null; then
  for package in "${packages[@]}"; do
    [[ -n $(installed "${package%%=*}") ]] || wanted+=("${package%%=*}")
  done
fi
if ((${#wanted[@]})); then
  command -v apt-get >/dev/null || fail "missing, and this is no Debian: ${wanted[*]}"
  as_root=()
  if ((EUID != 0)); then
    command -v sudo >/dev/null || fail "neither root nor sudo; as root, run: apt-get install -y ${wanted[*]}"
    as_root=(sudo)
  fi
  say "missing Debian packages: ${wanted[*]}"
  step "apt-get update" "${as_root[@]}" apt-get -o Acquire::Retries=3 update
  for i in "${!wanted[@]}"; do # ask for the tested version where the archive has it
    for package in "${packages[@]}"; do
      [[ ${package%%=*} == "${wanted[i]}" ]] || continue
      version=$(apt-cache madison "${wanted[i]}" | awk -v pin="${package#*=}" 'index($3, pin) == 1 { print $3; exit }')
      [[ -z $version ]] || wanted[i]+="=$version"
    done
  done
  step "apt-get install" "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -o Acquire::Retries=3 install -y --no-install-recommends "${wanted[@]}"
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

# --- Python packages, LibTorch among them -------------------------------------------------------------------------------------
python=$root/.venv/bin/python
pip=("$python" -m pip install --disable-pip-version-check --progress-bar off --retries 5)
stamp=.venv/paragauge-requirements.sha256
hash=$(sha256sum <bench/requirements.txt)
if [[ ! -x $python || ! -f $stamp || $(<"$stamp") != "$hash" ]]; then
  if ! "$python" -m pip --version >/dev/null 2>&1; then
    step "python -m venv .venv" python3 -m venv --clear .venv
  fi
  rm -f "$stamp"
  step "pip install -r bench/requirements.txt (500 MB the first time)" "${pip[@]}" -r bench/requirements.txt
  echo "$hash" >"$stamp"
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
configure=(
  cmake -S "$root" -B "$root/build" -G Ninja -DCMAKE_BUILD_TYPE="$build_type" -DPARAGAUGE_BACKEND=ON
  -DCMAKE_PREFIX_PATH="$torch_cmake" -DPython_EXECUTABLE="$python"
  -DCUDAToolkit_ROOT="$cuda" -DCUDA_TOOLKIT_ROOT_DIR="$cuda" -DCMAKE_CUDA_COMPILER="$cuda/bin/nvcc"
)
if [[ ! -f build/build.ninja || ! -f build/setup.configure || $(<build/setup.configure) != "${configure[*]}" ]]; then
  rm -f build/setup.configure
  step "configure ($build_type)" "${configure[@]}" --fresh
  echo "${configure[*]}" >build/setup.configure
fi
if ((build)); then
  step "build" cmake --build "$root/build"
  say "programs: $(cd build && ls bin/* 2>/dev/null | sed 's,^,build/,' | paste -sd ' ')"
fi
