"""Step time of the pipeline over the split size (samples per microbatch), predicted beside measured.

    plots/split_size.py r.json --out build/plots/split_size

One panel per model, world and pipeline (schedule, ranks, cut) that has at least two split sizes.
"""

import math
from collections import Counter

import result_file
import style
from style import plt


def draw(axes, world, pipeline, rows, pipelines):
    pipelines = sorted(pipelines, key=lambda row: row["microbatch"])
    for cost_model in dict.fromkeys(row["cost_model"] for row in pipelines if row["cost_model"]):
        shown = [row for row in pipelines if row["cost_model"] == cost_model]
        axes.plot([row["microbatch"] for row in shown], [row["predicted_s"] for row in shown], "s--", markersize=4,
                  color=style.PREDICTED_LINE.get(cost_model, style.OTHER), label=f"predicted ({cost_model})")
    measured = list({row["strategy"]: row for row in pipelines if row["measured_s"] is not None}.values())
    if measured:
        axes.errorbar([row["microbatch"] for row in measured], [row["measured_s"] for row in measured],
                      yerr=[row["measured_population_sd_s"] or 0 for row in measured], fmt="o-", color="black", markersize=5,
                      label="measured", **style.ERROR_BAR)
    for row in {row["strategy"]: row for row in rows if row["measured_s"] is not None}.values():
        if row["preset"] == "single":
            axes.axhline(row["measured_s"], color="#777777", linewidth=1, linestyle=":", label="single device, measured")
    sizes = sorted({row["microbatch"] for row in pipelines})
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.minorticks_off()
    axes.set_xlabel("split size (samples per microbatch)")
    axes.set_ylabel(f"{result_file.model_name(rows[0])} Execution Time (Second)")
    axes.set_title(f"{pipeline}, global batch {rows[0]['global_batch']}, world {world}", fontsize=10)
    axes.yaxis.grid(True)
    axes.set_ylim(bottom=0)


def without_split(strategy: str) -> str:
    """Pipelines that have it in common differ in the size of their microbatches only."""
    return ",".join(part for part in strategy.split(",") if not part.startswith(("split_size=", "microbatches=")))


def plot(arguments):
    rows = result_file.choose(arguments.file, result_file.read_result(arguments.file).rows, "world", arguments.world)
    rows = [row for row in rows if row["status"] != "skipped" and row["executor"] == "paragauge"]
    pipelines = [{**row, "pipeline": without_split(row["strategy"])} for row in rows if row["preset"] == "pipeline"]
    panels = {key: sweep for key, sweep in result_file.groups(pipelines, "model", "world", "schedule", "pipeline").items()
              if len({row["microbatch"] for row in sweep}) > 1}
    alike = Counter(key[:3] for key in panels)
    cells = result_file.groups(rows, "model", "world")
    if not panels:
        raise result_file.FileError(f"{arguments.file}: no sweep: it needs pipelines of at least two split sizes of one model, world and schedule")
    columns = min(2, len(panels))
    lines = math.ceil(len(panels) / columns)
    figure, axes = plt.subplots(lines, columns, figsize=(6.6 * columns, 4.4 * lines), squeeze=False, layout="constrained")
    for axis in axes.flat[len(panels):]:
        axis.set_visible(False)
    handles = {}
    for axis, ((model, world, schedule, pipeline), sweep) in zip(axes.flat, panels.items()):
        draw(axis, world, pipeline if alike[model, world, schedule] > 1 else schedule, cells[model, world], sweep)
        handles.update({name: handle for handle, name in zip(*axis.get_legend_handles_labels())})
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=2 * columns, title="error bars: standard deviation of the steps",
                  title_fontsize=9)
    style.save(figure, arguments.out)


if __name__ == "__main__":
    result_file.run(plot, __doc__.splitlines()[0], [("--world", {"help": "only this world"})])
