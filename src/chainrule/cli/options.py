"""Options shared by several verbs, loading of runs, and output to the terminal."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from chainrule.errors import ConfigError, RunError
from chainrule.limits import MOST_THREADS
from chainrule.training.process import launched

if TYPE_CHECKING:
    from chainrule.tasks.base import Run
    from chainrule.tasks.embeddings import EmbeddingRun
    from chainrule.tasks.filling import FillingRun
    from chainrule.tasks.images import ImageRun
    from chainrule.tasks.text import TextRun
    from chainrule.tasks.translation import TranslationRun
    from chainrule.tasks.weights import AnyMixableRun
    from chainrule.tasks.word_vectors import WordVectorRun

_follows = launched().rank > 0  # one of several processes that train a model: only the first prints
output = Console(quiet=_follows)
errors = Console(stderr=True, quiet=_follows)

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, mps, or auto: the fastest one available.")]
Threads = Annotated[
    int | None, typer.Option(min=1, max=MOST_THREADS, help="Number of CPU threads. Default: all cores.")
]
On = Annotated[
    str | None,
    typer.Option(
        help="Cluster for work that can be divided: local:4 (workers on this machine), tcp://HOST:8786 (a Dask "
        "scheduler) or a .yaml file that describes one. Workers see data, cache and runs at the same paths.",
        show_default=False,
    ),
]
Checkpoint = Annotated[str, typer.Option(help="best: best weights by validation; last: last checkpoint.")]

Gamma = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=1,
        help="Hybrids: weight of the non-autoregressive branch. 0: only the autoregressive branch; 1: only the "
        "non-autoregressive one, in one pass. Default: as learned.",
        show_default=False,
    ),
]

Weights = Annotated[
    str,
    typer.Option(
        metavar="float32|int8",
        help="int8: a quarter of the bytes to read per token, so faster, for a small loss, which is measured once on "
        "validation data and printed.",
    ),
]


def refuse_options(context: typer.Context, *names: str, unless: bool, needs: str) -> None:
    """Refuse options that were given on the command line and would have no effect, unless what they need is there."""
    for name in () if unless else names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise ConfigError(
                f"--{name.replace('_', '-')} has no effect here: it needs {needs}; add that, or remove it"
            )


@contextlib.contextmanager
def importing_torch(threads: int | None = None) -> Iterator[None]:
    """Import torch and, in the body, what needs it; set the threads of torch and of NumPy's BLAS.

    Garbage is not collected meanwhile, and what the imports leave in memory is exempt from later collections, also from
    the one at exit: this saves a third of the CPU time of a short command.
    """
    if launched().world > 1:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # DDP warns of a setting that some families need
    if threads is not None:
        os.environ["OPENBLAS_NUM_THREADS"] = str(threads)  # read when NumPy is first imported
    is_first = "torch" not in sys.modules and gc.isenabled()
    if is_first:
        gc.disable()
    try:
        import torch

        if threads is not None:
            torch.set_num_threads(threads)
        yield
    finally:
        if is_first:
            gc.enable()
            gc.freeze()


def open_run(path: Path, *, device: str = "auto", threads: int | None = None, checkpoint: str = "best") -> Run:
    """Load a run with the given number of threads. A wrong path or option is reported before torch is imported."""
    if checkpoint not in ("best", "last"):
        raise ConfigError(f"--checkpoint must be best or last, got {checkpoint!r}")
    require_runs(path)
    with importing_torch(threads):
        from chainrule.tasks import load

        return load(path, device=device, checkpoint=checkpoint)


def require_runs(*paths: Path) -> None:
    """Raise RunError for a path without a run, before torch is imported."""
    from chainrule.families import require_family
    from chainrule.training.checkpoint import RunFolder

    for path in paths:
        if not path.is_dir():
            raise RunError(f"no run at {str(path)!r}; check the path")
        require_family(RunFolder(path).config().family)


def require_new_run(path: Path) -> None:
    """Raise RunError unless a run can be created there, before torch is imported."""
    from chainrule.training.checkpoint import RunFolder

    RunFolder(path).require_free()


def open_text_run(path: Path, **how: Any) -> TextRun:
    """Load a run that generates text."""
    run = open_run(path, **how)
    from chainrule.tasks.base import require
    from chainrule.tasks.text import TextRun

    return require(run, TextRun)


def open_translation_run(path: Path, **how: Any) -> TranslationRun:
    """Load a run that translates."""
    run = open_run(path, **how)
    from chainrule.tasks.base import require
    from chainrule.tasks.translation import TranslationRun

    return require(run, TranslationRun)


def open_image_run(path: Path, **how: Any) -> ImageRun:
    """Load a run that models images."""
    run = open_run(path, **how)
    from chainrule.tasks.base import require
    from chainrule.tasks.images import ImageRun

    return require(run, ImageRun)


def open_embedding_run(path: Path, **how: Any) -> EmbeddingRun:
    """Load a run that embeds texts."""
    run = open_run(path, **how)
    from chainrule.tasks.base import require
    from chainrule.tasks.embeddings import EmbeddingRun

    return require(run, EmbeddingRun)


def open_word_vector_run(path: Path, **how: Any) -> WordVectorRun:
    """Load a run of word vectors."""
    run = open_run(path, **how)
    from chainrule.tasks.base import require
    from chainrule.tasks.word_vectors import WordVectorRun

    return require(run, WordVectorRun)


def open_filling_run(path: Path, **how: Any) -> FillingRun:
    """Load a run that fills gaps."""
    run = open_run(path, **how)
    from chainrule.tasks.base import require
    from chainrule.tasks.filling import FillingRun

    return require(run, FillingRun)


def print_json(values: Mapping[str, Any] | Sequence[Any]) -> None:
    """Print one JSON value to standard output."""
    if not output.quiet:
        typer.echo(json.dumps(values, ensure_ascii=False, indent=2))


def print_table(rows: Mapping[str, Any], title: str | None = None) -> None:
    """Print a table of names and values."""
    from rich.markup import escape
    from rich.table import Table

    if title is not None:
        output.print(title, highlight=False, soft_wrap=True)
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim")
    table.add_column()
    for name, value in rows.items():
        table.add_row(name.replace("_", " "), escape(show(value)))
    output.print(table)


def show(value: Any) -> str:
    """Format a value for a table."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4f}" if abs(value) < 1e5 else f"{value:,.0f}"
    return "–" if value is None else str(value)


