#!/usr/bin/env python3
"""README.md is right: its commands run and print what it shows, its numbers follow from the committed files, its links lead somewhere.

    tests/readme_test.py [--program build/bin/paragauge] [--measured] [NAME…]      # exit status 0: all passed

Without --measured everything but the commands that run steps on this machine; with it these alone, each in one round. What takes
minutes (bench/demo.sh, tests/run.sh, bench/setup.sh) isn't run: it must be there and know the argument.
"""

import argparse
import json
import math
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from run_functions import functions_of, run_functions

ROOT = Path(__file__).resolve().parents[1]
README, NOTEBOOK, RESULTS = ROOT / "README.md", ROOT / "bench/results/NOTEBOOK.md", ROOT / "bench/results"
MOST_LINES, MOST_COLUMNS, MOST_WORDS, MOST_RESULT_BYTES = 130, 110, 1300, 4_000_000
SECONDS = 240  # for one command, also on a busy machine
LONG = ("bench/setup.sh", "bench/demo.sh", "tests/run.sh")
MEASURING = ("compare", "calibrate", "measure", "trace", "train")
ACCURACY = ("resnet18_64", "convnet", "resnet50", "vgg11", "resnet18_96")


def read(path):
    return path.read_text(encoding="utf-8")


# ---- Commands

