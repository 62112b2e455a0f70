"""Step time over the bandwidth between the ranks: where the best of one preset overtakes the best of another.

    plots/crossing.py r.json [more.json …] --out build/plots/crossing

Cells of worlds like gloo@100mbit and gloo@1gbit (`paragauge compare --network RATE`); several files are one figure.
"""

import itertools
import math
import re

import result_file
import style
from style import plt

COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#8172b3", "#937860", "#c44e52", "#8c8c8c")
LINES = {"profiled": "-", "analytic": ":"}
UNITS = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}


def bits_per_second(world):
    """Of "gloo@100mbit"; None for a world without a limit."""
    found = re.fullmatch(r".*@([0-9.]+)(kbit|mbit|gbit)", world)
    return float(found[1]) * UNITS[found[2]] if found else None


def written(bits):
    """"100 Mbit/s"."""
    for unit, name in ((1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")):
        if bits >= unit:
            return f"{bits / unit:.3g} {name}"
    return f"{bits:.3g} bit/s"


def curve(rows, key):
    """[(bandwidth, seconds, row)] in order of the bandwidth, where there is a number."""
    found = {bits_per_second(row["world"]): row for row in rows if row[key] is not None}
    return [(bits, found[bits][key], found[bits]) for bits in sorted(found)]


def crossings(one, other):
    """Where two curves cross: [(bandwidth, seconds)], straight lines between the points of a log-log plot."""
    shared = sorted({bits for bits, *_ in one} & {bits for bits, *_ in other})
    first = {bits: math.log(seconds) for bits, seconds, _ in one}
    second = {bits: math.log(seconds) for bits, seconds, _ in other}
    found = []
    for low, high in itertools.pairwise(shared):
        before, after = first[low] - second[low], first[high] - second[high]
        if before * after < 0:
            part = before / (before - after)
            found.append((math.exp(math.log(low) + part * (math.log(high) - math.log(low))),
                          math.exp(first[low] + part * (first[high] - first[low]))))
    return found


def best_of_presets(curves):
    """{preset: curve}: at each bandwidth the fastest of the strategies with this preset. Two schedules of one pipeline, or
    both kinds of ddp, lie so close to each other that where they cross is noise."""
    best = {}
    for strategy, points in curves:
        known = best.setdefault(points[0][2]["preset"].removesuffix("_blocking"), {})
        for bits, seconds, row in points:
            if bits not in known or seconds < known[bits][1]:
                known[bits] = (bits, seconds, row)
    return {preset: [known[bits] for bits in sorted(known)] for preset, known in best.items()}


def preset_crossings(curves):
    """[(preset, preset, bandwidth, seconds)]: where one preset's best overtakes another's. What `single` crosses isn't about
    the network."""
    best = best_of_presets(curves)
    return [(one, other, bits, seconds) for one, other in itertools.combinations(sorted(set(best) - {"single"}), 2)
            for bits, seconds in crossings(best[one], best[other])]


def mark(axes, curves, text, marker, colour):
    for one, other, bits, seconds in preset_crossings(curves):
        print(f"crossing: {text}: {one} and {other} at {written(bits)}, {seconds:.3g} s")
        axes.plot([bits], [seconds], marker, markersize=12, markerfacecolor="none", markeredgecolor=colour, markeredgewidth=1.5,
                  linestyle="none", label=text)
        axes.axvline(bits, color=colour, linewidth=0.8, linestyle="--" if marker == "o" else ":", zorder=0)
        axes.annotate(written(bits), (bits, 0.98 if marker == "o" else 0.92), xycoords=("data", "axes fraction"),
                      xytext=(4 if marker == "o" else -4, 0), textcoords="offset points", va="top",
                      ha="left" if marker == "o" else "right", fontsize=8, color=colour)


def draw(axes, rows):
    measured, predicted = [], {}
    strategies = result_file.groups(rows, "strategy")
    for colour, ((strategy,), of_strategy) in zip(itertools.cycle(COLOURS), strategies.items()):
        name = of_strategy[0]["label"]
        points = curve(of_strategy, "measured_s")
        if points:
            measured.append((strategy, points))
            axes.errorbar([p[0] for p in points], [p[1] for p in points], yerr=[p[2]["measured_population_sd_s"] or 0 for p in points],
                          fmt="o", markersize=5, color=colour, ecolor=colour, capsize=4, label=f"{name}, measured")
        for (cost_model,), of_model in result_file.groups(of_strategy, "cost_model").items():
            points = curve(of_model, "predicted_s")
            if points:
                predicted.setdefault(cost_model, []).append((strategy, points))
                axes.plot([p[0] for p in points], [p[1] for p in points], LINES.get(cost_model, "-."), linewidth=1.4, color=colour,
                          label=f"{name}, {cost_model}")
    mark(axes, measured, "measured crossing", "o", "black")
    if predicted:
        cost_model = next((name for name in LINES if name in predicted), next(iter(predicted)))
        mark(axes, predicted[cost_model], f"predicted crossing ({cost_model})", "D", "#777777")
    axes.set_xscale("log")
    axes.set_yscale("log")
    rates = sorted({bits_per_second(row["world"]) for row in rows})
    axes.set_xticks(rates, [f"{bits / 1e9:g}" for bits in rates])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_locator(plt.LogLocator(subs=(2, 5)))
    axes.yaxis.set_minor_formatter("{x:g}")
    axes.set_xlabel("bandwidth of each rank's link (Gbit/s)")
    axes.set_ylabel(f"{result_file.model_name(rows[0])} Execution Time (Second)")
    axes.set_title(f"one training step, global batch {rows[0]['global_batch']}", fontsize=10)
    axes.grid(True, which="both", axis="y")


def plot(arguments):
    files = [arguments.file, *arguments.more]
    rows = [row for file in files for row in result_file.read_result(file).rows]
    rows = [row for row in rows if row["status"] != "skipped" and row["executor"] == "paragauge"]
    if arguments.model:
        rows = result_file.choose(files[0], rows, "model", arguments.model)
    rows = [row for row in rows if bits_per_second(row["world"])]
    if arguments.presets:
        rows = [row for row in rows if row["preset"] in arguments.presets]
    if any(row["cost_model"] == "profiled" for row in rows):
        rows = [row for row in rows if row["cost_model"] in ("profiled", None)]
    models = result_file.groups(rows, "model")
    if len({row["world"] for row in rows}) < 2:
        raise result_file.FileError(f"{', '.join(files)}: no crossing: it needs worlds of at least two bandwidths, like gloo@100mbit and gloo@1gbit")
    if len(models) > 1:
        raise result_file.FileError(f"{', '.join(files)}: several models, choose one with --model: {', '.join(model for (model,) in models)}")
    figure, axes = plt.subplots(figsize=(8.4, 5.6), layout="constrained")
    draw(axes, rows)
    handles = {}
    handles.update({name: handle for handle, name in zip(*axes.get_legend_handles_labels())})
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=2, fontsize=8,
                  title="error bars: standard deviation of the steps", title_fontsize=9)
    style.save(figure, arguments.out)


if __name__ == "__main__":
    result_file.run(plot, __doc__.splitlines()[0],
                    [("--presets", {"nargs": "+", "help": "only these strategies, like: --presets pipeline ddp"}),
                     ("more", {"nargs": "*", "help": "further results"}), ("--model", {"help": "only this model, as the file writes it"})])
