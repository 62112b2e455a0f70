"""The peers (bench/peers/): modules are what a user would write, every strategy trains the same as a plain loop; wrong
requests are answered; the end of the input ends all.

    .venv/bin/python tests/bench/peers_test.py        # exit status 0: all passed; 77: no torch here
"""

import copy
import itertools
import json
import math
import os
import queue
import socket
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from types import SimpleNamespace

TESTS = Path(__file__).resolve().parents[1]
SERVE = TESTS.parent / "bench" / "peers" / "serve.py"
sys.path.insert(0, str(SERVE.parent))
sys.dont_write_bytecode = True

try:
    import torch
    import torchvision
except ImportError:
    print("peers: torch or torchvision is missing, skipped")
    sys.exit(77)

import collectives  # noqa: E402
import initial  # noqa: E402
import models  # noqa: E402
import placement  # noqa: E402
import process  # noqa: E402
import stages  # noqa: E402
import strategies  # noqa: E402
from torch import nn  # noqa: E402

RANKS = 2
STEPS = 4
RESNET18 = json.loads((TESTS / "golden" / "peer_request.json").read_text())  # tests/bench/peers_test.cpp: as C++ writes it
SINGLE = {"threads": 1, "kind": "replicas_of_stages", "replicas": 1, "microbatches": 1, "actions": ["F0 B0"], "one_loss": False,
          "overlap": False, "broadcast_buffers": True, "buckets_MiB": [1, 25], "single": False, "delayed": False,
          "zero": 0, "schedule": "1f1b", "stages_of_ranks": [[0]]}


def linear(name, inputs, features, outputs):
    bound = 1 / math.sqrt(features)
    return {"name": name, "op": "linear", "inputs": inputs, "attributes": {"out_features": outputs, "bias": 1},
            "shape": [outputs], "parameters": {"weight": [0, bound], "bias": [0, bound]}, "needs_grad": True}


def function(name, op, inputs, features, **attributes):
    return {"name": name, "op": op, "inputs": inputs, "attributes": attributes, "shape": [features], "parameters": {},
            "needs_grad": True}


def toy(optimizer, dtype="f32"):
    """Linear(10,10) ReLU, twice: first + its ReLU + the model's input; Linear(10,5). The ReLU is in place, also where it
    is the first of a stage."""
    return {"input": [10], "classes": 5, "global_batch": 24, "dtype": dtype, "half": "", "loss_scale": 0,
            "max_grad_norm": 0, "timing": "step", "loss": "mse_loss",
            "optimizer": optimizer,
            "nodes": [linear("net1", [-1], 10, 10), function("relu", "relu", [0], 10, inplace=1),
                      linear("net2", [1], 10, 10), function("add", "add", [2, 1], 10, inplace=0),
                      function("add2", "add", [3, -1], 10, inplace=1), linear("net3", [4], 10, 5),
                      function("loss", "mse_loss", [5, -2], 5)]}


class Toy(nn.Module):
    """The same as a user writes it."""

    def __init__(self):
        super().__init__()
        self.net1, self.net2, self.net3 = nn.Linear(10, 10), nn.Linear(10, 10), nn.Linear(10, 5)

    def forward(self, x):
        y = torch.relu(self.net1(x))
        return self.net3(self.net2(y) + y + x)


OPTIMIZERS = [({"kind": "sgd", "lr": 0.1, "momentum": 0, "weight_decay": 0}, lambda p: torch.optim.SGD(p, 0.1)),
              ({"kind": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
               lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01)),
              ({"kind": "adam", "lr": 0.01, "beta1": 0.8, "beta2": 0.99, "eps": 1e-7, "weight_decay": 0.01},
               lambda p: torch.optim.Adam(p, 0.01, (0.8, 0.99), 1e-7, 0.01))]


def strategy(stages, **options):
    return {**SINGLE, "stages": stages, **options}


def pipelines(microbatches, gpipe, one_f_one_b):
    for actions in (gpipe, one_f_one_b):
        for stages in ([0, 0, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 1]):
            yield strategy(stages, microbatches=microbatches, actions=actions)


def placed(inputs, output, gradient, parameters=(), of_parameters=(), grad_inputs=None, resolved=None):
    return {"inputs": inputs, "grad_inputs": grad_inputs or inputs, "output": output, "grad_output": gradient,
            "resolved": resolved or output, "parameters": parameters, "grad_parameters": of_parameters or parameters}


