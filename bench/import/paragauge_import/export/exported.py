"""A module exported by torch.export (non-strict), with two batches.

    exported = export_twice(module, inputs, notes)      # inputs: a list of spec.Input

What an export takes apart without a word is noted; what it can't know, or gets wrong, is told it as a run has it.
"""

import contextlib
import io
import logging
import random
import sys
import warnings
from unittest import mock

import numpy
import torch
from paragauge_import.export import own_function
from paragauge_import.export.known_values import KnownValues
from paragauge_import.export.own_state import own_state
from paragauge_import.modes import Mended
from paragauge_import.refusal import Refusal, first_line, users_line
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

BATCHES = (2, 3)
WRITABLE = 1_000_000  # elements of a frozen parameter that may be written as a buffer is
HOOK = "register_hook: what hooks do to gradients is left out"
DRAWS = "Python's or NumPy's random numbers are drawn in the forward: every step here has the same"


class NoHook:
    """In the place of a gradient's hook."""

    def remove(self):
        pass


def without_hooks(told=lambda: None):
    """told: is called for each."""
    return mock.patch.object(torch.Tensor, "register_hook", lambda tensor, hook: told() or NoHook())


def taken_by(loss: str, returned):
    """Of what a module returns the tensor that the loss takes: of several mean_loss a number, others what isn't one."""
    tensors = [t for t in torch.utils._pytree.tree_leaves(returned) if isinstance(t, torch.Tensor)]
    if len(tensors) > 1:
        tensors = [t for t in tensors if (t.dim() == 0) == (loss == "mean_loss")]
    taken, = tensors
    return taken


def classes_are_moved(file: dict) -> bool:
    """Whether the last node brings a prediction's classes from dimension 1 to the end, as cross_entropy's own are (output_for)."""
    body = file["bodies"].get(file["nodes"][-1].get("body"), {"forward": []})
    dims = len(file["target"]["shape"]) + 1
    return any(f"=permute(i0,[{','.join(map(str, (0, *range(2, dims), 1)))}])" in line for line in body["forward"])


def example(inputs, batch, dtype=None, generator=None):
    """Random tensors for the inputs."""
    tensors = []
    for x in inputs:
        shape = [batch * (1 if s == "B" else int(s[:-1])) if isinstance(s, str) else s for s in x.shape]
        if x.dtype == "i64":
            tensors.append(torch.randint(0, x.below, shape, generator=generator))
        else:
            own = dtype or (torch.bfloat16 if x.dtype == "bf16" else torch.float32)
            if x.below:
                tensors.append((torch.rand(shape, dtype=torch.float64, generator=generator) * x.below).to(own))
            else:
                tensors.append(torch.randn(shape, dtype=own, generator=generator))
    return tensors


def arguments(inputs, tensors):
    """The inputs as a call's args and kwargs."""
    named = {x.name: t for x, t in zip(inputs, tensors) if x.name}
    return tuple(t for x, t in zip(inputs, tensors) if not x.name), named


def checkpointed(function, args) -> tuple | None:
    """What an autograd.Function of reentrant checkpointing runs, and of what: torch's own (and Megatron's) is given a flag before
    the inputs, that of OpenAI's diffusion models their number, with the parameters behind them. None: another function."""
    if function.__name__ != "CheckpointFunction" or len(args) < 2 or not callable(args[0]):
        return None
    if isinstance(args[1], bool):
        return args[0], args[2:]
    return (args[0], args[2:2 + args[1]]) if isinstance(args[1], int) else None


