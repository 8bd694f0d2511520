"""`chainrule align`: which source words did each target word look at?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chainrule.cli.options import Checkpoint, Device, Json, RunPath, Threads, open_translation_run, print_json
from chainrule.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from chainrule.decoding import Alignment

SHADES = " ░▒▓█"
END = "⏎"  # how EOS, which has no text, is drawn
SCRIPTS = ("DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Micro Hei", "PingFang SC", "SimHei")
"""Fonts that together can write most languages; those that are installed are tried in this order."""


def align(
    run: RunPath,
    source: Annotated[str, typer.Option(help="A text to translate.")],
    target: Annotated[
        str | None, typer.Option(help="Its translation; by default the model's own.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Draw a heat map: .png, .svg or .pdf. Without it, text is printed.", show_default=False),
    ] = None,
    beam: Annotated[int, typer.Option(min=1, help="Width of the search for the model's own translation.")] = 5,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Show the attention of each target token over the source tokens, the mean over layers and heads."""
    if not source.strip():
        raise ConfigError("the source is empty; give a text with --source")
    opened = open_translation_run(run, device=device, threads=threads, checkpoint=checkpoint)
    found = opened.align(source, target, beam=beam)
    if out is not None:
        draw(found, out)
        typer.echo(str(out))
    if json:
        print_json({"source": found.source, "target": found.target, "weights": found.weights.tolist()})
    elif out is None:
        typer.echo(rendered(found))


def rendered(found: Alignment) -> str:
    """The map in characters: a line for each target token, a column for each source token, darker is more."""
    sources, targets = labels(found.source), labels(found.target)
    margin = max(map(len, targets))
    height = max(map(len, sources))
    lines = [
        " " * margin + " " + " ".join(source.rjust(height)[level] for source in sources) for level in range(height)
    ]
    for target, weights in zip(targets, found.weights.tolist(), strict=True):
        cells = (SHADES[min(len(SHADES) - 1, round(weight * (len(SHADES) - 1)))] for weight in weights)
        lines.append(f"{target.rjust(margin)} " + " ".join(cells))
    return "\n".join(line.rstrip() for line in lines)


def draw(found: Alignment, out: Path) -> None:
    """A heat map with tokens on both axes."""
    if out.suffix not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"--out {str(out)!r} is no picture that can be drawn; end it with .png, .svg or .pdf")
    try:
        from matplotlib import font_manager
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("drawing a heat map", "plots") from None
    installed = set(font_manager.get_font_names())
    fonts: dict[str, Any] = {"fontfamily": [name for name in SCRIPTS if name in installed]}
    sources, targets = labels(found.source), labels(found.target)
    figure = Figure(figsize=(2 + 0.35 * len(sources), 2 + 0.3 * len(targets)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    picture = axes.imshow(found.weights.tolist(), cmap="Blues", vmin=0.0, vmax=1.0, aspect="auto")
    axes.set_xticks(range(len(sources)), sources, rotation=90, **fonts)
    axes.set_yticks(range(len(targets)), targets, **fonts)
    axes.set_xlabel("source")
    axes.set_ylabel("target")
    figure.colorbar(picture, label="attention")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=150)


def labels(pieces: list[str]) -> list[str]:
    """Tokens as they can be told apart on an axis: EOS, spaces and line ends are made visible."""
    return [END if not piece else piece.strip() or "␣" for piece in pieces]
