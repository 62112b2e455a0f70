#!/usr/bin/env bash
# A network that matters, on one machine: a namespace per rank, and links of limited bandwidth between them.
#
#   bench/network.sh up RANKS RATE [BURST]    RATE: 100mbit, 1gbit, 2.5gbit, … or unlimited; replaces what is there
#   bench/network.sh status                   "2 ranks at 1gbit: …"; exit status 1 if there is none
#   bench/network.sh down                     removes everything that `up` has made
#   paragauge measure -m convnet -s ddp -w gloo --network RATE
#
# Needs root. Exit status 3 with the reason on stderr where this machine doesn't permit it, 2 for wrong arguments.
# PARAGAUGE_NETWORK=name (default paragauge) keeps several networks apart, for this script and for paragauge.
#
#   paragauge0 10.77.0.1 ── veth0 ═ port0 ┐
#   paragauge1 10.77.0.2 ── veth0 ═ port1 ┼ bridge, in the namespace paragauge-switch
#   …                                     ┘
#
# Both ends of each pair send through a token bucket (tbf), so a rank's up- and downlink have RATE each, full duplex.
# /run/paragauge-network.NAME says it all, also to paragauge (backend/machine/network.hpp): "RANKS RATE INTERFACE", then a
# line "NAMESPACE ADDRESS" per rank. The machine's own interfaces and routes stay as they are; only its ksoftirqd threads get
# a real-time priority until the last network is down.
#
# Payload in Gbit/s, medians of `paragauge calibrate` while other work ran on the same 2 cores:
#
#   bytes                  64 KiB   1 MiB   16 MiB  64 MiB
#   100mbit   send          0.099   0.096   0.095   0.096     tbf counts whole Ethernet frames: 95.6 % is payload
#             all_reduce    0.093   0.094   0.094   0.092     acknowledgements of the other direction share the link
#   1gbit     send          0.97    0.95    0.96    0.96
#             all_reduce    0.80    0.83    0.82    0.88
#   10gbit    send          3.8     8.6     8.0     8.4       the cores are the limit; up to 9.5 at a calmer
#             all_reduce    1.4     5.4     6.2     7.4       moment, and 9.0
#   unlimited send          2.1     5.1     9.8     9.7
#             all_reduce    1.4     5.9     7.3     6.8
#
# A message of 4 KiB takes 0.06 to 0.2 ms, and an all_reduce 0.2 to 0.4 ms. A message that fits into the burst comes through
# unlimited.
#
# The link's work is done by the ranks' own cores (softirq: two thirds of both in VGG-11's ddp steps at 1gbit), and
# gloo's threads add theirs: beside a running all_reduce a rank computes next to nothing (1 to 2 % from 500mbit to 2gbit).
# A network card would take less.
#
# What it takes (Linux 6.18, 2 cores; what was measured without it):
# * tbf cuts packets that are larger than its burst, and TCP suffers (a 1 Gbit/s link gave 480 to 770 Mbit/s). So TCP
#   hands over packets of at most 0.3 bursts (gso_max_size): three must fit, else 10 Gbit/s becomes 8.
# * The burst is what the link carries in 160 µs, at least 4 KiB. With less the timer can't keep up; with more, messages
#   of that size don't feel the limit.
# * One core handles all that arrives at an interface (rps_cpus), else the cores reorder packets and TCP takes that for
#   loss: 300 needless retransmissions in a second, and steps of up to 1.1 s instead of 0.04 s on a busy machine.
# * The kernel's network threads come before the ranks and everything else, else every packet may wait for a busy core:
#   on a machine with other work, single steps took 17 s instead of 0.04 s.
set -euo pipefail
name=${PARAGAUGE_NETWORK:-paragauge}
states=/run/paragauge-network
state=$states.$name
raised=/run/paragauge-ksoftirqd
switch=$name-switch
said=

fail() { # TEXT [STATUS]
  echo "network: error: $1" >&2
  exit "${2:-2}"
}
usage() { fail "$1; use: up RANKS RATE [BURST] | down | status"; }

need_permission() {
  command -v ip >/dev/null && command -v tc >/dev/null || fail "ip and tc are missing (Debian package iproute2)" 3
  ((EUID == 0)) || fail "network namespaces need root" 3
  said=$(unshare --net true 2>&1) || fail "network namespaces aren't permitted here: $said" 3
  exec 9</run
  flock 9 # one at a time
}

