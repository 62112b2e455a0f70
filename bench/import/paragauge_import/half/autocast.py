"""What torch.autocast casts.

    with applied(torch.bfloat16):
        target, args, kwargs = cast(aten.linear.default, (x, w, b), {})      # all three in bfloat16

The lists are CUDA's. People use autocast on GPUs, and the ops that sim knows itself follow an accelerator's rules, too; the
CPU's lists leave layer norms and softmax in half precision, so bodies by these would say something of nobody's GPU. The calls
of a body are those of the CPU's kernels in any case, as in float32, so that it can be measured here. The lists are read from
the header that comes with torch (ATen/autocast_mode.h), whose comments describe the policies; those that it spells out in
code alone stand below. In 2.11 they are one for bfloat16 and float16.

An operation that is on no list may call some that are: F.cross_entropy, nll_loss. Its calls are found, and made one by one.
"""

import contextlib
import math
import re
from functools import cache
from pathlib import Path
from unittest import mock

import torch
from paragauge_import.refusal import Refusal
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
POLICIES = {"LOWER_PRECISION_FP": "half", "FP32": "f32", "FP32_SET_OPT_DTYPE": "to f32", "PROMOTE": "widest"}
IN_CODE = {"norm.Scalar": "append f32", "norm.ScalarOpt_dim": "append f32"}  # AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE
KERNELS = {"lstm", "gru", "rnn_tanh", "rnn_relu"}  # on a GPU one kernel, which is on a list; here calls that are
DTYPE = None  # what it casts to; None: it's off


@contextlib.contextmanager
def applied(dtype):
    global DTYPE
    before, DTYPE = DTYPE, dtype
    try:
        yield
    finally:
        DTYPE = before


@cache
def policies() -> dict:
    """By name and overload as in a schema ("softmax.int"): one of POLICIES' values."""
    if not HEADER.exists():
        raise Refusal(f"torch's header {HEADER}, which lists what autocast casts, isn't installed")
    header, found = HEADER.read_text(), dict(IN_CODE)
    for macro, policy in POLICIES.items():
        lists = re.search(rf"#define AT_FORALL_{macro}\(_\)(.*?)\n\n", header, re.S)
        if lists is None:
            raise Refusal(f"{HEADER} has no list AT_FORALL_{macro}")
        for name, overload in re.findall(r"_\((\w+)(?:, (\w+))?\)", lists[1]):
            found[f"{name}.{overload}" if overload else name] = policy
    return found


def policy_of(target) -> str | None:
    schema = target._schema
    if schema.name.split("::")[1] in KERNELS:
        return "half"
    return policies().get(schema.name.split("::")[1] + (f".{schema.overload_name}" if schema.overload_name else ""))


def is_cast(x) -> bool:
    return isinstance(x, torch.Tensor) and x.is_floating_point() and x.dtype != torch.float64


def cast(target, args, kwargs):
    """The call that autocast makes of this one."""
    if DTYPE is None or (policy := policy_of(target)) is None:
        return target, args, kwargs
    if policy in ("to f32", "append f32"):
        if not is_cast(args[0]):
            return target, args, kwargs
        if policy == "append f32":
            dtyped = {"norm.Scalar": target.overloadpacket.ScalarOpt_dtype, "norm.ScalarOpt_dim": target.overloadpacket.ScalarOpt_dim_dtype}
            given = {a.name: a.default_value for a in target._schema.arguments[len(args):]} | kwargs
            return dtyped[f"norm.{target._overloadname}"], args, {**given, "dtype": torch.float32}
        given = dict(zip([a.name for a in target._schema.arguments], args)) | kwargs
        return target, args, kwargs if given.get("dtype") is not None else {**kwargs, "dtype": torch.float32}
    to = {"half": DTYPE, "f32": torch.float32}.get(policy)
    if to is None:
        to = torch.float32 if any(is_cast(t) and t.dtype == torch.float32 for t in tree_leaves((args, kwargs))) else DTYPE
    def convert(x):
        return x.to(to) if is_cast(x) and x.dtype != to else x
    return target, tree_map(convert, tuple(args)), tree_map(convert, kwargs)


def in_range(args):
    """The largest number of float32 is, of a tensor in half precision, that of its dtype: torch.finfo(x.dtype).min is asked when it runs."""
    tensor = next((x for x in args if isinstance(x, torch.Tensor)), None)
    if tensor is None or tensor.dtype not in (torch.bfloat16, torch.float16):
        return args
    largest, own = torch.finfo(torch.float32).max, torch.finfo(tensor.dtype).max
    return tree_map(lambda x: math.copysign(own, x) if isinstance(x, float) and abs(x) == largest else x, args)


class Whole(TorchDispatchMode):
    """Sees what operations call that are on a list or call nothing further: with torch.inference_mode, in which a mode sees them."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function.namespace == "prim":  # which device a tensor is on
            return function(*args, **kwargs)
        if policy_of(function) is None and function._can_decompose():
            with self:
                return function.decompose(*args, **kwargs)
        return self.call(function, args, kwargs)


class Calls(Whole):
    """Notes them."""

    def __init__(self):
        super().__init__()
        self.noted = []

    def call(self, function, args, kwargs):
        result = function(*args, **kwargs)
        self.noted.append((function, args, kwargs, result))
        return result


class Casting(Whole):
    """Casts what they take."""

    def call(self, function, args, kwargs):
        target, args, kwargs = cast(function, args, kwargs)
        with torch.inference_mode(False), torch.no_grad():
            return target(*args, **kwargs)


def call_own(call, args, kwargs):
    """A function of the user's own: autocast is on in its forward, and in its backward it is off."""
    forward = call.function.forward
    if hasattr(forward, "__wrapped__"):
        raise Refusal(f"custom autograd.Function '{call.function.__name__}' says by a decorator (custom_fwd?) what autocast does inside, which isn't known")

    def cast_forward(*args, **kwargs):
        with torch.inference_mode(), Casting():
            return forward(*args, **kwargs)
    with mock.patch.object(call.function, "forward", staticmethod(cast_forward)):
        return call(*args, **kwargs)


def call(target, args, kwargs):
    """What autocast makes of this operation, which is on no list: of what it calls."""
    if not target._can_decompose() or target._schema.name.split("::")[1] in KERNELS:
        return target(*args, **kwargs)
    with disable_proxy_modes_tracing(), torch.inference_mode(), Calls() as calls:
        given = target.decompose(*args, **kwargs)
    if all(policy_of(function) is None for function, *_ in calls.noted):
        return target(*args, **kwargs)
    known = {}
    for function, args, kwargs, before in calls.noted:
        args, kwargs = tree_map(lambda x: known.get(id(x), x), (args, kwargs))
        function, args, kwargs = cast(function, args, kwargs)
        result = function(*args, **kwargs)
        known |= {id(old): new for old, new in zip(tree_leaves(before), tree_leaves(result)) if isinstance(old, torch.Tensor)}
    return tree_map(lambda x: known.get(id(x), x), given)
