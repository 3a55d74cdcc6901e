"""
Draws the plots of docs/explanation/benchmarks.md and docs/explanation/chaos.md from the data files beside them.

``make bench`` runs ``python -m tools.plots`` after it has stored its results.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from benchmarks import results

PAGES = results.RESULTS.parent
_GREY = "#808898"  # readable on light and on dark backgrounds
_COLOURS = ("#3f51b5", "#9fa8da", "#f9a825", "#ef6c00")
_TRIALS = {
    "streamsem": "provider: Kafka to files on S3",
    "streamsem_on_a_cluster": "provider, executors on a cluster",
    "streamsem_into_sinks": "provider: four different sinks",
    "streamsem_join": "provider: stream-stream join",
    "streamsem_windows": "provider: windows on a cluster",
    "airflow_sqlite": "provider under Airflow, SQLite",
    "airflow_postgres": "provider under Airflow, Postgres",
    "foreach_batch": "Structured Streaming, foreachBatch",
    "offsets_task": "plain task, offsets file, Parquet",
    "file_sink": "Structured Streaming, file sink",
    "delta_append": "plain task, offsets file, Delta",
}


def draw(directory: Path) -> list[Path]:
    """Draw every plot as an SVG file into a directory, and return the files."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update(
        {"svg.hashsalt": "streamsem", "svg.fonttype": "none", "font.family": "sans-serif", "text.color": _GREY, "axes.edgecolor": _GREY}
        | {"axes.labelcolor": _GREY, "xtick.color": _GREY, "ytick.color": _GREY}
    )  # fmt: skip
    names = dict.fromkeys(row["benchmark"] for row in results.latest())
    return [*(_benchmark(directory, name) for name in names), _chaos(directory)]


def _benchmark(directory: Path, name: str) -> Path:
    """Draw the bars of one benchmark: a group for each case, a bar for each subject."""
    rows = [row for row in results.latest() if row["benchmark"] == name]
    cases, subjects = (list(dict.fromkeys(row[column] for row in rows)) for column in ("case", "subject"))
    values = {(row["case"], row["subject"]): float(row["ms"]) for row in rows}
    figure, axes = _figure(len(cases) * len(subjects))
    height = 0.8 / len(subjects)
    for n, subject in enumerate(subjects):
        at = [number + n * height for number in range(len(cases))]
        bars = axes.barh(
            at, [values.get((case, subject), 0) for case in cases], height, label=subject, color=_COLOURS[n]
        )
        axes.bar_label(bars, fmt="{:,.0f}", padding=3, color=_GREY, fontsize=8)
    axes.set_yticks([number + 0.4 - height / 2 for number in range(len(cases))], cases)
    axes.set_xlabel("ms, median")
    axes.legend(frameon=False, fontsize=8, labelcolor=_GREY)
    return _saved(figure, directory / f"benchmark-{name}.svg", f"Milliseconds of {', '.join(subjects)}")


def _chaos(directory: Path) -> Path:
    """Draw the duplicates and losses of each trial of chaos-faults.csv, with the number of its faults."""
    with (PAGES / "chaos-faults.csv").open(newline="") as file:
        faults = [*csv.DictReader(file)]
    number = Counter(row["trial"] for row in faults if not row["what_was_done"].startswith("not injected"))
    trials = [trial for trial in _TRIALS if number[trial]]
    figure, axes = _figure(2 * len(trials))
    for n, effect in enumerate(("duplicates", "losses")):
        total = {trial: _sum(row[effect] for row in faults if row["trial"] == trial) for trial in trials}
        at = [position + n * 0.4 for position in range(len(trials))]
        bars = axes.barh(at, [total[trial] for trial in trials], 0.4, label=effect, color=_COLOURS[2 * n])
        axes.bar_label(bars, fmt="{:,.0f}", padding=3, color=_GREY, fontsize=8)
    labels = [f"{_TRIALS[trial]} ({number[trial]} faults)" for trial in trials]
    axes.set_yticks([position + 0.2 for position in range(len(trials))], labels)
    axes.set_xlabel("records")
    axes.legend(frameon=False, fontsize=8, labelcolor=_GREY)
    return _saved(figure, directory / "chaos.svg", "Duplicated and lost records of each chaos trial")


def _sum(values: Iterable[str]) -> int:
    return sum(int(value or 0) for value in values)


def _figure(bars: int):  # type: ignore[no-untyped-def]
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 0.8 + 0.22 * bars))
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    return figure, axes


def _saved(figure, path: Path, title: str) -> Path:  # type: ignore[no-untyped-def]
    from matplotlib import pyplot

    figure.savefig(path, transparent=True, bbox_inches="tight", metadata={"Date": None, "Title": title})
    pyplot.close(figure)
    return path


if __name__ == "__main__":
    draw(PAGES)
