"""What the experiments share: intervals, verdicts computed from them, and the page that reports both.

    python experiments/claims.py    # plots and docs/claims/index.md again, from the results beside it

A claim is tested in one or several cases. Each case has a number with its 95 % interval and the bounds that the claim
gives it, above zero unless others are named; the claim holds in a case if the whole interval is inside. The verdict
follows:

    held                    in every case
    held only where …       in the cases named
    did not hold            in none
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from chainrule.errors import MissingExtra
from chainrule.files import write_whole
from chainrule.reports.formatting import listed
from chainrule.reports.page import provenance

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "docs" / "claims"
RESAMPLES = 2000
NOT_RUN = "not run yet"


class Interval(NamedTuple):
    """An estimate with its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4g}" + (f" [{self.low:.4g}, {self.high:.4g}]" if self.low < self.high else "")


def exact(value: float) -> Interval:
    """A number without uncertainty, such as a count of parameters."""
    return Interval(value, value, value)


def mean_interval(values: Sequence[float] | np.ndarray, *, seed: int = 0) -> Interval:
    """The mean of independent values, with its interval by the percentile bootstrap."""
    data = np.asarray(values, np.float64)
    draws = np.random.default_rng(seed).integers(len(data), size=(RESAMPLES, len(data)))
    low, high = np.quantile(data[draws].mean(1), (0.025, 0.975))
    return Interval(float(data.mean()), float(low), float(high))


# Verdicts


class Case(NamedTuple):
    """One test of a claim: where, what was measured, and what it has to be for the claim to hold."""

    where: str  # completes "held only where …"
    measured: Interval
    unit: str
    above: float = 0.0
    below: float = math.inf

    @property
    def holds(self) -> bool:
        return self.above < self.measured.low and self.measured.high < self.below

    def __str__(self) -> str:
        bounds = f"above {self.above:.4g}" if self.below == math.inf else f"from {self.above:.4g} to {self.below:.4g}"
        needed = f", to be {bounds}" if (self.above, self.below) != (0.0, math.inf) else ""
        return f"{self.where}: {self.measured} {self.unit}{needed}"


class Verdict(NamedTuple):
    """The outcome of all cases of a claim."""

    claim: str
    verdict: str
    evidence: str

    @property
    def sentence(self) -> str:
        return f"{self.claim}: **{self.verdict}** ({self.evidence})."


def judge(claim: str, cases: Sequence[Case]) -> Verdict:
    """The verdict on a claim, in one sentence with its numbers."""
    where = [case.where for case in cases if case.holds]
    partly = f"held only where {listed(where)}" if where else "did not hold"
    verdict = "held" if len(where) == len(cases) else partly
    return Verdict(claim, verdict, "; ".join(map(str, cases)))


# Pages


@dataclass(frozen=True)
class Table:
    """Rows of named columns."""

    title: str
    rows: Sequence[Mapping[str, object]]

    def markdown(self) -> str:
        names = list(self.rows[0])
        lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
        lines += [f"| {' | '.join(_cell(row[name]) for name in names)} |" for row in self.rows]
        return f"## {self.title}\n\n" + "\n".join(lines)


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


STYLES, COLOURS = ("-", "--", ":"), 7  # lines of one style


class Series(NamedTuple):
    """A line of a plot; `bounds` are the lower and upper ends of its intervals."""

    x: Sequence[float]
    y: Sequence[float]
    bounds: tuple[Sequence[float], Sequence[float]] | None = None

    @classmethod
    def of(cls, points: Mapping[int, Interval] | Mapping[float, Interval]) -> Series:
        values, lows, highs = zip(*points.values(), strict=True)
        return cls(list(points), values, (lows, highs))


