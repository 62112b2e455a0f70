"""Step time per strategy, predicted beside measured: the figure of PyTorch's model-parallel tutorial, with a forecast.

    plots/step_times.py r.json --out build/plots/step_times

One panel per model and world. Of several pipelines the one measured fastest is shown (split_size.py shows them all).
"""

import math

import result_file
import style
from style import plt


MANY = 8  # groups of bars, of which the labels have no room side by side


def parts(row):
    """["pipeline", "gpipe", "split size 4", "2 ranks"]."""
    name = row["preset"].replace("_", " ")
    return [name, *filter(None, row["label"].removeprefix(name).strip(" ,").split(", "))]


def bars_of(rows):
    """The strategies of a panel in the file's order, each with its rows (one per cost model and executor)."""
    strategies = result_file.groups([row for row in rows if row["status"] != "skipped"], "strategy")
    pipelines = [key for key, (row, *_) in strategies.items() if row["preset"] == "pipeline"]

    def seconds(key):
        row = strategies[key][0]
        return row["measured_s"] or row["predicted_s"] or math.inf

    # The pipeline that is fastest here, of the one schedule that the tutorial has, where it is among them.
    tutorial = [key for key in pipelines if strategies[key][0]["schedule"] == "forward_only"]
    dropped = set(pipelines) - {min(tutorial or pipelines, key=seconds)} if pipelines else set()
    return [of_strategy for key, of_strategy in strategies.items() if key not in dropped]


def series(rows):
    """(legend, colour, key of the value, key of its deviation, a test for the row) of each bar of a group."""
    found = []
    for cost_model in dict.fromkeys(row["cost_model"] for row in rows if row["cost_model"]):
        found.append((f"predicted ({cost_model})", style.PREDICTED.get(cost_model, style.OTHER), "predicted_s",
                      "predicted_population_sd_s", lambda row, m=cost_model: row["cost_model"] == m))
    for executor in dict.fromkeys(row["executor"] for row in rows if row["measured_s"] is not None):
        name, colour = style.EXECUTORS.get(executor, (f"measured ({executor})", style.OTHER))
        found.append((name, colour, "measured_s", "measured_population_sd_s", lambda row, e=executor: row["executor"] == e))
    return found


def draw(axes, world, rows):
    groups = bars_of(rows)
    kinds = series([row for group in groups for row in group])
    width = 0.8 / max(1, len(kinds))
    for k, (name, colour, value, deviation, fits) in enumerate(kinds):
        # A measurement stands in the row of every cost model: the first will do.
        found = [(g, [row for row in group if fits(row) and row[value] is not None]) for g, group in enumerate(groups)]
        shown = [(g, rows_of[0]) for g, rows_of in found if rows_of]
        places = [g + (k - (len(kinds) - 1) / 2) * width for g, _ in shown]
        axes.bar(places, [row[value] for _, row in shown], width, color=colour, edgecolor="#444444", linewidth=0.5, label=name,
                 yerr=[row[deviation] or 0 for _, row in shown], error_kw=style.ERROR_BAR)
    labels = [parts(group[0]) for group in groups]
    if len(groups) > MANY:
        in_all = set.intersection(*(set(each) for each in labels if len(each) > 1))
        labels = [", ".join(part for part in each if part not in in_all) for each in labels]
        axes.set_xticks(range(len(groups)), labels, rotation=40, ha="right", rotation_mode="anchor")
        world = ", ".join([world, *sorted(in_all)])
    else:
        axes.set_xticks(range(len(groups)), ["\n".join(each) for each in labels])
    axes.set_ylabel(f"{result_file.model_name(rows[0])} Execution Time (Second)")
    axes.set_title(f"one training step, global batch {rows[0]['global_batch']}, world {world}", fontsize=10)
    axes.yaxis.grid(True)
    axes.set_ylim(bottom=0)


def plot(arguments):
    rows = result_file.choose(arguments.file, result_file.read_result(arguments.file).rows, "world", arguments.world)
    if arguments.cost_model:
        rows = result_file.choose(arguments.file, rows, "cost_model", arguments.cost_model)
    rows = [row for row in rows if row["status"] != "skipped"]
    if not rows:
        raise result_file.FileError(f"{arguments.file}: every cell was skipped; nothing to show")
    panels = result_file.groups(rows, "model", "world")
    columns = min(2, len(panels))
    lines = math.ceil(len(panels) / columns)
    most = max(len(bars_of(panel)) for panel in panels.values())
    width, height = (0.75 * most, 5.6) if most > MANY else (6.6, 4.4)
    figure, axes = plt.subplots(lines, columns, figsize=(width * columns, height * lines), squeeze=False, layout="constrained")
    for axis in axes.flat[len(panels):]:
        axis.set_visible(False)
    handles = {}
    for axis, ((_, world), panel) in zip(axes.flat, panels.items()):
        draw(axis, world, panel)
        handles.update({name: handle for handle, name in zip(*axis.get_legend_handles_labels())})
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=2 * columns,
                  title="error bars: standard deviation of the steps (predicted: of the rounds' forecasts)", title_fontsize=9)
    style.save(figure, arguments.out)


if __name__ == "__main__":
    result_file.run(plot, __doc__.splitlines()[0],
                    [("--world", {"help": "only this world"}), ("--cost-model", {"help": "only the forecast of this cost model"})])
