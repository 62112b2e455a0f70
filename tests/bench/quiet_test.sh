#!/usr/bin/env bash
# The machine's settings come back after every death, and runs know of each other. In a mount and PID namespace of its own,
# where files stand for the kernel's setting and for /run, so that nothing of the machine is touched. 77: not permitted here.
#
#   tests/bench/quiet_test.sh build/bin/paragauge
set -uo pipefail
paragauge=$(realpath "$1")
setting=/proc/sys/kernel/sched_rt_runtime_us
if [[ -z ${INSIDE:-} ]]; then
  if "$paragauge" list | grep -q 'built without LibTorch'; then echo "quiet: built without LibTorch, skipped"; exit 77; fi
  said=$(unshare --mount --pid --fork --mount-proc true 2>&1) || { echo "quiet: $said, skipped"; exit 77; }
  INSIDE=1 exec unshare --mount --pid --fork --mount-proc --kill-child "$0" "$paragauge"
fi
mount -t tmpfs none /run && mkdir /run/test && echo 950000 >/run/test/setting && mount --bind /run/test/setting $setting ||
  { echo "quiet: no mounts, skipped"; exit 77; }
failed=0
complain() {
  echo "FAILED: $*"
  failed=1
}
long=("$paragauge" measure -m toy_mlp -s single -w local --steps 1000000)
becomes() { # VALUE WHEN
  local i
  for ((i = 0; i < 100; ++i)); do
    [[ $(<$setting) == "$1" ]] && { echo "$2: $1"; return; }
    sleep 0.1
  done
  complain "$2: the setting is $(<$setting), expected $1"
}
stays() { # VALUE WHEN
  sleep 1
  [[ $(<$setting) == "$1" ]] && echo "$2: $1" || complain "$2: the setting is $(<$setting), expected $1"
}
guardians() { grep -lsx restore_rt /proc/[0-9]*/comm | grep -o '[0-9]*'; }
has_guardian() { # it is there a moment after the setting
  local i
  for ((i = 0; i < 100; ++i)); do [[ -z $(guardians) ]] || return; sleep 0.1; done
}
end() { kill -9 "$1"; { wait "$1"; } 2>/dev/null; }

"$paragauge" measure -m toy_mlp -s ddp -w gloo --steps 2 >/run/test/out 2>&1 || complain "$(cat /run/test/out)"
stays 950000 "after a run"
"${long[@]}" >/run/test/out 2>&1 & first=$!
becomes -1 "during a run"
has_guardian
end $first
becomes 950000 "kill -9 of a run"

"${long[@]}" >/run/test/out 2>&1 & first=$!
becomes -1 "during the next"
has_guardian
kill -9 $(guardians) # first: it is quick
end $first
stays -1 "kill -9 of a run and its guardian"
"$paragauge" list >/dev/null
becomes 950000 "the next start of any program"

unshare --pid --fork --kill-child "${long[@]}" >/run/test/out 2>&1 & container=$!
becomes -1 "during a run in a container"
"$paragauge" list >/dev/null
stays -1 "another start doesn't touch what a living run needs"
end $container
for ((i = 0; i < 100; ++i)); do pgrep -f 'steps 1000000' >/run/test/out || break; sleep 0.1; done # which dies after it
# Its guardian dies with it, unless the guardian was quicker: the setting may be left behind.
"$paragauge" measure -m toy_mlp -s single -w local --json /run/test/alone.json >/run/test/out 2>&1
becomes 950000 "after the next run"
[[ $(cat /run/test/out) != *"another run"* ]] || complain "a dead run counts: $(cat /run/test/out)"
grep -qE '"other_runs": ?0' /run/test/alone.json || complain "$(grep other_runs /run/test/alone.json)"

for world in local gloo; do
  "${long[@]}" >/run/test/out 2>&1 & first=$!
  becomes -1 "during a run"
  "$paragauge" measure -m toy_mlp -s ddp -w $world --json /run/test/second.json >/run/test/out 2>/run/test/second
  [[ $(grep ^paragauge: /run/test/second) == "paragauge: another run is measuring on this machine, and both disturb each other" ]] ||
    complain "the second says: $(</run/test/second)"
  grep -qE '"other_runs": ?1' /run/test/second.json || complain "$(grep other_runs /run/test/second.json)"
  stays -1 "the second of two runs has ended"
  end $first
  becomes 950000 "both have ended"
done
"$paragauge" compare -m toy_mlp -s single -w local --rounds 1000 --json /run/test/first.json >/run/test/out 2>&1 & first=$!
becomes -1 "during a run"
for ((i = 0; i < 300; ++i)); do [[ ! -s /run/test/first.json ]] || break; sleep 0.1; done
grep -qE '"other_runs": ?0' /run/test/first.json || complain "$(grep other_runs /run/test/first.json)"
"${long[@]}" >/run/test/out 2>&1 & second=$!
for ((i = 0; i < 300; ++i)); do grep -qE '"other_runs": ?1' /run/test/first.json && break; sleep 0.1; done
((i < 300)) || complain "the first doesn't see that the second has begun"
end $first
stays -1 "the first of two runs has ended"
end $second
becomes 950000 "both have ended"
exit $failed
