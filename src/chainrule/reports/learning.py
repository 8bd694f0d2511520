"""The learning curve of one run as a picture: SVG for files and notebooks, other formats by matplotlib."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from chainrule.errors import MissingExtra
from chainrule.files import require_suffix, whole_file
from chainrule.reports import formatting
from chainrule.reports.charts import SHAPES, Chart, ChartFrame, ChartVariant, Label, Line, Mark, SeriesStyle, path
from chainrule.reports.labels import spread
from chainrule.reports.page import render_part
from chainrule.reports.scales import Scale, around, round_durations, round_numbers
from chainrule.training.curves import CurvePoint, LearningCurve

PICTURES = (".svg", ".png", ".pdf")
FRAME = ChartFrame(width=640, height=300, right=96)
TRAINING, VALIDATION = SeriesStyle(0, SHAPES[1]), SeriesStyle(1, SHAPES[1])


def curve_chart(curve: LearningCurve, frame: ChartFrame = FRAME) -> Chart:
    """The metric on validation data and training batches against the time of training.

    The first training batches may lie above the chart: it is the later part that is read.
    """
    area = frame.area
    series = {"training": (curve.training, TRAINING), "validation": (curve.validation, VALIDATION)}
    shown = {name: points for name, (points, _) in series.items() if points}
    high = max(point.seconds for points in shown.values() for point in points) or 1.0
    x = Scale(low=0.0, high=high * 1.02, start=area.left, end=area.right)
    bottom, top = around(_visible(curve.validation, curve.training), margin=0.06)
    y = Scale(low=bottom, high=top, start=area.bottom, end=area.top)
    ends = [y(points[-1].value) for points in shown.values()]
    heights = spread(ends, gap=17, low=area.top, high=area.bottom)
    return Chart(
        frame=frame,
        x_ticks=x.ticks(round_durations(0.0, high, log=False, most=frame.ticks), formatting.duration),
        y_ticks=y.ticks(round_numbers(bottom, top), formatting.plain),
        x_title="training time",
        y_title=f"{curve.unit}, lower is better",
        lines=[
            Line(name, series[name][1], path([(x(point.seconds), y(point.value)) for point in points]))
            for name, points in shown.items()
            if len(points) > 1
        ],
        marks=[
            Mark("validation", VALIDATION, x(at), y(value), f"{value:.4f} {curve.unit} after {formatting.duration(at)}")
            for at, value in curve.validation
            if value <= top
        ],
        labels=[
            Label(name, name, series[name][1], area.right + 12, round(height, 1))
            for name, height in zip(shown, heights, strict=True)
        ],
    )


def _visible(validation: Sequence[CurvePoint], training: Sequence[CurvePoint]) -> list[float]:
    """The values between which the chart extends: all validations, and training from a tenth of its time on."""
    late = training[len(training) // 10 :]
    return [point.value for point in (*validation, *late)]


def curve_svg(curve: LearningCurve, *, name: str, standalone: bool = False) -> str:
    """The curve as an SVG element, whose text and lines have the colour of the page; or as a file of its own."""
    description = f"{curve.unit} during training: {curve.summary}"
    variant = ChartVariant(curve_chart(curve), "chainrule-chart")
    return render_part(
        "curve.svg.j2",
        variant=variant,
        title=f"Learning curve of {name}",
        description=description,
        id=f"curve-{zlib.crc32((name + description).encode()):x}",
        standalone=standalone,
        chart_style=(resources.files("chainrule.reports") / "page" / "curve.css").read_text(encoding="utf-8"),
    )


def write_curve(curve: LearningCurve, out: Path, *, name: str) -> None:
    """Write the curve as .svg, or with matplotlib as .png or .pdf."""
    require_suffix(out, PICTURES)
    if out.suffix == ".svg":
        with whole_file(out) as temporary:
            temporary.write_text(curve_svg(curve, name=name, standalone=True), encoding="utf-8")
        return
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra(f"writing a {out.suffix} file (.svg needs no extra)", "plots") from None
    figure = Figure(figsize=(6.4, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for label, points, style in (("training", curve.training, "-"), ("validation", curve.validation, "o-")):
        if points:
            times, values = zip(*points, strict=True)
            colour = {"training": "#9aa0a6", "validation": "#2f7de1"}[label]
            axes.plot(times, values, style, label=label, color=colour, markersize=4, linewidth=1.6)
    axes.set_ylim(*around(_visible(curve.validation, curve.training), margin=0.06))
    axes.set_xlabel("training time (s)")
    axes.set_ylabel(curve.unit)
    axes.set_title(name, loc="left", fontsize=10)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    with whole_file(out) as temporary:
        figure.savefig(temporary, dpi=150, format=out.suffix[1:])
