"""Draws every plot from the committed synthetic files and looks at what was drawn; needs matplotlib, no test framework.

    .venv/bin/python tests/plots/plots_test.py [NAME…]        # exit status 0: all passed
"""

import argparse
import copy
import json
import math
import os
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS.parent / "plots"), str(TESTS)]
sys.dont_write_bytecode = True

try:
    import matplotlib  # noqa: F401
except ImportError:
    print("plots: matplotlib is missing, skipped")
    sys.exit(77)

import crossing  # noqa: E402
import errors  # noqa: E402
import loss_curves  # noqa: E402
import result_file  # noqa: E402
import split_size  # noqa: E402
import step_times  # noqa: E402
import style  # noqa: E402
import timeline  # noqa: E402
from run_functions import functions_of, run_functions  # noqa: E402

RESULT = TESTS / "golden" / "result_synthetic.json"
TRACE = TESTS / "golden" / "trace_synthetic.json"
PLOTS = [(step_times, RESULT, {"world": None, "cost_model": None}), (split_size, RESULT, {"world": None}),
         (errors, RESULT, {"relative": False}), (errors, RESULT, {"relative": True}), (timeline, TRACE, {})]
KEPT = tempfile.TemporaryDirectory(prefix="plots_test_")  # removed at exit
FOLDER = Path(KEPT.name)


def write_crossing():
    """At three bandwidths: model parallel takes 1 s; ddp 0.5 s + 1e8 bit / bandwidth (predicted: 4 % less); blocking 10 ms more."""
    content = json.loads(RESULT.read_text())
    template = next(row for row in content["rows"] if row["cost_model"] == "profiled" and row["status"] == "conclusive")
    rows = []
    for world, bits in (("gloo@100mbit", 1e8), ("gloo@1gbit", 1e9), ("gloo@10gbit", 1e10), ("gloo@unlimited", 1e20)):
        for strategy, preset, label, seconds in (
                ("model_parallel,pp=2,cut=a", "model_parallel", "model parallel, 2 ranks", 1),
                ("ddp,dp=2", "ddp", "ddp, 2 ranks", 0.5 + 1e8 / bits),
                ("ddp_blocking,dp=2", "ddp_blocking", "ddp blocking, 2 ranks", 0.51 + 1e8 / bits)):
            rows.append({**template, "world": world, "strategy": strategy, "preset": preset, "label": label, "ranks": 2,
                         "measured_s": seconds, "measured_population_sd_s": 0.02,
                         "predicted_s": 0.96 * seconds if preset.startswith("ddp") else seconds})
    path = FOLDER / "crossing.json"
    path.write_text(json.dumps({**content, "rows": rows}))
    return path


def write_family():
    """The same four rows by twelve strategies, with long names."""
    content = json.loads(RESULT.read_text())
    template = next(row for row in content["rows"] if row["cost_model"] == "profiled" and row["status"] == "conclusive")
    names = ["single"] + [f"deepspeed stage {k}" for k in range(11)]
    rows = [{**template, "strategy": name, "preset": name.replace(" ", "_"), "label": name if k == 0 else f"{name}, split size {k}, 2 ranks"}
            for k, name in enumerate(names)]
    path = FOLDER / "family.json"
    path.write_text(json.dumps({**content, "rows": rows}))
    return path


FAMILY = write_family()
PLOTS.append((step_times, FAMILY, {"world": None, "cost_model": None}))
CROSSING = write_crossing()
PLOTS.append((crossing, CROSSING, {"more": [], "model": None, "presets": None}))


def write_training(name, strategy, losses, **others):
    path = FOLDER / f"{name}.json"
    path.write_text(json.dumps({"format": "paragauge-train-1", "model": "convnet", "strategy": strategy, "world": "local", "samples": 2000,
                                "epochs": [{"losses": epoch} for epoch in losses], **others}))
    return path


TRAININGS = [write_training("single", "single", [[2.0, 1.0], [0.5, 0.25]]), write_training("ddp", "ddp,dp=2", [[2.0, 1.0], [0.5, 0.25 * (1 + 1e-12)]])]
PLOTS.append((loss_curves, TRAININGS[0], {"more": [str(TRAININGS[1])]}))


