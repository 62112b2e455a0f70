"""Predicted over measured timeline of every rank, from the trace that `paragauge trace` writes.

    plots/timeline.py trace.json --out build/plots/timeline

Each rank has a predicted and a measured row; in a row the upper bar is the compute lane (with its waits), the lower one the transfers.
"""

import result_file
import style
from style import plt

COLOURS = {"forward": "#4c72b0", "backward": "#dd8452", "update": "#55a868", "other": "#937860",
           "transfer": "#8172b3", "wait": "#eeeeee"}
MOST_RANKS = 8


def kind(event):
    if event.lane == "wait":
        return "wait"
    if event.lane == "communication":
        return "transfer"
    if event.kind == "update":
        return "update"
    words = event.name.split()
    return next((word for word in ("forward", "backward") if word in words), "other")  # other: accumulate, bucket copies


def draw(axes, events, y, length_s):
    """A row of height 1 with its centre at y. Returns when it ends."""
    for name, colour in COLOURS.items():
        shown = [event for event in events if kind(event) == name]
        bars = [(1e3 * event.start_s, 1e3 * (event.end_s - event.start_s)) for event in shown]
        # An edge of its own colour where a white one would hide the bar.
        wide = [event.end_s - event.start_s > 0.004 * length_s for event in shown]
        edges = ["#bbbbbb" if name == "wait" else "white" if is_wide else colour for is_wide in wide]
        axes.broken_barh(bars, (y - 0.42, 0.2) if name == "transfer" else (y - 0.18, 0.56), facecolors=colour, edgecolors=edges,
                         linewidth=0.3, hatch="////" if name == "wait" else None)
    return max((event.end_s for event in events), default=0)


def number(axes, events, y, length_s):
    """Microbatch numbers in bars that are wide enough."""
    for event in events:
        if event.lane == "compute" and event.microbatch is not None and event.end_s - event.start_s > 0.018 * length_s:
            axes.text(5e2 * (event.start_s + event.end_s), y + 0.1, str(event.microbatch), ha="center", va="center", fontsize=7, color="white")


def plot(arguments):
    trace = result_file.read_trace(arguments.file)
    ranks = list(dict.fromkeys(process.rsplit(" ", 1)[0] for process in trace.processes))[:MOST_RANKS]
    processes = [process for process in trace.processes if process.rsplit(" ", 1)[0] in ranks]
    length_s = max(event.end_s for event in trace.events)
    several = len({event.microbatch for event in trace.events} - {None}) > 1
    figure, axes = plt.subplots(figsize=(11, 1.7 + 0.62 * len(processes)), layout="constrained")
    places, y = [], 0.0
    for i, process in enumerate(processes):
        if i > 0 and process.rsplit(" ", 1)[0] != processes[i - 1].rsplit(" ", 1)[0]:
            y -= 0.35
        events = [event for event in trace.events if event.process == process]
        end_s = draw(axes, events, y, length_s)
        if several:
            number(axes, events, y, length_s)
        axes.plot([1e3 * end_s] * 2, [y - 0.45, y + 0.42], color="red", linewidth=1.5)
        places.append(y)
        y -= 1
    axes.set_yticks(places, processes)
    axes.set_ylim(y + 0.4, 0.6)
    axes.set_xlim(0, 1.02e3 * length_s)
    axes.set_xlabel("time since the step's start (ms)")
    axes.set_title(f"{trace.model}\n{trace.strategy}", fontsize=10)
    axes.xaxis.grid(True)
    seen = dict.fromkeys(kind(event) for event in trace.events)
    marks = [plt.Rectangle((0, 0), 1, 1, facecolor=COLOURS[name], edgecolor="#bbbbbb", hatch="////" if name == "wait" else None)
             for name in COLOURS if name in seen] + [plt.Line2D([], [], color="red")]
    figure.legend(marks, [name for name in COLOURS if name in seen] + ["end of the last instruction"], loc="outside lower center", ncols=7)
    style.save(figure, arguments.out)


if __name__ == "__main__":
    result_file.run(plot, __doc__.splitlines()[0])