# net1 by output channels, net2 by input channels, net3 by samples.
HYBRID = {"threads": 1, "kind": "hypar", "levels": [2], "nodes": [
    placed(["R"], "S1", "S1", ["S0", "S0"], grad_inputs=["P"]), placed(["S1"], "S1", "S1"),
    placed(["S1"], "P", "R", ["S1", "@last"], resolved="R"), placed(["R", "R"], "R", "R"), placed(["R", "R"], "R", "R"),
    placed(["S0"], "S0", "S0", ["R", "R"], ["P", "P"]), placed(["S0", "S0"], "P.mean", "R")]}

STRATEGIES = [
    strategy([0] * 7), strategy([0, 0, 1, 1, 1, 1, 1]), strategy([0, 1, 1, 2, 2, 3, 3]),
    strategy([0] * 7, replicas=2, overlap=True), strategy([0] * 7, threads=2),
    strategy([0] * 7, replicas=2, overlap=True, threads=2),
    strategy([0] * 7, replicas=2, overlap=True, buckets_MiB=[0.0005, 0.001], broadcast_buffers=False),
    strategy([0] * 7, replicas=2, single=True), strategy([0] * 7, replicas=2, single=True, delayed=True),
    strategy([0] * 7, replicas=2, zero=1, units=[0] * 7, reshard=True, shard=2),
    *(strategy([0] * 7, replicas=2, zero=3, units=units, reshard=reshard, shard=2)
      for units in ([0, 1, 2, 3, 4, 5, 6], [0, 0, 1, 1, 1, 0, 2], [0] * 7) for reshard in (True, False)),
    strategy([0] * 7, microbatches=3, actions=["F0 B0 F1 B1 F2 B2"]),
    *pipelines(4, ["F0 F1 F2 F3 B0 B1 B2 B3"] * 2, ["F0 F1 B0 F2 B1 F3 B2 B3", "F0 B0 F1 B1 F2 B2 F3 B3"]),
    *pipelines(2, ["F0 F1 B0 B1"] * 2, ["F0 F1 B1 B0"] * 2),
    *({"threads": 1, "kind": "data_parallel", "replicas": 2, "bucket_MiB": size, "one_process": one_process}
      for size in (10, 0.0005) for one_process in (True, False)),
    *({**HYBRID, "rooted": rooted, "input": before, "target": before, "one_process": one_process}
      for rooted, before in ((False, "R"), (True, "@0")) for one_process in (True, False))]


def parsed(request):
    return json.loads(json.dumps(request), object_hook=lambda entries: SimpleNamespace(**entries))


class Peers:
    def __init__(self, ranks=RANKS):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        cores = sorted(os.sched_getaffinity(0))
        environment = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), PYTHONDONTWRITEBYTECODE="1")
        self.processes = []
        for rank in range(ranks):
            options = ["--rank", str(rank), "--cores", *(str(cores[each % len(cores)]) for each in range(ranks)),
                       "--usable", *map(str, cores)]
            self.processes.append(subprocess.Popen(
                [sys.executable, str(SERVE), *options], stdin=subprocess.DEVNULL if rank else subprocess.PIPE,
                stdout=subprocess.PIPE, text=True, env=environment))

    def ask_line(self, line):
        print(line, file=self.processes[0].stdin, flush=True)
        return json.loads(self.processes[0].stdout.readline())

    def ask(self, model, strategy, best=False, warmup_steps=1, steps=STEPS - 1, seed=1):
        usable, threads = sorted(os.sched_getaffinity(0)), strategy["threads"]
        cores = [[usable[(rank * threads + each) % len(usable)] for each in range(threads)] for rank in range(RANKS)]
        return self.ask_line(json.dumps({"subject": {"model": model, "strategy": strategy, "best": best}, "cores": cores,
                                         "warmup_steps": warmup_steps, "steps": steps, "seed": seed}))

    def end(self):
        """The exit statuses after the end of the input."""
        self.processes[0].stdin.close()
        try:
            return [process.wait(30) for process in self.processes]
        finally:
            for process in self.processes:
                process.kill()
                process.stdout.close()


@torch.no_grad()
def set_initial(module, model):
    """First values in the order of the parameters, which is the model's in torchvision's modules too."""
    parameters = iter(module.parameters())
    for node in model.nodes:
        for kind, (center, bound) in vars(node.parameters).items():
            initial.draw(next(parameters), center, bound, initial.stream(1, f"{node.name}.{kind}"))
    assert next(parameters, None) is None


