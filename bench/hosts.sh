#!/usr/bin/env bash
# Hosts on one machine, each in namespaces of its own, with all that tells hosts apart: to rehearse runs of several hosts under
# the launchers that people have, before there are several machines.
#
#   bench/hosts.sh up HOSTS [RATE]        RATE of each host's link: 100mbit, 1gbit, … or unlimited (unless given)
#   bench/hosts.sh rehearse LAUNCHER FOLDER    torchrun, mpirun or srun on the hosts that are up, four ranks in all: measure
#                                         --verify of ddp, zero3, tp, a pipeline, daso and a mix of them; each result is a file
#                                         in FOLDER, and what has one already isn't run again
#   bench/hosts.sh launch LAUNCHER RANKS PROGRAM...    runs a program on all hosts that are up, RANKS on each
#   bench/hosts.sh on HOST COMMAND...     runs a command on a host: 0, 1, …
#   bench/hosts.sh kill HOST              all of its processes end at once, as when the power goes; its link stays
#   bench/hosts.sh down                   removes everything that `up` has made
#   bench/hosts.sh install                Debian's openmpi-bin and slurmctld, slurmd, slurm-client, munge; nothing else does
#
# Each host has: a link to a common switch (bench/network.sh), a name (host0, host1, … at 10.77.0.1 and so on), a boot id, a clock
# (CLOCK_MONOTONIC of a time namespace: host h is h · 12345 s ahead), processes of its own, a /run, and a share of this machine's
# cores. They share files and a kernel: NICs, disks, memory and the cores' caches are no one's own.
#
# torchrun is .venv's, one agent on each host, with its own rendezvous; mpirun starts its daemons on the hosts as by ssh; srun is
# Slurm's: slurmctld on host0, slurmd and munged on each, started when they are first needed.
#
# Needs root. Exit status 3 with the reason on stderr where this machine doesn't permit it or lacks a launcher, 2 for wrong
# arguments. PARAGAUGE_NETWORK=name (default paragauge) keeps several sets of hosts apart; PARAGAUGE=program is what is rehearsed.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
name=${PARAGAUGE_NETWORK:-paragauge}
state=/run/paragauge-hosts.$name
network=$root/bench/network.sh
paragauge=${PARAGAUGE:-$root/build/bin/paragauge}

fail() { # TEXT [STATUS]
  echo "hosts: error: $1" >&2
  exit "${2:-2}"
}

# What outlives this script must not hold the caller's files open (a lock, a pipe that somebody reads to its end).
close_files() {
  local file
  for file in /proc/self/fd/*; do
    file=${file##*/}
    ((file <= 2)) || eval "exec $file>&-" 2>/dev/null || true
  done
}