def draw(module, file, options):
    """The figure, as it is handed over for saving."""
    figures = []
    kept, style.save = style.save, lambda figure, prefix: figures.append(figure)
    try:
        module.plot(argparse.Namespace(file=str(file), out="unused", **options))
    finally:
        style.save = kept
    return figures[0]


def message(call):
    try:
        call()
    except result_file.FileError as error:
        return str(error)
    return "no error"


def written(content):
    path = FOLDER / "changed.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def equal(found, expected):
    assert found == expected, f"\n   found {found!r}\nexpected {expected!r}"


def near(found, expected):
    assert len(found) == len(expected) and all(abs(f - e) <= 1e-9 * (1 + abs(e)) for f, e in zip(found, expected)), (found, expected)


def rows_of(model, world, cost_model):
    return [row for row in result_file.read_result(RESULT).rows
            if row["model"].startswith(model) and row["world"] == world and row["cost_model"] == cost_model]


def test_every_plot_is_saved_the_same_twice():
    for module, file, options in PLOTS:
        contents = []
        for _ in range(2):
            prefix = FOLDER / "new_folder" / module.__name__
            module.plot(argparse.Namespace(file=str(file), out=str(prefix), **options))
            contents.append([Path(f"{prefix}.{ending}").read_bytes() for ending in ("png", "svg")])
        assert contents[0] == contents[1], f"{module.__name__} differs from run to run"
        assert contents[0][0].startswith(b"\x89PNG") and b"<svg" in contents[0][1]


def test_nothing_overlaps_or_is_cut_off():
    for module, file, options in PLOTS:
        figure = draw(module, file, options)
        figure.draw_without_rendering()
        renderer, bounds = figure.canvas.get_renderer(), figure.bbox
        pieces = [(legend, "legend") for legend in figure.legends]
        slanted = {text.get_text() for axis in figure.axes for text in axis.get_xticklabels() if text.get_rotation() == 40}
        for axis in figure.axes:
            if not axis.get_visible():
                continue
            assert axis.get_xlabel() or module in (step_times, errors), module.__name__
            texts = [axis.title, axis.xaxis.label, axis.yaxis.label]
            # matplotlib keeps labels of ticks beyond the limits, and doesn't draw them.
            texts += [t for t in axis.get_xticklabels() if min(axis.get_xlim()) <= t.get_position()[0] <= max(axis.get_xlim())]
            texts += [t for t in axis.get_yticklabels() if min(axis.get_ylim()) <= t.get_position()[1] <= max(axis.get_ylim())]
            pieces += [(text, text.get_text()) for text in texts if text.get_visible() and text.get_text()]
        boxes = [(piece.get_window_extent(renderer), name) for piece, name in pieces]
        for i, (box, name) in enumerate(boxes):
            inside = box.x0 >= bounds.x0 - 1 and box.y0 >= bounds.y0 - 1 and box.x1 <= bounds.x1 + 1 and box.y1 <= bounds.y1 + 1
            assert inside, f"{module.__name__}: '{name}' is cut off: {box}"
            for other, other_name in boxes[i + 1:]:
                if name in slanted and other_name in slanted:  # their boxes overlap, they don't
                    continue
                overlap = min(box.x1, other.x1) - max(box.x0, other.x0) > 1 and min(box.y1, other.y1) - max(box.y0, other.y0) > 1
                assert not overlap, f"{module.__name__}: '{name}' overlaps '{other_name}'"


