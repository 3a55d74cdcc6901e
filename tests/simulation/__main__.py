"""``python -m tests.simulation SEED [-v]``: simulate one seed. ``-v`` prints the trace, one line per event."""

from __future__ import annotations

import argparse
import hashlib
import shutil

from tests.simulation.scenario import scratch, simulate
from tests.simulation.scheduler import Violation


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("-v", "--verbose", action="store_true", help="print the trace")
    arguments = parser.parse_args()
    root = scratch()
    violation = ""
    try:
        trace = simulate(arguments.seed, root / "simulation").scheduler.trace
    except Violation as error:
        violation, trace = str(error), error.trace
    finally:
        shutil.rmtree(root, ignore_errors=True)
    text = "".join(line + "\n" for line in trace)
    if arguments.verbose:
        print(text, end="")
    print(f"seed {arguments.seed}: {len(trace)} events, sha256 {hashlib.sha256(text.encode()).hexdigest()}")
    print(violation or "no violations")
    return bool(violation)


if __name__ == "__main__":
    raise SystemExit(main())
