"""A PyTorch module as a model file of paragauge.

    python bench/import my_package.my_model:build --input f32[B,3,224,224] -o my_model.json
    python bench/import catalog:gpt_nano -o gpt_nano.json
    python bench/import --torchvision vit_b_16 --input f32[B,3,224,224] -o vit_b_16.json
    python bench/import --transformers gpt2 --input i64[B,64]<50257 -o gpt2.json
    python bench/import clip.py:build --input f32[B,3,224,224] --input 'i64[B,77]<49408' --loss mean_loss -o clip.json

The last module returns its loss, of inputs and targets; one that returns nothing else needs no --loss. What such a loss compares
(samples with each other, say) is compared among those that are played together: a rank's, a microbatch's.
The file is played back in float64 and compared with the module: its output, its loss and every gradient. Only then is it left
in place. What it says of half precision (precision=bf16 and fp16) is played and compared, too, and left out where it differs. Exit status 0: written; 1: refused, with what, where and why.

export/ takes the module's graph by torch.export; graph/ makes steps without side effects of it; nodes.py says which of them become a
node, and body/ what its forward and its backward call; half/ does that again in half precision, tensor_parallel/ cuts it among ranks.
check.py plays the file, by play.py, beside the module.
"""

import argparse
import json
import math
import os
import re
import shlex
import sys
import time
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # what kernels that are tried warn of

import torch
from paragauge_import import check, nodes as made_nodes, spec
from paragauge_import.export import exported, returned
from paragauge_import.graph import reader
from paragauge_import.graph.step import DTYPE_NAMES, Graph, shape_text
from paragauge_import.half import check_half, half_bodies, half_parameters
from paragauge_import.refusal import Refusal, first_line
from paragauge_import.tensor_parallel import cut_nodes, positions, vocabulary
from paragauge_import.tensor_parallel.tp_plan import Plan, read_plan
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

aten = torch.ops.aten
FORMAT = "paragauge-model-2"
LOSSES = ("cross_entropy", "mse_loss", "mean_loss")


@dataclass
class Request:
    module: nn.Module
    inputs: list
    loss: str | None = None  # of LOSSES; None: mean_loss of a module that returns nothing but a number, else cross_entropy
    classes: int | None = None
    optimizer: dict = field(default_factory=lambda: {"kind": "sgd", "lr": 0.1})
    global_batch: int = 32
    name: str = "model"
    description: str = ""
    made_by: str = "paragauge import"
    small: "Request | None" = None  # the same model with the same names, small: what is measured is measured on that
    plan: Plan | None = None  # of tensor parallelism; None: what the graph allows is cut
    prediction: str = ""  # which of what the module returns the loss takes; empty: there is one tensor only (returned.py)
    half_parameters: bool = False  # with what the nodes are where parameters are in half precision (half_parameters.py)


@dataclass
class Imported:
    file: dict
    notes: list
    module: nn.Module
    graph: Graph


def prepare(request, notes):
    """The module that is trained: without wrappers, in f32; it returns what the loss takes."""
    module = request.module
    while isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
        notes.append(f"{type(module).__name__} is left out: a strategy brings it")
        module = module.module
    if not isinstance(module, nn.Module):
        raise Refusal(f"expected a torch.nn.Module, found {type(module).__name__}")
    odd = sorted({str(t.dtype).replace("torch.", "") for t in (*module.parameters(), *module.buffers())
                  if t.is_floating_point() and t.dtype != torch.float32})
    if odd:
        notes.append(f"{', '.join(odd)} becomes float32: precision= of a strategy brings it back")
        module = module.float()
    for part in module.modules():
        if getattr(part, "sparse", False) is True and isinstance(part, (nn.Embedding, nn.EmbeddingBag)):
            part.sparse = False
            if (note := "sparse=True of an embedding is off: its gradient is dense here") not in notes:
                notes.append(note)
        if getattr(getattr(part, "config", None), "use_cache", False) is True:  # transformers'
            part.config.use_cache = False
            if (note := "config.use_cache is off: a step of training keeps no keys and values for later words") not in notes:
                notes.append(note)
        for name, p in part._parameters.items():
            if p is not None and p.is_meta:
                part._parameters[name] = without_values(p, name)
    hooked = [k for k, p in module.named_parameters() if p._backward_hooks or p._post_accumulate_grad_hooks]
    if hooked:
        notes.append(f"{exported.HOOK}: of {', '.join(hooked[:5])}{', …' if len(hooked) > 5 else ''}")
        for p in module.parameters():
            p._backward_hooks, p._post_accumulate_grad_hooks = None, None
    returned.only(module, request.prediction)
    if not module.training:
        return module.train()
    if still := [path for path, part in module.named_modules() if not part.training]:
        notes.append(f"parts in eval() stay so, without dropout and with the averages of their batch norms: {', '.join(still[:5])}"
                     f"{', …' if len(still) > 5 else ''}")
    return module


