"""What lies between the layers that are cut for tensor parallelism, on a part of the positions: sequence parallelism
(Korthikanti et al. 2022, section 4.2.2), as Megatron cuts it.

    cut_positions(file)     # bodies that treat each position alike get their T, and "positions": how many there are

Found and tried as parts.py's: played with all positions and with one, then with numbers. What is read is [B, positions, …] or,
without samples, [positions, …]; parameters are whole, their gradients sums.
"""

import contextlib
from collections import Counter

import torch
from paragauge_import.half.half_bodies import WORDS
from paragauge_import.play import dtypes
from paragauge_import.tensor_parallel.parts import Cut, Impossible, Parts, dims_of, fixed, parts_are_the_whole


def positions_of(file: dict) -> int | None:
    """How many there are: in what most rows give."""
    counts = Counter()
    for node in file["nodes"]:
        body = file["bodies"].get(node.get("body"), {})
        if "o" in body.get("sums", []) and "units" in body and len(dims := dims_of(body["output"])) == 3 and isinstance(dims[1], int):
            counts[dims[1]] += 1
    return max(counts, key=counts.get) if counts else None


def cut_of(spec: str, positions: int, with_constants: bool) -> Cut | None:
    """Where a value of this type has its positions, if it has."""
    dims = dims_of(spec)
    if dims[:2] == ["B", positions]:
        return fixed(1, 1, 1)
    if not with_constants or any(not isinstance(d, int) for d in dims):
        return None
    return next((fixed(d, 1, 1) for d, size in enumerate(dims) if size == positions and all(s == 1 for s in dims[:d])), None)


def in_positions(body: dict, positions: int, tries: bool) -> dict | None:
    """The body with sizes in T; None where it can't be played so."""
    if body["rows"] is not True or "units" in body or cut_of(body["output"], positions, True) is None:
        return None
    for with_constants in (True, False):
        cuts = [cut_of(spec, positions, with_constants) for spec in body["inputs"]]
        with contextlib.suppress(Impossible):
            parts = Parts(body, positions, cuts, [None] * len(body["parameters"]))
            if parts.output != cut_of(body["output"], positions, True):
                continue
            text = parts.body_text()
            text["positions"] = text.pop("units")
            with dtypes(bf16=torch.float64):
                if not tries or parts_are_the_whole(text):
                    return text
    return None


def cut_positions(file: dict, only: set | None = None) -> list:
    """Of bodies that aren't cut already; the nodes' names. only: others' aren't; and nothing is tried with numbers."""
    positions = positions_of(file)
    if positions is None or positions < 2:
        return []
    found = []
    apart = [n for n in file["nodes"] if "in_parts" in n]
    for table, key in ((file["bodies"], "body"), *((file.get(key), key) for key in WORDS)):
        if not isinstance(table, dict):
            continue
        for name, body in table.items():
            users = [n["name"] for n in file["nodes"] if n.get(key) == name]
            if any(name in (n.get(key), n["in_parts"]) for n in apart) or only is not None and not set(users) <= only:
                continue
            if (text := in_positions(body, positions, only is None)) is not None:
                table[name] = text
                found += users
    return list(dict.fromkeys(found))