def test_step_times_shows_the_numbers_of_the_file():
    axis = draw(step_times, RESULT, {"world": "local", "cost_model": "profiled"}).axes[0]
    equal([text.get_text() for text in axis.get_xticklabels()],
          ["single", "model parallel\n2 ranks", "pipeline\ngpipe\nsplit size 4\n2 ranks", "ddp blocking\n2 ranks"])
    equal(axis.get_ylabel(), "ResNet50 Execution Time (Second)")
    rows = {row["preset"]: row for row in rows_of("resnet50", "local", "profiled")
            if row["microbatch"] == 4 or not row["preset"] == "pipeline"}
    for container, key in zip([c for c in axis.containers if hasattr(c, "patches")], ("predicted_s", "measured_s")):
        near([bar.get_height() for bar in container.patches], [row[key] for row in rows.values()])
        # Error bars: red, with caps, one population standard deviation up and down.
        lines, caps, (bars,) = container.errorbar
        deviation = key.replace("_s", "_population_sd_s")
        near([(segment[1][1] - segment[0][1]) / 2 for segment in bars.get_segments()], [row[deviation] for row in rows.values()])
        assert len(caps) == 2 and all(tuple(colour) == (1, 0, 0, 1) for colour in bars.get_colors())
    assert any(line.get_visible() for line in axis.get_ygridlines())


def test_step_times_of_many_strategies_are_slanted_and_say_once_what_all_have():
    axis = draw(step_times, FAMILY, {"world": None, "cost_model": None}).axes[0]
    labels = axis.get_xticklabels()
    equal([text.get_text() for text in labels][:3], ["single", "deepspeed stage 0, split size 1", "deepspeed stage 1, split size 2"])
    equal({text.get_rotation() for text in labels}, {40.0})
    assert axis.get_title().endswith(", 2 ranks"), axis.get_title()


def test_step_times_shows_both_peers():
    content = json.loads(RESULT.read_text())
    ours = [row for row in content["rows"] if row["model_name"] == "resnet50" and row["world"] == "local" and row["cost_model"] == "profiled"]
    content["rows"] = ours + [{**row, "executor": executor, "measured_s": factor * row["measured_s"]} for row in ours
                              for executor, factor in (("pytorch", 1.2), ("pytorch_best", 1.1))]
    axis = draw(step_times, written(content), {"world": None, "cost_model": None}).axes[0]
    bars = {container.get_label(): [bar.get_height() for bar in container.patches] for container in axis.containers
            if hasattr(container, "patches")}
    equal(list(bars), ["predicted (profiled)", "measured", "measured in plain PyTorch", "measured in PyTorch at its best"])
    near(bars["measured in plain PyTorch"], [1.2 * height for height in bars["measured"]])
    near(bars["measured in PyTorch at its best"], [1.1 * height for height in bars["measured"]])


def test_split_size_shows_the_sweep():
    axis = draw(split_size, RESULT, {"world": None}).axes[0]
    rows = sorted((row for row in rows_of("resnet50", "local", "profiled") if row["preset"] == "pipeline"), key=lambda r: r["microbatch"])
    equal([text.get_text() for text in axis.get_xticklabels()], ["1", "2", "4", "8"])
    lines = {line.get_label(): line for line in axis.lines}
    near(list(lines["predicted (profiled)"].get_ydata()), [row["predicted_s"] for row in rows])
    near(list(axis.containers[0].lines[0].get_ydata()), [row["measured_s"] for row in rows])


def test_split_size_keeps_schedules_apart():
    content = json.loads(RESULT.read_text())
    sweep = [row for row in content["rows"] if row["model"].startswith("resnet50") and row["world"] == "local"]
    content["rows"] = sweep + [{**row, "strategy": row["strategy"].replace("gpipe", "1f1b"), "schedule": "1f1b"} for row in sweep
                               if row["preset"] == "pipeline"]
    figure = draw(split_size, written(content), {"world": None})
    panels = [axis for axis in figure.axes if axis.get_visible()]
    equal([axis.get_title().split(",")[0] for axis in panels], ["gpipe", "1f1b"])
    for axis in panels:
        equal(len(axis.containers[0].lines[0].get_ydata()), 4)


def test_other_cuts_are_told_apart():
    content = json.loads(RESULT.read_text())
    sweep = [row for row in content["rows"] if row["model"].startswith("resnet50") and row["world"] == "local" and row["preset"] == "pipeline"]
    others = [{**row, "strategy": row["strategy"].replace("cut=", "cut=other.")} for row in sweep]
    content["rows"] = sweep + others
    path = written(content)
    panels = [axis for axis in draw(split_size, path, {"world": None}).axes if axis.get_visible()]
    titles = [axis.get_title() for axis in panels]
    assert len(titles) == 2 and "cut=other." in titles[1] and "cut=other." not in titles[0], titles
    equal({row["label"] for row in result_file.read_result(path).rows}, {row["strategy"] for row in sweep + others})