@contextlib.contextmanager
def watch(notes: list):
    """Notes what an export takes apart without a word: recomputation, and custom autograd functions that can't be operations of their
    own (own_function.py). And regions of autocast, which are left out: all of the module is in float32 first."""
    checkpoint, autocast = torch.utils.checkpoint, torch.autocast
    generator = checkpoint._checkpoint_without_reentrant_generator
    enter, begin, seed = autocast.__enter__, autocast.__init__, torch.manual_seed
    recomputed = "torch.utils.checkpoint: recomputation is left out; recompute= of a strategy brings it back"

    def note(text):
        if text not in notes:
            notes.append(text)

    def noted_apply(cls, *args, **kwargs):
        function_and_inputs = checkpointed(cls, args)
        if function_and_inputs is not None:  # its own forward has no gradients
            note(recomputed)
            run, inputs = function_and_inputs
            return run(*inputs)
        if not cls.__module__.startswith("torch."):
            if (made := own_function.as_operation(cls, args, kwargs)) is not None:
                return made
            note(f"custom autograd.Function '{cls.__name__}' is given more than tensors and numbers: its forward is imported, its own backward is not "
                 "(write it of ops, as x + (f(x) - x).detach() for a gradient that goes straight through)")
        return own_function.APPLY(cls, *args, **kwargs)

    def noted_generator(*args, **kwargs):
        note(recomputed)
        return generator(*args, **kwargs)

    def noted_seed(number):
        note("torch.manual_seed in the forward is left out: what is drawn after it is drawn anew in each step")
        return seed(number)

    def noted_init(self, device_type, dtype=None, enabled=True, cache_enabled=None):
        begin(self, device_type, dtype, enabled, cache_enabled)
        self.asked = enabled  # of a GPU that isn't here autocast is off, whatever was asked

    def noted_enter(self):
        was = self._enabled, self._cache_enabled
        is_on = getattr(self, "asked", was[0] or self.device == "cuda" and not torch.cuda.is_available())
        self._enabled, self._cache_enabled = False, is_on  # which the graph says, too: reader.py
        try:
            if is_on:
                note("torch.autocast: a region is left out; precision= of a strategy brings it back, for all of the model")
            return enter(self)
        finally:
            self._enabled, self._cache_enabled = was

    with (mock.patch.object(own_function.Applied, "instead", staticmethod(noted_apply)),
          mock.patch.object(checkpoint, "_checkpoint_without_reentrant_generator", noted_generator),
          mock.patch.object(torch, "manual_seed", noted_seed), without_hooks(lambda: note(HOOK)),
          mock.patch.object(autocast, "__enter__", noted_enter), mock.patch.object(autocast, "__init__", noted_init)):
        yield


@contextlib.contextmanager
def own_buffers(module):
    """What a step writes into buffers or into the data of small frozen parameters is taken back. A list of the buffers that were
    written, once it is over."""
    before = [(path, part, name, b, b._version, b.clone()) for path, part in module.named_modules()
              for name, b in part._buffers.items() if b is not None]
    frozen = [(p, p.detach().clone()) for p in module.parameters()
              if not p.requires_grad and p.numel() <= WRITABLE and not isinstance(p, FakeTensor)]
    written = []
    try:
        yield written
    finally:
        for path, part, name, b, version, copy in before:
            if part._buffers.get(name) is not b or b._version != version:
                part._buffers[name] = copy
                written.append(f"{path}.{name}" if path else name)
        for parameter, copy in frozen:
            parameter.data = copy


def causal_masks(module, inputs) -> list:
    """Which masks nn.Transformer finds to be causal, in a run's order: it asks for their values, which an export hasn't."""
    layers, answers = nn.modules.transformer, []
    kinds = (nn.TransformerEncoder, nn.TransformerDecoder)
    if not any(isinstance(m, kinds) for m in module.modules()) or any(isinstance(p, FakeTensor) for p in module.parameters()):
        return answers
    ask = layers._detect_is_causal_mask

    def noted(*args, **kwargs):
        answers.append(ask(*args, **kwargs))
        return answers[-1]

    args, kwargs = arguments(inputs, example(inputs, BATCHES[0]))
    with mock.patch.object(layers, "_detect_is_causal_mask", noted), own_state(module), own_buffers(module), torch.no_grad(), contextlib.suppress(Exception):
        module(*args, **kwargs)  # what fails here fails in the export, which says why
    return answers


def masks_by_broadcasting():
    """transformers before version 5 makes its masks by torch.vmap of a function of sample, head, query and key, which an export leaves
    as it is; the functions take tensors of indices as well, as in version 5."""
    def for_indices(mask_function, bh_indices=True):
        def mask(*indices):  # sample and head may be None
            axes = [k for k, x in enumerate(indices) if k >= 2 or bh_indices]
            found = mask_function(*(x.view([-1 if k == axis else 1 for axis in axes]) if k in axes else x for k, x in enumerate(indices)))
            return found.expand([len(indices[k]) for k in axes])
        return mask
    masks = sys.modules.get("transformers.masking_utils")
    if not hasattr(masks, "_vmap_for_bhqkv"):
        return contextlib.nullcontext()
    return mock.patch.multiple(masks, _vmap_for_bhqkv=for_indices, TransformGetItemToIndex=contextlib.nullcontext)


