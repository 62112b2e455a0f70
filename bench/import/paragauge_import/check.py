"""Whether a written file says what the module does: output, loss and every parameter's gradient, in float64.

    result = check(json.loads(text), module, inputs)      # the module is turned to float64
    result.refuse_differences()

Dropout is off on both sides (the identity; a Bernoulli draw gives ones), batch norm in train mode. What is zero at the start
(a residual branch's last scale) would hide errors: constant parameters get noise.
"""

from dataclasses import dataclass

import torch
from paragauge_import.export.exported import arguments, classes_are_moved, example, own_buffers, same_draws, taken_by, without_hooks
from paragauge_import.export.known_values import OF_BATCH_NORM
from paragauge_import.export.own_state import own_state
from paragauge_import.modes import TWICE, InF64
from paragauge_import.play import count, draw, loss_of, play_model
from paragauge_import.refusal import Refusal, first_line, users_line
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

BATCH = 5  # neither export's, nor a multiple of one
EVEN_BATCH = 8  # where the module fails with those: they make no groups
LIMIT = 1e-9  # relative to the tensor's norm: rounding of float64 through a deep network
SMALL = 1e-6  # a gradient this far below all gradients' norm is zero but for rounding (a bias before a batch norm)


# Where dropout_p stands among the arguments of functions whose own calls aren't seen by a mode.
DROPOUT_INSIDE = {"scaled_dot_product_attention": 4, "multi_head_attention_forward": 10}


class Exact(TorchFunctionMode):
    """Dropout is the identity, in functions that draw inside, too; and, where `in_f64`, what asks for float32 gets float64."""

    def __init__(self, in_f64=True):
        super().__init__()
        self.in_f64 = in_f64

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs, name = dict(kwargs or {}), getattr(function, "__name__", "")
        if self.in_f64:
            args, kwargs = (tree_map(lambda x: TWICE.get(x, x) if isinstance(x, torch.dtype) else x, part) for part in (args, kwargs))
            if name == "float" and args:
                return args[0].double()
        if name == "rms_norm" and self.in_f64:
            given = dict(zip(("input", "normalized_shape", "weight", "eps"), args)) | kwargs
            if given.get("eps") is None:  # the dtype's own; the graph has float32's
                given["eps"] = torch.finfo(torch.float32).eps
            return function(**given)
        if name in ("dropout", "dropout_") and args:
            return args[0]
        if name in DROPOUT_INSIDE:
            args = tuple(0.0 if i == DROPOUT_INSIDE[name] else a for i, a in enumerate(args))
            if "dropout_p" in kwargs:
                kwargs["dropout_p"] = 0.0
        if name == "tensor" and self.in_f64 and kwargs.get("dtype") is None:
            made = function(*args, **kwargs)
            # The graph has it in float32.
            return torch.from_numpy(made.numpy().astype("f4").astype("f8")) if made.is_floating_point() else made
        if name in ("dropout1d", "dropout2d", "dropout3d", "feature_dropout") and args:
            p = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
            return args[0] / (1 - p) if kwargs.get("training", args[2] if len(args) > 2 else True) and p else args[0]
        return function(*args, **kwargs)


class Draws(TorchDispatchMode):
    """Random numbers as an exact play has them."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function._schema.name
        kwargs = kwargs or {}
        of_none = not any(isinstance(a, torch.Tensor) for a in args) and name not in ("aten::randint", "aten::randperm")
        drawn = draw(name.removesuffix("_"), args, {**kwargs, "dtype": kwargs.get("dtype") or torch.get_default_dtype()} if of_none else kwargs)
        if drawn is None:
            return function(*args, **kwargs)
        return args[0].copy_(drawn) if name.endswith("_") else drawn


@dataclass
class Result:
    batch: int
    output: float  # relative differences
    loss: float
    gradients: dict
    written: list  # buffers, other than a batch norm's
    moved: list  # attributes of the module's own that a step changes, numbers or where the next step returns something else; generators, too

    def worst(self):
        return max(self.gradients.items(), key=lambda kv: kv[1] if kv[1] == kv[1] else float("inf"), default=("none", 0.0))

    def text(self) -> str:
        name, worst = self.worst()
        return f"output {self.output:.1e}, loss {self.loss:.1e}, worst of {len(self.gradients)} gradients {worst:.1e} ({name})"

    def differences(self) -> list:
        wrong = []
        if not self.output <= LIMIT:
            wrong.append(f"the output differs from PyTorch's by {self.output:.2g} of its norm")
        if not self.loss <= LIMIT:
            wrong.append(f"the loss differs from PyTorch's by {self.loss:.2g}")
        bad = [(f"{d:.2g}", k) for k, d in self.gradients.items() if not d <= LIMIT]
        for d, k in sorted(bad, key=lambda found: (-float(found[0]), found[1]))[:5]:
            wrong.append(f"the gradient of '{k}' differs from PyTorch's by {d} of its norm")
        if len(bad) > 5:
            wrong.append(f"{len(bad) - 5} more gradients differ")
        return wrong

    def refuse_differences(self):
        if wrong := self.differences():
            raise Refusal("\n".join(wrong) + "\nno file is left in place: the graph doesn't say what the module does")


def relative(a, b, least=1e-300) -> float:
    difference = float((a - b).norm())
    return difference and difference / max(float(b.norm()), least)


def target_of(file, batch, generator):
    shape = [count(s, batch) for s in file["target"]["shape"]]
    if "classes" in file["target"]:
        return torch.randint(0, file["target"]["classes"], shape, generator=generator)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def prediction_of(file, module, args, kwargs, target):
    """What the module returns, as the loss takes it."""
    prediction = taken_by(file["loss"], module(*args, **kwargs))
    if prediction.dim() == 0:
        return prediction.expand(len(target), 1)
    if prediction.dim() == 1:
        return prediction.unsqueeze(1)
    if prediction.dim() < 3 or file["loss"] != "cross_entropy":
        return prediction
    seen, expected = prediction.movedim(1, -1), [*target.shape, file["target"]["classes"]]
    is_either = list(prediction.shape) == list(seen.shape)
    return seen if list(seen.shape) == expected and (not is_either or classes_are_moved(file)) else prediction


def turn_tables(module, before, after):
    """Tensors of a module's that are no buffers, as what it has computed once (the angles of rotary embeddings)."""
    def turned(x):
        return x.to(after) if isinstance(x, torch.Tensor) and x.dtype == before else x

    for part in module.modules():
        tables = {k: tree_map(turned, v) for k, v in vars(part).items() if not k.startswith("_") and isinstance(v, (torch.Tensor, list, tuple, dict))}
        vars(part).update({k: v for k, v in tables.items() if any(isinstance(t, torch.Tensor) for t in tree_leaves(v))})


