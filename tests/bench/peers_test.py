"""The peers (bench/peers/): every strategy trains the same as a plain loop; wrong requests are answered; EOF ends all.

    .venv/bin/python tests/bench/peers_test.py        # exit status 0: all passed; 77: no torch here
"""

import json
import os
import socket
import subprocess
import sys
import traceback
from pathlib import Path

SERVE = Path(__file__).resolve().parents[2] / "bench" / "peers" / "serve.py"
sys.path.insert(0, str(SERVE.parent))
sys.dont_write_bytecode = True

try:
    import torch
    import torchvision  # noqa: F401
except ImportError:
    print("peers: torch or torchvision is missing, skipped")
    sys.exit(77)

import initial  # noqa: E402
import models  # noqa: E402
import strategies  # noqa: E402
import texts  # noqa: E402

RANKS = 2
STEPS = 4
# A model without batch norm and where to cut it: every strategy has one device's losses.
MODELS = [("toy_mlp", "r1"), ("toy_mlp,optimizer=sgd:lr=0.1:momentum=0.9:weight_decay=0.01", "r1"),
          ("toy_mlp_r2", "r2"), ("convnet", "pool2"), ("convnet,loss=mse_loss,global_batch=16", "conv2"),
          ("toy_mlp,dtype=f64,optimizer=adam:lr=0.01:beta1=0.8", "net1")]


class Peers:
    def __init__(self, ranks=RANKS):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        cores = sorted(os.sched_getaffinity(0))
        environment = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), PYTHONDONTWRITEBYTECODE="1")
        self.processes = []
        for rank in range(ranks):
            options = f"--rank {rank} --ranks {ranks} --core {cores[rank % len(cores)]}".split()
            self.processes.append(subprocess.Popen(
                [sys.executable, str(SERVE), *options], stdin=subprocess.DEVNULL if rank else subprocess.PIPE,
                stdout=subprocess.PIPE, text=True, env=environment))

    def ask_line(self, line):
        print(line, file=self.processes[0].stdin, flush=True)
        return json.loads(self.processes[0].stdout.readline())

    def ask(self, model, strategy, warmup_steps=1, steps=STEPS - 1, seed=1):
        return self.ask_line(json.dumps({"model": model, "strategy": strategy, "warmup_steps": warmup_steps,
                                         "steps": steps, "seed": seed}))

    def end(self):
        """The exit statuses after the end of the input."""
        self.processes[0].stdin.close()
        try:
            return [process.wait(30) for process in self.processes]
        finally:
            for process in self.processes:
                process.kill()
                process.stdout.close()


def strategies_of(cut):
    stages = f"pp=2,cut={cut}"
    return ["single", f"model_parallel,{stages}", "ddp,dp=2,overlap=1",
            "ddp,dp=2,overlap=1,bucket_MiB=0.001,first_bucket_MiB=0.0005,broadcast_buffers=0",
            f"pipeline,{stages},schedule=gpipe,microbatches=4", f"pipeline,{stages},schedule=1f1b,split_size=4",
            f"pipeline,{stages},schedule=1f1b,microbatches=2"]


