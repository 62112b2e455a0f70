"""What an export may ask of tensors that depend on no input and no trained parameter: their values.

    with KnownValues(module, notes): torch.export.export(module, …)     # `if mask.any():`, of a mask that is made of sizes or a buffer

An export's tensors have no values, so it stops where a program asks for one. Here what is computed of constants alone is computed
beside it, in float64, and what is asked of that is answered. What is known as the size of a result is given as a number, and an
index by a mask becomes one by numbers.
"""

import torch
from paragauge_import.export import own_checks
from paragauge_import.modes import InF64
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.weak import WeakIdKeyDictionary

UNKNOWN = object()
LARGEST = 1 << 22  # elements of what is computed beside
OF_BATCH_NORM = {"running_mean", "running_var", "num_batches_tracked"}
MADE = {"tensor", "as_tensor", "zeros", "ones", "full", "empty", "arange", "linspace", "eye", "tril_indices", "triu_indices"}
LIKE = {"zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty"}  # they read a shape alone
ASKING = {"__bool__", "__int__", "__float__", "__index__", "__complex__", "__contains__", "__format__", "__array__", "item", "tolist", "numpy",
          "equal", "allclose", "is_nonzero"}
WRITING = {"__setitem__", "__set__", "__iadd__", "__isub__", "__imul__", "__idiv__", "__itruediv__", "__ifloordiv__", "__imod__", "__ipow__",
           "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__"}
OF_VALUES = {"nonzero", "argwhere", "masked_select", "unique", "unique_consecutive", "bincount"}  # whose size values tell
INDEXING = {"__getitem__", "__setitem__"}
SIZED = {"split", "split_with_sizes", "tensor_split", "chunk", "view", "reshape", "unflatten", "expand", "repeat", "tile", "roll", "narrow", "select",
         "linspace", "arange", "zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full", "eye", "rand", "randn", "interpolate", "pad",
         *INDEXING}  # they are given integers


def without_modes(function, *args, **kwargs):
    with _disable_current_modes(), torch._C.DisableTorchFunction(), InF64(), torch.no_grad():
        return function(*args, **kwargs)


