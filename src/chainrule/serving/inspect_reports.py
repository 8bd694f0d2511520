"""Reports of `compare` and `frontier`, and the curves of trainings, found in the served folders.

Reports and trainings have names. The names are found by looking through the served folders, and a request can only
choose among them, so nothing that a client sends reaches the file system.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import BaseModel, Field

from chainrule.serving.registry import Registry
from chainrule.training.checkpoint import RunFolder
from chainrule.training.curves import CurvePoint, learning_curve

DEPTH = 2  # folders below a served one that are searched for reports
MOST_POINTS = 400  # of a curve that is sent
STALE = 90.0  # seconds without a new record after which a training counts as interrupted


class ReportEntry(BaseModel):
    """A report that can be shown."""

    name: str
    kind: str = Field(description="comparison or frontier")
    title: str
    written: float = Field(description="seconds since 1970")


class Point(BaseModel):
    """A value after so many seconds of training."""

    seconds: float
    value: float


class Training(BaseModel):
    """A training, finished or not."""

    name: str
    family: str
    state: str = Field(description="running, finished or interrupted")
    step: int | None = None
    seconds: float | None = None
    value: float | None = Field(None, description="the last validation, or the last training batch")
    unit: str | None = None


class TrainingCurve(Training):
    """A training with its curve."""

    validation: list[Point]
    training: list[Point]


def report_files(registry: Registry) -> dict[str, Path]:
    """The reports of the served folders by name."""
    found: dict[str, Path] = {}
    for path in registry.paths:
        root = path.resolve()
        # The runs of a comparison are in its folder `runs`; whoever serves that folder sees the report, too.
        candidates = [*([root.parent] if root.name == "runs" else []), *_folders(root, DEPTH)]
        for folder in candidates:
            file = folder / "report.html"
            if file.is_file() and (folder / "results.json").is_file():
                found.setdefault(folder.name, file)
    return found


def _folders(path: Path, depth: int) -> Iterator[Path]:
    yield path
    if depth:
        with contextlib.suppress(OSError):
            for one in sorted(path.iterdir()):
                if one.is_dir() and not one.is_symlink() and not one.name.startswith("."):
                    yield from _folders(one, depth - 1)


def reports(registry: Registry) -> list[ReportEntry]:
    """All reports, newest first."""
    found = []
    for name, file in report_files(registry).items():
        kind = "comparison" if (file.parent / "plan.json").is_file() else "frontier"
        with contextlib.suppress(OSError):
            found.append(ReportEntry(name=name, kind=kind, title=name, written=file.stat().st_mtime))
    return sorted(found, key=lambda one: -one.written)


def trainings(registry: Registry) -> list[Training]:
    """All trainings that have recorded steps, running ones first."""
    found = [curve for name in registry.folders() if (curve := training(registry, name)) is not None]
    short = [Training.model_validate(one.model_dump(exclude={"validation", "training"})) for one in found]
    return sorted(short, key=lambda one: (one.state != "running", one.name))


def training(registry: Registry, name: str) -> TrainingCurve | None:
    """The training of a run with its curve; None for a run that was not trained in steps, or is not known."""
    folder = registry.folders().get(name)
    if folder is None:
        return None
    records = folder.records("metrics.jsonl")
    curve = learning_curve(records)
    if curve is None:
        return None
    last = records[-1]
    points = curve.validation or curve.training
    return TrainingCurve(
        name=name,
        family=folder.config().family,
        state=_state(folder),
        step=last.get("step"),
        seconds=last.get("seconds"),
        value=points[-1].value,
        unit=curve.unit,
        validation=_thinned(curve.validation),
        training=_thinned(curve.training),
    )


def _state(folder: RunFolder) -> str:
    """A card is written at the end of a training; a running one records its steps."""
    if (folder.path / "card.md").is_file() and _modified(folder, "card.md") >= _modified(folder, "metrics.jsonl"):
        return "finished"
    return "running" if time.time() - _modified(folder, "metrics.jsonl") < STALE else "interrupted"


def _modified(folder: RunFolder, name: str) -> float:
    try:
        return (folder.path / name).stat().st_mtime
    except OSError:
        return 0.0


def _thinned(points: Sequence[CurvePoint]) -> list[Point]:
    """At most 400 points, evenly spaced, with the last one."""
    every = max(1, -(-len(points) // MOST_POINTS))
    chosen = [*points[::every], *([points[-1]] if points and (len(points) - 1) % every else [])]
    return [Point(seconds=point.seconds, value=point.value) for point in chosen]