@dataclass(frozen=True)
class Plot:
    """Series over a common axis, written as SVG."""

    name: str
    title: str
    x: str
    y: str
    series: Mapping[str, Series]
    log_x: bool = False
    log_y: bool = False
    lowest: float | None = None  # end of the vertical axis

    def write(self, file: Path) -> None:
        try:
            import matplotlib
            from matplotlib.figure import Figure
            from matplotlib.ticker import NullLocator
        except ImportError:
            raise MissingExtra("plotting an experiment", "plots") from None
        cycle = matplotlib.rcParamsDefault["axes.prop_cycle"][:COLOURS]
        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": self.name, "axes.prop_cycle": cycle}):
            figure = Figure(figsize=(8.6, 3.8), layout="constrained")
            axes = figure.subplots()
            for number, (label, line) in enumerate(self.series.items()):
                style = STYLES[number // COLOURS % len(STYLES)]
                [drawn] = axes.plot(line.x, line.y, style, marker="o", markersize=3.5, linewidth=1.4, label=label)
                if line.bounds is not None:
                    axes.fill_between(line.x, *line.bounds, color=drawn.get_color(), alpha=0.15, linewidth=0)
            if self.log_x:
                axes.set_xscale("log", base=2)
                marks = sorted({x for line in self.series.values() for x in line.x})
                axes.set_xticks(marks, [f"{mark:g}" for mark in marks])
            if self.log_y:
                axes.set_yscale("log")
            axes.xaxis.set_minor_locator(NullLocator())
            axes.set(xlabel=self.x, ylabel=self.y)
            axes.set_ylim(bottom=self.lowest)
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
            figure.legend(loc="outside right center", frameon=False, fontsize=8)
            figure.savefig(file, format="svg", metadata={"Date": None})
        write_whole(file, re.sub(r"[ \t]+$", "", file.read_text(encoding="utf-8"), flags=re.MULTILINE))


@dataclass
class Page:
    """The report of one experiment: verdicts first, then the tables and plots that they were computed from."""

    name: str  # of its files, such as 004-families
    title: str
    script: str
    setting: dict[str, str]  # how it was run: budget, data, seed, …
    verdicts: list[Verdict] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    plots: list[Plot] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # parts of the experiment that this run did not include

    def write(self, folder: Path) -> Path:
        """Write NAME.md, its plots and NAME.json in the place of those of an earlier run, then the index."""
        folder.mkdir(parents=True, exist_ok=True)
        for picture in folder.glob(f"{self.name}-*.svg"):
            picture.unlink()
        for plot in self.plots:
            plot.write(folder / f"{self.name}-{plot.name}.svg")
        made = {**self.setting, **provenance()}
        values = {"title": self.title, "setting": made, "left_out": self.left_out}
        verdicts = [{**one._asdict(), "sentence": one.sentence} for one in self.verdicts]
        plots = [asdict(plot) for plot in self.plots]
        results = {**values, "verdicts": verdicts, "plots": plots}
        write_whole(folder / f"{self.name}.json", json.dumps(results, indent=1) + "\n")
        page = folder / f"{self.name}.md"
        write_whole(page, self._markdown(made))
        write_index(folder)
        return page

    def _markdown(self, made: Mapping[str, str]) -> str:
        parts = [f"# {self.title}", "\n".join(f"- {one.sentence}" for one in self.verdicts)]
        if self.left_out:
            parts.append(f"Not part of this run: {listed(self.left_out)}; {NOT_RUN}.")
        parts.append(_explained(self.script))
        parts += [table.markdown() for table in self.tables]
        parts += [f"## {plot.title}\n\n![{plot.title}]({self.name}-{plot.name}.svg)" for plot in self.plots]
        parts.append("## How it was run\n\n" + "\n".join(f"- {name}: {value}" for name, value in made.items()))
        return "\n\n".join(parts) + "\n"


def _explained(script: str) -> str:
    """What a script says about itself: its docstring without the first line and the commands."""
    text = ast.get_docstring(ast.parse((ROOT / "experiments" / script).read_text(encoding="utf-8"))) or ""
    return "\n\n".join(part for part in text.split("\n\n")[1:] if not part.startswith("    "))


# The index

INDEX = """# Claims

What the source notes of this project say about their models, put to the test. Each experiment is one file in
`experiments/` that trains the models, measures them with 95 % intervals on a seed that no default was chosen with, and
computes the verdicts below from these numbers: a claim *held* if the whole interval of what was measured is above
zero, or inside the bounds named beside it, in every case; *held only where* it is in some; and *did not hold*
otherwise.

```bash
make experiments                                 # all, at most 30 minutes each; CHAINRULE_DATA names the data
python experiments/004_families.py --minutes 10  # one, with less time; --clock cpu --threads 1 on a busy machine
python experiments/004_families.py --quick       # seconds, on built-in data: shows that it runs, and nothing else
python experiments/000_self_regressive.py --features models/bert    # questions with a pretrained BERT, as in the notes
```

A page is written by its experiment, this one by all of them; nothing on them is edited by hand. The sets of data
are those of CONTRIBUTING.md; plots need the extra `plots`, BLEU the extra `translation`.
"""


def experiments() -> dict[str, Path]:
    """Page names and scripts of all experiments: 004_families.py writes 004-families.md."""
    scripts = sorted((ROOT / "experiments").glob("[0-9]*.py"))
    return {script.stem.replace("_", "-"): script for script in scripts}


def write_index(folder: Path) -> None:
    """Write the verdicts of all experiments into index.md; one without results gets a page that says so."""
    parts = [INDEX]
    for name, script in experiments().items():
        file = folder / f"{name}.json"
        title = (ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))) or "").split("\n")[0].rstrip(".")
        if not file.exists():
            parts.append(f"## {title}\n\n[{name}]({name}.md): **{NOT_RUN}**.\n")
            stub = f"# {title}\n\n**Not run yet.** `python experiments/{script.name}` writes this page.\n\n"
            write_whole(folder / f"{name}.md", stub + _explained(script.name) + "\n")
            continue
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        lines = [f"- {one['claim']}: **{one['verdict']}**" for one in found["verdicts"]]
        lines += [f"- {part}: **{NOT_RUN}**" for part in found["left_out"]]
        budget = f"[{name}]({name}.md), {found['setting']['budget']}:"
        parts.append(f"## {found['title']}\n\n{budget}\n\n" + "\n".join(lines) + "\n")
    write_whole(folder / "index.md", "\n".join(parts))


def redraw(folder: Path) -> None:
    """Draw the plots of all results again, from the numbers that they have."""
    for name in experiments():
        file = folder / f"{name}.json"
        found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        for plot in found.get("plots", []):
            series = {label: Series(*line) for label, line in plot.pop("series").items()}
            Plot(**plot, series=series).write(folder / f"{name}-{plot['name']}.svg")


if __name__ == "__main__":
    redraw(PAGES)
    write_index(PAGES)
