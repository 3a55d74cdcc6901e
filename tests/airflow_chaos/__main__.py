"""`python -m tests.airflow_chaos --database sqlite|postgres [--minutes N] [--seed S] [--report FILE.md]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.airflow_chaos import report, trial
from tests.airflow_chaos.setup import SCHEDULERS
from tests.integration.parts.server import stop_servers_on_sigterm


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.airflow_chaos", description=__doc__)
    parser.add_argument(
        "--database",
        choices=SCHEDULERS,
        default="sqlite",
        help="database of Airflow; with postgres, two schedulers run",
    )
    parser.add_argument("--minutes", type=float, default=10, help="minutes of faults, without the start and the drain")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--report", type=Path, help="also write the tables to this Markdown file")
    args = parser.parse_args()
    stop_servers_on_sigterm()
    result = trial.run(args.database, args.minutes, args.seed, lambda line: print(line, flush=True))
    if args.report:
        args.report.write_text(report.markdown([result]))
    report.show(result)
    if result.evidence:
        print(f"not clean; logs and data were kept in {result.evidence}", flush=True)
    return 0 if result.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
