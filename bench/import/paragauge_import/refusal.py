"""Why a model can't be imported, and where in its source."""

import os
import traceback
from pathlib import Path

import torch

# What the names of files begin with; torchvision's are a user's.
NOT_THE_USERS = (f"{Path(torch.__file__).parent}{os.sep}", f"{Path(__file__).parents[1]}{os.sep}", "<")


class Refusal(Exception):
    """What is wrong, where, and what is allowed: one line or several."""


def module_of(node) -> tuple[str, str]:
    """Path and class of the innermost module that a node of an exported graph belongs to; ("", …) is the model itself.
    A module that is called again has the path "relu@1" in the export: here it is "relu"."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path, kind = stack[-1] if stack else ("", "")
    return path.split("@")[0], getattr(kind, "__name__", str(kind)).split(".")[-1]


def place_of(node) -> str:
    """module 'layers.3.moe' (MoE), model.py:120: idx = mask.nonzero()"""
    path, kind = module_of(node)
    text = f"module '{path or '(top)'}'" + (f" ({kind})" if kind else "")
    lines = (node.meta.get("stack_trace") or "").strip().splitlines()
    files = [line.strip() for line in lines if line.strip().startswith("File ")]
    if files:
        file, number = files[-1].split('"')[1], files[-1].split("line ")[1].split(",")[0]
        text += f", {Path(file).name}:{number}: {lines[-1].strip()}"
    return text


def first_line(error: BaseException) -> str:
    """Of what PyTorch says in many lines, or not at all."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def users_line(error: BaseException) -> str:
    """The last line of the traceback that isn't PyTorch's: model.py:221: if y.sum() > 0"""
    frames = []
    while error is not None:
        frames += [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(NOT_THE_USERS)]
        error = error.__cause__
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}: {frames[-1].line}" if frames else "(no line known)"