down() {
  local file
  [[ -d $state ]] || { "$network" down; return 0; }
  for file in "$state"/*.pid; do
    [[ -e $file ]] || continue
    kill -KILL "$(<"$file")" 2>/dev/null || true # process 1 of the host: all others end with it
  done
  [[ ! -e $state/rt_runtime ]] || cat "$state/rt_runtime" >/proc/sys/kernel/sched_rt_runtime_us
  rm -rf "$state"
  "$network" down
}

# cores HOST: those it may use, as taskset's list.
cores() {
  local hosts all each
  read -r hosts _ <"$state/hosts"
  all=$(env -u OMP_NUM_THREADS nproc)
  each=$((all / hosts))
  if ((each == 0)); then echo $(($1 % all)); else echo "$(($1 * each))-$((($1 + 1) * each - 1))"; fi
}

up() {
  local hosts=$1 rate=$2 host said status pid inner
  [[ $hosts =~ ^[1-9][0-9]?$ ]] || fail "HOSTS=$hosts: must be from 1 to 99"
  ((EUID == 0)) || fail "hosts need root" 3
  said=$(unshare --time --pid --fork --uts --mount --net true 2>&1) || fail "namespaces aren't permitted here: $said" 3
  down
  "$network" up "$hosts" "$rate" || exit $?
  mkdir -p "$state"
  cat /proc/sys/kernel/sched_rt_runtime_us >"$state/rt_runtime"
  echo "$hosts $rate" >"$state/hosts"
  { echo "127.0.0.1 localhost"; for ((host = 0; host < hosts; ++host)); do echo "10.77.0.$((host + 1)) host$host"; done; } >"$state/etc_hosts"
  for ((host = 0; host < hosts; ++host)); do
    printf '%08x-0000-4000-8000-%012x\n' "$host" "$((RANDOM * 32768 + RANDOM))" >"$state/$host.boot_id"
    (close_files; exec taskset -c "$(cores "$host")" ip netns exec "$name$host" \
      unshare --uts --mount --pid --fork --kill-child --mount-proc --time --monotonic $((host * 12345)) --boottime $((host * 12345)) \
      bash -c 'set -e
        hostname "host$1"
        exec 8>"$2/$1.ready"
        mount --bind "$2/$1.boot_id" /proc/sys/kernel/random/boot_id
        mount --bind "$2/etc_hosts" /etc/hosts
        mount -t tmpfs tmpfs /run
        echo ready >&8
        exec 8>&- sleep infinity' host "$host" "$state") </dev/null >"$state/$host.log" 2>&1 &
    pid=$!
    for ((inner = 0; inner < 100; ++inner)); do
      [[ ! -s $state/$host.ready ]] || break
      sleep 0.05
    done
    [[ -s $state/$host.ready ]] || { said=$(<"$state/$host.log"); down; fail "host$host can't be made: $said" 3; }
    # Process 1 of the host is the child of unshare, which ip has become.
    cat "/proc/$pid/task/$pid/children" | tr -d ' ' >"$state/$host.pid"
    disown "$pid"
  done
}

# enter HOST COMMAND...
enter() {
  local host=$1
  shift
  [[ -e $state/$host.pid ]] || fail "there is no host$host; as root, run: bench/hosts.sh up HOSTS"
  exec taskset -c "$(cores "$host")" nsenter --target "$(<"$state/$host.pid")" --net --uts --mount --pid --time --wdns="$PWD" -- "$@"
}

hosts_up() {
  [[ -r $state/hosts ]] || fail "there are no hosts; as root, run: bench/hosts.sh up HOSTS"
  read -r hosts _ <"$state/hosts"
}

# Slurm on the hosts: one slurmctld, and a slurmd and a munged on each.
slurm() {
  local host
  [[ ! -e $state/slurm.conf ]] || return 0
  command -v slurmctld slurmd srun munged >/dev/null || fail "Slurm is missing: bench/hosts.sh install" 3
  cat >"$state/slurm.conf.new" <<CONF
ClusterName=hosts
SlurmctldHost=host0
AuthType=auth/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation=/run/slurm/state
SlurmdSpoolDir=/run/slurm/spool
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd.pid
SlurmctldLogFile=/run/slurm/slurmctld.log
SlurmdLogFile=/run/slurm/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SlurmdParameters=config_overrides
NodeName=host[0-$((hosts - 1))] CPUs=8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP OverSubscribe=FORCE:64
CONF
  for ((host = 0; host < hosts; ++host)); do # /run is the host's own, and this script's state isn't seen there
    (close_files; enter "$host" bash -c 'mkdir -p /run/munge /run/slurm/state /run/slurm/spool
      cat >/run/slurm/slurm.conf
      printf "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n" >/run/slurm/cgroup.conf
      mount -t tmpfs cgroups /sys/fs/cgroup # slurmd wants to see something mounted there
      munged --force --key-file=/etc/munge/munge.key --pid-file=/run/munge/munged.pid --log-file=/run/munge/munged.log --seed-file=/run/munge/seed
      [[ $(hostname) != host0 ]] || slurmctld -f /run/slurm/slurm.conf
      exec slurmd -f /run/slurm/slurm.conf -N "$(hostname)"' <"$state/slurm.conf.new" >"$state/slurm.log" 2>&1) ||
      fail "Slurm doesn't start on host$host: $(<"$state/slurm.log")" 3
  done
  for ((host = 0; host < 100; ++host)); do
    [[ $( (enter 0 env SLURM_CONF=/run/slurm/slurm.conf sinfo --noheader --format %T) 2>&1) != idle ]] || break
    sleep 0.2
  done
  ((host < 100)) || fail "Slurm's nodes don't come: $( (enter 0 env SLURM_CONF=/run/slurm/slurm.conf sinfo) 2>&1)" 3
  mv "$state/slurm.conf.new" "$state/slurm.conf"
}

# launch LAUNCHER RANKS PROGRAM...: the exit status is the launcher's on host0; what it and rank 0 say goes to stdout and stderr.
launch() {
  local launcher=$1 ranks=$2 host list= status=0
  shift 2
  hosts_up
  export OMP_NUM_THREADS=1 # else torchrun says that it sets it
  case $launcher in
    torchrun)
      [[ -x $root/.venv/bin/torchrun ]] || fail "torchrun is missing: bench/setup.sh" 3
      local command=("$root/.venv/bin/torchrun" --no-python --nnodes="$hosts" --nproc_per_node="$ranks" --rdzv_backend=c10d
        --rdzv_endpoint=host0:29400 --rdzv_id="$$" "$@") others=()
      for ((host = 1; host < hosts; ++host)); do
        (enter "$host" "${command[@]}") >"$state/$host.out" 2>&1 &
        others+=($!)
      done
      (enter 0 "${command[@]}") || status=$?
      for host in "${others[@]}"; do wait "$host" || true; done
      ;;
    mpirun)
      command -v mpirun >/dev/null || fail "mpirun is missing: bench/hosts.sh install" 3
      [[ $root != *[[:space:]]* ]] || fail "Open MPI takes no agent whose path has spaces: $root"
      for ((host = 0; host < hosts; ++host)); do list+=,host$host:$ranks; done
      # In host0's network, but not on it, so that it can start its daemons on all hosts.
      ip netns exec "${name}0" mpirun --allow-run-as-root --oversubscribe --bind-to none --np $((hosts * ranks)) --host "${list#,}" \
        --mca plm_rsh_agent "$root/bench/hosts.sh rsh" --mca plm_rsh_no_tree_spawn 1 --wdir "$PWD" -x MASTER_ADDR=host0 "$@" || status=$?
      ;;
    srun)
      slurm
      (enter 0 env SLURM_CONF=/run/slurm/slurm.conf srun --immediate=20 --kill-on-bad-exit --nodes="$hosts" --ntasks-per-node="$ranks" "$@") || status=$?
      ;;
    *) fail "unknown LAUNCHER '$launcher'; use torchrun, mpirun or srun" ;;
  esac
  return "$status"
}

rehearse() {
  local launcher=$1 folder ranks strategy file failed=0
  folder=$(realpath -m "$2")
  hosts_up
  ((hosts <= 4 && 4 % hosts == 0)) || fail "rehearse is for 1, 2 or 4 hosts; $hosts are up"
  ranks=$((4 / hosts))
  mkdir -p "$folder"
  # All of its layers have parts for four ranks.
  cat >"$folder/rehearsed.json" <<'MODEL'
{"format": "paragauge-model-1", "name": "rehearsed", "input": [3, 16, 16], "target": {"classes": 8}, "global_batch": 8,
 "optimizer": {"kind": "adam", "lr": 0.001}, "loss": "cross_entropy",
 "nodes": [{"name": "conv1", "op": "conv2d", "out_channels": 8, "kernel_size": 3, "padding": 1}, {"name": "relu1", "op": "relu"},
           {"name": "pool1", "op": "max_pool", "kernel_size": 2},
           {"name": "conv2", "op": "conv2d", "out_channels": 16, "kernel_size": 3}, {"name": "relu2", "op": "relu"},
           {"name": "flatten", "op": "flatten"}, {"name": "fc1", "op": "linear", "out_features": 32},
           {"name": "relu3", "op": "relu"}, {"name": "fc2", "op": "linear", "out_features": 8}]}
MODEL
  for strategy in ddp,dp=4 zero3,dp=4 tp,tp=4 dp=2,tp=2 pipeline,pp=4 dp=2,pp=2,schedule=1f1b,microbatches=2 daso,nodes=2,local=2; do
    file=$folder/$launcher.${hosts}x$ranks.$strategy.json
    [[ ! -s $file ]] || { echo "$launcher, $hosts hosts of $ranks ranks, $strategy: there already"; continue; }
    if launch "$launcher" "$ranks" "$paragauge" measure -m "$folder/rehearsed.json" -s "$strategy" -w gloo --timeout 30 --verify --json "$file.new" \
      >"$file.log" 2>&1; then
      mv "$file.new" "$file"
      echo "$launcher, $hosts hosts of $ranks ranks, $strategy: $(sed -n 's/^verify: //p' "$file.log")"
    else
      echo "$launcher, $hosts hosts of $ranks ranks, $strategy: FAILED, see $file.log: $(grep -m 1 paragauge: "$file.log" || true)"
      failed=1
    fi
  done
  return "$failed"
}

install() {
  ((EUID == 0)) || fail "installing needs root" 3
  apt-get update
  DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends openmpi-bin slurmctld slurmd slurm-client munge
}

case ${1:-} in
  up)
    (($# == 2 || $# == 3)) || fail "up takes HOSTS [RATE]"
    up "$2" "${3:-unlimited}"
    ;;
  on)
    (($# >= 3)) || fail "on takes HOST COMMAND..."
    shift
    enter "$@"
    ;;
  launch)
    (($# >= 4)) && [[ $3 =~ ^[1-9][0-9]?$ ]] || fail "launch takes LAUNCHER RANKS PROGRAM..."
    shift
    launch "$@"
    ;;
  rehearse)
    (($# == 3)) || fail "rehearse takes LAUNCHER FOLDER"
    rehearse "$2" "$3"
    ;;
  install) install ;;
  -h | --help) sed -n '2,27s/^# \{0,1\}//p' "$0" ;;
  rsh) # as ssh is called: HOST COMMAND...
    (($# >= 3)) && [[ $2 =~ ^host([0-9]+)$ ]] || fail "rsh takes hostN COMMAND..., found: $*"
    enter "${BASH_REMATCH[1]}" bash -c "${*:3}"
    ;;
  kill)
    (($# == 2)) || fail "kill takes HOST"
    [[ -e $state/$2.pid ]] || fail "there is no host$2"
    kill -KILL "$(<"$state/$2.pid")"
    rm -f "$state/$2.pid"
    ;;
  down) down ;;
  *) fail "unknown command '${1:-}'; use up, rehearse, launch, on, kill, down or install" ;;
esac
