"""`chainrule words`: neighbours, analogies, benchmarks and maps of word vectors."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chainrule.cli.align import PLOT_FORMATS, installed_fonts
from chainrule.cli.lines import progress_bar
from chainrule.cli.options import (
    Json,
    RunPath,
    Threads,
    open_run,
    output,
    print_json,
    print_table,
    refuse_options,
    show,
)
from chainrule.errors import ConfigError, MissingExtra
from chainrule.files import require_parent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.transforms import Bbox

    from chainrule.evaluation.embeddings import AnalogyScore, Neighbour, SimilarityScore, WordVectors
    from chainrule.tasks.word_vectors import WordVectorRun

SIDES = ((1, 1), (-1, 1), (1, -1), (-1, -1))  # positions of a label: right or left, above or below its point


class WordQuery(StrEnum):
    nearest = "nearest"
    analogy = "analogy"
    score = "score"
    map = "map"


def words(
    context: typer.Context,
    run: RunPath,
    query: Annotated[
        WordQuery,
        typer.Argument(
            help="nearest WORD…: nearest words; analogy A B C: A is to B as C is to …; score FILE: accuracy or "
            "correlation with similarity judgements; map WORD: a plot of its neighbourhood.",
            show_default=False,
        ),
    ],
    about: Annotated[list[str], typer.Argument(metavar="WORD…", help="Words, or a file.", show_default=False)],
    num: Annotated[int, typer.Option(min=1, help="Number of words; for map, number of neighbours.")] = 10,
    restricted: Annotated[
        int, typer.Option(min=2, help="With score: number of most frequent words among which analogies are answered.")
    ] = 30_000,
    out: Annotated[
        Path | None, typer.Option(help="With map: the plot to write, .png, .svg or .pdf.", show_default=False)
    ] = None,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Query word vectors: nearest neighbours, analogies, benchmark scores or a map.

    chainrule words RUN nearest king queen

    chainrule words RUN analogy man king woman

    chainrule words RUN score questions-words.txt

    chainrule words RUN map king --num 30 --out king.png
    """
    _check(query, about, out)
    refuse_options(context, "num", unless=query is not WordQuery.score, needs="nearest, analogy or map")
    refuse_options(context, "restricted", unless=query is WordQuery.score, needs="score")
    opened = open_words(run, threads)
    if query is WordQuery.nearest:
        _show({word: opened.vectors.nearest(word, num) for word in about}, json=json)
    elif query is WordQuery.analogy:
        a, b, c = about
        _show({f"{b} − {a} + {c}": opened.vectors.analogy(a, b, c, num)}, json=json)
    elif query is WordQuery.score:
        _score(opened, Path(about[0]), restricted, json=json)
    else:
        assert out is not None
        with progress_bar("drawing"):
            plot_map(opened.vectors, about[0], num, out)
        typer.echo(str(out))


def open_words(path: Path, threads: int | None = None) -> WordVectorRun:
    """A run of word vectors."""
    run = open_run(path, device="cpu", threads=threads)
    from chainrule.tasks.base import require
    from chainrule.tasks.word_vectors import WordVectorRun

    return require(run, WordVectorRun)


def _check(query: WordQuery, about: Sequence[str], out: Path | None) -> None:
    wanted = {
        WordQuery.analogy: (3, "three words, A B C"),
        WordQuery.score: (1, "one file"),
        WordQuery.map: (1, "one word"),
    }
    if query in wanted:
        count, what = wanted[query]
        if len(about) != count:
            raise ConfigError(f"{query} takes {what}, got {len(about)}: {' '.join(about)}")
    if query is WordQuery.map and (out is None or out.suffix not in PLOT_FORMATS):
        raise ConfigError(f"map writes a plot, and --out is {str(out)!r}; use a .png, .svg or .pdf file")
    if query is WordQuery.map and out is not None:
        require_parent(out)
    if query is not WordQuery.map and out is not None:
        raise ConfigError(f"--out is an option of map; remove it, or use map instead of {query}")


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
    from chainrule.evaluation.embeddings import AnalogyScore

    with progress_bar("scoring") as progress:
        found = run.score_words(path, restricted=restricted, progress=progress)
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
    output.print(f"3CosAdd among the {found.restricted:,} most frequent words; questions with other words are skipped")


def _show_similarities(found: SimilarityScore) -> None:
    print_table({"Spearman": found.spearman, "pairs": found.pairs, "out-of-vocabulary pairs": found.unknown})


def plot_map(vectors: WordVectors, word: str, count: int, out: Path) -> None:
    """Plot a word and its neighbours on their first two principal components."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtra("plotting a map", "plots") from None
    names, points = vectors.around(word, count)
    figure = Figure(figsize=(9, 7), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.scatter(points[1:, 0], points[1:, 1], s=14, color="tab:blue")
    axes.scatter(points[:1, 0], points[:1, 1], s=40, color="tab:red")
    axes.margins(0.12)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(f"{word} and its {len(names) - 1} nearest words")
    figure.draw_without_rendering()  # computes the layout, which label positions depend on
    label(axes, names, points.tolist(), fonts=installed_fonts())
    figure.savefig(out, dpi=150)


def label(axes: Axes, names: Sequence[str], points: Sequence[Sequence[float]], fonts: list[str]) -> None:
    """Label the points, the first in bold, each on a side without overlap if there is one."""
    taken: list[Bbox] = []
    for index, (name, (x, y)) in enumerate(zip(names, points, strict=True)):
        for sideways, upwards in SIDES:
            text = axes.annotate(
                name,
                (x, y),
                xytext=(5 * sideways, 5 * upwards),
                textcoords="offset points",
                ha="left" if sideways > 0 else "right",
                va="bottom" if upwards > 0 else "top",
                fontfamily=fonts,
                fontweight="normal" if index else "bold",
            )
            extent = text.get_window_extent()
            if not extent.count_overlaps(taken) or (sideways, upwards) == SIDES[-1]:
                break
            text.remove()
        taken.append(extent)