class KnownValues(TorchFunctionMode):
    def __init__(self, module, notes):
        super().__init__()
        self.module, self.notes, self.values = module, notes, WeakIdKeyDictionary()
        self.trained = {p.untyped_storage()._cdata for p in module.parameters() if p.requires_grad and not isinstance(p, FakeTensor)}
        # Buffers, and parameters that aren't trained. While it is exported the module has others in their place.
        self.fixed = {name: self.copy_of(x) for name, x in self.named()
                      if not (isinstance(x, FakeTensor) or x.requires_grad or x.numel() > LARGEST or x.layout != torch.strided
                              or name.rpartition(".")[2] in OF_BATCH_NORM)}

    def named(self):
        yield from self.module.named_buffers()
        yield from self.module.named_parameters()

    @staticmethod
    def copy_of(x):
        copy = x.detach().clone()
        return copy.double() if copy.dtype == torch.float32 else copy

    def value(self, x):
        """Of a tensor, in an export; None: it isn't known."""
        if torch._C._functorch.is_functorch_wrapped_tensor(x):  # inside vmap, which stands for many
            return None
        if self.fixed and isinstance(x, FakeTensor):
            inside = {name: b for name, b in self.named() if isinstance(b, FakeTensor)}
            self.values.update({b: self.fixed[name] for name, b in inside.items() if name in self.fixed})
            self.fixed = {} if inside else self.fixed
        if not (isinstance(x, FakeTensor | torch.nn.Parameter) or x in self.values or x.requires_grad or x.layout != torch.strided
                or x.untyped_storage()._cdata in self.trained):
            self.values[x] = self.copy_of(x)  # a tensor that the module has, though not as a buffer
        return self.values.get(x)

    def forget(self, x):
        """What a write leaves unknown, and all views of the same memory."""
        if isinstance(x, torch.Tensor) and (value := self.values.get(x)) is not None:
            memory = value.untyped_storage()._cdata
            for other in [t for t, v in self.values.items() if v.untyped_storage()._cdata == memory]:
                del self.values[other]

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(func, "__name__", "")
        if get_proxy_mode() is None:  # not of the module's own: the export gets ready
            return func(*args, **kwargs)
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        known = without_modes(lambda: {id(x): self.value(x) for x in tensors})
        if name in SIZED:
            args, kwargs = self.with_sizes(name, args, kwargs)
        given = args, dict(kwargs)
        func, args, kwargs = self.with_numbers(name, func, args, kwargs, known)
        computable = all(v is not None for v in known.values()) and (tensors or name in MADE) or name in LIKE
        if not computable or any(x.numel() > LARGEST for x in tensors):
            answer = own_checks.answer() if name == "__bool__" else None
            if name == "_assert" and tensors or answer is not None:
                return self.taken_for_granted(answer)
            return self.unknown(name, func, args, kwargs)
        if name in ASKING:
            return self.asked(name, func, args, kwargs, known)
        if name == "__iter__":
            elements = list(func(*args, **kwargs))
            self.values.update(zip(elements, without_modes(known[id(args[0])].unbind)))
            return iter(elements)
        sized_by_values = name in OF_VALUES or name == "where" and len(args) == 1
        if not sized_by_values:
            result = func(*args, **kwargs)
            if any(x.numel() > LARGEST for x in tree_leaves(result) if isinstance(x, torch.Tensor)):
                return result
        values = self.computed(func, *given, known)
        if values is UNKNOWN:
            self.forget_written(name, args, kwargs)
            return func(*args, **kwargs) if sized_by_values else result
        if sized_by_values:
            result = tree_map(lambda v: torch.tensor(v.tolist(), dtype=v.dtype).reshape(v.shape), values)
        for x, v in zip(tree_leaves(result), tree_leaves(values)):
            if isinstance(x, torch.Tensor) and isinstance(v, torch.Tensor) and x.shape == v.shape:
                self.values[x] = v
        return result

    def taken_for_granted(self, answer):
        if (note := own_checks.note()) not in self.notes:
            self.notes.append(note)
        return answer

    def unknown(self, name, func, args, kwargs):
        self.forget_written(name, args, kwargs)
        return func(*args, **kwargs)

    def forget_written(self, name, args, kwargs):
        written = [kwargs.get("out")]
        if name in ("batch_norm", "instance_norm"):  # running statistics, by whatever name
            written += [args, kwargs]
        if name in WRITING or name.endswith("_") and not name.startswith("__") or kwargs.get("inplace"):
            written += args[:1]
        for x in tree_leaves(written):
            self.forget(x)

    @staticmethod
    def real(known):
        def of(x):
            if not isinstance(x, torch.Tensor):
                return torch.device("cpu") if isinstance(x, torch.device) else x
            value = known.get(id(x))
            return torch.empty(x.shape, dtype=torch.float64 if x.dtype == torch.float32 else x.dtype) if value is None else value
        return of

    def computed(self, func, args, kwargs, known):
        """The values; UNKNOWN where random numbers were drawn for them, or where values can't be computed so."""
        real = self.real(known)

        def compute():
            state = torch.get_rng_state()
            try:
                values = func(*tree_map(real, args), **tree_map(real, kwargs))
            except (RuntimeError, TypeError, NotImplementedError):
                return UNKNOWN
            if torch.equal(state, torch.get_rng_state()):
                return values
            torch.set_rng_state(state)
            return UNKNOWN
        return without_modes(compute)

    def asked(self, name, func, args, kwargs, known):
        values = tree_map(self.real(known), args)
        if name in ("numpy", "__array__"):  # in the dtype that it has
            values = (without_modes(values[0].to, args[0].dtype), *values[1:])
        return without_modes(func, *values, **tree_map(self.real(known), kwargs))

    def with_numbers(self, name, func, args, kwargs, known):
        """The call, with numbers in the place of a mask, and of what else tells a size, where they are known."""
        if name in INDEXING and isinstance(args[0], torch.Tensor):
            args = (args[0], self.by_numbers(args[1], known), *args[2:])
        x, value, other = args[0] if args else None, *(known.get(id(a)) for a in (*args, None, None)[:2])
        if name == "one_hot" and len(args) == 1 and value is not None:
            kwargs.setdefault("num_classes", without_modes(lambda: int(value.max()) + 1))
        elif name == "masked_select" and value is None and other is not None and x.shape == other.shape:
            return torch.Tensor.__getitem__, (x, self.by_numbers(args[1], known)), {}
        elif name == "repeat_interleave" and value is None and other is not None and other.dim() == 1:
            dim = kwargs.get("dim", args[2] if len(args) > 2 else None)
            which = without_modes(lambda: torch.arange(len(other)).repeat_interleave(other).tolist())
            return torch.index_select, (x.flatten() if dim is None else x, dim or 0, torch.tensor(which)), {}
        return func, args, kwargs

    def integer(self, x):
        """A tensor of one integer that is known, as a number."""
        value = without_modes(self.value, x) if isinstance(x, torch.Tensor) and x.dim() == 0 else None
        is_integer = value is not None and not value.is_floating_point() and not value.is_complex() and value.dtype != torch.bool
        return without_modes(value.item) if is_integer else x

    def with_sizes(self, name, args, kwargs):
        first = args[:1] if args and isinstance(args[0], torch.Tensor) else ()
        rest = args[len(first):]
        if name in INDEXING:
            return (*first, self.index_of_integers(rest[0]), *rest[1:]), kwargs
        return (*first, *tree_map(self.integer, rest)), tree_map(self.integer, kwargs)

    def index_of_integers(self, index):
        def one(x):
            return slice(*map(self.integer, (x.start, x.stop, x.step))) if isinstance(x, slice) else x
        return tuple(map(one, index)) if isinstance(index, tuple) else one(index)

    @staticmethod
    def by_numbers(index, known):
        """An index in which masks that are known are the numbers of what they choose."""
        def numbers(x):
            value = None
            if isinstance(x, torch.Tensor) and x.dtype in (torch.bool, torch.uint8):
                value = known.get(id(x))
            elif isinstance(x, list) and x and all(isinstance(i, bool) for i in x):
                value = without_modes(torch.tensor, x)
            if value is None or value.dim() == 0:
                return [x]
            chosen = without_modes(lambda: [n.tolist() for n in value.nonzero(as_tuple=True)])
            return [torch.tensor(n, dtype=torch.int64) for n in chosen]
        if isinstance(index, tuple):
            return tuple(y for x in index for y in numbers(x))
        found = numbers(index)
        return found[0] if len(found) == 1 else tuple(found)