def test_committed_crossings_are_forecast():
    """The bandwidths at which ddp overtakes model parallelism and the pipelines: within 15 % of the measured ones."""
    rows = [row for row in result_file.read_result(TESTS / "golden" / "crossing.json").rows
            if row["cost_model"] == "profiled" and row["executor"] == "paragauge"]
    found = {}
    for key in ("measured_s", "predicted_s"):
        curves = [(strategy, crossing.curve(of_strategy, key)) for (strategy,), of_strategy in result_file.groups(rows, "strategy").items()]
        found[key] = {(one, other): bits for one, other, bits, _ in crossing.preset_crossings(curves)}
    equal(set(found["measured_s"]), {("ddp", "model_parallel"), ("ddp", "pipeline")})
    equal(set(found["predicted_s"]), set(found["measured_s"]))
    for pair, bits in found["measured_s"].items():
        off = math.log(found["predicted_s"][pair] / bits)
        assert abs(off) <= 0.15, f"{pair}: {100 * off:+.0f} %"


def test_old_files_are_read_with_todays_names():
    content = json.loads(RESULT.read_text())
    template = content["rows"][0]
    renamed = {"ddp,dp=2": ("ddp_blocking,dp=2", "ddp_blocking", "ddp blocking, 2 ranks"),
               "ddp,dp=2,overlap=1": ("ddp,dp=2", "ddp", "ddp, 2 ranks"),
               "mesh,dp=2,pp=2": ("mesh,dp=2,pp=2,overlap=0", "mesh", "mesh blocking dp=2 pp=2, 4 ranks"),
               "mesh,dp=2,pp=2,overlap=1": ("mesh,dp=2,pp=2", "mesh", "mesh dp=2 pp=2, 4 ranks"),
               "single": ("single", "single", "single")}
    labels = ["ddp, 2 ranks", "ddp overlapped, 2 ranks", "mesh dp=2 pp=2, 4 ranks", "mesh overlapped dp=2 pp=2, 4 ranks", "single"]
    rows = [{**template, "strategy": strategy, "preset": strategy.split(",")[0], "label": label} for strategy, label in zip(renamed, labels)]
    path = FOLDER / "old.json"
    path.write_text(json.dumps({**content, "format": "paragauge-result-2", "rows": rows}))
    equal([(row["strategy"], row["preset"], row["label"]) for row in result_file.read_result(path).rows], list(renamed.values()))


def test_crossing_marks_where_one_preset_overtakes_another():
    axis = draw(crossing, CROSSING, {"more": [], "model": None, "presets": None}).axes[0]
    equal([text.get_text() for text in axis.get_xticklabels()], ["0.1", "1", "10"])
    equal(axis.get_xlabel(), "bandwidth of each rank's link (Gbit/s)")
    lines = {line.get_label(): line for line in axis.lines}
    near(list(lines["ddp, 2 ranks, profiled"].get_ydata()), [0.96 * 1.5, 0.96 * 0.6, 0.96 * 0.51])
    points = {container.get_label(): container.lines[0] for container in axis.containers}
    near(list(points["ddp, 2 ranks, measured"].get_ydata()), [1.5, 0.6, 0.51])

    def crossed(seconds):  # on the straight line from (1e8, seconds(1e8)) to (1e9, seconds(1e9)), logarithmic on both axes
        slow, fast = math.log(seconds(1e8)), math.log(seconds(1e9))
        return 1e8 * 10 ** (slow / (slow - fast))

    near([float(lines["measured crossing"].get_xdata()[0]), float(lines["measured crossing"].get_ydata()[0])],
         [crossed(lambda bits: 0.5 + 1e8 / bits), 1])
    near([float(lines["predicted crossing (profiled)"].get_xdata()[0])], [crossed(lambda bits: 0.96 * (0.5 + 1e8 / bits))])
    equal(message(lambda: draw(crossing, RESULT, {"more": [], "model": None, "presets": None})),
          f"{RESULT}: no crossing: it needs worlds of at least two bandwidths, like gloo@100mbit and gloo@1gbit")
    equal(crossing.bits_per_second("gloo@2.5gbit"), 2.5e9)
    equal([crossing.bits_per_second("gloo"), crossing.bits_per_second("gloo@unlimited")], [None, None])


