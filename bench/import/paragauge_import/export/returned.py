"""What a module returns, and which of it the loss takes (--prediction):

    only(module, "logits")      # from now on it returns nothing else: a field, a key, or a place (0) of a tuple; "head.0": inside
    only(module, "")            # what it did, but dataclasses, which PyTorch doesn't look into, as dictionaries
    names(module)               # of the tensors that it has returned last: ["logits", "hidden"]
"""

import dataclasses

import torch
from torch.utils._pytree import SUPPORTED_NODES

from paragauge_import.refusal import Refusal


def parts(returned) -> dict | None:
    """What lies in it by name; None: nothing that can be named, or a tensor."""
    if isinstance(returned, dict):
        return {str(k): v for k, v in returned.items()}
    if dataclasses.is_dataclass(returned) and not isinstance(returned, type):
        return {f.name: getattr(returned, f.name) for f in dataclasses.fields(returned)}
    if isinstance(returned, tuple | list):
        fields = getattr(returned, "_fields", range(len(returned)))
        return {str(k): v for k, v in zip(fields, returned)}
    return None


def tensors(returned, path="") -> list:
    """The paths of all tensors in it."""
    if isinstance(returned, torch.Tensor):
        return [path]
    inside = parts(returned) or {}
    return [found for k, v in inside.items() for found in tensors(v, f"{path}.{k}" if path else k)]


def at(returned, path):
    """What is there. Refusal: nothing is."""
    here = returned
    for key in path.split("."):
        inside = parts(here)
        if inside is None and not isinstance(here, torch.Tensor) and hasattr(here, key):  # an object of the user's own
            inside = {key: getattr(here, key)}
        if isinstance(here, tuple) and key.isdigit() and int(key) < len(here):  # also of one with names
            inside = {key: here[int(key)]}
        if inside is None or key not in inside:
            known = ", ".join(tensors(returned)) or f"none: it returns an object of class {type(returned).__name__}"
            raise Refusal(f"--prediction {path}: not what the model returns; known: {known}")
        here = inside[key]
    return here


def plain(returned):
    """As a tree that torch.export returns."""
    if type(returned) in SUPPORTED_NODES or isinstance(returned, torch.Tensor | None | int | float | str):
        if type(returned) in (tuple, list, dict):
            inside = {k: plain(v) for k, v in (returned.items() if isinstance(returned, dict) else enumerate(returned))}
            return inside if isinstance(returned, dict) else type(returned)(inside.values())
        return returned
    inside = parts(returned)
    if inside is None:
        raise Refusal(f"the model returns an object of class {type(returned).__name__}: return tensors, or a tuple, a dictionary or a dataclass of them, or take "
                      "one of its attributes by --prediction NAME")
    return {k: plain(v) for k, v in inside.items()}


class Only:
    """A forward hook."""

    def __init__(self, path: str):
        self.path, self.names = path, []

    def __call__(self, _module, _arguments, returned):
        taken = at(returned, self.path) if self.path else returned
        self.names = tensors(taken)
        return plain(taken)


def hooks_of(module) -> dict:
    return {k: hook for k, hook in module._forward_hooks.items() if isinstance(hook, Only)}


def only(module, path: str):
    for key in hooks_of(module):
        del module._forward_hooks[key]
    module.register_forward_hook(Only(path))


def names(module) -> list:
    return [name for hook in hooks_of(module).values() for name in hook.names]