def refuse_nan(inputs, loss, gradients):
    """Where the module's own step isn't a number, nothing can be compared."""
    is_nan = [k for k, g in gradients.items() if not bool(g.isfinite().all())]
    if bool(loss.isfinite()) and not is_nan:
        return
    what = "its loss" if not bool(loss.isfinite()) else f"its gradient of '{is_nan[0]}'"
    free = next((x for x in inputs if x.dtype == "f32" and not x.below), None)
    hint = f": those of f32 are normally distributed; one that must be positive lies between 0 and 1 as --input '{free.spelled()}<1'" if free else ""
    raise Refusal(f"the module's own step isn't finite ({what}) with random inputs, so that the file can't be compared with it{hint}")


def check(file: dict, module, inputs, batch: int = BATCH) -> Result:
    generator = torch.Generator().manual_seed(1)
    module.double()
    turn_tables(module, torch.float32, torch.float64)
    with torch.no_grad():
        for p in module.parameters():
            if p.numel() and bool((p == p.reshape(-1)[0]).all()):
                p.add_(torch.randn(p.shape, generator=generator, dtype=p.dtype), alpha=0.02)
            p.grad = None
    tensors = example(inputs, batch, torch.float64, generator)
    target = target_of(file, batch, generator)
    args, kwargs = arguments(inputs, tensors)
    try:
        with own_state(module) as changed, without_hooks():
            with own_buffers(module) as written, same_draws(), Draws(), InF64(), Exact():
                seen = prediction_of(file, module, args, kwargs, target)
                loss = loss_of(file["loss"], seen, target)
                loss.backward()
            moved, numbers, drawn_from, replaced = changed()
            if replaced:
                raise Refusal(f"the forward replaces the parameter '{replaced[0]}' by another one: make it a buffer, or write into it under no_grad")
            if moved:
                with torch.no_grad(), own_buffers(module), same_draws(), Draws(), InF64(), Exact():
                    again = prediction_of(file, module, args, kwargs, target)
                moved = moved if again.shape != seen.shape or relative(again, seen.detach()) > LIMIT else numbers
    except Refusal:
        raise
    except Exception as error:  # samples in groups, or whatever a module raises
        if batch == BATCH:
            return check(file, module, inputs, EVEN_BATCH)
        raise Refusal(f"the module fails with {BATCH} samples, and with {batch}: {first_line(error)} at {users_line(error)}") from error
    theirs = {k: p.grad for k, p in module.named_parameters() if p.grad is not None}
    refuse_nan(inputs, loss, theirs)
    own = {k: p.detach().contiguous() for k, p in module.named_parameters()}  # what a kernel keeps may depend on it
    with torch.no_grad():
        y, ours_loss, ours = play_model(file, dict(zip([x["name"] for x in file["inputs"]], tensors)), target, own, own, batch)
    whole = float(torch.stack([g.norm() for g in theirs.values()]).norm()) if theirs else 0.0
    differences = {}
    for k in {**theirs, **ours}:
        a, b = ours.get(k), theirs.get(k)
        if a is None or b is None:
            differences[k] = 0.0 if float((a if b is None else b).norm()) == 0 else float("inf")
        else:
            differences[k] = relative(a, b, SMALL * whole)
    return Result(batch, relative(y, seen.detach()), abs(float(ours_loss - loss)) / max(abs(float(loss)), 1e-300), differences,
                  sorted(name for name in written if name.rpartition(".")[2] not in OF_BATCH_NORM), moved + drawn_from)