def test_loss_curves_shows_the_losses_and_their_distance():
    above, below = draw(loss_curves, TRAININGS[0], {"more": [str(TRAININGS[1])]}).axes
    equal([line.get_label() for line in above.lines], ["single, local", "ddp,dp=2, local"])
    near(above.lines[0].get_xdata(), [0.5, 1, 1.5, 2])
    near(above.lines[0].get_ydata(), [2, 1, 0.5, 0.25])
    assert len(below.lines) == 1 and math.isclose(below.lines[0].get_ydata()[0], 1e-12, rel_tol=1e-3), "only what differs has a distance"


def test_bad_trainings_are_named():
    shorter = write_training("shorter", "tp", [[2.0, 1.0]])
    equal(message(lambda: draw(loss_curves, TRAININGS[0], {"more": [str(shorter)]})),
          f"{shorter}: not what {TRAININGS[0]} trains: convnet, 2000 samples, 1 epochs")
    equal(message(lambda: result_file.read_training(write_training("empty", "tp", []))),
          f"{FOLDER / 'empty.json'}: 'epochs' has no epoch, or one without losses")
    equal(message(lambda: result_file.read_training(write_training("broken", "tp", [[1.0]], epochs=[{}]))),
          f"{FOLDER / 'broken.json'}: not what `paragauge train` writes: KeyError('losses')")
    equal(message(lambda: result_file.read_training(RESULT)),
          f"{RESULT}: format 'paragauge-result-4' is not 'paragauge-train-1'; write the file again with this paragauge")


def test_errors_shows_every_cell():
    figure = draw(errors, RESULT, {"relative": False})
    rows = [row for row in result_file.read_result(RESULT).rows if row["cost_model"] == "profiled" and row["error_percent"] is not None]
    axis = next(axis for axis in figure.axes if axis.get_title() == "profiled")
    points = [line for line in axis.lines if line.get_marker() == "o"]
    near([float(line.get_xdata()[0]) for line in points], [row["error_percent"] for row in rows])
    equal([line.get_markerfacecolor() == "white" for line in points], [row["status"] == "inconclusive" for row in rows])
    assert any(row["status"] == "inconclusive" for row in rows) and any(row["status"] == "conclusive" for row in rows)
    near([bar.get_width() / 2 for bar in axis.patches], [row["noise_floor_percent"] for row in rows])
    near([float(line.get_xdata()[0]) for line in axis.lines if line.get_marker() == "|"], [row["error_low_percent"] for row in rows])


def test_timeline_shows_predicted_over_measured():
    figure = draw(timeline, TRACE, {})
    trace = result_file.read_trace(TRACE)
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    equal(labels, ["rank 0 predicted", "rank 0 measured", "rank 1 predicted", "rank 1 measured"])
    ends = [float(line.get_xdata()[0]) for line in figure.axes[0].lines]
    near(ends, [1e3 * max(event.end_s for event in trace.events if event.process == name) for name in labels])
    equal({timeline.kind(event) for event in trace.events}, {"forward", "backward", "update", "other", "transfer", "wait"})


