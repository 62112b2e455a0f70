"""Calls a step's operation, with what the importer has otherwise than the module: so that a body's calls have no side effects, and
neither their kernels nor their numbers depend on more than the file says.

    result = run_step(step, 0, lambda value: tensors[value])      # with the first batch
"""

import contextlib
import math

import torch
from paragauge_import.export import own_function
from paragauge_import.graph.step import Step, Value
from paragauge_import.half import autocast
from torch.utils._pytree import tree_map

aten = torch.ops.aten
LEFT_OUT = {"device", "layout", "pin_memory", "generator"}
LARGER = {"mse_loss", "smooth_l1_loss", "soft_margin_loss", "binary_cross_entropy"}  # the kernel leaves its sum in all losses' memory


def attention_with_dropout(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False, *, scale=None, enable_gqa=False):
    """aten::_scaled_dot_product_attention_math, which is what CPUs take where dropout is on; half precision in f32, as there."""
    own = q.dtype
    if own in (torch.bfloat16, torch.float16):
        q, k, v = q.float(), k.float(), v.float()
    if enable_gqa:
        k, v = (t.repeat_interleave(q.shape[-3] // t.shape[-3], -3) for t in (k, v))
    root = math.sqrt(scale if scale is not None else 1 / math.sqrt(q.shape[-1]))
    scores = (q * root) @ (k * root).transpose(-2, -1)
    softmax = torch.softmax if attn_mask is None else aten._safe_softmax  # zeros for who sees nobody
    if is_causal:
        attn_mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()
    if attn_mask is not None:
        scores = scores.masked_fill(attn_mask.logical_not(), float("-inf")) if attn_mask.dtype == torch.bool else scores + attn_mask
    return (aten.native_dropout(softmax(scores, -1), dropout_p, True)[0] @ v).to(own)


def feature_dropout(x, p, train):
    noise = torch.bernoulli(torch.empty(x.shape[:2] + (1,) * (x.dim() - 2), dtype=x.dtype, device=x.device), 1 - p)
    return x * (noise / (1 - p))


def run_step(step: Step, which: int, lookup):
    """Calls the step's operation, as autocast has it where that is applied. lookup: a Value's tensor."""
    args, kwargs = (tree_map(lambda x: lookup(x) if isinstance(x, Value) else x, part[which])
                    for part in (step.args, step.kwargs))
    kwargs = {k: v for k, v in kwargs.items() if k not in LEFT_OUT}
    made = step.outputs[0]
    if not step.reads() and made is not None and made.dtype == torch.float32 and any(a.name == "dtype" for a in step.target._schema.arguments):
        kwargs["dtype"] = kwargs.get("dtype") or torch.float32  # not the default: torch.rand(size), in float64
    if own_function.is_own(step.target):
        call = None if autocast.DTYPE is None else autocast.call_own
        return call_step(step, own_function.call_of(step.target), list(args), kwargs, call)
    if autocast.DTYPE is None:
        return call_step(step, step.target, list(args), kwargs)
    if step.like is not None:
        kwargs["dtype"] = step.like.source().dtype
    if step.inplace:  # what is written in place is on no list, and stays of its dtype
        return call_step(step, step.target, list(args), kwargs).to(args[0].dtype)
    target, args, kwargs = autocast.cast(step.target, args, kwargs)
    args = autocast.in_range(args)
    return call_step(step, target, list(args), kwargs, call=autocast.call if autocast.policy_of(target) is None else None)


def call_step(step, target, args, kwargs, call=None):
    """call(target, args, kwargs): what calls an operation, if not it itself."""
    name = step.name
    if asks_for_floats(step):  # which in float64 is more than the default dtype
        floats = lambda x: x.to(torch.get_default_dtype()) if isinstance(x, torch.Tensor) and x.dtype != torch.bool else x  # noqa: E731
        args = tree_map(floats, args)
    if name in ("view", "_unsafe_view"):
        target = aten.reshape.default  # what a view needs of strides may not hold here, where nodes' outputs are contiguous
    elif name == "dropout":
        return aten.native_dropout(args[0], args[1], True)[0]
    elif name == "feature_dropout":
        return feature_dropout(*args)
    elif name in ("batch_norm", "instance_norm") and args[1] is None and args[0].dtype in (torch.bfloat16, torch.float16):
        channels = args[0].shape[1]  # with weights its statistics are float32 on CPUs, too, as GPUs' are
        args[1:3] = (make(channels, dtype=torch.float32, device=args[0].device) for make in (torch.ones, torch.zeros))
    elif name.startswith("conv"):
        args[0] = args[0].contiguous()  # of a permuted image a kernel's output lies as that kernel likes
    elif name.startswith("adaptive_avg_pool") and all(s == 1 for s in step.argument("output_size")):
        return args[0].mean(list(range(-len(step.argument("output_size")), 0)), keepdim=True)  # else of odd strides
    elif name in ("var", "std", "var_mean", "std_mean") and (dims := dims_over_samples(step)):
        return variance_over_samples(step, args[0], dims)
    elif name == "scaled_dot_product_attention" and step.argument("dropout_p"):
        return attention_with_dropout(*args, **kwargs)
    with torch.no_grad() if step.no_grad else contextlib.nullcontext():
        result = target(*args, **kwargs) if call is None else call(target, args, kwargs)
    if name in LARGER and step.argument("reduction") != 0:
        result = result.clone()
    return tree_map(lambda x: x.detach() if isinstance(x, torch.Tensor) else x, result) if step.no_grad else result


def dims_over_samples(step):
    """Of a variance the dimensions that it is over, if the batch is one of them; else nothing."""
    shapes, dims = step.reads()[0].shapes, step.argument("dim")
    dims = [d % max(len(shapes[0]), 1) for d in ([dims] if isinstance(dims, int) else dims or range(len(shapes[0])))]
    return dims if shapes[0] and any(shapes[0][d] != shapes[1][d] for d in dims) else []


def variance_over_samples(step, x, dims):
    """In calls whose numbers are the batch's: PyTorch's own backward has 2 / (batch - 1)."""
    correction, keepdim = step.argument("correction"), bool(step.argument("keepdim"))
    if step.argument("unbiased") is not None:
        correction = int(step.argument("unbiased"))
    wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    among = math.prod(x.shape[d] for d in dims) - (1 if correction is None else correction)
    found = (wide - wide.mean(dims, keepdim=True)).pow(2).sum(dims, keepdim=keepdim) / among
    if step.name.startswith("std"):  # whose gradient is 0 where all are equal
        equal = found == 0
        found = found.masked_fill(equal, 1).sqrt().masked_fill(equal, 0)
    found = found.to(x.dtype)
    return (found, x.mean(dims, keepdim=keepdim)) if step.name.endswith("_mean") else found


def asks_for_floats(step) -> bool:
    """Of integers: c / 3."""
    first = step.outputs[0]
    return torch.Tag.pointwise in step.target.tags and first is not None and first.dtype.is_floating_point and \
        not any(v.dtype.is_floating_point or v.dtype.is_complex for v in step.reads())
