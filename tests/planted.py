#!/usr/bin/env python3
"""Plants mistakes, one at a time, and asks whether a test notices: tests/planted.json lists them.

    tests/planted.py                  all; in a worktree of HEAD beside this one (../planted), configured like build/
    tests/planted.py fit accuracy     those whose name contains one of the words
    tests/planted.py --check          none: whether each could be

Each entry: name, file, before (stands exactly once in the file), after, and the tests that are to notice: "sim"
(sim_tests), "backend" (backend_tests, all suites), "standin" (standin_tests) or a ctest expression. A mistake that doesn't compile counts as not
planted. Ends with a line that counts, and with status 1 where more than two go unnoticed, 2 where the tests fail anyway.
"""

import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TREE = ROOT.parent / "planted"
PROGRAMS = {"sim": ["sim_tests"], "backend": ["backend_tests"], "standin": ["standin_tests", "standin_nccl"]}
# Suites that want a process of their own, as ctest starts them.
SUITES = {"backend": ["-R", "^backend[.]"], "standin": ["-R", "^standin[.]", "-E", "program"]}


def run(command: list[str], **options) -> subprocess.CompletedProcess:
    return subprocess.run(command, cwd=TREE, capture_output=True, text=True, **options)


def prepare() -> None:
    if not TREE.exists():
        subprocess.run(["git", "worktree", "add", "--detach", str(TREE), "HEAD"], cwd=ROOT, check=True)
    subprocess.run(["git", "checkout", "-q", "--detach", "HEAD"], cwd=TREE, check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    subprocess.run(["git", "reset", "-q", "--hard", head], cwd=TREE, check=True)
    cache = (ROOT / "build" / "CMakeCache.txt").read_text()
    names = "CMAKE_BUILD_TYPE|CMAKE_CXX_FLAGS_RELEASE|CMAKE_PREFIX_PATH|PARAGAUGE_[A-Z]+|Python_EXECUTABLE|CUDA[A-Za-z_]*ROOT[A-Z_a-z]*|CMAKE_CUDA_COMPILER"
    options = [f"-D{name}={value}" for name, value in re.findall(rf"^({names}):\w+=(.*)$", cache, re.M)]
    subprocess.run(["cmake", "-S", ".", "-B", "build", "-G", "Ninja", *options], cwd=TREE, check=True, stdout=subprocess.DEVNULL)


def notices(tests: str) -> bool:
    """Whether the tests fail; an exception where they can't be built."""
    built = run(["ninja", "-C", "build", *PROGRAMS.get(tests, [])])
    if built.returncode:
        raise RuntimeError(built.stdout[-2000:])
    command = ["ctest", "--test-dir", "build", "--no-tests=error", "--stop-on-failure", *SUITES.get(tests, ["-R", tests])]
    if tests == "sim":
        command = ["build/tests/sim_tests", "--gtest_brief=1", "--gtest_fail_fast"]
    return run(command, timeout=1800).returncode != 0


def check(mistakes: list[dict]) -> int:
    """Every place is still there."""
    gone = [m for m in mistakes if (ROOT / m["file"]).read_text().count(m["before"]) != 1]
    for mistake in gone:
        print(f"{mistake['name']}: in {mistake['file']} 'before' doesn't stand exactly once: {mistake['before']}")
    print(f"planted: {len(mistakes) - len(gone)} of {len(mistakes)} mistakes can be planted")
    return 1 if gone else 0


def main() -> int:
    words = sys.argv[1:]
    mistakes = json.loads((ROOT / "tests" / "planted.json").read_text())
    if words == ["--check"]:
        return check(mistakes)
    mistakes = [m for m in mistakes if not words or any(w in m["name"] for w in words)]
    prepare()
    for tests in sorted({m["tests"] for m in mistakes}):
        if notices(tests):
            print(f"planted: {tests} fails without any mistake: nothing can be said")
            return 2
    unnoticed = []
    for mistake in mistakes:
        file = TREE / mistake["file"]
        text = file.read_text()
        if text.count(mistake["before"]) != 1:
            print(f"{mistake['name']}: 'before' stands {text.count(mistake['before'])} times in {mistake['file']}", flush=True)
            unnoticed.append(mistake["name"])
            continue
        file.write_text(text.replace(mistake["before"], mistake["after"]))
        try:
            noticed = notices(mistake["tests"])
            print(f"{mistake['name']}: {'noticed' if noticed else 'NOT NOTICED'} ({mistake['file']})", flush=True)
        except RuntimeError as error:
            noticed = False
            print(f"{mistake['name']}: doesn't build\n{error}", flush=True)
        finally:
            file.write_text(text)
        if not noticed:
            unnoticed.append(mistake["name"])
    print(f"planted: {len(mistakes) - len(unnoticed)} of {len(mistakes)} mistakes are noticed" + (f"; not: {', '.join(unnoticed)}" if unnoticed else ""))
    return 1 if len(unnoticed) > 2 else 0


if __name__ == "__main__":
    sys.exit(main())