FAKE = FakeTensorMode()


def without_values(p, name):
    """Of a parameter on the device `meta`, one that looks as if it were on the CPU."""
    if not hasattr(p, "initial"):
        raise Refusal(f"parameter '{name}' is on the device 'meta', without values: give it .initial = (center, bound)")
    with FAKE:
        fake = nn.Parameter(torch.empty(p.shape, dtype=p.dtype), requires_grad=p.requires_grad)
    fake.initial = p.initial
    return fake


def values_text(v) -> dict:
    """A constant's values, as short as they can be said."""
    data = v.data[0]
    if data.is_complex():
        raise Refusal(f"a constant of dtype {v.dtype} can't be written")
    if data.layout != torch.strided:
        raise Refusal(f"a constant '{v.name}' is sparse: keep it dense (to_dense())")
    flat = data.reshape(-1)
    if flat.dtype == torch.bool:
        flat = flat.long()
    if flat.is_floating_point():
        if bool(flat.isnan().any()):
            raise Refusal(f"a constant '{v.name}' has values that aren't numbers")
        flat = flat.double()
    if flat.numel() == 0:
        return {"list": []}
    runs = lambda: [[x if math.isfinite(x) else str(x), n] for x, n in zip(*map(torch.Tensor.tolist, torch.unique_consecutive(flat, return_counts=True)))]  # noqa: E731
    if flat.is_floating_point() and bool(flat.isinf().any()):
        found = runs()
        return {"runs": found} if 2 * len(found) < flat.numel() else {"list": [x if math.isfinite(x) else str(x) for x in flat.tolist()]}
    first = flat[0].item()
    if bool((flat == first).all()):
        return {"full": first}
    step = (flat[1] - flat[0]).item()
    if torch.equal(flat, first + step * torch.arange(flat.numel())):
        return {"arange": [first, step]}
    if 2 * len(found := runs()) < flat.numel():
        return {"runs": found}
    return {"list": flat.tolist()}


def uniform(p) -> list:
    """Center and bound of a uniform distribution with the tensor's mean and standard deviation."""
    if hasattr(p, "initial"):
        return list(p.initial)
    p = p.detach().double()
    if p.numel() == 0:
        return [0, 0]
    mean, std = p.mean().item(), p.std(unbiased=False).item()
    return [mean, math.sqrt(3) * std if std > 1e-12 * max(abs(mean), 1e-300) else 0]


AS_ON_CPUS = {
    "scaled_dot_product_attention": "attention with dropout is products and a softmax, as CPUs have it; GPUs fuse it, and keep less: their forecasts "
                                    "are too slow and too large by that (without dropout in attention they aren't)",
    "rms_norm": "rms_norm is written out, as CPUs have it; GPUs have one kernel, and keep less: their forecasts are too slow and too large by that"}


def are_drawn(p) -> bool:
    """Whether other numbers do in the place of a frozen parameter's: not of indices, nor of a mask with infinities."""
    return p.is_floating_point() and (isinstance(p, FakeTensor) or bool(p.isfinite().all()))


def tidy(x):
    return int(x) if isinstance(x, float) and x.is_integer() and abs(x) < 2**53 else float(f"{x:.6g}")


def output_for(loss, classes, graph):
    """The loss takes [batch, …, classes]: an image's prediction [batch, classes, height, width] is permuted, a single number per
    sample is one of a row, and one for all samples is that of each."""
    v, seen_as = graph.output, None
    if loss == "mean_loss" and not v.shapes[0]:
        seen_as = aten.expand.default, *((v, (batch, 1)) for batch in exported.BATCHES)
    elif loss == "cross_entropy" and has_classes_first(v, classes):
        seen_as = aten.permute.default, *((v, (0, *range(2, len(v.shapes[0])), 1)),) * 2
    elif loss != "cross_entropy" and len(v.shapes[0]) == 1 and v.dtype.is_floating_point:
        seen_as = aten.unsqueeze.default, *((v, 1),) * 2
    if seen_as is not None and v.step is not None:
        added = reader.Reader(None, [])
        graph.output, = added.emit(seen_as[0], seen_as[1:], ({}, {}), v.step.place)
        graph.steps += added.steps


