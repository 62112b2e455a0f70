"""What an exported module consists of once it's read: steps, calls of operations without side effects, and the values that they
read and make.

    step.name, step.argument("dim"), step.reads()
    size_text(8, 12)                # "4B": an integer with a batch of 2, and of 3
"""

from dataclasses import dataclass, field

import torch
from paragauge_import.export.exported import BATCHES
from paragauge_import.refusal import Refusal
from torch.utils._pytree import tree_flatten

aten = torch.ops.aten
DTYPE_NAMES = {torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16", torch.int64: "i64",
               torch.int32: "i32", torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "bool",
               torch.complex64: "c64", torch.complex128: "c128"}

MOST_OPERANDS = 30  # inputs, or parameters, of a node (sim/model/op/body.cpp)

# Their values are drawn.
RANDOM = {"dropout", "native_dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "bernoulli", "rand", "randn",
          "rand_like", "randn_like", "randint", "randint_like", "randperm", "multinomial", "normal", "normal_functional", "uniform",
          "exponential", "cauchy", "geometric", "log_normal", "random", "binomial", "_standard_gamma", "rrelu", "rrelu_with_noise", "poisson"}

# And nothing can be said to be drawn in their place, so that a file couldn't be checked.
UNFIXED = {"poisson", "binomial", "_standard_gamma", "_sample_dirichlet"}


def op_name(target) -> str:
    return target._schema.name.split("::")[1] if hasattr(target, "_schema") else getattr(target, "__name__", str(target))


def is_view(target) -> bool:
    """Whether the operation's results are its operand's elements, in the same memory or (reshape) maybe a copy."""
    return op_name(target) == "_unsafe_view" or any(
        a.alias_info is not None and not a.alias_info.is_write for a in target._schema.arguments)


def is_write(target) -> bool:
    return any(a.alias_info is not None and a.alias_info.is_write for a in target._schema.arguments)


OPERATORS = {"__iand__": "bitwise_and", "__ior__": "bitwise_or", "__ixor__": "bitwise_xor"}


def functional_of(target):
    """What an operation that writes into its operand, or into out=, gives as a new tensor; None: there's no such operation."""
    name, given = op_name(target), target._schema.arguments
    written = [a.name for a in given if a.alias_info is not None and a.alias_info.is_write]
    packet = getattr(aten, OPERATORS.get(name) or (name[:-1] if written == ["self"] and name.endswith("_") else name), None)
    if packet is None or written not in (["self"], ["out"]):
        return None

    def takes(arguments):  # what dropout_ calls self is dropout's input
        return [(k and a.name, str(a.real_type)) for k, a in enumerate(a for a in arguments if a.name != "out")]

    overloads = [getattr(packet, o) for o in packet.overloads()]
    return next((o for o in overloads if not o._schema.is_mutable and takes(o._schema.arguments) == takes(given)), None)


@dataclass(eq=False)
class Value:
    """A tensor of the graph. `shapes`: with the first batch and with the second."""
    kind: str  # "input", "parameter", "frozen" (a parameter that isn't trained), "constant", "step"
    shapes: tuple
    dtype: torch.dtype
    name: str = ""  # an input's, a parameter's
    step: "Step | None" = None
    index: int = 0  # of the step's outputs
    is_output: bool = False  # what a node gives, though a view
    seen_as: "Value | None" = None  # for other nodes' reads: a view of what the node gives in its place
    data: tuple | None = None  # a constant's values with either batch, f64 where the graph has f32
    read_as: torch.dtype | None = None  # to which who makes it casts it (half_parameters.py)

    def source(self) -> "Value":
        """What it shows, through views."""
        return self.step.reads()[0].source() if self.step is not None and self.step.virtual and self.step.reads() else self


@dataclass(eq=False)
class Step:
    """A call of `target`. `args`, `kwargs`: with the first batch and with the second; their tensors are Values."""
    target: object
    args: tuple
    kwargs: tuple
    place: object  # the exported graph's node
    outputs: list = field(default_factory=list)
    inplace: bool = False  # as the module has it
    no_grad: bool = False
    no_autocast: bool = False  # in a region that switches it off
    has_buffers: bool = False  # a batch norm with running statistics, which have no part in a training step
    virtual: bool = False  # no work of its own: a view, or an expression of sizes alone
    like: "Value | None" = None  # its result has the dtype of this
    typed: bool = False  # memory, for which the module gives a dtype
    twin: "Step | None" = None  # what is run in its place, of another graph (half_parameters.py)

    @property
    def name(self):
        return op_name(self.target)

    def argument(self, name, default=None):
        """With the first batch, by the schema's name."""
        for i, a in enumerate(self.target._schema.arguments):
            if a.name == name:
                if i < len(self.args[0]):
                    return self.args[0][i]
                return self.kwargs[0].get(name, a.default_value if a.has_default_value() else default)
        return default

    def reads(self) -> list:
        return [v for v in tree_flatten((self.args[0], self.kwargs[0]))[0] if isinstance(v, Value)]


@dataclass
class Graph:
    inputs: list  # Values
    parameters: dict  # Values by full name
    also: dict  # the other names of a shared parameter
    steps: list
    output: Value
    notes: list  # what the user should know
    calls: dict  # how often a module is called, by its path
    leaves: set  # paths of modules without children
    # The places of casts that do nothing in float32, and of constants that have the dtype of a tensor.
    same_casts: list = field(default_factory=list)
    like_constants: list = field(default_factory=list)
    shapes: list = field(default_factory=list)  # exported.shapes_of, with either batch


def size_text(a: int, b: int):
    """An integer of both exports as the file has it: itself, "B", "12B", a multiple of the batch's square ("BB", "4BB"); None where
    it's none of these."""
    if a == b:
        return a
    for letters, (one, two) in (("B", BATCHES), ("BB", [n * n for n in BATCHES])):
        if a % one == 0 and a // one * two == b:
            return letters if a == one else f"{a // one}{letters}"
    return None


def shape_text(shapes) -> list:
    return [size_text(a, b) for a, b in zip(*shapes)]


def dtype_name(dtype) -> str:
    if dtype not in DTYPE_NAMES:
        raise Refusal(f"dtype {str(dtype).removeprefix('torch.')} isn't known here")
    return DTYPE_NAMES[dtype]


def spec_text(shapes, dtype) -> str:
    return f"{dtype_name(dtype)}[{','.join(str(s) for s in shape_text(shapes))}]"
