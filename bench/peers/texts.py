"""What a request's two texts say: paragauge's model text and strategy text, read as sim/text/spec.cpp reads them.

    subject = read_model("resnet18,image=64,global_batch=8,optimizer=sgd:lr=0.1")
    plan = read_strategy("pipeline,pp=2,schedule=gpipe,microbatches=4,cut=layer2", subject)
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

CATALOG = Path(__file__).resolve().parents[2] / "sim" / "catalog" / "models"
MODEL_KEYS = ("image", "global_batch", "loss", "optimizer", "dtype", "timing")
STRATEGY_KEYS = {
    "single": (),
    "model_parallel": ("pp", "cut"),
    "pipeline": ("pp", "cut", "schedule", "microbatches", "split_size"),
    "ddp": ("dp", "first_bucket_MiB", "bucket_MiB", "overlap", "broadcast_buffers"),
}


class RequestError(Exception):
    """The request is wrong; the text is for the user."""


class Skipped(Exception):
    """Plain PyTorch has no such step, or can't run it here; the text is the reason."""


@dataclass
class Subject:
    """What is trained: numbers from the catalog's file, overridden by the text. The layers are in models.py."""
    name: str
    input: list  # shape of a sample
    classes: int
    global_batch: int
    loss: str
    optimizer: str
    options: dict  # of the optimizer
    dtype: str
    timing: str
    cuts: dict = field(repr=False)


@dataclass
class Plan:
    """How: the strategy's degrees."""
    strategy: str
    ranks: int = 1  # processes that compute
    stages: int = 1
    cut: list = field(default_factory=list)  # last layer of every stage but the last
    schedule: str = "gpipe"
    microbatches: int = 1
    first_bucket_MiB: float = 1
    bucket_MiB: float = 25
    broadcast_buffers: bool = True


def split_text(text, what, known=None):
    """'head,key=value,…' as the head and a dict."""
    head, *items = text.split(",")
    pairs = [item.partition("=") for item in items]
    values = {key: value for key, _, value in pairs}
    for key, equals, value in pairs:
        if not (key and equals and value) or len(values) < len(pairs):
            raise RequestError(f"{what} '{text}': expected name,key=value,… with every key once")
        if known is not None and key not in known:
            raise RequestError(f"{what} '{text}': unknown key '{key}'; known: {', '.join(known) or 'none'}")
    return head, values


def number(values, key, otherwise, kind=int):
    try:
        value = kind(values.get(key, otherwise))
    except ValueError:
        raise RequestError(f"{key}={values[key]} must be a number") from None
    if value < 0:
        raise RequestError(f"{key}={value} must not be negative")
    return value


def read_model(text):
    name, values = split_text(text, "model", MODEL_KEYS)
    path = CATALOG / f"{name}.json"
    if not path.is_file() or "/" in name:
        raise Skipped(f"plain PyTorch has no model '{name}'")
    file = json.loads(path.read_text())
    shape = file["input"]
    if "image" in values:
        if len(shape) != 3:
            raise RequestError(f"model '{text}': image= needs a model with input [channels, height, width]")
        shape = [shape[0]] + [number(values, "image", 0)] * 2
    if "optimizer" in values:
        kind, options = split_text(values["optimizer"].replace(":", ","), "optimizer")
        options = {key: number(options, key, 0, float) for key in options}
    else:
        options = dict(file["optimizer"])
        kind = options.pop("kind")
    subject = Subject(name, shape, file["target"]["classes"], number(values, "global_batch", file["global_batch"]),
                      values.get("loss", file["loss"]), kind, options, values.get("dtype", "f32"),
                      values.get("timing", "step"), file.get("cuts", {}))
    for what, value, known in (("loss", subject.loss, ("mse_loss", "cross_entropy")),
                               ("optimizer", subject.optimizer, ("sgd", "adam")),
                               ("dtype", subject.dtype, ("f32", "f64")),
                               ("timing", subject.timing, ("step", "tutorial", "epoch"))):
        if value not in known:
            raise RequestError(f"model '{text}': {what}={value} must be one of {', '.join(known)}")
    return subject


def read_strategy(text, subject):
    name = text.partition(",")[0]
    if name not in STRATEGY_KEYS:
        raise Skipped(f"plain PyTorch has no strategy '{name}' here; it has {', '.join(STRATEGY_KEYS)}")
    name, values = split_text(text, "strategy", STRATEGY_KEYS[name])
    plan = Plan(name)
    if name == "ddp":
        if number(values, "overlap", 0) != 1:
            raise Skipped("plain PyTorch has no DDP that overlaps nothing; overlap=1 is its DistributedDataParallel")
        plan.ranks = number(values, "dp", 2)
        plan.first_bucket_MiB = number(values, "first_bucket_MiB", 1, float)
        plan.bucket_MiB = number(values, "bucket_MiB", 25, float)
        plan.broadcast_buffers = number(values, "broadcast_buffers", 1) == 1
        if plan.ranks < 2:
            raise RequestError(f"strategy '{text}': dp={plan.ranks} must be at least 2")
    if name in ("model_parallel", "pipeline"):
        plan.stages = number(values, "pp", 2)
        plan.cut = subject.cuts.get(values.get("cut"), values.get("cut", "balanced").split("+"))
        if plan.cut == ["balanced"]:
            raise Skipped("the stages are balanced by paragauge's forecast, which PyTorch hasn't; name them: cut=…")
        if len(plan.cut) + 1 != plan.stages:
            raise RequestError(f"strategy '{text}': cut names {len(plan.cut)} layers, so pp must be "
                               f"{len(plan.cut) + 1}, found pp={plan.stages}")
    if name == "pipeline":
        plan.schedule = values.get("schedule", "gpipe")
        if plan.schedule not in ("gpipe", "1f1b", "forward_only"):
            raise Skipped(f"plain PyTorch has no schedule '{plan.schedule}' here; it has gpipe, 1f1b, forward_only")
        plan.ranks = 1 if plan.schedule == "forward_only" else plan.stages
        split_size = number(values, "split_size", 0)
        plan.microbatches = (subject.global_batch // split_size if split_size else number(values, "microbatches", 4))
    parts = plan.microbatches * (plan.ranks if name == "ddp" else 1)
    if parts == 0 or subject.global_batch == 0 or subject.global_batch % parts != 0:
        raise RequestError(f"strategy '{text}': {parts} parts must divide global_batch={subject.global_batch}")
    return plan