def has_classes_first(v, classes) -> bool:
    """[batch, classes, …], as PyTorch's cross_entropy takes images and volumes; of three dimensions that is a text's [batch, positions,
    classes], unless a convolution gives it or --classes says so."""
    sizes = v.shapes[0]
    if len(sizes) < 3 or classes is not None and sizes[1] != classes:
        return False
    return len(sizes) > 3 or (classes is not None and sizes[2] != classes) or is_of_convolution(v)


def is_of_convolution(v) -> bool:
    """What came last is one, or what leaves its channels where they are (a norm, ReLU, an upsampling)."""
    while v.step is not None and not v.step.name.startswith("conv"):
        before = [x for x in v.step.reads() if len(x.shapes[0]) == 3 and x.shapes[0][1] == v.shapes[0][1]]
        if not before or v.step.name in ("linear", "matmul", "bmm", "baddbmm", "einsum", "layer_norm"):
            return False
        v = before[0]
    return v.step is not None


def target_for(loss, classes, graph) -> dict:
    shape = shape_text(graph.output.shapes)
    if not graph.output.dtype.is_floating_point:
        raise Refusal(f"the model returns {DTYPE_NAMES[graph.output.dtype]}{shape}: a loss needs f32")
    if not shape:
        raise Refusal(f"the model returns a single number: --loss mean_loss takes that as its loss, {loss} takes a prediction")
    if any(str(size).endswith("B") for size in shape[1:]):
        raise Refusal(f"the model returns {shape}: each sample is compared with all others; a loss takes the batch first, and only there")
    if not str(shape[0]).endswith("B"):
        raise Refusal(f"the model returns {shape}: the first dimension must be the batch")
    if loss != "cross_entropy":
        return {"shape": shape}
    if len(shape) < 2:
        raise Refusal(f"the model returns {shape}: cross_entropy needs [batch, …, classes]; --loss mse_loss and mean_loss take any shape")
    if classes is not None and shape[-1] != classes:
        raise Refusal(f"--classes {classes}: the model returns {shape}, whose last size must be that")
    return {"classes": shape[-1], "shape": shape[:-1]}