def plain_losses(text, steps=STEPS, module=None):
    """One device, the whole batch, nothing of strategies.py but its optimizer."""
    subject = texts.read_model(text)
    model = module or models.build(subject).to_empty(device="cpu")
    initial.initialise(models.layers(model), 1)
    x, target = (make(subject, range(subject.global_batch), 1, "cpu") for make in (initial.inputs, initial.targets))
    loss_of = {"mse_loss": torch.nn.MSELoss(), "cross_entropy": torch.nn.CrossEntropyLoss()}[subject.loss]
    optimizer = strategies.make_optimizer(subject, model.parameters())
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = loss_of(model(x), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def near(found, expected, tolerance=1e-5):
    assert len(found) == len(expected), (found, expected)
    assert all(abs(a - b) <= tolerance * abs(b) for a, b in zip(found, expected)), (found, expected)


def every_strategy_trains_the_same(peers):
    for model, cut in MODELS:
        expected = plain_losses(model)
        assert expected[-1] < expected[0], expected
        for strategy in strategies_of(cut):
            answer = peers.ask(model, strategy)
            assert set(answer) == {"step_s", "loss", "resident_peak_bytes"}, (model, strategy, answer)
            near(answer["loss"], expected, 1e-13 if "f64" in model else 1e-5)
            assert len(answer["step_s"]) == STEPS - 1 and all(0 < t < 60 for t in answer["step_s"]), answer
            assert answer["resident_peak_bytes"] > 1 << 20, answer


def batch_norm_sees_its_part(peers):
    """ResNet: the statistics of a DDP rank's rows and of a microbatch's are of the same rows here."""
    model = "resnet18,image=32,global_batch=8,optimizer=sgd:lr=0.001"
    near(peers.ask(model, "single")["loss"], plain_losses(model))
    near(peers.ask(model, "model_parallel,pp=2,cut=layer2")["loss"], plain_losses(model))
    expected = peers.ask(model, "ddp,dp=2,overlap=1")["loss"]
    assert abs(expected[0] - plain_losses(model, 1)[0]) > 1e-4, expected
    for schedule in ("gpipe", "1f1b"):
        near(peers.ask(model, f"pipeline,pp=2,schedule={schedule},microbatches=2,cut=layer2")["loss"], expected)


def a_session_begins_anew(peers):
    first = peers.ask("convnet", "ddp,dp=2,overlap=1")["loss"]
    assert peers.ask("convnet", "ddp,dp=2,overlap=1")["loss"] == first
    assert peers.ask("convnet", "ddp,dp=2,overlap=1", seed=2)["loss"] != first
    assert peers.ask("convnet", "ddp,dp=2,overlap=1", warmup_steps=0, steps=1)["loss"] == first[:1]


def forward_pipeline_is_the_whole_batch(_):
    """Only GPUs run it in a session, so its module is tried here: the splits go through and are put together."""
    subject = texts.read_model("convnet")
    for splits in (1, 2, 8):
        plan = texts.read_strategy(f"pipeline,pp=4,schedule=forward_only,microbatches={splits},cut=r2", subject)
        session = strategies.open_session(subject, plan, "cpu", 0, None)
        assert isinstance(session, strategies.ForwardPipeline)
        initial.initialise(session.layers, 1)
        session.begin()
        x, target = (make(subject, range(64), 1, "cpu") for make in (initial.inputs, initial.targets))
        near([session.step(x, target)[0].item() for _ in range(STEPS)], plain_losses("convnet"))


def every_catalog_model_is_here(_):
    """Names and shapes of the parameters are the catalog's: a model's file is read by eye of its layers' names."""
    for path in texts.CATALOG.glob("*.json"):
        subject = texts.read_model(path.stem)
        named = {name for name, _ in models.layers(models.build(subject))}
        models.check(subject, texts.Plan("single"))
        for cut in subject.cuts.values():
            parts = models.stages(models.build(subject), cut)
            assert [part[-1][0].startswith(name) for part, name in zip(parts, cut)] == [True] * len(cut), cut
            assert sum(len(part) for part in parts) == len(named)


def wrong_requests_are_answered(peers):
    for model, strategy, key, expected in (
            ("convnet,size=3", "single", "error", "unknown key 'size'; known: image, global_batch"),
            ("convnet,loss=l1", "single", "error", "loss=l1 must be one of mse_loss, cross_entropy"),
            ("convnet,optimizer=lion:lr=1", "single", "error", "optimizer=lion must be one of sgd, adam"),
            ("convnet,global_batch=ten", "single", "error", "global_batch=ten must be a number"),
            ("convnet,image=64", "single", "error", "model 'convnet' can't take 64 samples of [3, 64, 64]"),
            ("toy_mlp,image=64", "single", "error", "image= needs a model with input [channels, height, width]"),
            ("alexnet", "single", "skipped", "plain PyTorch has no model 'alexnet'"),
            ("toy_mlp", "zero,dp=2", "skipped", "plain PyTorch has no strategy 'zero'"),
            ("toy_mlp", "dp=2,pp=2", "skipped", "plain PyTorch has no strategy 'dp=2'"),
            ("toy_mlp", "ddp,dp=2", "skipped", "plain PyTorch has no DDP that overlaps nothing"),
            ("toy_mlp", "ddp,dp=4,overlap=1", "error", "needs 4 ranks, the session has 2"),
            ("toy_mlp", "ddp,dp=3,overlap=1", "error", "3 parts must divide global_batch=20"),
            ("toy_mlp", "single,dp=2", "error", "unknown key 'dp'; known: none"),
            ("toy_mlp", "model_parallel,pp=2", "skipped", "name them: cut="),
            ("toy_mlp", "model_parallel,pp=3,cut=relu", "error", "pp must be 2, found pp=3"),
            ("toy_mlp", "model_parallel,pp=2,cut=conv9", "skipped", "they are net1, relu, net2"),
            ("toy_mlp", "pipeline,pp=2,cut=relu,schedule=zb", "skipped", "no schedule 'zb'"),
            ("toy_mlp", "pipeline,pp=2,cut=relu,schedule=forward_only", "skipped", "a single CPU device"),
            ("toy_mlp", "pipeline,pp=2,cut=relu,microbatches=3", "error", "3 parts must divide global_batch=20")):
        answer = peers.ask(model, strategy)
        assert list(answer) == [key] and expected in answer[key], (model, strategy, answer)
    for line, expected in (("{", "Expecting property name"), ("3", "the request must be an object"),
                           ('{"model": "convnet"}', "the request needs 'strategy' (str)")):
        answer = peers.ask_line(line)
        assert list(answer) == ["error"] and expected in answer["error"], answer
    near(peers.ask("toy_mlp", "single")["loss"], plain_losses("toy_mlp"))  # it goes on


def main():
    torch.set_num_threads(1)
    peers = Peers()
    failed = 0
    for test in (every_catalog_model_is_here, forward_pipeline_is_the_whole_batch, wrong_requests_are_answered,
                 every_strategy_trains_the_same, batch_norm_sees_its_part, a_session_begins_anew):
        try:
            test(peers)
            print(f"{test.__name__}: passed")
        except Exception:
            traceback.print_exc()
            failed += 1
    statuses = peers.end()
    print(f"exit statuses after EOF: {statuses}")
    return 1 if failed or statuses != [0] * RANKS else 0


if __name__ == "__main__":
    sys.exit(main())