def plain_losses(module, optimizer, model, steps=STEPS):
    """One device, the whole batch: nothing of strategies.py and models.py."""
    module.to(models.DTYPES[model.dtype])
    set_initial(module, model)
    x, target = (make(model, range(model.global_batch), 1, "cpu") for make in (initial.inputs, initial.targets))
    loss_of = {"mse_loss": nn.MSELoss(), "cross_entropy": nn.CrossEntropyLoss()}[model.loss]
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(module(x), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def toy_losses(model, make_optimizer):
    module = Toy().to(models.DTYPES[model["dtype"]])
    return plain_losses(module, make_optimizer(module.parameters()), parsed(model))


def near(found, expected, tolerance=1e-5):
    assert len(found) == len(expected), (found, expected)
    assert all(abs(a - b) <= tolerance * abs(b) for a, b in zip(found, expected)), (found, expected)


def session_losses(session, steps=STEPS):
    session.initialise(1)
    session.begin()
    x, target = session.inputs(1), session.targets(1)
    return [session.step(x, target)[0].item() for _ in range(steps)]


def every_strategy_trains_the_same(peers):
    for dtype, tolerance, optimizers in (("f32", 1e-5, OPTIMIZERS[1:2]), ("f64", 1e-13, OPTIMIZERS)):
        for optimizer, make_optimizer in optimizers:
            model = toy(optimizer, dtype)
            expected = toy_losses(model, make_optimizer)
            assert expected[-1] < expected[0], expected
            for turn, how in enumerate(STRATEGIES):
                for best in (False, True) if dtype == "f32" else (turn % 2 == 0,):
                    answer = peers.ask(model, how, best)
                    assert set(answer) == {"step_s", "loss", "resident_peak_bytes", "settings"}, (how, answer)
                    near(answer["loss"], expected, tolerance)
                    faster = "foreach" if how.get("zero") == 3 else "fused"  # nothing for channels_last
                    assert answer["settings"] == (f"{faster} updates" if best else ""), answer
                    assert len(answer["step_s"]) == STEPS - 1 and all(0 < t < 60 for t in answer["step_s"]), answer
                    assert answer["resident_peak_bytes"] > 1 << 20, answer


def modules_are_what_a_user_writes(_):
    """The catalog's ResNet-18 is torchvision's; a chain is an nn.Sequential."""
    model = parsed(RESNET18["model"])
    stage, = models.make_stages(model, [0] * len(model.nodes))
    theirs = torchvision.models.resnet18()
    assert [p.shape for p in stage.module.parameters()] == [p.shape for p in theirs.parameters()]
    assert [b.shape for b in stage.module.buffers()] == [b.shape for b in theirs.buffers()]
    kinds = {}
    for module in theirs.modules():
        kinds[type(module)] = kinds.get(type(module), 0) + 1
    for kind in (nn.Conv2d, nn.BatchNorm2d, nn.Linear):
        assert sum(type(module) is kind for module in stage.module.modules()) == kinds[kind], kind
    chain = parsed(RESNET18["model"])
    chain.nodes = chain.nodes[:4]
    assert isinstance(models.make_stages(chain, [0] * 4)[0].module, nn.Sequential)


def resnet18_has_torchvisions_losses(_):
    """Also with channels_last, and with both at once."""
    model = parsed(RESNET18["model"])
    model.optimizer.lr = 0.001
    theirs = torchvision.models.resnet18()
    optimizer = torch.optim.SGD(theirs.parameters(), 0.001, momentum=0.9, weight_decay=1e-4)
    expected = plain_losses(theirs, optimizer, model)
    for best in (False, True):
        for channels_last in (False, True):
            subject = SimpleNamespace(model=model, strategy=parsed(strategy([0] * len(model.nodes))), best=best)
            session = strategies.open_session(subject, channels_last, "cpu", 0, {}, [0])
            near(session_losses(session), expected)
            convolution = next(p for p in session.module.parameters() if p.shape[2:] == (3, 3))
            assert convolution.is_contiguous(memory_format=torch.channels_last) == channels_last
            assert convolution.is_contiguous() != channels_last
            assert session.settings() == ", ".join(["fused updates"] * best + ["channels_last"] * channels_last)


def batch_norm_sees_its_part(peers):
    """The statistics of a DDP rank's rows and of a microbatch's are of the same rows here."""
    model = copy.deepcopy(RESNET18["model"])
    model["optimizer"] = {"kind": "sgd", "lr": 0.001, "momentum": 0, "weight_decay": 0}
    model["dtype"] = "f64"  # batch norm over a few values magnifies rounding
    stages = RESNET18["strategy"]["stages"]
    whole = [0] * len(stages)
    expected = peers.ask(model, strategy(whole))["loss"]
    near(peers.ask(model, strategy(stages))["loss"], expected)
    parts = peers.ask(model, strategy(whole, replicas=2, overlap=True))["loss"]
    assert abs(parts[0] - expected[0]) > 1e-4, parts
    for best in (False, True):
        near(peers.ask(model, strategy(stages, microbatches=2, actions=["F0 F1 B0 B1"] * 2), best)["loss"], parts)
    for node in model["nodes"]:
        if node["op"] == "batch_norm":
            node["attributes"]["sync"] = 1
    near(peers.ask(model, strategy(whole))["loss"], expected)  # one rank has all samples
    same_of_two = peers.ask(model, strategy(whole, replicas=2, overlap=True))
    assert same_of_two == {"skipped": "torch.nn.SyncBatchNorm runs on GPUs only"}, same_of_two


def a_session_begins_anew(peers):
    model = RESNET18["model"]
    how = strategy([0] * len(model["nodes"]), replicas=2, overlap=True)
    first = peers.ask(model, how)["loss"]
    assert peers.ask(model, how)["loss"] == first
    assert peers.ask(model, how, seed=2)["loss"] != first
    assert peers.ask(model, how, warmup_steps=0, steps=1)["loss"] == first[:1]


def forward_pipeline_is_the_whole_batch(_):
    """Only GPUs run it in a session, so its module is tried here: the splits go through and are put together."""
    model = toy(OPTIMIZERS[0][0])
    expected = toy_losses(model, OPTIMIZERS[0][1])
    for splits in (2, 3, 8):
        how = strategy([0, 1, 1, 2, 2, 3, 3], microbatches=splits, one_loss=True, actions=[])
        subject = parsed({"model": model, "strategy": how, "best": False})
        session = strategies.open_session(subject, False, "cpu", 0, {}, [0])
        assert isinstance(session, stages.ForwardPipeline)
        near(session_losses(session), expected)


def batches_made_and_results_read(peers):
    """The host's part of a step trains the same in every strategy."""
    for timing in ("tutorial", "epoch"):
        model = {**toy(OPTIMIZERS[0][0]), "timing": timing}
        expected = peers.ask(model, strategy([0] * 7))["loss"]
        for how in STRATEGIES:  # one replica; others make other batches
            if how.get("replicas") == 1:
                near(peers.ask(model, how)["loss"], expected)


def tensors_get_where_they_are_needed(_):
    """From every placement to every other, even and uneven, between threads; peers_test.cpp's are processes, too."""
    shape = [12, 24, 7]
    whole = torch.arange(2016.0).reshape(shape)
    for sizes in ([2], [3], [4], [2, 2], [3, 2]):
        every = range(math.prod(sizes))
        threads = process.PinnedThreads([0] * len(every))
        befores = [*itertools.product(("R", "S0", "S1", "S1/2", "P"), repeat=len(sizes)), ["@0"] * len(sizes)]
        for before, after, rooted in itertools.product(
                befores, itertools.product(("R", "S0", "S1", "S2"), repeat=len(sizes)), (False, True)):
            way = placement.placements(" ".join(before)), placement.placements(" ".join(after))
            meetings = {}
            meshes = [placement.Mesh(sizes, rank) for rank in every]
            movers = [placement.Mover(mesh, rooted, lambda line, rank=rank: collectives.Threads(
                line.index(rank), meetings.setdefault(line, collectives.Meeting(len(line)))))
                for rank, mesh in enumerate(meshes)]

            def move(mesh, mover):
                mine = whole[mesh.piece(way[0], shape)].clone() if mesh.has(way[0]) else whole[:0]
                for placed, at, size in zip(before, mesh.at, sizes):
                    if placed == "P":
                        mine *= 2 * (at + 1) / (size * (size + 1))
                return mover.move(mine, shape, *way)

            for mesh, mine in zip(meshes, threads.on_each(move, meshes, movers)):
                expected = whole[mesh.piece(way[1], shape)]
                assert mine.shape == expected.shape, (sizes, rooted, before, after, mine.shape)
                assert torch.allclose(mine, expected), (sizes, rooted, before, after)


def a_thread_that_fails_ends_all(_):
    meeting = collectives.Meeting(2)

    def fail(rank):
        if rank == 1:
            meeting.barrier.abort()
            raise ValueError("rank 1 has failed")
        collectives.Threads(rank, meeting).all_reduce(torch.zeros(1))

    try:
        process.PinnedThreads([0, 0]).on_each(fail, range(2))
    except ValueError as error:
        assert str(error) == "rank 1 has failed"
    else:
        raise AssertionError("no error")


def threads_end_time_shared(_):
    """Else two of them may stand in each other's way on a core for ever (process.PinnedThreads)."""
    class Ending:
        def __del__(self):
            policies.put(os.sched_getscheduler(0))

    def stay(_):
        of_thread.ending = Ending()  # ends with its thread
        return os.sched_getscheduler(0)

    policies, of_thread, before = queue.SimpleQueue(), threading.local(), os.sched_getscheduler(0)
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))  # in place of real time, which isn't permitted everywhere
    try:
        threads = process.PinnedThreads([0, 0])
        assert threads.on_each(stay, range(2)) == [os.SCHED_BATCH] * 2  # inherited
        del threads
        assert [policies.get(timeout=60) for _ in range(2)] == [os.SCHED_OTHER] * 2
    finally:
        os.sched_setscheduler(0, before, os.sched_param(0))