def import_module(request: Request, cut: bool = True, is_twin: bool = False) -> Imported:
    """The model file's content. cut: with what can be cut for tensor parallelism. is_twin: the small model that stands for a large one,
    whose bodies can't be run: nothing is found by running them. Refusal: what can't be imported, all at once."""
    notes = list(getattr(request.module, "import_notes", []))
    module = prepare(request, notes)
    if any(isinstance(p, nn.parameter.UninitializedParameter) for p in module.parameters()):  # nn.LazyLinear
        args, kwargs = exported.arguments(request.inputs, exported.example(request.inputs, exported.BATCHES[0]))
        with spec.users_code(request.name):
            module(*args, **kwargs)
    if request.small is None and any(isinstance(p, FakeTensor) for p in module.parameters()):
        raise Refusal("parameters on the device 'meta' have no values to check with: the builder's import_options need \"small\", a "
                      "builder of the same model, small")
    dead = set()
    while True:
        graph = reader.read_graph(module, request.inputs, dead, request.loss)
        loss = request.loss or ("cross_entropy" if graph.output.shapes[0] else "mean_loss")
        output_for(loss, request.classes, graph)
        target = target_for(loss, request.classes, graph)
        made = made_nodes.make_nodes(graph, measure=request.small is None, runs=request.small is None and not is_twin)
        if not made.dead:
            break
        dead |= made.dead
    notes += [n for n in graph.notes if n not in notes]
    synced = {n["name"] for n in made.nodes if n.get("sync")}
    if apart := sorted(k for k, part in module.named_modules() if isinstance(part, nn.SyncBatchNorm) and k not in synced):
        notes.append(f"SyncBatchNorm {', '.join(apart[:5])}{', …' if len(apart) > 5 else ''}: each rank sees its own samples here "
                     "(called twice, frozen, or without weights or running statistics)")
    if request.loss is None and loss == "mean_loss":
        notes.append("the module returns its loss: mean_loss")
    own = dict(module.named_parameters())
    if taken := sorted(made_nodes.reserved(graph) & set(own)):
        raise Refusal(f"a parameter is called '{taken[0]}', which is what the batch is called here: it needs another name")
    sizes = {k: p.numel() for k, p in own.items()}
    if dead:
        notes.append(f"{len(dead)} parameters get no gradient (detach, no_grad, integers) and count as frozen: "
                     f"{', '.join(sorted(dead)[:5])}{', …' if len(dead) > 5 else ''}")
    frozen = sorted(k for k, p in own.items() if not p.requires_grad)
    if frozen:
        notes.append(f"{len(frozen)} parameters are frozen: {', '.join(frozen[:5])}{', …' if len(frozen) > 5 else ''}")
    unread = sorted(k for k in own if k not in read_parameters(made) and k not in dead and k not in frozen)
    if unread:
        notes.append(f"{len(unread)} parameters aren't read: {', '.join(unread[:5])}{', …' if len(unread) > 5 else ''}")
    parameters = {}
    for name in own:
        if name in made.used:
            if re.search(r"[\s'\"]", name):
                raise Refusal(f"parameter '{name}' has a space or a quote in its name")
            if not isinstance(own[name], FakeTensor) and not bool(own[name].isfinite().all()):
                raise Refusal(f"parameter '{name}' has values that aren't numbers: it isn't initialised")
            center, bound = map(tidy, uniform(own[name]))
            parameters[name] = {"shape": list(own[name].shape), "center": center, "bound": bound}
            if name in graph.also:
                parameters[name]["also"] = graph.also[name]
    constants = {}
    for name, v in made.constants.items():
        text = {"dtype": DTYPE_NAMES[v.dtype], "shape": list(v.shapes[0])}
        if v.kind == "frozen":
            p = own[v.name].detach()
            values = {"uniform": [tidy(x) for x in uniform(own[v.name])]} if are_drawn(p) else values_text(replace(v, data=(p, p)))
            text |= {"values": values, "frozen": v.name}
        elif v.data is None:
            raise Refusal(f"'{v.name}' has no values: a refused op's")
        else:
            text["values"] = values_text(v)
        constants[name] = text
    inputs = [{"name": v.name, **x.text()} for v, x in zip(graph.inputs, request.inputs)]
    file = {"format": FORMAT, "name": request.name, "description": request.description, "made_by": request.made_by,
            "inputs": inputs, "target": target, "loss": loss, "optimizer": request.optimizer,
            "global_batch": request.global_batch, "parameters": parameters, "constants": constants,
            "units": made_nodes.find_units(graph, made, sizes), "bodies": made.bodies, "half": half_bodies.half_bodies(graph, made, request.small is None and not is_twin),
            "nodes": made.nodes}
    played = {s.name for _, group, _ in made.traced for s in group.steps if s.name != "scaled_dot_product_attention" or s.argument("dropout_p")}
    notes += [note for name, note in AS_ON_CPUS.items() if name in played]
    notes += [f"no half precision: {file['half']}"] if isinstance(file["half"], str) else half_bodies.notes_of(graph)
    if request.half_parameters:
        def read_halved():
            with half_parameters.halved(module, request.inputs) as inputs:
                other = reader.read_graph(module, inputs, dead, loss)
            output_for(loss, request.classes, other)
            return half_parameters.with_half_parameters(graph, other, made, request.small is None and not is_twin)
        notes += put_half_parameters(file, read_halved, made, dict(module.named_buffers()))
    small = import_module(request.small, cut=False, is_twin=True).file if request.small is not None else None
    if small is not None:
        take_rows(file, small)
        half_bodies.take_rows(file)
    if cut:
        cut_for_tensor_parallelism(file, small, notes, request.plan)
    return Imported(file, notes, module, graph)


