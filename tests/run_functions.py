"""Runs the functions test_… of a test file; needs no test framework.

    sys.exit(run_functions(functions_of(globals()), sys.argv[1:]))      # a line for each; 0: all passed
"""

import sys
import traceback


def functions_of(namespace):
    """{name without test_: function}."""
    return {name[5:]: function for name, function in namespace.items() if name.startswith("test_")}


def run_functions(functions, names=()):
    """Those of these names, or all; the exit status."""
    failed = 0
    for name in names or functions:
        try:
            functions[name]()
            print(f"ok      {name}")
        except Exception:  # a test's failure is reported, and the others still run
            failed += 1
            print(f"FAILED  {name}")
            traceback.print_exc(file=sys.stdout)
    print(f"{failed} of {len(names or functions)} failed")
    return int(failed > 0)
