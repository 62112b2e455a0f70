"""Whether a file's bodies for half precision say what the module does under torch.autocast, or with its parameters in half precision.

    result = check_half(file, module, inputs)      # after check.check
    result.refuse_differences()

Two things are compared. In float64, where every cast is a copy, output, loss and gradients are the module's, as in check.py:
the calls are right. And in float32 and bfloat16 all that a body gives has the dtype that the file says, and lies no farther
from what float64 gives than the module's own run in bfloat16 on this CPU does (under torch.autocast, whose lists differ from the
GPU's, which the bodies follow: autocast.py): rounding alone, since either rounds as often, or less.
"""

import contextlib
from dataclasses import dataclass

import torch
from paragauge_import import check
from paragauge_import.export.exported import arguments, example, own_buffers, same_draws, without_hooks
from paragauge_import.export.own_state import own_state
from paragauge_import.half import half_parameters
from paragauge_import.play import dtypes, loss_of, parameters_of, play_model
from paragauge_import.refusal import Refusal, first_line, users_line

FARTHER = 4  # than PyTorch's own: two sums of the same numbers, rounded in another order, differ so from what is exact
STEP = 2.0**-8  # bfloat16's rounding, by which a single number is off, however near PyTorch's happens to be


def in_half(file: dict, key: str) -> dict:
    """The file with its second bodies, those of `key`, in the place of the first."""
    nodes = [n if key not in n else {"name": n["name"], "op": "aten", "inputs": n["inputs"], "body": n[key],
                                     "parameters": parameters_of(n)} for n in file["nodes"]]
    constants = {name: {**c, "dtype": "bf16"} if c.get("halved") and key == "half_parameters" else c for name, c in file["constants"].items()}
    return {**file, "bodies": {**file["bodies"], **file[key]}, "constants": constants, "nodes": nodes}


@dataclass
class HalfResult:
    exact: check.Result
    ours: dict  # by "output", "loss", "gradients": how far from float64, relative to the norm
    theirs: dict

    def text(self) -> str:
        far = ", ".join(f"{name} {self.ours[name]:.1e} ({self.theirs[name]:.1e})" for name in self.ours)
        return f"with casts as copies: {self.exact.text()}; from float64, and PyTorch's own from it: {far}"

    def refuse_differences(self):
        wrong = self.exact.differences() or [f"half precision: {name} differs from float64's by {far:.2g} of its norm, PyTorch's own by {self.theirs[name]:.2g}"
                 for name, far in self.ours.items() if not far <= FARTHER * self.theirs[name] + STEP]
        if wrong:
            raise Refusal("\n".join(wrong))


def distances(found, exact) -> dict:
    """Of (prediction, loss, gradients): all gradients as one vector."""
    def together(gradients):
        return torch.cat([gradients[k].double().reshape(-1) if k in gradients else torch.zeros_like(exact[2][k]).reshape(-1)
                          for k in exact[2]] or [torch.zeros(1)])
    return {"output": check.relative(found[0].double(), exact[0]),
            "loss": abs(float(found[1]) - float(exact[1])) / max(abs(float(exact[1])), 1e-300),
            "gradients": check.relative(together(found[2]), together(exact[2]))}


def check_half(file: dict, module, inputs, half=torch.bfloat16, batch: int = check.BATCH, key="half") -> HalfResult:
    """file: one whose `key` ("half", "half_parameters") is bodies. The module stays in float32."""
    played = in_half(file, key)
    with dtypes(bf16=torch.float64):
        exact = check.check(played, module, inputs, batch)
        batch = exact.batch  # another, where the module fails with these
    generator = torch.Generator().manual_seed(1)
    tensors = example(inputs, batch, torch.float32, generator)
    target = check.target_of(file, batch, generator)
    module.float()  # what float64 computes with, too
    check.turn_tables(module, torch.float64, torch.float32)
    own = {k: p.detach().clone(memory_format=torch.contiguous_format) for k, p in module.named_parameters()}
    values = dict(zip([x["name"] for x in file["inputs"]], tensors))
    wide = lambda x: x.double() if x.is_floating_point() else x  # noqa: E731
    with torch.no_grad(), dtypes(bf16=torch.float64):
        truth = play_model(played, {k: wide(x) for k, x in values.items()}, wide(target), {k: p.double() for k, p in own.items()},
                           {k: p.double() for k, p in own.items()}, batch)
    target = target.float() if target.is_floating_point() else target
    in_full = own.keys() if key == "half" else half_parameters.of_norms(played["nodes"])
    kept = {k: p if k in in_full else p.to(half) for k, p in own.items()}
    run = by_autocast if key == "half" else by_half_parameters
    try:
        theirs = run(file, module, inputs, tensors, target, half)
    except RuntimeError as error:
        if "primitive" not in str(error):
            raise
        with torch.backends.mkldnn.flags(enabled=False):  # oneDNN has none for this CPU
            theirs = run(file, module, inputs, tensors, target, half)
    with torch.no_grad(), dtypes(f32=torch.float32, bf16=half):
        ours = play_model(played, values, target, kept, kept, batch)
    return HalfResult(exact, distances(ours, truth), distances(theirs, truth))


def by_autocast(file: dict, module, inputs, tensors, target, half) -> tuple:
    return run_of(file, module, arguments(inputs, tensors), target, torch.autocast("cpu", half))


def by_half_parameters(file: dict, module, inputs, tensors, target, half) -> tuple:
    with half_parameters.halved(module, inputs, half):
        tensors = [t.to(half) if t.is_floating_point() else t for t in tensors]
        try:
            return run_of(file, module, arguments(inputs, tensors), target, contextlib.nullcontext())
        except RuntimeError as error:
            if "same dtype" not in str(error):
                raise
            raise Refusal(f"with its parameters in bfloat16 the module fails: {first_line(error)} at {users_line(error)}") from error


def run_of(file: dict, module, given, target, forward) -> tuple:
    """forward: the context of the module's."""
    for p in module.parameters():
        p.grad = None
    with own_state(module), without_hooks(), own_buffers(module), same_draws(), check.Draws(), check.Exact(in_f64=False):
        with forward:
            prediction = check.prediction_of(file, module, *given, target)
        loss = loss_of(file["loss"], prediction, target)
        loss.backward()
    return prediction.detach(), loss.detach(), {k: p.grad for k, p in module.named_parameters() if p.grad is not None}