def put_half_parameters(file, read_halved, made, buffers) -> list:
    """The bodies where parameters are in half precision, or why there are none; notes. read_halved: gives bodies, and constants' names."""
    notes, names = [], set()
    try:
        if isinstance(file["half"], str):
            raise Refusal(file["half"])
        file["half_parameters"], names = read_halved()
    except Refusal as refusal:
        reason = "; ".join(str(refusal).splitlines())
        half_bodies.leave_out(file, reason if reason == file["half"] else f"with its parameters in bfloat16 {reason}", "half_parameters")
        notes.append(f"no parameters in half precision: {file['half_parameters']}")
    for name in names:
        file["constants"][name]["halved"] = True
    if read := sorted(made.constants[name].name for name in names if made.constants[name].name in buffers):
        notes.append(f"where parameters are in half precision, buffers are, too, as DeepSpeed has them and FSDP2 hasn't: {', '.join(read[:5])}"
                     f"{', …' if len(read) > 5 else ''}")
    file["nodes"] = file.pop("nodes")  # behind the bodies
    return notes


def cut_for_tensor_parallelism(file, small, notes, plan):
    """What can be cut is tried with numbers; of a model with a small twin on that."""
    tried = set(cut_nodes.cut_nodes(small, plan=plan)) if small is not None else None
    alike = set(positions.cut_positions(small)) if small is not None else None
    found = cut_nodes.cut_nodes(file, tried, plan)
    positions.cut_positions(file, alike)
    units = {body["units"] for body in file["bodies"].values() if "units" in body}
    words = vocabulary.classes_of(file) if vocabulary.is_cut(file) else None
    if found:
        others = sorted(units - {words})
        what = ([f"tp must divide {', '.join(map(str, others))}"] if others else []) + \
            ([f"the vocabulary of {words} is cut{', too' if others else ''}"] if words else [])
        notes.append(f"{len(found)} nodes can be cut for tensor parallelism: {'; '.join(what)}")


def take_rows(file, small):
    """`rows` of the small model's bodies, node by node: it must be the same but for sizes. Nodes of constants alone may be
    missing there: small tables are written as they are."""
    def calls(f, node):
        lines = f["bodies"][node["body"]] if node["op"] == "aten" else {"forward": [], "backward": []}
        return node["op"], len(node["inputs"]), [line.split("=")[1].split("(")[0] for line in lines["forward"] + lines["backward"]]
    others, seen = {n["name"]: n for n in small["nodes"]}, 0
    for node in file["nodes"]:
        body, other = file["bodies"].get(node.get("body")), others.get(node["name"])
        if other is None and body and not any("B" in line for line in (*body["inputs"], body["output"], *body["forward"])):
            body["rows"] = True
            continue
        if other is None or calls(file, node) != calls(small, other):
            raise Refusal(f"the small model isn't the same: node '{node['name']}'")
        seen += 1
        if body:
            body["rows"] = small["bodies"][other["body"]]["rows"]
    if seen != len(others):
        raise Refusal(f"the small model isn't the same: it has {len(others)} nodes, {seen} of them here")


def read_parameters(made) -> set:
    from paragauge_import.play import parameters_of
    return {p for n in made.nodes for p in parameters_of(n)}


WIDTH = 200  # of a line of the file, unless an entry alone is longer; of a node twice that


def json_text(x, before=0, indent=0) -> str:
    """On one line what fits, else entry by entry, many short ones on a line. before: characters that the line has already."""
    line = json.dumps(x, ensure_ascii=False, allow_nan=False)
    width = 2 * WIDTH if isinstance(x, dict) and "op" in x else WIDTH
    if before + len(line) <= width or not x or not isinstance(x, (dict, list)):
        return line
    pad, lines = " " * (indent + 1), [""]
    if isinstance(x, dict):
        keys = [f"{json.dumps(k, ensure_ascii=False)}: " for k in x]
        lines = [k + json_text(v, len(pad + k) + 1, indent + 1) for k, v in zip(keys, x.values())]
    elif any(isinstance(entry, (dict, str)) for entry in x):
        lines = [json_text(entry, len(pad) + 1, indent + 1) for entry in x]
    else:  # of numbers, or pairs of them
        for text in map(json.dumps, x):
            if lines[-1] and len(pad + lines[-1] + text) + 3 > WIDTH:
                lines.append(text)
            else:
                lines[-1] += ", " * bool(lines[-1]) + text
    first, last = "{}" if isinstance(x, dict) else "[]"
    return f"{first}\n{pad}" + f",\n{pad}".join(lines) + last


