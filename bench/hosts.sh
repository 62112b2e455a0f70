#!/usr/bin/env bash
# Hosts on one machine: what tells hosts apart, each in namespaces of its own. To rehearse runs of several hosts under the
# launchers that people have; the strategies' results must equal one host's.
#
#   bench/hosts.sh up HOSTS [RATE]       RATE of each host's link: 100mbit, 1gbit, … or unlimited (unless given)
#   bench/hosts.sh on HOST COMMAND...    runs a command there: 0, 1, …; more of them at the same time are allowed
#   bench/hosts.sh kill HOST             all of its processes end at once, as when the power goes; its link stays
#   bench/hosts.sh down                  removes everything that `up` has made
#   bench/hosts.sh rehearse LAUNCHER [-o FOLDER]   torchrun, mpirun or slurm: measure --verify of ddp, zero3, tp, a pipeline
#                                        and daso on two hosts of two ranks; it goes on where the last stopped
#   bench/hosts.sh install               Debian's openmpi-bin, slurmctld, slurmd, slurm-client, munge (asked for, never done alone)
#
# A host has: a network namespace with a link (bench/network.sh), a name (host0, host1, … in /etc/hosts, 10.77.0.1 and so on),
# a boot id, a clock (CLOCK_MONOTONIC shifted by a time namespace: host h is h · 12345.678 s ahead), processes (a PID
# namespace), a /run of its own, and its share of this machine's cores (core h modulo the cores where there are more hosts).
#
# Needs root. Exit status 3 with the reason on stderr where this machine doesn't permit it, 2 for wrong arguments.
# PARAGAUGE_NETWORK=name (default paragauge) keeps several sets of hosts apart. LAUNCHERS: torchrun is .venv's.
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
  all=$(nproc)
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
    # Nothing of this holds the caller's files open, or its terminal.
    taskset -c "$(cores "$host")" ip netns exec "$name$host" \
      unshare --uts --mount --pid --fork --kill-child --mount-proc --time --monotonic $((host * 12345)) --boottime $((host * 12345)) \
      bash -c 'set -e
        hostname "host$1"
        exec 8>"$2/$1.ready"
        mount --bind "$2/$1.boot_id" /proc/sys/kernel/random/boot_id
        mount --bind "$2/etc_hosts" /etc/hosts
        mount -t tmpfs tmpfs /run
        echo ready >&8
        exec 8>&- sleep infinity' host "$host" "$state" </dev/null >"$state/$host.log" 2>&1 9>&- &
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
  kill)
    (($# == 2)) || fail "kill takes HOST"
    [[ -e $state/$2.pid ]] || fail "there is no host$2"
    kill -KILL "$(<"$state/$2.pid")"
    rm -f "$state/$2.pid"
    ;;
  down) down ;;
  *) fail "unknown command '${1:-}'; use up, on, kill, down" ;;
esac
