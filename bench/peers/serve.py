"""A rank of a peer session: the same training steps as paragauge's, in plain PyTorch.

    MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python bench/peers/serve.py --rank 0 --cores 0 --usable 0 1 <requests

Rank 0 reads a request per line, a JSON object as bench/peers.cpp writes it (tests/golden/peer_request.json is one):
    subject         what is run: model (nodes in order, the loss last), strategy (its kind, and what that takes: of
                    replicas_of_stages every node's stage and every stage's actions, and of what is
                    cut among replicas (zero 1 or 3) every node's unit, of hypar where every node's tensors
                    lie; threads: of each rank; of an imported model its file, which says what makes the module, and what
                    its nodes read), best (PyTorch at its best: with fused updates, and with channels_last if a trial of both is
                    faster for it)
    cores           of each rank that computes, as many as it has threads
    warmup_steps, steps, seed
and answers with a JSON line:
    {"step_s": [per step; where steps differ, of each period the mean],
     "loss": [per step, warm-up included; null if not finite; none where the module draws random numbers of its own],
     "resident_peak_bytes": of the largest rank, "settings": what isn't PyTorch's default}
    {"skipped": "why plain PyTorch has no such step"}      or {"error": "what is wrong with the request"}
The end of its input ends all ranks. A step's time is the latest rank's end minus the common start; where steps reach
into each other, minus rank 0's end of the step before. A session is built once; its parameters have their first values
again at the beginning of each request, and hold no memory between them.
"resident_peak_bytes" is of its first request.
"""

import argparse
import datetime
import faulthandler
import gc
import json
import math
import os
import signal
import sys
import traceback
from contextlib import contextmanager
from types import SimpleNamespace

import process

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--rank", type=int, required=True)
parser.add_argument("--cores", type=int, nargs="+", required=True, help="of every rank")
parser.add_argument("--usable", type=int, nargs="+", required=True, help="all cores that requests may name")
parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
parser.add_argument("--real-time", action="store_true", help="real-time scheduling where permitted")
ARGUMENTS = parser.parse_args()
RANKS = len(ARGUMENTS.cores)
faulthandler.register(signal.SIGUSR1)  # where this process stands still
REAL_TIME = process.settle_down(ARGUMENTS.usable, ARGUMENTS.real_time)  # before torch starts threads

import imported  # noqa: E402
import strategies  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from session import Skipped, check, loss_of_batch  # noqa: E402

process.pin_all([ARGUMENTS.cores[ARGUMENTS.rank]])

TRIALS, TRIAL_STEPS = 2, 2  # with and without channels_last


def understand(line: str):
    """Rank 0 only: the request, or what to answer."""
    try:
        request = json.loads(line, object_hook=lambda entries: SimpleNamespace(**entries))
        strategy = request.subject.strategy
        request.ranks, cores = strategies.processes_of(strategy), strategies.cores_of(strategy)
        if cores > RANKS:
            return None, {"error": f"the strategy needs {cores} ranks, the session has {RANKS}"}
        if ARGUMENTS.device == "cpu" and strategies.kind_of(strategy) is strategies.ForwardPipeline:
            raise Skipped("one process has a single CPU device: its stages can't work at the same time")
        if strategy.threads > 1 and cores > request.ranks:  # a thread per device
            raise Skipped("these peers' threads have a core each")
        if ARGUMENTS.device == "cuda" and cores > 1:
            raise Skipped("these peers' processes and threads exchange CPU tensors only")
        check(request.subject.model)
        return request, None
    except Skipped as reason:
        return None, {"skipped": str(reason)}
    except (AttributeError, json.JSONDecodeError) as error:
        return None, {"error": f"not a request: {error}"}