def wrong_requests_are_answered(peers):
    model = toy(OPTIMIZERS[0][0])

    def with_op(op):
        changed = copy.deepcopy(model)
        changed["nodes"][1]["op"] = op
        return changed

    for asked, how, key, expected in (
            (with_op("dropout"), strategy([0] * 7), "skipped",
             "the peers (bench/peers) don't have the layer 'dropout'; they have conv2d, linear"),
            ({**model, "optimizer": {"kind": "lion"}}, strategy([0] * 7), "skipped", "the optimizer 'lion'; they have sgd"),
            ({**model, "loss": "huber"}, strategy([0] * 7), "skipped", "the loss 'huber'; they have mse_loss"),
            (model, strategy([0] * 7, replicas=2), "skipped", "plain PyTorch has no DDP that overlaps nothing"),
            (model, strategy([0] * 6 + [1], replicas=2, overlap=True), "skipped", "no DistributedDataParallel of pipelines"),
            (model, strategy([0] * 6 + [1], microbatches=2, one_loss=True), "skipped", "a single CPU device"),
            (model, {**HYBRID, "one_process": True, "threads": 2}, "skipped", "these peers' threads have a core each"),
            (model, {**HYBRID, "levels": [2, 2], "one_process": True}, "error", "needs 4 ranks, the session has 2"),
            (model, {"threads": 1, "kind": "data_parallel", "replicas": 3, "one_process": True}, "error", "needs 3 ranks, the session"),
            (model, strategy([0] * 7, replicas=4, overlap=True), "error", "needs 4 ranks, the session has 2")):
        answer = peers.ask(asked, how)
        assert list(answer) == [key] and expected in answer[key], (how, answer)
    for line, expected in (("{", "Expecting property name"), ("3", "'int' object has no attribute 'subject'"),
                           ('{"subject": {"model": {}}}', "has no attribute 'strategy'")):
        answer = peers.ask_line(line)
        assert list(answer) == ["error"] and answer["error"].startswith("not a request: ") and expected in answer["error"]
    near(peers.ask(model, strategy([0] * 7))["loss"], toy_losses(model, OPTIMIZERS[0][1]))  # it goes on


def errors_are_one_line(_):
    assert process.one_line(RuntimeError("\n what is wrong\n\nwhat to read")) == "RuntimeError: what is wrong"
    assert process.one_line(KeyError()) == "KeyError"


def main():
    torch.set_num_threads(1)
    peers = Peers()
    failed = 0
    for test in (errors_are_one_line, modules_are_what_a_user_writes, resnet18_has_torchvisions_losses,
                 forward_pipeline_is_the_whole_batch, tensors_get_where_they_are_needed, a_thread_that_fails_ends_all,
                 threads_end_time_shared, wrong_requests_are_answered, every_strategy_trains_the_same,
                 batches_made_and_results_read, batch_norm_sees_its_part, a_session_begins_anew):
        try:
            begin = time.monotonic()
            test(peers)
            print(f"{test.__name__}: passed ({time.monotonic() - begin:.1f} s)")
        except Exception:
            traceback.print_exc()
            failed += 1
    statuses = peers.end()
    print(f"exit statuses after EOF: {statuses}")
    return 1 if failed or statuses != [0] * RANKS else 0


if __name__ == "__main__":
    sys.exit(main())
