"""`chainrule align`: the cross-attention between a source and its translation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chainrule.cli.options import Checkpoint, Device, Json, RunPath, Threads, open_translation_run, print_json
from chainrule.errors import ConfigError, MissingExtra
from chainrule.files import require_parent, require_suffix

if TYPE_CHECKING:
    from chainrule.decoding import Alignment

PLOT_FORMATS = (".png", ".svg", ".pdf")
SHADES = " ░▒▓█"
END = "⏎"  # label of EOS, which has no text
FONTS = ("DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "WenQuanYi Micro Hei", "PingFang SC", "SimHei")
"""Fonts that together cover most scripts; the installed ones are tried in this order."""


def align(
    run: RunPath,
    source: Annotated[str, typer.Option(help="Source text.")],
    target: Annotated[
        str | None, typer.Option(help="Target text. Default: the translation by the model.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write a heat map to this .png, .svg or .pdf file instead of printing text.", show_default=False
        ),
    ] = None,
    beam: Annotated[int, typer.Option(min=1, help="Beam width of the translation by the model.")] = 5,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Show the cross-attention of each target token over the source tokens, the mean over layers and heads.

    The output is a text map with one row per target token, a picture with --out, or the weights with --json. For
    example

        chainrule align runs/en-de --source "a black cat" --out attention.png
    """
    if not source.strip():
        raise ConfigError("--source is empty; give a text")
    if out is not None:
        require_suffix(out, PLOT_FORMATS)
        require_parent(out)
    opened = open_translation_run(run, device=device, threads=threads, checkpoint=checkpoint)
    found = opened.align(source, target, beam=beam)
    if out is not None:
        plot_attention(found, out)
        typer.echo(str(out))
    if json:
        print_json({"source": found.source, "target": found.target, "weights": found.weights.tolist()})
    elif out is None:
        typer.echo(text_map(found))


def text_map(found: Alignment) -> str:
    """The map as text: one line per target token, one column per source token, darker is more attention."""
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


def plot_attention(found: Alignment, out: Path) -> None:
    """Plot a heat map with tokens on both axes."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("plotting a heat map", "plots") from None
    fonts: dict[str, Any] = {"fontfamily": installed_fonts()}
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
    figure.savefig(out, dpi=150)


def installed_fonts() -> list[str]:
    from matplotlib import font_manager

    installed = set(font_manager.get_font_names())
    return [name for name in FONTS if name in installed]


def labels(pieces: list[str]) -> list[str]:
    """Axis labels of tokens, with EOS and white space made visible."""
    return [END if not piece else piece.strip() or "␣" for piece in pieces]
