"""A body's lines, run on random numbers: what a trace doesn't tell of them.

    rows_alone(text)         # whether an op of some rows gives those rows of an op of all
    loose_results(text)      # {"gi0"}: what isn't contiguous when a kernel runs, though its trace is
"""

import contextlib
import re

import torch
from paragauge_import.modes import InF64
from paragauge_import.play import DTYPES, dtypes, play_lines


def rows_alone(text: dict, batch=4) -> bool:
    """Whether an op of some rows gives those rows of an op of all: by running it, whole and in halves, on several numbers."""
    specs = [*text["inputs"], *text["parameters"], text["output"]]
    has_samples = ["B" in s.split("[")[1] for s in specs]
    if not any(has_samples):
        return not any("B" in line for line in text["forward"])
    if not has_samples[-1]:  # one for all of them, whatever they are
        return False
    # Not everything takes numbers that aren't probabilities, indices of 1 or, as a divisor, of 0.
    for seeds, entries in ((range(4), 2), ((0, 2), 2), (range(4), 1), (range(4), None)):
        with contextlib.suppress(RuntimeError, IndexError, ZeroDivisionError):
            return all(rows_alone_of(text, specs, seed, batch, entries=entries) for seed in seeds)
    return False


def operand_names(text: dict) -> list:
    return [f"i{k}" for k in range(len(text["inputs"]))] + [f"p{k}" for k in range(len(text["parameters"]))]


def random_tensor(spec: str, generator, seed: int, batch: int, dtype=torch.float64, entries=2):
    """By even seeds probabilities, by odd ones small numbers of either sign."""
    kind, dims = spec[:-1].split("[")
    shape = [batch * int(d[:-1] or 1) if d.endswith("B") else int(d) for d in dims.split(",") if d]
    if kind == "bool":
        return torch.rand(shape, generator=generator) > 0.5
    if not kind.startswith(("f", "b", "c")):
        # An index of whatever has so many entries; None: ones.
        return torch.ones(shape, dtype=torch.int64) if entries is None else torch.randint(0, entries, shape, generator=generator)
    x = torch.rand(shape, generator=generator, dtype=torch.float64)
    return (0.4 * x - 0.2 if seed % 2 else 0.9 * x + 0.05).to(dtype)


def loose_results(text: dict, batch=2) -> set:
    """What isn't contiguous, or is a part of a larger tensor, when the body is run on numbers: of some kernels (a convolution of
    permuted images, im2col's backward) a trace says otherwise. "view": one of these has a view that its strides don't allow."""
    specs = [*text["inputs"], *text["parameters"]]
    loose = set()
    for mode, meant in ((InF64(), {}), (contextlib.nullcontext(), {"f32": torch.float32})):
        for seed in (0, 1):
            generator = torch.Generator().manual_seed(seed)
            try:
                with torch.no_grad(), mode, dtypes(**meant):
                    read, g = [{n: random_tensor(s, generator, seed, batch, DTYPES.get(s.split("[")[0])) for n, s in named.items()}
                               for named in (dict(zip(operand_names(text), specs)), {"g": text["output"]})]
                    found = play_lines(text["forward"], read, batch)
                    found = play_lines(text["backward"], found | g, batch)
            except (RuntimeError, IndexError) as error:  # of numbers that an op doesn't take
                if "view size is not compatible" in str(error):
                    return {"view", *loose_results({**text, "forward": as_reshapes(text["forward"]), "backward": as_reshapes(text["backward"])}, batch)}
                continue
            loose |= {n for n, t in found.items() if re.fullmatch(r"o|s\d+|g[ip]\d+", n) and not is_whole(t)}
            break
    return loose


def as_reshapes(lines: list) -> list:
    return [line.replace("=view(", "=reshape(") for line in lines]


def is_whole(t) -> bool:
    return t.is_contiguous() and t.untyped_storage().nbytes() == t.numel() * t.element_size()


def rows_alone_of(text: dict, specs: list, seed: int, batch: int, entries=2) -> bool:
    """With numbers of its own: by even seeds probabilities, by odd ones of either sign, so small that a recurrent network forgets
    its rounding."""
    generator = torch.Generator().manual_seed(seed)
    def half(spec, x, k):
        dims = spec[:-1].split("[")[1].split(",")
        where = [d for d, s in enumerate(dims) if s.endswith("B")]
        if not where:
            return x
        n = x.shape[where[0]] // 2
        return x.narrow(where[0], k * n, n).contiguous()
    names = operand_names(text)
    tensors = [random_tensor(s, generator, seed, batch, entries=entries) for s in specs[:-1]]
    def equal(a, b):
        return a.shape == b.shape and torch.allclose(a.double(), b.double(), rtol=1e-9, atol=1e-12, equal_nan=True)
    g = random_tensor(text["output"], generator, seed, batch)
    with torch.no_grad(), InF64():
        whole = play_lines(text["forward"], dict(zip(names, tensors)), batch)
        parts = [play_lines(text["forward"], dict(zip(names, [half(s, x, k) for s, x in zip(specs, tensors)])), batch // 2) for k in (0, 1)]
        if not all(equal(part["o"], half(text["output"], whole["o"], k)) for k, part in enumerate(parts)):
            return False
        if not text.get("own_backward"):  # else it does as the forward
            return True
        whole = play_lines(text["backward"], whole | {"g": g}, batch)
        parts = [play_lines(text["backward"], part | {"g": half(text["output"], g, k)}, batch // 2) for k, part in enumerate(parts)]
    for name, spec in zip(names, specs):
        if (grad := f"g{name}") in whole:
            is_cut = "B" in spec.split("[")[1]
            if not all(equal(part[grad], half(spec, whole[grad], k)) for k, part in enumerate(parts)) if is_cut else \
                    not equal(parts[0][grad] + parts[1][grad], whole[grad]):
                return False
    return True
