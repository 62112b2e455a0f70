"""What the tests of the importer (bench/import) share: its modules on the path, small modules to import, its command.

    from importing import module, run, same      # first: without torch the process ends here, with 77
"""

import contextlib
import io
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

import import_model  # noqa: E402
from torch import nn  # noqa: E402

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
KEPT = tempfile.TemporaryDirectory(prefix="import_test_")  # removed at exit
FILE = Path(KEPT.name) / "model.json"


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


def run(*arguments):
    """The program's exit status and what it prints."""
    out, err = io.StringIO(), io.StringIO()
    FILE.unlink(missing_ok=True)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = import_model.main([*arguments, "-o", str(FILE)])
    return status, out.getvalue(), err.getvalue()


def same(found, expected):
    assert found == expected, f"found    {found!r}\nexpected {expected!r}"
