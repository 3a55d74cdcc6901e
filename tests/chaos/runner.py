"""
Drains the topic with one subject in a loop, with a new run key for each run. `python -m tests.chaos.runner SUBJECT SETTING.json [once]`.

An error ends the process, as it ends a try of an Airflow task. A restarted process retries the same run key.
"""

from __future__ import annotations

import logging
import sys
import time

from tests.chaos.setting import Setting
from tests.chaos.subjects import subject


def main(name: str, setting: Setting, once: bool) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(message)s")
    under_test = subject(name, setting)
    while True:
        number = setting.run_number()
        setting.record_event(event="started", run=number)
        try:
            empty = under_test.drain(f"run-{number}")
        except Exception as error:
            cause = error.__cause__
            setting.record_event(
                event="failed", run=number, error=type(error).__name__, text=str(error)[:300], cause=repr(cause)[:300]
            )
            raise
        setting.record_event(event="done", run=number, empty=empty)
        setting.finish_run(number)
        if once:
            return
        if empty:
            time.sleep(0.2)


if __name__ == "__main__":
    main(sys.argv[1], Setting.read(sys.argv[2]), "once" in sys.argv[3:])