@contextlib.contextmanager
def as_in_a_run(causal: list):
    """Mends what an export gets wrong: causal_masks; masks_by_broadcasting; an LSTM's states, to which torch 2.11 gives a dimension too
    many; .data; and what torch.distributions and gaussian_nll_loss (whether a variance is negative) ask of their arguments' values."""
    layers, decompositions = nn.modules.transformer, torch._decomp.decompositions
    ask, lstm, answers = layers._detect_is_causal_mask, decompositions.one_layer_lstm, iter(causal)
    gaussian = torch.nn.functional.gaussian_nll_loss

    def one_layer(*args, **kwargs):
        out, states = lstm(*args, **kwargs)
        return out, tuple(s.reshape(s.shape[-2:]) for s in states)

    def without_asking(*args, **kwargs):
        with mock.patch.object(torch, "any", lambda *_: False):
            return gaussian(*args, **kwargs)

    with (mock.patch.object(torch.nn.functional, "gaussian_nll_loss", without_asking),
          mock.patch.object(layers, "_detect_is_causal_mask", lambda *a, **k: next(answers, False) if causal else ask(*a, **k)),
          mock.patch.object(decompositions, "one_layer_lstm", one_layer),
          mock.patch.object(torch.distributions.Distribution, "_validate_args", False), masks_by_broadcasting(), Mended()):
        yield


@contextlib.contextmanager
def quiet():
    """Without what PyTorch's log says of what fails on tensors without values, and the graphs that it prints then."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def export_twice(module, inputs, notes: list) -> list:
    """With either batch. Refusal: why it can't be."""
    with watch(notes):
        causal = causal_masks(module, inputs)
        exported = []
        for batch in BATCHES:
            with same_draws() as has_drawn:
                exported.append(export(module, inputs, batch, causal, notes))
                if has_drawn() and DRAWS not in notes:
                    notes.append(DRAWS)
    return exported


@contextlib.contextmanager
def same_draws():
    """Random numbers of Python's and NumPy's global generators are the same each time; whether some have been drawn."""
    def state():
        kind, keys, *rest = numpy.random.get_state()
        return random.getstate(), keys.tobytes(), *rest
    before = random.getstate(), numpy.random.get_state()
    random.seed(1)
    numpy.random.seed(1)
    start = state()
    try:
        yield lambda: state() != start
    finally:
        random.setstate(before[0])
        numpy.random.set_state(before[1])


def export_once(module, inputs, batch):
    with watch([]):
        causal = causal_masks(module, inputs)
        with same_draws():
            return export(module, inputs, batch, causal, [])


def shapes_of(exported) -> list:
    """Of every call its name, its first result's shape, the numbers that it is given, and its node."""
    found = []
    for n in exported.graph.nodes:
        tensors = [t for t in tree_leaves(n.meta.get("val")) if isinstance(t, torch.Tensor)]
        if n.op == "call_function" and tensors:
            numbers = tuple(x for x in tree_leaves((n.args, n.kwargs)) if isinstance(x, int | float))
            found.append((str(n.target), tuple(tensors[0].shape), numbers, n))
    return found


def export(module, inputs, batch, causal, notes):
    fake = next((p.fake_mode for p in module.parameters() if isinstance(p, FakeTensor)), contextlib.nullcontext())
    try:
        known = KnownValues(module, notes)  # of tensors that the fake mode wouldn't take
        with warnings.catch_warnings(), fake, quiet(), own_state(module), as_in_a_run(causal), known:
            args, kwargs = arguments(inputs, example(inputs, batch))
            warnings.simplefilter("ignore")
            return torch.export.export(module, args, kwargs, strict=False)
    except Refusal:
        raise
    except AssertionError as error:
        raise Refusal(f"an assertion fails with {batch} samples (import exports with {BATCHES[0]} and {BATCHES[1]}): {users_line(error)}"
                      + (f" ({first_line(error)})" if str(error) else "")) from error
    except Exception as error:
        name, text = type(error).__name__, str(error).strip()
        first = text.splitlines()[0][:200] if text else ""
        if "DataDependent" in name or "data-dependent" in text or "UnbackedSymbol" in name:
            raise Refusal(f"control flow asks for a tensor's values, which an export hasn't (decide it by sizes, or when the module is made): "
                          f"{users_line(error)}") from error
        if name == "DynamicOutputShapeException":
            raise Refusal(f"op '{first.removeprefix('aten.').split('.')[0]}' gives a size that depends on the data: {users_line(error)}") from error
        if ".numpy() is not supported" in text:
            raise Refusal(f".numpy() asks for a tensor's values, which an export hasn't: {users_line(error)}") from error
        if "fake tensor in the exported program constant's list" in text:
            raise Refusal("torch.export finds a tensor that isn't there yet: is a gradient taken inside the forward (torch.autograd.grad), or a "
                          ".data assigned?") from error
        raise Refusal(f"torch.export (batch {batch}) fails: {name}: {first} at {users_line(error)}") from error
