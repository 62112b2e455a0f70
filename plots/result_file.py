"""Reads what paragauge writes: results ("paragauge-result-4", and -2, -3), timelines ("paragauge-trace-1", also a Chrome trace) and
trainings ("paragauge-train-1").

    rows = read_result("r.json").rows                    # dictionaries, one per cell and cost model
    events = read_trace("trace.json").events
    losses = read_training("train.json").losses          # a list of each epoch's steps

A file of `compare` or `measure` has what was measured, not the rows that are computed from it: `paragauge report` makes them. The
program is looked for in $PARAGAUGE, in build/bin and on the PATH.

Strict: a file that is unreadable, truncated, of another version or lacks a key raises FileError with one line that says so.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

KEYS = ("model", "model_name", "world", "executor", "strategy", "preset", "schedule", "label", "cost_model", "status", "ranks", "global_batch", "microbatch",
        "predicted_s", "predicted_population_sd_s", "measured_s", "measured_population_sd_s",
        "error_percent", "error_low_percent", "error_high_percent",
        "relative_error_percent", "relative_error_low_percent", "relative_error_high_percent", "noise_floor_percent")
TEXTS = {"model", "model_name", "world", "executor", "strategy", "preset", "schedule", "label", "cost_model", "status"}


class FileError(Exception):
    """The file is not what it should be; the text is for the user."""


@dataclass
class Result:
    context: dict
    rows: list  # of dictionaries; a number that is unavailable is None


@dataclass
class Event:
    process: str  # "rank 0 predicted"
    lane: str     # "compute", "communication", "wait"
    kind: str     # "compute", "update", "send", …
    name: str
    microbatch: int | None
    start_s: float
    end_s: float


@dataclass
class Trace:
    model: str
    strategy: str
    processes: list  # by number: a rank's timelines side by side
    events: list


@dataclass
class Training:
    path: str
    model: str
    strategy: str
    world: str
    samples: int
    losses: list  # of each epoch, of each of its steps


def read_json(path):
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"{path}: can't be read: {getattr(error, 'strerror', None) or error}") from None
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        cut = " (the file is truncated)" if error.pos >= len(text.rstrip()) else ""
        raise FileError(f"{path}: not valid JSON at character {error.pos} of {len(text)}{cut}") from None
    if not isinstance(content, dict):
        raise FileError(f"{path}: must be a JSON object")
    return content


def check_format(path, found, expected):
    if found != expected:
        raise FileError(f"{path}: format '{found}' is not '{expected}'; write the file again with this paragauge")


def program():
    """The path of `paragauge`."""
    beside = Path(__file__).resolve().parents[1] / "build" / "bin" / "paragauge"
    if os.environ.get("PARAGAUGE"):
        return os.environ["PARAGAUGE"]
    found = str(beside) if beside.is_file() else shutil.which("paragauge")
    if not found:
        raise FileError(f"paragauge is needed to compute the rows of a result, and is neither $PARAGAUGE, nor {beside}, nor on the PATH: "
                        "bench/setup.sh --forecasts builds it")
    return found


def reported(path):
    """The rows that `paragauge report` computes."""
    with tempfile.TemporaryDirectory(prefix="paragauge_plot_") as folder:
        file = Path(folder) / "report.json"
        try:
            run = subprocess.run([program(), "report", str(path), "--json", str(file)], capture_output=True, text=True, check=False)
        except OSError as error:
            raise FileError(f"{error.filename}: can't be run: {error.strerror}") from None
        if run.returncode != 0:
            raise FileError(run.stderr.strip().removeprefix("paragauge: ") or f"{path}: paragauge report ended with status {run.returncode}")
        return read_json(file).get("rows")


def rename(row):
    """Until format 2 the buckets of `ddp` and `mesh` waited for the end of the backward, unless they said overlap=1."""
    strategy, label = row["strategy"], row["label"]
    if row["preset"] not in ("ddp", "mesh") or None in (strategy, label):
        return
    if ",overlap=1" in strategy:
        row.update(strategy=strategy.replace(",overlap=1", ""), label=label.replace(" overlapped", ""))
    elif row["preset"] == "ddp":
        row.update(preset="ddp_blocking", strategy=strategy.replace("ddp", "ddp_blocking", 1), label=label.replace("ddp", "ddp blocking", 1))
    elif ",dp=" in strategy:
        row.update(strategy=strategy + ",overlap=0", label=label.replace("mesh", "mesh blocking", 1))


def tell_apart(rows):
    """Labels leave out where a pipeline is cut, and how large buckets are: strategies of one label get their whole text."""
    strategies = {}
    for row in rows:
        strategies.setdefault((row["model"], row["label"]), set()).add(row["strategy"])
    for row in rows:
        if len(strategies[row["model"], row["label"]]) > 1:
            row["label"] = row["strategy"]


def read_result(path):
    content = read_json(path)
    is_old = content.get("format") == "paragauge-result-2"
    if not is_old and content.get("format") != "paragauge-result-3":  # whose rows are as today's
        check_format(path, content.get("format"), "paragauge-result-4")
    rows = content["rows"] if "rows" in content else reported(path)
    if not isinstance(rows, list) or not rows:
        raise FileError(f"{path}: 'rows' must be a list of at least one row")
    for i, row in enumerate(rows):
        for key in KEYS:
            if not isinstance(row, dict) or key not in row:
                raise FileError(f"{path}: rows[{i}]: '{key}' is missing")
            kind = str if key in TEXTS else (int, float)
            if row[key] is not None and (not isinstance(row[key], kind) or isinstance(row[key], bool)):
                raise FileError(f"{path}: rows[{i}]: '{key}' must be a {'text' if kind is str else 'number'} or null, "
                                f"found {json.dumps(row[key])}")
        if is_old and "rows" in content:  # of today's program they have today's names
            rename(row)
    tell_apart(rows)
    return Result(content["sessions"][-1]["context"] if content.get("sessions") else {}, rows)


def read_trace(path):
    content = read_json(path)
    about = content.get("otherData", {})
    check_format(path, about.get("format"), "paragauge-trace-1")
    processes, lanes, events = {}, {}, []
    try:
        for event in content["traceEvents"]:
            if event["ph"] == "M" and event["name"] == "process_name":
                processes[event["pid"]] = event["args"]["name"]
            if event["ph"] == "M" and event["name"] == "thread_name":
                lanes[event["pid"], event["tid"]] = event["args"]["name"]
        for event in content["traceEvents"]:
            if event["ph"] == "X":
                start = event["ts"] * 1e-6
                events.append(Event(processes[event["pid"]], lanes[event["pid"], event["tid"]], event["cat"], event["name"],
                                    event["args"].get("microbatch"), start, start + event["dur"] * 1e-6))
    except (KeyError, TypeError) as error:
        raise FileError(f"{path}: 'traceEvents' is not what paragauge writes: {error!r}") from None
    if not events:
        raise FileError(f"{path}: 'traceEvents' has no event")
    return Trace(about.get("model", ""), about.get("strategy", ""), [processes[pid] for pid in sorted(processes)], events)


def read_training(path):
    content = read_json(path)
    check_format(path, content.get("format"), "paragauge-train-1")
    try:
        losses = [[float("nan") if loss is None else float(loss) for loss in epoch["losses"]] for epoch in content["epochs"]]
        training = Training(str(path), content["model"], content["strategy"], content["world"], content["samples"], losses)
    except (KeyError, TypeError) as error:
        raise FileError(f"{path}: not what `paragauge train` writes: {error!r}") from None
    if not losses or not all(losses):
        raise FileError(f"{path}: 'epochs' has no epoch, or one without losses")
    return training


def groups(rows, *keys):
    """Rows by the values of these keys, in the order of the file."""
    found = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), []).append(row)
    return found


def model_name(row):
    """"ResNet50" of resnet50."""
    name = row["model_name"]
    for plain, written in (("resnet", "ResNet"), ("convnet", "ConvNet"), ("vgg", "VGG")):
        if name.startswith(plain):
            return written + name[len(plain):]
    return name


def choose(path, rows, key, wanted):
    """Only the rows with this value, if one is wanted; FileError that lists the values if there is none."""
    if wanted is None:
        return rows
    chosen = [row for row in rows if row[key] == wanted]
    if not chosen:
        raise FileError(f"{path}: no {key} '{wanted}'; it has: {', '.join(sorted({str(row[key]) for row in rows}))}")
    return chosen


def run(plot, description, options=()):
    """Command line of every plot: FILE --out PREFIX, and the given options. `plot(arguments)` draws and saves."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("file", help="what paragauge wrote")
    parser.add_argument("--out", required=True, metavar="PREFIX", help="writes PREFIX.png and PREFIX.svg")
    for name, settings in options:
        parser.add_argument(name, **settings)
    try:
        plot(parser.parse_args())
    except FileError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        print(f"error: {error.filename}: can't be written: {error.strerror}", file=sys.stderr)
        sys.exit(1)
