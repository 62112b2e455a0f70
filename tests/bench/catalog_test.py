"""Files that the importer made, the catalog's and the tests', are what it makes today by the command in their made_by.

    .venv/bin/python tests/bench/catalog_test.py             # exit status 0: all are; 77: no torch here
    .venv/bin/python tests/bench/catalog_test.py --all       # with those that take long
    .venv/bin/python tests/bench/catalog_test.py --write     # all of them, or NAME…, made anew, each checked by the importer

Numbers of the first values (center, bound) may differ a little: they are means of random ones, whose last digits are the CPU's.
"""

import argparse
import json
import math
import os
import shlex
import subprocess
import sys
import time

from importing import ROOT, same

import torch
from paragauge_import import import_model
from paragauge_import.half import half_bodies

FOLDERS = [ROOT / "sim" / "catalog" / "models", ROOT / "tests" / "models"]
QUICK = {"contrast_toy", "gpt_nano", "gpt_toy", "llama_nano", "llama_toy", "mobilenet_v3_large", "quantised_toy", "unet"}


def made_files() -> dict:
    """By name, with path and content: those whose made_by is a command of the importer."""
    found = {}
    for path in (p for folder in FOLDERS for p in sorted(folder.glob("*.json"))):
        file = json.loads(path.read_text())
        if "; torch " in file.get("made_by", ""):
            found[path.stem] = path, file
    return found


def command_of(file: dict) -> list:
    command, _, version = file["made_by"].rpartition("; torch ")
    same(version, torch.__version__.split("+")[0])
    program, task, *arguments = shlex.split(command)
    same([program, task], ["paragauge", "import"])
    return arguments


def take_first_values(file: dict, other: dict):
    """Those of another file, where they are nearly the same."""
    for name, parameter in file["parameters"].items():
        for key in ("center", "bound"):
            near = other["parameters"].get(name, {}).get(key, math.nan)
            if math.isclose(parameter[key], near, rel_tol=1e-3, abs_tol=1e-3 * parameter["bound"]):
                parameter[key] = near
    for name, constant in file["constants"].items():  # sines and cosines, whose last bit is a CPU's own
        listed, near = (c.get("values", {}).get("list", []) for c in (constant, other["constants"].get(name, {})))
        if listed and len(listed) == len(near):
            listed[:] = [b if isinstance(a, float) and isinstance(b, float) and math.isclose(a, b, rel_tol=1e-12) else a for a, b in zip(listed, near)]


def check(path, file):
    arguments = command_of(file)
    made = import_model.import_module(import_model.make_request(
        import_model.parser().parse_args([*arguments, "-o", str(path)]), shlex.join(arguments))).file
    if isinstance(file["half"], str) and isinstance(made["half"], dict):
        half_bodies.leave_out(made, file["half"])  # by the importer's check
    made = json.loads(import_model.json_text(made))
    take_first_values(made, file)
    for key in {**made, **file}:
        assert made.get(key) == file.get(key), f"{path}: '{key}' isn't what the importer makes: tests/bench/catalog_test.py --write {path.stem}"
    same(path.read_text(), import_model.json_text(file) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    os.chdir(ROOT)  # where the commands were typed
    files = made_files()
    assert QUICK <= set(files), QUICK - set(files)
    names = given.names or (files if given.all or given.write else sorted(QUICK))
    for name in names:
        path, file = files[name]
        start = time.monotonic()
        if given.write:
            subprocess.run([sys.executable, ROOT / "bench" / "import", *command_of(file), "-o", path], check=True)
        else:
            check(path, file)
        print(f"{name}: {time.monotonic() - start:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