def test_bad_results_are_named():
    good = json.loads(RESULT.read_text())
    read = result_file.read_result

    def changed(change):
        content = copy.deepcopy(good)
        change(content)
        return written(content)

    path = FOLDER / "changed.json"
    equal(message(lambda: read(RESULT)), "no error")
    equal(message(lambda: read("/nonexistent/r.json")), "/nonexistent/r.json: can't be read: No such file or directory")
    cut = RESULT.read_text().rstrip()[:-1]
    equal(message(lambda: read(written(cut))), f"{path}: not valid JSON at character {len(cut)} of {len(cut)} (the file is truncated)")
    equal(message(lambda: read(written("[]"))), f"{path}: must be a JSON object")
    equal(message(lambda: read(changed(lambda c: c.update(format="paragauge-result-0")))),
          f"{path}: format 'paragauge-result-0' is not 'paragauge-result-4'; write the file again with this paragauge")
    equal(message(lambda: read(changed(lambda c: c.update(rows=[])))), f"{path}: 'rows' must be a list of at least one row")
    equal(message(lambda: read(changed(lambda c: c["rows"][2].pop("measured_s")))), f"{path}: rows[2]: 'measured_s' is missing")
    equal(message(lambda: read(changed(lambda c: c["rows"][0].pop("label")))), f"{path}: rows[0]: 'label' is missing")
    equal(message(lambda: read(changed(lambda c: c["rows"][1].update(measured_s="1.2")))),
          f"{path}: rows[1]: 'measured_s' must be a number or null, found \"1.2\"")
    equal(message(lambda: read(changed(lambda c: c["rows"][0].update(strategy=3)))), f"{path}: rows[0]: 'strategy' must be a text or null, found 3")
    equal(message(lambda: draw(step_times, RESULT, {"world": "nccl", "cost_model": None})), f"{RESULT}: no world 'nccl'; it has: gloo, local")
    only_single = changed(lambda c: c.update(rows=[row for row in c["rows"] if row["strategy"] == "single"]))
    equal(message(lambda: draw(split_size, only_single, {"world": None})),
          f"{path}: no sweep: it needs pipelines of at least two split sizes of one model, world and schedule")
    equal(message(lambda: draw(errors, only_single, {"relative": True})), f"{path}: no cell has both a forecast and a measurement; nothing to show")


def test_rows_are_computed_where_a_file_has_none():
    """By `paragauge report`; what is wrong with the file or the program is said in one line."""
    content = json.loads(RESULT.read_text())
    expected = content["rows"]
    measured = {key: value for key, value in content.items() if key not in ("columns", "rows", "summary")}
    kept = os.environ.get("PARAGAUGE")
    try:
        found = result_file.read_result(written(measured)).rows
        equal(len(found), len(expected))
        for row, stored in zip(found, expected):
            for key in result_file.KEYS:
                if isinstance(stored[key], float):
                    near([row[key]], [stored[key]])
                else:
                    equal(row[key], stored[key])
        path = FOLDER / "changed.json"
        equal(message(lambda: result_file.read_result(written({**measured, "cells": 1}))), f"{path}: 'cells' must be a list of objects, found 1")
        os.environ["PARAGAUGE"] = "/nonexistent/paragauge"
        equal(message(lambda: result_file.read_result(written(measured))), "/nonexistent/paragauge: can't be run: No such file or directory")
    finally:
        if kept is None:
            os.environ.pop("PARAGAUGE", None)
        else:
            os.environ["PARAGAUGE"] = kept


def test_bad_traces_are_named():
    good = json.loads(TRACE.read_text())
    path = FOLDER / "changed.json"
    equal(message(lambda: result_file.read_trace(RESULT)),
          f"{RESULT}: format 'None' is not 'paragauge-trace-1'; write the file again with this paragauge")
    equal(message(lambda: result_file.read_trace(written({**good, "traceEvents": []}))), f"{path}: 'traceEvents' has no event")
    broken = copy.deepcopy(good)
    broken["traceEvents"][-1].pop("dur")
    equal(message(lambda: result_file.read_trace(written(broken))), f"{path}: 'traceEvents' is not what paragauge writes: KeyError('dur')")


def test_missing_numbers_are_left_out():
    """Predicted only, nothing measured: bars without a partner, no crash, and no bar of height 0."""
    content = json.loads(RESULT.read_text())
    for row in content["rows"]:
        for key in list(row):
            if key.startswith("measured_") or "error_" in key or key in ("noise_floor_percent", "structure_error_percent"):
                row[key] = None
    figure = draw(step_times, written(content), {"world": "local", "cost_model": "profiled"})
    heights = [bar.get_height() for bar in figure.axes[0].patches]
    assert len(heights) == 4 and min(heights) > 0, heights
    draw(split_size, written(content), {"world": None})


if __name__ == "__main__":
    sys.exit(run_functions(functions_of(globals()), sys.argv[1:]))
