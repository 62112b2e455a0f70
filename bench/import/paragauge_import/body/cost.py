"""What a body's calls cost: FLOPs, bytes that move, kernels.

    (flops, moved, kernels), products = costs(cut, forward=True)
"""

import math

import torch
from paragauge_import.body.cut import Cut
from paragauge_import.export.exported import BATCHES
from paragauge_import.graph.step import DTYPE_NAMES, is_view, op_name
from paragauge_import.refusal import Refusal
from torch.utils._pytree import tree_flatten

LOOKUPS = {"embedding", "index_select", "gather", "index"}
NO_KERNEL = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"}  # memory alone


def tensors_in(x):
    return [t for t in tree_flatten(x)[0] if isinstance(t, torch.Tensor)]


def call_flops(name: str, args, out) -> int:
    """A multiply-add is 2, one of complex numbers 8. Matrix products, convolutions and attention as torch.utils.flop_counter counts
    them (whose backward of convolutions in groups is wrong); all others one per element that they write."""
    numel = [t.numel() for t in tensors_in(out)]
    if name in ("mm", "bmm"):
        return (8 if args[0].is_complex() else 2) * numel[0] * args[0].shape[-1]
    if name in ("addmm", "baddbmm"):
        return (8 if args[1].is_complex() else 2) * numel[0] * args[1].shape[-1]
    if name == "convolution":
        x, w, transposed = args[0], args[1], args[6]
        return 2 * (w.numel() // w.shape[0]) * (x.numel() if transposed else numel[0])
    if name == "convolution_backward":
        g, x, w, transposed, mask = args[0], args[1], args[2], args[7], args[10]
        return 2 * (w.numel() // w.shape[0]) * (x.numel() if transposed else g.numel()) * (bool(mask[0]) + bool(mask[1]))
    if name in ("mv", "dot", "vdot"):
        return 2 * args[0].numel()
    if name == "addmv":
        return 2 * args[1].numel()
    if name == "addbmm":
        return 2 * args[1].numel() * args[2].shape[-1]
    if name in ("_euclidean_dist", "_cdist_forward"):
        return 2 * numel[0] * args[0].shape[-1]
    if name == "_cdist_backward":
        return 2 * args[0].numel() * args[1].shape[-1]
    if name == "_trilinear":  # nn.Bilinear: of three tensors, with sizes 1 at these dimensions, the product's sum
        return 2 * math.prod(torch.broadcast_shapes(*(widened(t, ones) for t, ones in zip(args[:3], args[3:6]))))
    if name.startswith("_scaled_dot_product") or name.startswith("_flash_attention") or name.startswith("_efficient_attention"):
        back = "backward" in name
        q, k, v = args[1:4] if back else args[:3]
        rows = q.numel() // q.shape[-1]
        forward = 2 * rows * k.shape[-2] * (q.shape[-1] + v.shape[-1])
        return forward * 5 // 2 if back else forward  # five products for two: the scores once more
    return max(numel, default=0)


def widened(t, ones) -> list:
    shape = list(t.shape)
    for dim in sorted(ones):
        shape.insert(dim, 1)
    return shape


def has_kernel(target) -> bool:
    """Whether a call does something, other than to see a tensor in another way or to make room for one."""
    return not is_view(target) and op_name(target) not in NO_KERNEL


def elements_of(t) -> int:
    """Of an expanded tensor, what is there."""
    return math.prod(n for n, stride in zip(t.shape, t.stride()) if stride != 0)


def moved_elements(name: str, operands: list, results: list) -> list:
    """How many elements of each operand are read and of each result written, and their dtype. Of a table as many as are looked up."""
    moved = [(elements_of(t), t.dtype) for t in operands + results]
    if name in LOOKUPS:
        moved[0] = results[0].numel(), moved[0][1]
    return moved


def product_of(name: str, args) -> str | None:
    """"matmul f32": what a call multiplies in that is a matrix product, a convolution or an attention."""
    kind = ("matmul" if name in ("mm", "bmm", "addmm", "baddbmm") else
            "convolution" if name in ("convolution", "convolution_backward") else
            "attention" if name.startswith(("_scaled_dot_product", "_flash_attention", "_efficient_attention")) else None)
    return f"{kind} {DTYPE_NAMES[args[1].dtype]}" if kind and not args[1].is_complex() else None


def costs(cut: Cut, forward: bool):
    """flops, bytes as [a, b] = a + b·B or [a, b, c] = a + b·B + c·B², and kernels; of the FLOPs those of products, by product_of's
    names."""
    flops, moved, kernels = Amount(), Amount(), 0
    products = {}
    for n in cut.calls[forward]:
        if isinstance(n, tuple):  # a copy
            t, twin = (cut.val(n[1], w) for w in (0, 1))
            flops.add(t.numel(), twin.numel())
            moved.add(2 * t.numel() * t.element_size(), 2 * twin.numel() * t.element_size())
            kernels += 1
            continue
        if not has_kernel(n.target):
            continue
        kernels += 1
        name, seen = op_name(n.target), []
        for node in (n, cut.twin[n]):
            vals = torch.fx.node.map_aggregate((node.args, node.kwargs),
                                               lambda x: x.meta["val"] if isinstance(x, torch.fx.Node) else x)
            seen.append((vals[0], node.meta["val"], moved_elements(name, tensors_in(vals), tensors_in(node.meta["val"]))))
        of_call = [call_flops(name, args, out) for args, out, _ in seen]
        flops.add(*of_call)
        for (count, dtype), (twin, _) in zip(seen[0][2], seen[1][2]):
            moved.add(count * dtype.itemsize, twin * dtype.itemsize)
        if (product := product_of(name, seen[0][0])) is not None:
            products.setdefault(product, Amount()).add(*of_call)
    return [flops.text(), moved.text(), kernels], {p: amount.text() for p, amount in products.items()}


class Amount:
    """A sum that grows with the batch: of what is independent of it, and of multiples of it and of its square."""

    def __init__(self):
        self.factors = [0, 0, 0]

    def add(self, first: int, second: int):
        """A summand with either batch: a multiple of a power of it."""
        for power in (0, 1, 2):
            factor, rest = divmod(first, BATCHES[0] ** power)
            if not rest and factor * BATCHES[1] ** power == second:
                self.factors[power] += factor
                return
        raise Refusal("more than two samples are compared at once")

    def text(self) -> list:
        return self.factors if self.factors[2] else self.factors[:2]
