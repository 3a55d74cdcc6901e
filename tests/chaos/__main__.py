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
        "--subject", action="append", choices=["all", *SUBJECTS], help="may be repeated; default: streamsem"
    )
    parser.add_argument("--faults", type=int, default=20, help="number of faults for each subject")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path, help="also write the tables to this Markdown file")
    args = parser.parse_args()
    stop_servers_on_sigterm()
    names = args.subject or ["streamsem"]
    trials = []
    for name in SUBJECTS if "all" in names else names:
        trials.append(trial.run(name, args.faults, args.seed, lambda line: print(line, flush=True)))
        if trials[-1].evidence:
            print(f"{name}: not clean; logs and data were kept in {trials[-1].evidence}", flush=True)
        if args.report:
            args.report.write_text(report.markdown(trials))
    report.show(trials)
    return 0 if all(t.is_clean for t in trials if t.subject.startswith("streamsem")) else 1


if __name__ == "__main__":
    sys.exit(main())
