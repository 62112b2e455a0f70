"""The user's own torch.autograd.Functions in an exported graph, with their own backwards.

    made = as_operation(function, args, kwargs)   # in an export; None: it stays what its forward calls
    call_of(target)(*arguments)                   # of a step: what autograd differentiates as the user has written it

An export has of such a call only what its forward calls, for that runs without gradients. So a call is one operation here, which
gives what the forward does. Where a node's body is traced, the function itself is called, and its own backward is traced, too.
"""

import torch
from paragauge_import.modes import Mended
from paragauge_import.refusal import Refusal
from torch.utils._pytree import tree_flatten, tree_unflatten

NAMESPACE = "paragauge_own"
# What an operation may be given beside tensors: not what may hold parameters of its own.
PLAIN = (bool, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")
APPLY = torch.autograd.Function.__dict__["apply"].__func__
GIVEN = (torch.Tensor, int, float)  # what an operation is given, a list of each: numbers may be the batch's

calls, names = {}, {}  # Calls by name; names by what makes calls equal


class Applied:
    """What takes the place of every function's apply, since before a user's module may have kept that under another name."""
    instead = None  # of (function, *args, **kwargs), while an export sees them


def apply(function, *args, **kwargs):
    return (Applied.instead or APPLY)(function, *args, **kwargs)


torch.autograd.Function.apply = classmethod(apply)


def kind_of(x):
    return next((kind for kind in GIVEN if isinstance(x, kind) and not isinstance(x, bool)), None)


def apart(leaves):
    """What an operation is given, and the rest, in which the kind stands for each of that."""
    return [[x for x in leaves if kind_of(x) is kind] for kind in GIVEN], [kind_of(x) or x for x in leaves]


def filled(rest, spec, given):
    left = {kind: iter(of_kind) for kind, of_kind in zip(GIVEN, given)}
    return tree_unflatten([next(left[x]) if x in GIVEN else x for x in rest], spec)


class Call:
    """A function with all that it is given, but for tensors and numbers."""

    def __init__(self, function, constants, spec):
        self.function, self.constants, self.spec = function, constants, spec
        self.results = None  # all but the tensors, and how they hang together, once it has been called

    def __call__(self, tensors, *numbers):
        args, kwargs = filled(self.constants, self.spec, (tensors, *numbers))
        with Mended():
            results, spec = tree_flatten(APPLY(self.function, *args, **kwargs))
        self.results = [torch.Tensor if isinstance(r, torch.Tensor) else r for r in results], spec
        return [r for r in results if isinstance(r, torch.Tensor)]

    def forward(self, tensors, *numbers):
        """As an operation, whose results are nobody else's memory."""
        before = [t._version for t in tensors]
        with torch.no_grad():
            results = self(tensors, *numbers)
        if before != [t._version for t in tensors]:
            raise Refusal(f"custom autograd.Function '{self.function.__name__}' writes into what it is given")
        return [r.clone() for r in results]


def as_operation(function, args, kwargs):
    """The results of function.apply(*args, **kwargs), which are an operation's in a graph. None: it is given what may have parameters
    of its own (a module, a closure), or no tensor."""
    leaves, spec = tree_flatten((args, kwargs))
    given, constants = apart(leaves)
    if not given[0] or not all(c in GIVEN or isinstance(c, PLAIN) for c in constants):
        return None
    name = name_of(function, constants, spec)
    results = getattr(getattr(torch.ops, NAMESPACE), name)(*given)
    return filled(*calls[name].results, (results, (), ()))


def name_of(function, constants, spec) -> str:
    """Of the operation, which is made where there is none yet."""
    key = (function, spec, tuple((type(c), repr(c)) for c in constants))
    if key not in names:
        first = f"own_{function.__name__}"
        name, n = first, 1
        while name in calls:
            n += 1
            name = f"{first}_{n}"
        calls[name] = call = Call(function, constants, spec)
        LIBRARY.define(f"{name}(Tensor[] given, int[] integers, float[] numbers) -> Tensor[]")
        LIBRARY.impl(name, call.forward, "CompositeExplicitAutograd")
        torch.library.register_fake(f"{NAMESPACE}::{name}", call.forward, lib=LIBRARY)
        names[key] = name
    return names[key]


def is_own(target) -> bool:
    return getattr(target, "namespace", None) == NAMESPACE


def call_of(target) -> Call:
    return calls[target._schema.name.split("::")[1]]
