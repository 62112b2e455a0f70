"""A model that was imported, as the module that it was made of: its file says by what command (made_by). To the sessions each
module that has parameters or buffers of its own is what a node is: it has a name and first values.

    module, layers = make_module(model)      # model.file: the file's path
    x = inputs(model, range(8), seed, device)
    loss = loss_of(model)(module(x), targets(model, range(8), seed, device))
"""

import json
import math
import re
import shlex
import sys
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from types import SimpleNamespace

import initial
import torch
import torch.nn.functional as F
from torch import nn

HERE = Path(__file__).resolve().parent
IMPORTER = HERE.parent / "import"
DRAWS = re.compile(r"=(native_dropout|bernoulli|rand|normal|uniform|exponential|multinomial|log_normal|cauchy|geometric|poisson|binomial"
                   r"|_standard_gamma|rrelu_with_noise)\w*[.(]")


class NoModule(Exception):
    """The module can't be made; the text is the reason."""


def is_imported(model: SimpleNamespace) -> bool:
    return hasattr(model, "file")


@lru_cache(maxsize=None)
def read(path: str) -> dict:
    try:
        return json.loads(Path(path).read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise NoModule(f"{path}: {error}") from None


@contextmanager
def importers_modules():
    """Meanwhile `import` finds the importer's modules and the user's, though they may be named as the peers' are."""
    own = {name: module for name, module in sys.modules.items()
           if name != "__main__" and Path(getattr(module, "__file__", None) or "/").parent == HERE}
    path = list(sys.path)
    for name in own:
        del sys.modules[name]
    sys.path[:] = [str(IMPORTER), *(entry for entry in path if Path(entry or ".").resolve() != HERE)]
    try:
        yield
    finally:
        sys.path[:] = path
        sys.modules.update(own)


def make_request(path: str):
    """The importer's: the module as it is trained, its inputs."""
    made_by = read(path).get("made_by", "")
    command = made_by.rpartition("; ")[0]
    if not command.startswith("paragauge import "):
        raise NoModule(f"{path}: made_by is '{made_by}', not the command of an import")
    with importers_modules():
        from paragauge_import import import_model
        try:
            arguments = import_model.parser().parse_args([*shlex.split(command)[2:], "-o", "nowhere"])
            request = import_model.make_request(arguments, "")
            if any(tensor.is_meta for tensor in (*request.module.parameters(), *request.module.buffers())):
                raise NoModule("its parameters are on the device 'meta', without values")
            request.module = import_model.prepare(request, [])
        except (Exception, SystemExit) as error:  # a user's code may raise anything
            raise NoModule(f"'{command}' makes no module here: {error}") from None
    return request


@lru_cache(maxsize=None)
def check(path: str):
    """NoModule where a session would find no module, or could make no inputs for it."""
    make_request(path)
    for given in read(path)["inputs"]:
        if given["shape"][0] != "B":
            raise NoModule(f"input '{given['name']}' has {given['shape'][0]} rows, several for each sample")


class Module(nn.Module):
    """The user's, of one argument and one output."""

    def __init__(self, module: nn.Module, inputs: list, taken):
        """taken: of what the module returns the tensor that the loss takes."""
        super().__init__()
        self.module, self.names, self.taken = module, [given.name for given in inputs], taken

    def forward(self, tensors):
        named = {name: tensor for name, tensor in zip(self.names, tensors) if name}
        return self.taken(self.module(*(tensor for name, tensor in zip(self.names, tensors) if not name), **named))


def first_values(model: SimpleNamespace) -> dict:
    """Of parameters by their names in the module: the name that they are drawn by, center and bound."""
    firsts = {name: (name, *first) for node in model.nodes for name, first in vars(node.reads).items()}
    frozen = {constant["frozen"]: (name, *constant["values"]["uniform"])
              for name, constant in read(model.file)["constants"].items() if "frozen" in constant and "uniform" in constant["values"]}
    return firsts | frozen


def make_module(model: SimpleNamespace) -> tuple[nn.Module, list[tuple[SimpleNamespace, nn.Module]]]:
    request = make_request(model.file)
    firsts, layers = first_values(model), []
    for name, part in request.module.named_modules():
        own = {kind: firsts.get(f"{name}.{kind}" if name else kind) for kind, _ in part.named_parameters(recurse=False)}
        buffers = {kind: buffer.clone() for kind, buffer in part.named_buffers(recurse=False)}
        if own or buffers:
            layers.append((SimpleNamespace(name=name, firsts={kind: first for kind, first in own.items() if first}, buffers=buffers),
                           part))
    with importers_modules():
        from paragauge_import.export.exported import taken_by
    return Module(request.module, request.inputs, partial(taken_by, model.loss)), layers


def inputs(model: SimpleNamespace, rows: range, seed: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    tensors = []
    for given in read(model.file)["inputs"]:
        is_whole = given["dtype"] == "i64"
        tensor = torch.empty(len(rows), *given["shape"][1:], dtype=torch.int64 if is_whole else initial.DTYPES[model.dtype], device=device)
        for place, row in enumerate(rows):
            own = initial.stream(seed, given["name"], row)
            if is_whole:
                initial.draw_classes(tensor[place], given["below"], own)
            else:
                below = given.get("below", 0)
                initial.draw(tensor[place], below / 2, below / 2 or math.sqrt(3), own)
        tensors.append(tensor)
    return tuple(tensors)


def targets(model: SimpleNamespace, rows: range, seed: int, device: torch.device) -> torch.Tensor:
    target = read(model.file)["target"]
    positions = target["shape"][1:] if "classes" in target else target["shape"][1:-1]
    classes = torch.empty(len(rows), *positions, dtype=torch.int64, device=device)
    for place, row in enumerate(rows):
        initial.draw_classes(classes[place], model.classes, initial.stream(seed, "target", row))
    if model.loss == "cross_entropy":
        return classes
    return F.one_hot(classes, model.classes).to(initial.DTYPES[model.dtype])


def loss_of(model: SimpleNamespace):
    """As a user writes it: of a prediction for each sample, each position of a text, or each pixel."""
    if model.loss == "mse_loss":
        return lambda output, target: F.mse_loss(output.reshape(target.shape), target)
    if model.loss == "mean_loss":
        return lambda output, _: output.mean()

    with importers_modules():
        from paragauge_import.export.exported import classes_are_moved
    is_moved = classes_are_moved(read(model.file))

    def cross_entropy(output, target):
        is_last = output.shape == (*target.shape, model.classes)
        may_be_first = output.shape == (target.shape[0], model.classes, *target.shape[1:])
        if output.dim() > 2 and is_last and not (may_be_first and is_moved):
            return F.cross_entropy(output.flatten(0, -2), target.flatten())
        return F.cross_entropy(output, target)

    return cross_entropy


def draws(model: SimpleNamespace) -> bool:
    """Random numbers."""
    return any(DRAWS.search(line) for body in read(model.file)["bodies"].values() for line in body["forward"])