def commands(text):
    """[(command, shown output)]: of a block ```bash every line is one, of ```console those that begin with "$ ". A here-document
    belongs to its command."""
    found = []
    for kind, block in re.findall(r"^```(console|bash)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        end = None  # of the here-document
        for line in block.splitlines():
            if end:
                found[-1][0].append(line)
                end = None if line == end else end
            elif kind == "bash" or line.startswith("$ "):
                found.append(([line.removeprefix("$ ")], []))
                document = re.search(r"<<'?(\w+)'?", line)
                end = document[1] if document else None
            else:
                found[-1][1].append(line)
    return [("\n".join(command), shown) for command, shown in found]


def words(command):
    return shlex.split(command.splitlines()[0], comments=True)


def is_measuring(command):
    """Whether it runs steps here, or reads what such a command wrote."""
    return any(word in MEASURING for word in words(command)) or "cpu.json" in command or "plots/" in command


def shortened(command):
    """In one round."""
    line = re.sub(r"\s+#.*$", "", command)
    return line + " --rounds 1" if " compare " in line or " calibrate " in line else line


class Scratch:
    """A folder with what the repository has, in which commands write."""

    def __init__(self):
        self.kept = tempfile.TemporaryDirectory(prefix="readme_test_")
        self.path = Path(self.kept.name)
        for entry in ROOT.iterdir():
            if entry.name not in ("build", "results", ".git"):
                (self.path / entry.name).symlink_to(entry)
        (self.path / "build/bin").mkdir(parents=True)
        (self.path / "build/bin/paragauge").symlink_to(PROGRAM)

    def run(self, command):
        environment = {**os.environ, "PATH": f"{self.path}/build/bin:{os.environ['PATH']}"}
        done = subprocess.run(["bash", "-c", "set -o pipefail\n" + command], cwd=self.path, env=environment, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=SECONDS, check=False)
        # grep -m closes its pipe early.
        assert done.returncode == 0 or done.returncode in (75, 141) and "| grep -m" in command, \
            f"$ {command}\nends with status {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout.splitlines()


def check_shown(command, shown, printed):
    """What is shown is an excerpt: consecutive lines of what is printed."""
    places = range(len(printed) - len(shown) + 1)
    assert not shown or any(printed[at:at + len(shown)] == shown for at in places), \
        "\n".join([f"$ {command}", "shows", *shown, "but prints", *printed[:40]])


def check_long(arguments):
    script = ROOT / arguments[0]
    assert os.access(script, os.X_OK), f"{script} isn't there, or can't be run"
    for argument in arguments[1:]:
        assert argument in read(script), f"{arguments[0]} doesn't know {argument}"


def test_commands_print_what_is_shown():
    scratch = Scratch()
    for command, shown in commands(read(README)):
        if is_measuring(command):
            continue
        rest = command
        while words(rest)[0] in LONG:
            first, _, rest = rest.partition(" && ")
            check_long(words(first))
            if not rest:
                break
        if rest:
            check_shown(rest, shown, scratch.run(rest))


def test_measured_commands_run():
    scratch = Scratch()
    for command, shown in commands(read(README)):
        if is_measuring(command):
            check_shown(command, shown, scratch.run(shortened(command)))
    assert (scratch.path / "timeline.png").stat().st_size > 10_000


# ---- Size and links

def test_readme_is_short():
    lines = read(README).splitlines()
    assert len(lines) <= MOST_LINES, f"{len(lines)} lines"
    for number, line in enumerate(lines, 1):
        assert len(line) <= MOST_COLUMNS, f"line {number} has {len(line)} columns: {line}"
    found = len(read(README).split())
    assert found <= MOST_WORDS, f"{found} words"


def anchors(path):
    """Of its headings, as GitHub makes them."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in re.findall(r"^#+ (.*)$", read(path), re.MULTILINE)}


def test_links_lead_somewhere():
    for page in (README, NOTEBOOK, ROOT / "sim/README.md", ROOT / "sim/catalog/README.md"):
        text = read(page)
        links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r"^\[[^\]]+\]: (\S+)$", text, re.MULTILINE)
        for link in links:
            if link.startswith("http"):
                continue
            name, _, anchor = link.partition("#")
            target = page.parent / name if name else page
            assert target.exists(), f"{page.name}: {link} isn't there"
            assert not anchor or anchor in anchors(target), f"{page.name}: {link}: no such heading"
        used = set(re.findall(r"\]\[([^\]]+)\]", text))
        defined = set(re.findall(r"^\[([^\]]+)\]: ", text, re.MULTILINE))
        assert used <= defined, f"{page.name}: {used - defined} aren't defined"


# ---- Numbers

def claims():
    """{claim: its row} of the NOTEBOOK."""
    section = re.search(r"^## Claims$(.*?)^## ", read(NOTEBOOK), re.MULTILINE | re.DOTALL)[1]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("| ")]
    found = {row[0]: row for row in rows if row[0] not in ("claim", "---")}
    for claim, row in found.items():
        assert len(row) == 5, f"{claim}: {len(row)} columns"
    return found


def numbers(text):
    """"0.9 %", "−0.4 %", "440 of 441", "41.0 ms", outside of code."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"[−+]?\d[\d.e−-]* (?:%|ms|GB\b)|\d+ of \d+", re.sub(r"`[^`]*`", "", text))


def test_every_number_is_a_claim():
    listed = " ".join(row[1] for row in claims().values()) + " 90 %"  # of the interval
    missing = [number for number in numbers(read(README)) if number not in listed]
    assert not missing, f"README says {missing}, but the NOTEBOOK's claims don't"


def test_claims_name_files_and_tests():
    sources = [read(path) for path in (ROOT / "tests").rglob("*") if path.suffix in (".cpp", ".py", ".sh")]
    for claim, (_, _, files, _, tests) in claims().items():
        for name in re.findall(r"`([^`]+)`", files):
            assert any(ROOT.glob(name)) or any(RESULTS.glob(name)), f"{claim}: no file {name}"
        if tests.startswith("none"):
            continue
        for suite, name in re.findall(r"(\w+)\.(\w+)", tests):
            assert any(re.search(rf"TEST(_P)?\({suite}, {name}\)", source) for source in sources), f"{claim}: no test {suite}.{name}"
        for name in re.findall(r"\b(\w+_test)\b", tests):
            assert any((ROOT / "tests").rglob(f"{name}.*")), f"{claim}: no test {name}"


REPORTS = {}


def report(*names):
    """Rows and summary of these files together."""
    if names not in REPORTS:
        with tempfile.TemporaryDirectory(prefix="readme_test_") as folder:
            file = f"{folder}/report.json"
            done = subprocess.run([PROGRAM, "report", *(str(RESULTS / f"{name}.json") for name in names), "--json", file],
                                  capture_output=True, text=True, timeout=SECONDS, check=False)
            assert done.returncode == 0, done.stderr
            REPORTS[names] = json.loads(read(Path(file)))
    return REPORTS[names]


def rows(cost_model, *names):
    """Our own cells by one cost model."""
    return [row for row in report(*names)["rows"] if row["executor"] == "paragauge" and row["cost_model"] == cost_model]


def summary(cost_model, *names):
    return next(row for row in report(*names)["summary"] if row["executor"] == "paragauge" and row["cost_model"] == cost_model)


def signed(value, digits):
    """With a minus as typesetters have it."""
    return f"{value:+.{digits}f} %".replace("-", "−")


def median_and_bias(cells):
    errors = [row["error_percent"] for row in cells]
    return f"{statistics.median(map(abs, errors)):.1f} %", signed(statistics.mean(errors), 1)


def by_distance(name, round_trip_s, above=False):
    """Of each strategy on `local` the medians over the rounds in which cores were as far apart: median step, error by `profiled`."""
    found = {}
    for cell in json.loads(read(RESULTS / f"{name}.json"))["cells"]:
        rounds = cell["rounds"]
        some = [(predicted[0], measured) for speed, predicted, measured in
                zip(rounds["speed"], rounds["predicted"]["profiled"], rounds["measured"]["median_s"])
                if len(speed) > 4 and (speed[4] > round_trip_s) == above]
        if cell["world"] == "local" and some:
            found[cell["strategy"]] = {"measured_s": statistics.median(measured for _, measured in some), "rounds": len(some),
                                       "error": statistics.median(100 * math.log(predicted / measured) for predicted, measured in some)}
    return found


def test_accuracy_table_is_what_the_files_say():
    three = [summary(name, *ACCURACY) for name in ("profiled", "fitted", "analytic")]
    digits = (1, 1, 0)
    lines = [
        f"| {three[0]['cells']} cells, {three[0]['conclusive_cells']} conclusive | `profiled` | `fitted` | `analytic` |",
        "| median abs. error (bias) | " + " | ".join(f"{row['median_absolute_error_percent']:.{n}f} % ({signed(row['bias_percent'], n)})"
                                                    for row, n in zip(three, digits)) + " |",
        "| median abs. error relative to `single` | " + " | ".join(f"{row['median_absolute_relative_error_percent']:.{n}f} %"
                                                                  for row, n in zip(three, digits)) + " |",
        "| pairs of strategies in the right order | " + " | ".join(f"{row['pairs_right']} of {row['pairs_right'] + row['pairs_wrong']}"
                                                                  for row in three) + " |",
        "| coverage of the 90 % interval | " + " | ".join(f"{row['coverage_percent']:.0f} %" for row in three) + " |"]
    for line in lines:
        assert line in read(README).splitlines(), f"README's table should have\n{line}"


def test_claims_are_what_the_files_say():
    found = claims()

    def says(claim, *texts):
        row = next((row for name, row in found.items() if name.startswith(claim)), None)
        assert row, f"no claim '{claim}'"
        for text in texts:
            assert text in row[1], f"{claim}: should say '{text}', says '{row[1]}'"

    for name, digits in (("profiled", 1), ("fitted", 1), ("analytic", 0)):
        row = summary(name, *ACCURACY)
        says(f"`{name}`:", f"{row['median_absolute_error_percent']:.{digits}f} %, {signed(row['bias_percent'], digits)}; "
                           f"{row['median_absolute_relative_error_percent']:.{digits}f} %")
        says("separable pairs", f"{row['pairs_right']} of {row['pairs_right'] + row['pairs_wrong']}")
        says("coverage", f"{row['coverage_percent']:.0f} %")
    profiled, fitted = rows("profiled", *ACCURACY), rows("fitted", *ACCURACY)
    says("cells, conclusive", f"{len(profiled)}, of these {sum(row['status'] == 'conclusive' for row in profiled)}",
         f"median noise floor {statistics.median(row['noise_floor_percent'] for row in profiled):.1f} %")
    for network, name in (("ResNet-18 at 64×64", "resnet18_64"), ("at 96×96", "resnet18_96"), ("ConvNet", "convnet"), ("ResNet-50", "resnet50"),
                          ("VGG-11", "vgg11")):
        says("`profiled` by model", " ".join([network, ", ".join(median_and_bias(rows("profiled", name)))]))
    by_error = sorted(profiled, key=lambda row: -row["error_percent"])
    says("its largest errors", ", ".join(signed(row["error_percent"], 1) for row in by_error[:2]), f"too fast by at most {-by_error[-1]['error_percent']:.1f} %")
    assert all(row["model_name"] == "vgg11" and row["world"] == "local" and row["preset"] in ("model_parallel", "ddp_blocking")
               for row in by_error[:2])
    medians = {name: median_and_bias(rows("fitted", name)) for name in ACCURACY}
    assert max(medians, key=lambda name: float(medians[name][0][:-2])) == "vgg11"
    says("`fitted` at its worst", f"median {medians['vgg11'][0]}, bias {medians['vgg11'][1]} (VGG-11)")
    assert len(fitted) == len(profiled)
    says("structure error", f"at most {summary('profiled', *ACCURACY)['largest_structure_error_percent']:.1f} %")
    assert max(abs(row["allocator_error_percent"]) for row in profiled) <= 0.1
    says("memory", f"within {max(abs(row['resident_error_percent']) for row in profiled):.1f} %")
    for claim, key in (("steps beside plain PyTorch", "against_pytorch_percent"), ("beside PyTorch at its best", "against_pytorch_best_percent")):
        ratios = [row[key] for row in profiled if row[key] is not None]
        says(claim, f"faster in {sum(ratio < 0 for ratio in ratios)} of {len(ratios)}", f"{max(ratios):.1f} %")

    unseen = rows("profiled", "uneven", "grouped")
    says("networks that nothing", "{} (bias {})".format(*median_and_bias(unseen)), f"from {signed(min(row['error_percent'] for row in unseen), 1)[:-2]} to {signed(max(row['error_percent'] for row in unseen), 1)}",
         f"{sum(row['status'] == 'conclusive' for row in unseen)} of {len(unseen)} cells conclusive")
    assert summary("profiled", "uneven", "grouped")["pairs_wrong"] == 0

    space, of_space = rows("profiled", "space"), summary("profiled", "space")
    pairs = of_space["pairs_right"] + of_space["pairs_wrong"]
    says("ZeRO 1 to 3", "{} (bias {})".format(*median_and_bias(space)), f"{of_space['pairs_right']} of {pairs} separable pairs, {len(space)} cells",
         f"relative to `single` {of_space['median_absolute_relative_error_percent']:.1f} %", f"coverage {of_space['coverage_percent']:.0f} %",
         f"largest {signed(min(row['error_percent'] for row in space), 1)}")
    assert max(row["error_percent"] for row in space) < 9

    for claim, name in (("every preset that two", "family"), ("imported: gpt_nano", "own_models"), ("two hosts (namespaces)", "hosts")):
        cells, of_all = rows("profiled", name), summary("profiled", name)
        errors = sorted(row["error_percent"] for row in cells)
        says(claim, "{} (bias {})".format(*median_and_bias(cells)), f"{of_all['pairs_right']} of {of_all['pairs_right'] + of_all['pairs_wrong']} separable pairs, "
             f"{len(cells)} cells, from {signed(errors[0], 1)[:-2]} to {signed(errors[-1], 1)}")
    for model, name in (("convnet", "the ConvNet"), ("deep", "the MLP")):
        errors = [abs(row["error_percent"]) for row in rows("profiled", "family") if row["model_name"] == model]
        says("every preset that two", f"{name} {statistics.median(errors):.1f} %, nowhere more than {max(errors):.1f} %")
    says("every preset that two", f"relative to `single` {summary('profiled', 'family')['median_absolute_relative_error_percent']:.1f} %",
         f"coverage {summary('profiled', 'family')['coverage_percent']:.0f} %")
    four = summary("profiled", "four_ranks")
    for world, name in (("local", "on `local`"), ("gloo", "on gloo")):
        errors = [row["error_percent"] for row in rows("profiled", "four_ranks") if row["world"] == world]
        says("four ranks on two cores:", f"{name} {signed(min(errors), 1)[:-2]} to {signed(max(errors), 1)}")
    says("four ranks on two cores:", f"{four['pairs_right']} of {four['pairs_right'] + four['pairs_wrong']} separable pairs")

    h100 = rows("profiled", "h100")
    says("one H100:", "`profiled` {} (bias {})".format(*median_and_bias(h100)), f"largest {signed(max(row['error_percent'] for row in h100), 1)}",
         "`fitted` {}".format(median_and_bias(rows("fitted", "h100"))[0]),
         f"largest {signed(min(row['error_percent'] for row in rows('fitted', 'h100')), 1)}")
    assert all(-4 <= row["peak_difference_bytes"] <= 0 for row in h100)  # the loss
    h200 = rows("profiled", "h200_transformers")
    says("one H200:", "`profiled` {} (bias {})".format(*median_and_bias(h200)), f"largest {signed(min(row['error_percent'] for row in h200), 1)}")
    assert all(-4 <= row["peak_difference_bytes"] <= 0 for row in h200)
    shared, of_shared = rows("profiled", "h200_shared"), summary("profiled", "h200_shared")
    errors = [row["error_percent"] for row in shared if row["ranks"] > 1]
    says("ranks that share that H200", f"{min(errors):.1f} to {max(errors):.1f} %",
         f"{of_shared['pairs_right']} of {of_shared['pairs_right'] + of_shared['pairs_wrong']} pairs")
    says("steps replayed", *(f"{row['error_percent']:.1f} %" for row in rows("profiled", "h200_graph")))
    half = [row["error_percent"] for row in rows("profiled", "h200_half")]
    says("ResNet-50 and VGG-16 there in bf16", f"{signed(min(half), 1)[:-2]} to {signed(max(half), 1)}")
    tutorials = [row["error_percent"] for row in rows("profiled", "h200_tutorial", "h200_convnet")]
    pairs = [summary("profiled", name) for name in ("h200_tutorial", "h200_convnet")]
    right, wrong = (sum(of[key] for of in pairs) for key in ("pairs_right", "pairs_wrong"))
    says("R1's and R2's steps there", f"{signed(min(tutorials), 1)[:-2]} to {signed(max(tutorials), 1)}", f"{right} of {right + wrong} pairs")

    placements = rows("profiled", "placements")
    worst = next(row for row in placements if row["world"] == "gloo" and row["strategy"] == "data_parallel,dp=4")
    says("DataParallel, four gloo ranks", f"{-worst['error_percent']:.0f} % fast")
    largest = {n: max(abs(row["error_percent"]) for row in placements if row["ranks"] == n and row is not worst) for n in (2, 4)}
    pairs = summary("profiled", "placements")
    says("placements:", f"median {median_and_bias(placements)[0]}", f"two ranks within {largest[2]:.1f} %", f"four on two cores within {largest[4]:.1f} %",
         f"{-worst['error_percent']:.1f} %", f"{pairs['pairs_right']} of {pairs['pairs_right'] + pairs['pairs_wrong']} pairs")
    assert pairs["cells"] == 22 and pairs["conclusive_cells"] == 7

    def parts(key, some):
        found = [math.exp(row[key] / 100) for row in placements if row[key] is not None and (row["ranks"] > 1) == some]
        return f"{min(found):.2f} to {max(found):.2f}" if some else f"{statistics.mean(found):.2f}"

    says("their steps in parts", f"{parts('against_pytorch_percent', True)}, {parts('against_pytorch_best_percent', True)}",
         f"one rank {parts('against_pytorch_percent', False)}, {parts('against_pytorch_best_percent', False)}")
    quiet, disturbed = (summary("profiled", name) for name in ("noisy_quiet", "noisy_disturbed"))
    for name, row in (("quiet", quiet), ("disturbed", disturbed)):
        largest = max(abs(cell["error_percent"]) for cell in rows("profiled", f"noisy_{name}"))
        says("neighbours:", f"{name} {row['median_absolute_error_percent']:.1f} %, largest {largest:.1f} %, {row['pairs_right']} of "
                            f"{row['pairs_right'] + row['pairs_wrong']} pairs, coverage {row['coverage_percent']:.0f} %")
    assert disturbed["median_absolute_error_percent"] <= 2 * quiet["median_absolute_error_percent"]
    assert disturbed["pairs_wrong"] == 0 and min(quiet["coverage_percent"], disturbed["coverage_percent"]) >= 85
    near, apart = by_distance("core_to_core", 150e-9), by_distance("core_to_core", 500e-9, above=True)
    says("cores that a virtual", *(f"`{preset}` {signed(of[f'{preset},dp=2']['error'], 1)}" for of in (near, apart) for preset in ("zero1", "zero3", "fsdp", "deepspeed_stage_3")),
         *(f"{1e3 * of['single,threads=2']['measured_s']:.1f} ms" for of in (near, apart)),
         f"within {max(abs(of['single,threads=2']['error']) for of in (near, apart)):.1f} %",
         f"{min(of['zero3,dp=2']['rounds'] for of in (near, apart))} rounds and more")
    pair = rows("profiled", "hypar_pair")
    for world in ("local", "gloo"):
        errors = [-row["error_percent"] for row in pair if row["world"] == world]
        least = f"{abs(min(errors)):.0f}" + (" % slow" if min(errors) < 0 else "")
        says("R3's pair", f"{least} to {max(errors):.0f} % fast on `{world}`")
    both = summary("profiled", "hypar_pair")
    says("R3's pair", f"{both['pairs_right']} of {both['pairs_right'] + both['pairs_wrong']} pairs")


# ---- Results

def test_results_are_small():
    files = [path for path in RESULTS.iterdir() if path.is_file()]
    found = sum(path.stat().st_size for path in files)
    assert found <= MOST_RESULT_BYTES, f"bench/results has {found} bytes: paragauge report FILE --compact --json NEW leaves out what is computed"
    for path in files:
        if path.suffix == ".json":
            content = json.loads(read(path))
            assert not {"rows", "columns", "summary"} & set(content), f"{path.name} has rows: paragauge report FILE --compact --json NEW"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default=os.environ.get("PARAGAUGE") or str(ROOT / "build/bin/paragauge"))
    parser.add_argument("--measured", action="store_true")
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    PROGRAM = str(Path(arguments.program).resolve())
    if not os.access(PROGRAM, os.X_OK):
        sys.exit(f"readme: {PROGRAM} isn't there")
    if arguments.measured and "built without LibTorch" in subprocess.run([PROGRAM, "list"], capture_output=True, text=True, check=True).stdout:
        print("readme: built without LibTorch, so nothing can be measured: skipped")
        sys.exit(77)
    tests = functions_of(globals())
    sys.exit(run_functions(tests, arguments.names or [name for name in tests if name.startswith("measured") == arguments.measured]))
