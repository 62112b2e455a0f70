"""What the tests of the importer (bench/import) share: its modules on the path, small modules to import, its command.

    from importing import imported, module, refused, run, same      # first: without torch the process ends here, with 77
"""

import contextlib
import io
import json
import sys
import tempfile
import warnings
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
sys.path[:0] = [str(ROOT / "bench" / "import"), str(TESTS)]
sys.dont_write_bytecode = True

try:
    import torch
    import torchvision  # noqa: F401
except ImportError:
    print("import: torch or torchvision is missing, skipped")
    sys.exit(77)

from paragauge_import import check, import_model, spec  # noqa: E402
from paragauge_import.refusal import Refusal  # noqa: E402
from torch import nn  # noqa: E402

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
KEPT = tempfile.TemporaryDirectory(prefix="import_test_")  # removed at exit
FILE = Path(KEPT.name) / "model.json"
VECTOR = ["f32[B,8]"]


class Layers(nn.Module):
    """Three layers to make small modules of."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(8, 8) for _ in range(3))


def module(forward, **more):
    """A module of these layers with this forward(self, x)."""
    made = type("Own", (Layers,), {"forward": forward})()
    for name, value in more.items():
        setattr(made, name, value)
    return made


def perceptron(width, device):
    """One whose hidden layer has any width; on the device meta it has no values."""
    with torch.device(device):
        m = nn.Sequential(nn.Linear(8, width), nn.GELU(), nn.Linear(width, 8))
    for p in m.parameters():
        p.initial = (0, 0.1)
    return m


def run(*arguments):
    """The program's exit status and what it prints."""
    out, err = io.StringIO(), io.StringIO()
    FILE.unlink(missing_ok=True)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = import_model.main([*arguments, "-o", str(FILE)])
    return status, out.getvalue(), err.getvalue()


def same(found, expected):
    assert found == expected, f"found    {found!r}\nexpected {expected!r}"


def imported(m, inputs=VECTOR, loss="mse_loss", **more):
    """Imported, written, read and checked: the file and its notes."""
    torch.manual_seed(0)
    inputs = [spec.read_input(text) for text in inputs]
    found = import_model.import_module(import_model.Request(m, inputs, loss, **more))
    import_model.write(found, FILE)
    file = json.loads(FILE.read_text())
    check.check(file, found.module, inputs).refuse_differences()
    return file, found.notes


def refused(m, inputs=VECTOR, loss="mse_loss", **more) -> str:
    try:
        imported(m, inputs, loss, **more)
    except Refusal as refusal:
        return str(refusal)
    raise AssertionError("was imported")


def bodies_of(file, op) -> list:
    return [body for name, body in file["bodies"].items() if name.split("/")[0] == op]


def whole(body, key) -> list:
    """A body's FLOPs or bytes of forward and backward, with all units: [fixed, per sample] each."""
    units = body.get("units", 0)
    return [[a + c * units, b + d * units] for a, b, c, d in (amount + [0, 0] * (len(amount) == 2) for amount in body[key])]
