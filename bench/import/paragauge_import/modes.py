"""What PyTorch's functions do otherwise while the importer runs a module, or plays a file."""

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

TWICE = {torch.float32: torch.float64, torch.complex64: torch.complex128}


class InF64(TorchDispatchMode):
    """What asks for float32, or for nothing, gets float64: a module that is played in float64 stays there."""

    def __enter__(self):
        self.default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        return super().__enter__()

    def __exit__(self, *args):
        torch.set_default_dtype(self.default)
        return super().__exit__(*args)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        f64 = lambda x: TWICE.get(x, x) if isinstance(x, torch.dtype) else x  # noqa: E731
        return function(*tree_map(f64, args), **tree_map(f64, kwargs or {}))


class Mended(TorchFunctionMode):
    """A tensor's .data, which an export doesn't see, is what it stands for: the tensor without its gradient; assigned, a copy into it.
    A condition may be of bytes, as in a run. And who draws doesn't matter."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func == torch.Tensor.data.__get__:
            return args[0].detach()
        if func == torch.Tensor.data.__set__ and args[0].shape == args[1].shape:
            with torch.no_grad():
                args[0].copy_(args[1])
            return None
        if isinstance((kwargs or {}).get("generator"), torch.Generator):
            kwargs = {k: v for k, v in kwargs.items() if k != "generator"}
        if func is torch.where and len(args) == 3 and getattr(args[0], "dtype", None) == torch.uint8:
            args = (args[0] != 0, *args[1:])
        return func(*args, **(kwargs or {}))
