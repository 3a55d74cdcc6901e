"""`python -m tests.chaos [--subject NAME|all] [--faults N] [--seed S] [--report FILE.md]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.chaos import report, trial
from tests.chaos.subjects import SUBJECTS
from tests.integration.parts.server import stop_servers_on_sigterm


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument(
        "--subject", action="append", choices=["all", *SUBJECTS], help="more than once for several; default: streamsem"
    )
    parser.add_argument("--faults", type=int, default=20, help="for each subject")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path, help="write the tables as Markdown, too")
    given = parser.parse_args()
    stop_servers_on_sigterm()
    asked = given.subject or ["streamsem"]
    trials = []
    for name in SUBJECTS if "all" in asked else asked:
        trials.append(trial.run(name, given.faults, given.seed, lambda line: print(line, flush=True)))
        if trials[-1].evidence:
            print(f"{name}: not clean; everything was kept in {trials[-1].evidence}", flush=True)
        if given.report:
            given.report.write_text(report.markdown(trials))
    report.show(trials)
    return 0 if all(t.is_clean for t in trials if t.subject.startswith("streamsem")) else 1


if __name__ == "__main__":
    sys.exit(main())