class Rank:
    def __init__(self):
        self.sessions = {}
        self.groups = {}

    def session(self, request):
        """Built on all ranks at the same time; None where this rank only keeps step. Skipped where a user's module doesn't
        work so, on all of them."""
        for line in strategies.kind_of(request.subject.strategy).lines(request.subject.strategy):
            if line not in self.groups:  # None: everyone, or nobody to talk to
                with process.making_groups(REAL_TIME):
                    self.groups[line] = None if len(line) in (1, RANKS) else dist.new_group(line)
        if ARGUMENTS.rank >= request.ranks:
            return None
        key = json.dumps(request.subject, default=vars)
        if key not in self.sessions:
            self.sessions[key] = self.build_or_skip(request)
            gc.collect()
            # Once per session: what goes back to the system for it disturbs the next steps (backend/machine/allocator.hpp).
            process.reset_resident_peak()
            gc.freeze()  # what stays needn't be looked at before each request (0.15 s)
        if isinstance(self.sessions[key], Skipped):
            raise self.sessions[key]
        return self.sessions[key]

    def build_or_skip(self, request):
        is_a_users = imported.is_imported(request.subject.model)
        try:
            session = self.build(request)
            if is_a_users:
                self.play(session, 1, request.seed)
            return session
        except Skipped as reason:
            return reason
        except Exception as error:  # a user's code may raise anything
            if not is_a_users:
                raise
            gc.enable()
            return Skipped(f"the module can't be played so: {process.one_line(error)}")

    def build(self, request):
        """At its best: with channels_last or without, whichever has the shorter steps. Trials alternate, so that a slow
        moment hits both."""
        layouts = [False]
        if (request.subject.best and strategies.kind_of(request.subject.strategy).takes_channels_last and
                any(node.op == "conv2d" for node in request.subject.model.nodes)):
            layouts.append(True)
        sessions = [strategies.open_session(request.subject, layout, ARGUMENTS.device, ARGUMENTS.rank,
                                            self.groups, ARGUMENTS.cores) for layout in layouts]
        for session in sessions:
            self.play(session, session.settle, request.seed)
        if len(sessions) == 1:
            return sessions[0]
        shortest_s = torch.full((len(sessions),), math.inf, dtype=torch.float64)
        for _ in range(TRIALS):
            for i, session in enumerate(sessions):
                for start, end, _ in self.play(session, TRIAL_STEPS, request.seed):
                    shortest_s[i] = min(shortest_s[i].item(), end - start)
        if request.ranks > 1:
            dist.all_reduce(shortest_s, dist.ReduceOp.MAX, sessions[0].group)
        return sessions[shortest_s.argmin().item()]

    def play(self, session, steps, seed):
        """(common start, end, loss) per step."""
        for storage, size in session.storages:
            storage.resize_(size)
        session.initialise(seed)
        x, target = session.inputs(seed), session.targets(seed)
        session.begin()
        gc.collect()
        gc.disable()
        played, makes_data = [], session.model.timing == "tutorial"
        for step in range(steps):
            start = played[-1][1] if step and session.reaches_on else self.common_start(session)
            if makes_data:
                x, target = session.make_batch(x, target, seed, step)
            loss, output = session.step(x, target)
            if session.model.timing == "epoch" and loss is not None:
                session.read_result(loss, output, target)
            if ARGUMENTS.device == "cuda":
                torch.cuda.synchronize()
            played.append((start, process.now_s(), None if loss is None else loss.item()))
        gc.enable()
        session.end()
        for storage, _ in session.storages:
            storage.resize_(0)
        return played

    @contextmanager
    def threads(self, request):
        """Of this rank, for the request: each with a core."""
        threads = request.subject.strategy.threads if ARGUMENTS.rank < request.ranks else 1
        if threads > 1:
            process.pin_all(request.cores[ARGUMENTS.rank])
            torch.set_num_threads(threads)
        try:
            yield
        finally:
            if threads > 1:
                torch.set_num_threads(1)
                process.pin_all([ARGUMENTS.cores[ARGUMENTS.rank]])

    def common_start(self, session):
        """As backend/world/gloo.cpp: nobody knows the moment before all have come, and all get the same."""
        moment = process.now_s() + process.MARGIN_S
        if session.ranks > 1:
            shared = torch.tensor(moment, dtype=torch.float64)
            dist.all_reduce(shared, dist.ReduceOp.MAX, session.group)
            moment = shared.item()
        process.sleep_until(moment)
        return moment

    def run(self, request):
        """On all ranks; the answer on rank 0."""
        try:
            with self.threads(request):
                session = self.session(request)
                played = session and self.play(session, request.warmup_steps + request.steps, request.seed)
            if session and session.resident_peak_bytes is None:
                session.resident_peak_bytes = process.resident_peak_bytes()
            mine = session and (played, session.share, session.resident_peak_bytes)
        except Skipped as reason:
            mine = reason
        reports = [None] * RANKS if ARGUMENTS.rank == 0 else None
        dist.gather_object(mine, reports)
        if reports is None:
            return None
        for report in reports:
            if isinstance(report, Skipped):
                return {"skipped": str(report)}
        played, shares, peaks = zip(*filter(None, reports))
        losses = [[(share, loss) for share, (_, _, loss) in zip(shares, step) if loss is not None]
                  for step in zip(*played)]
        step_s = [max(end for _, end, _ in step) - step[0][0] for step in zip(*played)][request.warmup_steps:]
        whole = max(1, len(step_s) // session.period)  # periods; what is left over counts where there is no whole one
        periods = [step_s[i * session.period:(i + 1) * session.period] for i in range(whole)]
        return {"step_s": [sum(period) / len(period) for period in periods if period],
                "loss": [loss if math.isfinite(loss) else None for loss in
                         (loss_of_batch(session.model, of_step) for of_step in losses if not session.draws)],
                "resident_peak_bytes": max(peaks),
                "settings": session.settings()}


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed
    torch.set_num_threads(1)
    with process.making_groups(REAL_TIME):
        dist.init_process_group("gloo", rank=ARGUMENTS.rank, world_size=RANKS,
                                timeout=datetime.timedelta(days=7))  # between requests; the parent watches the rest
    rank = Rank()
    while True:
        task, answer = [None], None
        if ARGUMENTS.rank == 0:
            line = sys.stdin.readline()
            if line:
                task[0], answer = understand(line)
        if answer is None:
            dist.broadcast_object_list(task)
            if task[0] is None:
                break
            answer = rank.run(task[0])
        if ARGUMENTS.rank == 0:
            print(json.dumps(answer), file=answers, flush=True)
    rank.sessions.clear()
    gc.unfreeze()
    gc.collect()
    dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        traceback.print_exc()
        print(process.one_line(error), file=sys.stderr)  # the parent shows the last line
        sys.exit(1)
