"""How all plots look, and how they are saved: the same input gives the same bytes."""

import io
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (the backend comes first)
from PIL import Image  # noqa: E402  (matplotlib needs it, too)

MEASURED = "#4c72b0"
EXECUTORS = {"paragauge": ("measured", MEASURED), "pytorch": ("measured in plain PyTorch", "#dd8452"),
             "pytorch_best": ("measured in PyTorch at its best", "#c44e52")}
PREDICTED = {"profiled": "#9fc0e8", "fitted": "#b9dcc0", "analytic": "#d9d9d9"}
PREDICTED_LINE = {"profiled": "#2f5d9b", "fitted": "#3c8c52", "analytic": "#8c8c8c"}
OTHER = "#c9b7dd"  # a cost model without a colour of its own
ERROR_BAR = {"ecolor": "red", "capsize": 5, "capthick": 1.2, "elinewidth": 1.2}

matplotlib.rcParams.update({
    "font.size": 10,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "#dddddd",
    "legend.frameon": False,
    "svg.hashsalt": "paragauge",
})


def save(figure, prefix):
    """PREFIX.png and PREFIX.svg."""
    Path(prefix).parent.mkdir(parents=True, exist_ok=True)
    png = io.BytesIO()
    figure.savefig(png, dpi=150, metadata={"Software": None})
    # Of few colours, and so of a third of the bytes.
    Image.open(png).convert("RGB").quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(f"{prefix}.png", optimize=True)
    figure.savefig(f"{prefix}.svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)
