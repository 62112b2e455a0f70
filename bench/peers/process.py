"""This process and its memory and clock: pinning, scheduling, the start of a step."""

import ctypes
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress

MARGIN_S = 2e-3  # the slowest rank knows the start by then
SPIN_S = 50e-6
PRIORITY = 10
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


def settle_down(cores, real_time):
    """Before anything starts a thread: threads inherit the policy. OpenMP counts the cores that it finds when it is loaded,
    and threads beyond them don't spin for work: whoever is started by a rank has that rank's core only, and two threads'
    ops are as slow as one's.

    One priority for all threads: two of gloo's poll for each other, so that a higher one may wait for ever on a core.
    Time-shared, with other work on the machine, ResNet-18's DDP step took twice as long. True if real-time."""
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this host: their times share a clock
    os.sched_setaffinity(0, cores)
    # Freed memory stays in the process, so that later steps take no page faults (medians 0 to 6 % lower: within noise).
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_MAX, 0)
    libc.mallopt(M_TRIM_THRESHOLD, -1)
    share_time()
    try:
        if real_time:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
        return real_time
    except PermissionError:
        return False


@contextmanager
def making_groups(real_time):
    """Where process groups are made. gloo's event loops, which poll a connection that another thread holds, get limited
    turns (SCHED_RR, 100 ms); who may hold one never loses the core before it waits (backend/machine/scheduling.hpp)."""
    if real_time:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(PRIORITY))
    yield
    if real_time:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/comm") as name:
                if name.read().strip() == "pt_gloo_runloop":  # carries out collectives
                    os.sched_setscheduler(int(thread), os.SCHED_FIFO, os.sched_param(PRIORITY))


def pin(core: int):
    """The calling thread."""
    os.sched_setaffinity(0, {core})


def pin_all(cores: list[int]):
    """All threads of this process."""
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(thread), cores)
        except ProcessLookupError:
            pass  # it has ended


def share_time():
    """The calling thread."""
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


class PinnedThreads:
    """A thread on each of these cores, for as long as this lives.

    They end time-shared: what MKL does at a thread's end spins for a lock whose holder may wait for another, and in real
    time the holder would never get back the core on which a second thread spins."""

    def __init__(self, cores: list[int]):
        self.threads = [ThreadPoolExecutor(1, initializer=pin, initargs=(core,)) for core in cores]

    def __del__(self):
        with suppress(RuntimeError):  # all is at its end
            for thread in self.threads:
                thread.submit(share_time)
                thread.shutdown(wait=False)

    def on_each(self, work, *arguments) -> list:
        """What `work` returns on each of them, of its own arguments."""
        calls = [thread.submit(work, *own) for thread, *own in zip(self.threads, *arguments)]
        wait(calls)
        errors = [call.exception() for call in calls if call.exception()]
        if errors:  # the others only miss the one that has failed
            raise next((error for error in errors if not isinstance(error, threading.BrokenBarrierError)), errors[0])
        return [call.result() for call in calls]


def now_s():
    return time.monotonic()  # CLOCK_MONOTONIC: one clock for all processes of a host


def sleep_until(moment):
    time.sleep(max(0.0, moment - SPIN_S - now_s()))
    while now_s() < moment:
        pass


def reset_resident_peak():
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def resident_peak_bytes():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))


def one_line(error: Exception) -> str:
    """"RuntimeError: what is wrong", without what else the message says on further lines."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
