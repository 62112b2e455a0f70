"""Error of the forecast per cell, with its 95 % interval and the measurement's noise floor.

    plots/errors.py r.json --out build/plots/errors [--relative]

One panel per cost model, one line per cell. Inconclusive cells (noise floor above 2 %) are hollow. Errors are 100 ln(predicted / measured).
"""

import result_file
import style
from style import plt


def label(row):
    return row["label"] if row["executor"] == "paragauge" else f"{row['label']} ({row['executor']})"


def draw(axes, rows, places, prefix):
    """`rows` of one cost model; `places` gives each cell its height."""
    for row in rows:
        error, y = row[f"{prefix}_percent"], places[cell(row)]
        if row["noise_floor_percent"] is not None:
            axes.barh(y, 2 * row["noise_floor_percent"], left=-row["noise_floor_percent"], height=0.8, color="#e4e4e4")
        if error is None:
            continue
        low, high = row[f"{prefix}_low_percent"], row[f"{prefix}_high_percent"]
        if low is not None:
            axes.plot([low, high], [y, y], color="red", linewidth=1.4, marker="|", markersize=7, zorder=3)
        axes.plot(error, y, "o", markersize=6, zorder=4, markeredgecolor=style.MEASURED,
                  markerfacecolor=style.MEASURED if row["status"] == "conclusive" else "white")
    axes.axvline(0, color="black", linewidth=0.8)
    axes.xaxis.grid(True)


def cell(row):
    return row["model"], row["world"], row["executor"], row["strategy"]


def plot(arguments):
    prefix = "relative_error" if arguments.relative else "error"
    rows = [row for row in result_file.read_result(arguments.file).rows if row["cost_model"] and row["measured_s"] is not None]
    cells = list(dict.fromkeys(cell(row) for row in rows if row[f"{prefix}_percent"] is not None))
    if not cells:
        raise result_file.FileError(f"{arguments.file}: no cell has both a forecast and a measurement; nothing to show")
    rows = [row for row in rows if cell(row) in set(cells)]
    cost_models = list(dict.fromkeys(row["cost_model"] for row in rows))

    places, ticks, headings, y = {}, [], [], 0.0
    for (model, world), group in result_file.groups(rows, "model", "world").items():
        headings.append((y, f"{result_file.model_name(group[0])}, {world}"))
        y -= 1
        for row in {cell(row): row for row in group}.values():
            places[cell(row)] = y
            ticks.append((y, label(row)))
            y -= 1
        y -= 0.4
    figure, axes = plt.subplots(1, len(cost_models), figsize=(3.0 + 4.2 * len(cost_models), 1.6 + 0.3 * -y), squeeze=False, sharey=True,
                                layout="constrained")
    for axis, cost_model in zip(axes[0], cost_models):
        draw(axis, [row for row in rows if row["cost_model"] == cost_model], places, prefix)
        axis.set_title(cost_model, fontsize=10)
        axis.tick_params(axis="y", length=0)
    first = axes[0][0]
    first.set_yticks([place for place, _ in headings + ticks], [text for _, text in headings + ticks])
    for text, (_, name) in zip(first.get_yticklabels(), headings + ticks):
        text.set_fontweight("bold" if name in {heading for _, heading in headings} else "normal")
    first.set_ylim(y + 0.4, 0.8)
    figure.supxlabel("error relative to single: 100 × log ratio (percent)" if arguments.relative else "100 ln(predicted / measured) (percent)",
                     fontsize=10)
    marks = [plt.Line2D([], [], color=style.MEASURED, marker="o", linestyle=""),
             plt.Line2D([], [], markeredgecolor=style.MEASURED, markerfacecolor="white", marker="o", linestyle=""),
             plt.Line2D([], [], color="red", marker="|"), plt.Rectangle((0, 0), 1, 1, color="#e4e4e4")]
    figure.legend(marks, ["conclusive", "inconclusive", "95 % interval", "± noise floor"], loc="outside upper center", ncols=4)
    style.save(figure, arguments.out)


if __name__ == "__main__":
    result_file.run(plot, __doc__.splitlines()[0],
                    [("--relative", {"action": "store_true", "help": "errors relative to 'single' of the same model and world"})])