def write(imported: Imported, path: Path):
    path.write_text(json_text(imported.file) + "\n")


def say(text: str):
    """To who reads the output; without a word where nobody reads on (`paragauge import … | head -1`)."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def other_with_more_samples(imported, request) -> str | None:
    """A note where the module goes by how many samples it sees: batch norms of parts of a batch, min(64, len(x))."""
    def other(batch):
        try:
            return reader.other_with(imported.module, request.inputs, imported.graph, batch)
        except Refusal as refusal:  # a table of so many rows
            return f"fails: {first_line(refusal)}"
    most = max(128, request.global_batch)
    if (place := other(most)) is None:
        return None
    while most > 4 and other(most // 2):
        most //= 2
    does = place if place.startswith("fails: ") else f"does something else than this file says, first at {place}"
    return f"with {most} samples on a rank the module {does}; forecasts hold up to {most // 2}"


def checked_in_half(file, checked: Imported, request: Request):
    """Leaves out of the file what differs from the module in half precision, and says so. `checked` is what is played, of
    `request`: the file's own, or that of the same model, small."""
    for key, what, none in (("half", "in bfloat16", "no half precision"), ("half_parameters", "with parameters in bfloat16", "no parameters in half precision")):
        if isinstance(file.get(key, ""), str):
            continue
        if isinstance(checked.file[key], str):
            half_bodies.leave_out(file, checked.file[key], key)
        else:
            start = time.monotonic()
            try:
                result = check_half.check_half(checked.file, checked.module, request.inputs, key=key)
                result.refuse_differences()
                say(f"  checked {what}: {result.text()}, {time.monotonic() - start:.1f} s")
                continue
            except Refusal as refusal:
                half_bodies.leave_out(file, "; ".join(str(refusal).splitlines()), key)
            except (RuntimeError, NotImplementedError) as error:
                half_bodies.leave_out(file, f"it can't be checked on this CPU: {first_line(error)}", key)
        say(f"  note: {none}: {file[key]}")


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="import_model.py", description=__doc__.split("\n\n")[0],
                                formatter_class=argparse.RawDescriptionHelpFormatter, epilog=__doc__.split("\n\n", 1)[1])
    p.add_argument("source", nargs="?", help="what makes the module: package.module:function, file.py:function, catalog:name")
    p.add_argument("--torchvision", metavar="NAME")
    p.add_argument("--timm", metavar="NAME")
    p.add_argument("--transformers", metavar="CONFIG", help="a configuration file or a model type")
    p.add_argument("--input", action="append", default=[], metavar="SPEC",
                   help=f"{spec.FORM}: numbers on both sides of 0, between 0 and 1, whole ones below 256")
    p.add_argument("--loss", choices=LOSSES, help="mean_loss: what the module returns is its loss")
    p.add_argument("--prediction", metavar="NAME", help="which of what the module returns the loss takes: a field, a key, or a place such as 0")
    p.add_argument("--classes", type=int)
    p.add_argument("--optimizer", metavar="KIND[:KEY=NUMBER,…]")
    p.add_argument("--global-batch", type=int)
    p.add_argument("--name")
    p.add_argument("--description", metavar="TEXT", help="for `paragauge list`")
    p.add_argument("--tp-plan", type=Path, metavar="FILE",
                   help="which layers tp cuts, as transformers' base_model_tp_plan: JSON such as {\"layers.*.wq\": \"colwise\"}; "
                        "else all pairs that the graph allows")
    p.add_argument("--half-parameters", action="store_true",
                   help="also what its ops are where parameters are in half precision themselves: for param_dtype=half and DeepSpeed's presets")
    p.add_argument("--no-check", action="store_true", help="leave out the comparison with the module")
    p.add_argument("-o", "--output", required=True, type=Path)
    return p


