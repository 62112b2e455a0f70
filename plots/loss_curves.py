"""The training loss over the epochs, of strategies that train the same network; and how far each lies from the first.

    plots/loss_curves.py single.json ddp.json tp.json --out build/plots/loss_curves

Files of `paragauge train -o`; with ,dtype=f64 what remains between two that do the same is rounding.
"""

import itertools

import result_file
import style
from style import plt

COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860", "#8c8c8c", "#111111")


def curve(training):
    """[(epochs, loss)]: of every step, at its end."""
    return [(number + (step + 1) / len(losses), loss) for number, losses in enumerate(training.losses) for step, loss in enumerate(losses)]


def plot(arguments):
    trainings = [result_file.read_training(file) for file in [arguments.file, *arguments.more]]
    first = curve(trainings[0])
    for training in trainings[1:]:
        if (training.model, training.samples, len(training.losses)) != (trainings[0].model, trainings[0].samples, len(trainings[0].losses)):
            raise result_file.FileError(f"{training.path}: not what {arguments.file} trains: {training.model}, {training.samples} samples, "
                                        f"{len(training.losses)} epochs")
    figure, (above, below) = plt.subplots(2, 1, figsize=(8.4, 6.4), height_ratios=(3, 2), sharex=True, layout="constrained")
    for place, (colour, training) in enumerate(zip(itertools.cycle(COLOURS), trainings)):
        points = curve(training)
        # Curves that lie on each other are seen as one in the other.
        above.plot(*zip(*points), color=colour, linewidth=1 + 0.7 * (len(trainings) - 1 - place), label=f"{training.strategy}, {training.world}")
        same_steps = [len(losses) for losses in training.losses] == [len(losses) for losses in trainings[0].losses]
        apart = [(epochs, abs(loss - one) / abs(one)) for (epochs, loss), (_, one) in zip(points, first)] if same_steps else []
        if any(distance for _, distance in apart):
            below.plot(*zip(*[(epochs, distance) for epochs, distance in apart if distance]), color=colour, linewidth=1)
    above.set_ylabel("training loss of the step's batch")
    above.set_title(trainings[0].model, fontsize=10)
    below.set_ylabel("relative distance\nfrom the first")
    if below.lines:
        below.set_yscale("log")
    for axes in (above, below):
        axes.set_xlabel("epochs")
        axes.yaxis.grid(True)
    figure.legend(*above.get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
    style.save(figure, arguments.out)


if __name__ == "__main__":
    result_file.run(plot, __doc__.splitlines()[0], [("more", {"nargs": "*", "help": "further trainings of the same network"})])