def print_scores(about: Mapping[str, Any], *, note: Mapping[str, str] | None = None) -> None:
    """The scores of a run on its validation and test data, each with its protocol."""
    from rich.markup import escape

    from chainrule.metrics import score_rows

    for split in ("validation", "test"):
        if about[split] is not None:
            output.print()
            title = f"[bold]{split}[/bold]: {escape(about[split]['data'] + (note or {}).get(split, ''))}"
            print_table(score_rows(about[split]), title=title)


def check_weights(weights: str) -> Literal["float32", "int8"]:
    """The value of --weights; raises ConfigError for others than those that exist."""
    if weights == "float32":
        return "float32"
    if weights == "int8":
        return "int8"
    raise ConfigError(f"--weights is {weights!r}; give float32 or int8")


def with_weights(run: AnyMixableRun, weights: str) -> AnyMixableRun:
    """The run with these weights; what int8 costs in accuracy is measured once and printed."""
    if check_weights(weights) == "float32":
        return run
    from chainrule.tasks.weights import describe_loss, int8_loss

    small = run.with_weights("int8")
    if (found := int8_loss(run, small)) is not None:
        errors.print(describe_loss(found), style="dim", markup=False, highlight=False, soft_wrap=True)
    return small


def read_gammas(text: str) -> list[float]:
    """A comma-separated list of numbers from 0 to 1."""
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or not all(0 <= value <= 1 for value in values):
        raise ConfigError(f"--gammas takes numbers from 0 to 1, such as 0,0.5,1 (got {text!r})")
    return list(dict.fromkeys(values))