def make_request(args, command) -> Request:
    sources = [s for s in (args.source, args.torchvision, args.timm, args.transformers) if s]
    if len(sources) != 1:
        raise Refusal("expected one of: package.module:function, --torchvision NAME, --timm NAME, --transformers CONFIG")
    torch.manual_seed(0)
    defaults = {}
    with spec.users_code(sources[0]):
        if args.torchvision:
            module, name = spec.torchvision_model(args.torchvision, args.classes), args.torchvision
        elif args.timm:
            module, name = spec.timm_model(args.timm, args.classes), args.timm
        elif args.transformers:
            module, name = spec.transformers_model(args.transformers, args.classes), Path(args.transformers).stem
        else:
            build = spec.load(args.source)
            defaults = getattr(build, "import_options", {})
            module, name = build(), args.source.rpartition(":")[2]
    texts = args.input or defaults.get("input", [])
    if not texts:
        raise Refusal(f"no --input: expected one for each tensor that forward takes, as {spec.FORM}")
    global_batch = args.global_batch or defaults.get("global_batch", 32)
    if global_batch < 1:
        raise Refusal(f"--global-batch {global_batch}: must be at least 1")
    doc = (type(module).__doc__ or "").strip().splitlines()
    loss = args.loss or defaults.get("loss")
    plan = read_plan(args.tp_plan) if args.tp_plan else None
    prediction = args.prediction or defaults.get("prediction", "")
    halved = args.half_parameters or defaults.get("half_parameters", False)
    small = defaults.get("small")
    if small is not None:
        small = Request(small(), [spec.read_input(t) for t in small.import_options["input"]], loss, plan=plan, prediction=prediction, half_parameters=halved)
    return Request(module, [spec.read_input(t) for t in texts], loss, args.classes,
                   spec.read_optimizer(args.optimizer or defaults.get("optimizer", "sgd:lr=0.1")), global_batch, args.name or name,
                   args.description or defaults.get("description") or
                   (doc[0] if doc and not type(module).__module__.startswith("torch.") else name),
                   f"paragauge import {command}; torch {torch.__version__.split('+')[0]}", small, plan, prediction, halved)


def main(argv=None) -> int:
    warnings.filterwarnings("ignore")
    argv = sys.argv[1:] if argv is None else argv
    args = parser().parse_args(argv)
    shown = [a for i, a in enumerate(argv) if a not in ("-o", "--output") and (i == 0 or argv[i - 1] not in ("-o", "--output"))]
    try:
        if not args.output.absolute().parent.is_dir():
            raise Refusal(f"{args.output}: there is no folder {args.output.parent}")
        start = time.monotonic()
        request = make_request(args, shlex.join(shown))
        imported = import_module(request)
        partial = args.output.with_name(args.output.name + ".unchecked")
        write(imported, partial)
        file = imported.file
        ops = sum(n["op"] != "aten" for n in file["nodes"])
        say(f"{file['name']}: {len(file['nodes'])} nodes ({ops} of known ops), {len(file['bodies'])} bodies, {len(file['units'])} units, "
            f"{sum(p.numel() for p in imported.module.parameters()):,} parameters, {time.monotonic() - start:.1f} s")
        for note in imported.notes:
            say(f"  note: {note}")
        if args.no_check:
            say("  not checked against the module")
        else:
            if request.small is None and (note := other_with_more_samples(imported, request)):
                say(f"  note: {note}")
            start = time.monotonic()
            try:
                if request.small is None:
                    result = check.check(json.loads(partial.read_text()), imported.module, request.inputs)
                else:
                    say("  what is measured and checked is the same model with small sizes")
                    small = import_module(request.small, is_twin=True)
                    result = check.check(small.file, small.module, request.small.inputs)
                result.refuse_differences()
                if result.written and not any(" written: " in n for n in imported.notes):  # where an export doesn't see it
                    say(f"  note: {reader.written_text(result.written)}")
                if result.moved:
                    say(f"  note: a step changes {', '.join(result.moved[:5])} of the module: every step here is the first one")
            except Refusal as refusal:
                partial.unlink()
                reasons = [n for n in imported.notes if "autograd.Function" in n]
                raise Refusal("\n".join([*reasons, str(refusal)])) from refusal
            say(f"  checked in float64 with {result.batch} samples: {result.text()}, {time.monotonic() - start:.1f} s")
            checked_in_half(file, imported if request.small is None else small, request if request.small is None else request.small)
            write(imported, partial)
        partial.replace(args.output)
        return 0
    except Refusal as refusal:
        lines = str(refusal).splitlines()
        if len(lines) > 1:
            print(f"import: {len(lines)} things can't be imported:", file=sys.stderr)
            print("\n".join(f"  {line.strip()}" for line in lines), file=sys.stderr)
        else:
            print(f"import: {refusal}", file=sys.stderr)
        return 1
