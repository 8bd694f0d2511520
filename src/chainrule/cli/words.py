"""`chainrule words`: which words are alike?"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chainrule.cli.align import SCRIPTS
from chainrule.cli.options import Json, RunPath, errors, open_run, output, print_json, print_table, show
from chainrule.errors import ConfigError, MissingExtra

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.transforms import Bbox

    from chainrule.evaluation.embeddings import AnalogyScore, Neighbour, SimilarityScore, WordVectors
    from chainrule.tasks.word_vectors import WordVectorRun

PICTURES = (".png", ".svg", ".pdf")
SIDES = ((1, 1), (-1, 1), (1, -1), (-1, -1))  # of a point, where its name may stand: right or left, above or below


class Ask(StrEnum):
    """What can be asked of word vectors."""

    nearest = "nearest"
    analogy = "analogy"
    score = "score"
    map = "map"


def words(
    run: RunPath,
    ask: Annotated[
        Ask,
        typer.Argument(
            help="nearest WORD…: the words most like each; analogy A B C: what is to C as B is to A; score FILE: "
            "against analogies or judged pairs; map WORD: a picture of its neighbourhood.",
            show_default=False,
        ),
    ],
    about: Annotated[list[str], typer.Argument(metavar="WORD…", help="Words, or a file.", show_default=False)],
    num: Annotated[int, typer.Option(min=1, help="How many words to give; on a map, how many neighbours.")] = 10,
    restricted: Annotated[
        int, typer.Option(min=2, help="With score: most frequent words that an answer is chosen from.")
    ] = 30_000,
    out: Annotated[
        Path | None, typer.Option(help="With map: the picture to draw, .png, .svg or .pdf.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Ask word vectors about words.

    chainrule words RUN nearest king queen

    chainrule words RUN analogy man king woman

    chainrule words RUN score questions-words.txt

    chainrule words RUN map king --num 30 --out king.png
    """
    _check(ask, about, out)
    opened = open_words(run)
    if ask is Ask.nearest:
        _show({word: opened.vectors.nearest(word, num) for word in about}, json=json)
    elif ask is Ask.analogy:
        a, b, c = about
        _show({f"{b} − {a} + {c}": opened.vectors.analogy(a, b, c, num)}, json=json)
    elif ask is Ask.score:
        _score(opened, Path(about[0]), restricted, json=json)
    else:
        assert out is not None
        draw(opened.vectors, about[0], num, out)
        typer.echo(str(out))


def open_words(path: Path) -> WordVectorRun:
    """A run of word vectors."""
    run = open_run(path, device="cpu")
    from chainrule.tasks.base import require
    from chainrule.tasks.word_vectors import WordVectorRun

    return require(run, WordVectorRun)


def _check(ask: Ask, about: Sequence[str], out: Path | None) -> None:
    wanted = {Ask.analogy: (3, "three words, A B C"), Ask.score: (1, "one file"), Ask.map: (1, "one word")}
    if ask in wanted:
        count, what = wanted[ask]
        if len(about) != count:
            raise ConfigError(f"{ask} takes {what}, and got {len(about)}: {' '.join(about)}")
    if ask is Ask.map and (out is None or out.suffix not in PICTURES):
        raise ConfigError(f"map draws a picture, and --out is {str(out)!r}; end it with .png, .svg or .pdf")
    if ask is not Ask.map and out is not None:
        raise ConfigError(f"--out is for map; leave it out, or ask for map instead of {ask}")


def _show(found: dict[str, list[Neighbour]], *, json: bool) -> None:
    if json:
        print_json({asked: [one._asdict() for one in near] for asked, near in found.items()})
        return
    from rich.table import Table
    from rich.text import Text

    for asked, near in found.items():
        table = Table(
            title=Text(asked, style="bold"), title_justify="left", show_header=False, box=None, pad_edge=False
        )
        for one in near:
            table.add_row(Text(one.word), f"{one.similarity:.4f}")
        output.print(table)


def _score(run: WordVectorRun, path: Path, restricted: int, *, json: bool) -> None:
    from rich.progress import Progress

    from chainrule.evaluation.embeddings import AnalogyScore

    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("scoring", total=1.0)
        found = run.score_words(path, restricted=restricted, progress=lambda share: bar.update(task, completed=share))
    if json:
        total = {"total": found.total.model_dump()} if isinstance(found, AnalogyScore) else {}
        print_json(found.model_dump(mode="json") | total)
    elif isinstance(found, AnalogyScore):
        _show_sections(found)
    else:
        _show_similarities(found)


def _show_sections(found: AnalogyScore) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("section", "accuracy", "correct", "answered", "questions"):
        table.add_column(column, justify="left" if column == "section" else "right")
    for name, one in {**found.sections, "all": found.total}.items():
        table.add_row(name, show(one.accuracy), show(one.correct), show(one.answered), show(one.questions))
    output.print(table)
    output.print(f"3CosAdd among the {found.restricted:,} most frequent words; questions with others are not answered")


def _show_similarities(found: SimilarityScore) -> None:
    print_table({"Spearman": found.spearman, "pairs": found.pairs, "pairs that the vocabulary lacks": found.unknown})


def draw(vectors: WordVectors, word: str, count: int, out: Path) -> None:
    """A word among its neighbours, on the plane in which they differ most."""
    try:
        from matplotlib import font_manager
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("drawing a map", "plots") from None
    names, points = vectors.around(word, count)
    installed = set(font_manager.get_font_names())
    figure = Figure(figsize=(9, 7), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.scatter(points[1:, 0], points[1:, 1], s=14, color="tab:blue")
    axes.scatter(points[:1, 0], points[:1, 1], s=40, color="tab:red")
    axes.margins(0.12)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(f"{word} and its {len(names) - 1} nearest words")
    figure.draw_without_rendering()  # from here on it is known where a label comes to lie
    label(axes, names, points.tolist(), fonts=[font for font in SCRIPTS if font in installed])
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, dpi=150)


def label(axes: Axes, names: Sequence[str], points: Sequence[Sequence[float]], fonts: list[str]) -> None:
    """Write names beside their points, the first in bold, each where it lies over no other if there is such a side."""
    taken: list[Bbox] = []
    for place, (name, (x, y)) in enumerate(zip(names, points, strict=True)):
        for sideways, upwards in SIDES:
            text = axes.annotate(
                name,
                (x, y),
                xytext=(5 * sideways, 5 * upwards),
                textcoords="offset points",
                ha="left" if sideways > 0 else "right",
                va="bottom" if upwards > 0 else "top",
                fontfamily=fonts,
                fontweight="normal" if place else "bold",
            )
            extent = text.get_window_extent()
            if not extent.count_overlaps(taken) or (sideways, upwards) == SIDES[-1]:
                break
            text.remove()
        taken.append(extent)