namespaces() {
  local file
  for file in /run/netns/"$name"*; do
    file=${file##*/}
    if [[ $file == "$switch" || ${file#"$name"} =~ ^[0-9]+$ ]]; then echo "$file"; fi
  done
}

down() {
  local namespace
  rm -f "$state"
  for namespace in $(namespaces); do
    # A process may keep the namespace itself alive, but not its link.
    ip -n "$namespace" link del veth0 2>/dev/null || true
    ip netns del "$namespace"
  done
  if [[ -f $raised ]] && ! compgen -G "$states.*" >/dev/null; then
    local thread
    for thread in $(<"$raised"); do chrt --other --pid 0 "$thread"; done
    rm -f "$raised"
  fi
}

# Arguments have been checked: what fails now, fails because of the machine.
try() {
  said=$("$@" 2>&1) && return
  down
  fail "'$*' failed: $said" 3
}

bits_per_second() { # "2.5gbit" → 2500000000
  awk -v text="$1" 'BEGIN { unit["k"] = 1e3; unit["m"] = 1e6; unit["g"] = 1e9
                            printf "%.0f", text * unit[substr(text, length(text) - 3, 1)] }'
}

limit() { # NAMESPACE INTERFACE
  [[ $rate != unlimited ]] || return 0
  local packet=$((burst * 3 / 10))
  ((packet >= 3072)) || packet=3072
  ((packet <= 65536)) || packet=65536
  try ip -n "$1" link set "$2" gso_max_size $packet
  try tc -n "$1" qdisc add dev "$2" root tbf rate "$rate" burst "${burst}b" limit 64mb
}

in_order() { # NAMESPACE INTERFACE: all that arrives is handled by the core of rank $rank
  local cores
  cores=$(nproc)
  ((cores <= 32)) || cores=32
  try ip netns exec "$1" sh -c 'for file in /sys/class/net/'"$2"'/queues/rx-*/rps_cpus; do
      [ ! -e "$file" ] || echo '"$(printf %x $((1 << rank % cores)))"' >"$file" || exit
    done'
}

up() {
  local rank namespace description="$ranks $rate veth0"
  down
  try ip netns add "$switch"
  try ip -n "$switch" link add bridge type bridge mcast_snooping 0
  try ip -n "$switch" link set bridge addrgenmode none up
  for ((rank = 0; rank < ranks; ++rank)); do
    namespace=$name$rank
    try ip netns add "$namespace"
    try ip -n "$namespace" link set lo up
    try ip -n "$namespace" link add veth0 type veth peer name "port$rank" netns "$switch"
    limit "$namespace" veth0
    limit "$switch" "port$rank"
    in_order "$namespace" veth0
    in_order "$switch" "port$rank"
    try ip -n "$switch" link set "port$rank" master bridge addrgenmode none up
    try ip -n "$namespace" addr add "10.77.0.$((rank + 1))/24" dev veth0
    description+=$'\n'"/run/netns/$namespace 10.77.0.$((rank + 1))"
    try ip -n "$namespace" link set veth0 addrgenmode none up
    # A cut link is an error after 13 s, also between steps; else TCP tries for a quarter of an hour.
    try ip netns exec "$namespace" sh -c 'echo 5 >/proc/sys/net/ipv4/tcp_retries2'
  done
  local thread priority
  priority=$(sed -n 's/^constexpr int kNetworkPriority = \([0-9]*\);.*/\1/p' "$(dirname "${BASH_SOURCE[0]}")/../backend/machine/scheduling.hpp")
  [[ -n $priority ]] || { down; fail "backend/machine/scheduling.hpp has no kNetworkPriority"; }
  for thread in $(grep -lsx 'ksoftirqd/[0-9]*' /proc/[0-9]*/comm | grep -o '[0-9]*'); do
    [[ $(chrt --pid "$thread" 2>/dev/null) == *SCHED_OTHER* ]] || continue
    if chrt --fifo --pid $priority "$thread" 2>/dev/null; then echo "$thread" >>"$raised"; fi
  done
  echo "$description" >"$state"
}

status() {
  local ranks rate rest
  [[ -r $state ]] || { echo "no network '$name'"; exit 1; }
  read -r ranks rate rest <"$state"
  echo "$ranks ranks at $rate:" $(namespaces)
}

[[ $name =~ ^[a-z][a-z0-9-]{0,30}[a-z]$ ]] ||
  fail "PARAGAUGE_NETWORK=$name: must be lower-case letters, digits and '-', and end with a letter"
case ${1:-} in
  up)
    (($# == 3 || $# == 4)) || usage "up takes 2 or 3 arguments"
    ranks=$2 rate=$3
    [[ $ranks =~ ^[1-9][0-9]{0,2}$ ]] && ((ranks <= 254)) || fail "RANKS=$ranks: must be from 1 to 254"
    if [[ $rate != unlimited ]]; then
      [[ $rate =~ ^[1-9][0-9]{0,5}(\.[0-9]{1,3})?(k|m|g)bit$ ]] ||
        fail "RATE=$rate: must be a number with kbit, mbit or gbit (100mbit, 1gbit, 2.5gbit), or unlimited"
      burst=$(($(bits_per_second "$rate") / 8 * 160 / 1000000))
      ((burst >= 4096)) || burst=4096
    fi
    if (($# == 4)); then
      [[ $4 =~ ^[1-9][0-9]{3,8}$ ]] && (($4 >= 4096)) || fail "BURST=$4: must be bytes, at least 4096"
      burst=$4
    fi
    need_permission
    up
    ;;
  down)
    (($# == 1)) || usage "down takes no arguments"
    need_permission
    down
    ;;
  status)
    (($# == 1)) || usage "status takes no arguments"
    status
    ;;
  -h | --help) sed -n '2,10s/^# \{0,1\}//p' "$0" ;;
  '') usage "what?" ;;
  *) usage "unknown command '$1'" ;;
esac
