"""`chainrule embed`: texts as vectors."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from chainrule.cli.options import Checkpoint, Device, RunPath, Threads, errors, open_embedding_run
from chainrule.errors import ConfigError, DataError

if TYPE_CHECKING:
    from chainrule.tasks.embeddings import EmbeddingRun

FORMS = (".npz", ".npy")


def embed(
    run: RunPath,
    out: Annotated[
        Path | None,
        typer.Option(
            help="A .npz or .npy file to write; without it the .npz goes to standard output.", show_default=False
        ),
    ] = None,
    per_token: Annotated[
        bool, typer.Option("--per-token", help="The vector of every token, and not their mean for each line.")
    ] = False,
    layer: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Of elmo and bert: one layer, 0 being the words' own embeddings; by default elmo's mix, bert's last.",
            show_default=False,
        ),
    ] = None,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Turn each line of standard input into a vector: chainrule embed RUN --out vectors.npz < my.txt.

    A .npz holds `vectors` (lines, width). With --per-token it holds `vectors` (tokens, width), `tokens` (their texts)
    and `offsets` (lines + 1): the tokens of line i are offsets[i] to offsets[i + 1]. A .npy holds the vectors alone.
    A line that is longer than the model can read is read in pieces; an empty line has a vector of zeros.
    """
    import numpy as np

    if out is None and sys.stdout.isatty():
        raise ConfigError("vectors are no text to look at; name a file with --out vectors.npz, or redirect with >")
    if out is not None and out.suffix not in FORMS:
        raise ConfigError(f"--out {str(out)!r} is neither .npz nor .npy; choose one of the two")
    opened = open_embedding_run(run, device=device, threads=threads, checkpoint=checkpoint)
    arrays = _arrays(opened, _watched(_lines(sys.stdin.buffer)), per_token=per_token, layer=layer)
    if out is None:
        np.savez(sys.stdout.buffer, **arrays)
        return
    from chainrule.files import whole_file

    out.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(out) as temporary, temporary.open("wb") as file:
        if out.suffix == ".npy":
            np.save(file, arrays["vectors"])
        else:
            np.savez(file, **arrays)
    shape = " × ".join(f"{size:,}" for size in arrays["vectors"].shape)
    errors.print(f"{shape} vectors in {out}", highlight=False, soft_wrap=True)


def _arrays(run: EmbeddingRun, texts: Iterable[str], *, per_token: bool, layer: int | None) -> dict[str, Any]:
    """What a file holds, by name."""
    import numpy as np

    if not per_token:
        return {"vectors": run.embed(texts, layer=layer)}
    found = list(run.features(texts, layer=layer))
    return {
        "vectors": np.concatenate([one.vectors for one in found]) if found else run.embed([]),
        "tokens": np.array([piece for one in found for piece in one.pieces], dtype=np.str_),
        "offsets": np.cumsum([0, *(len(one.pieces) for one in found)]),
    }


def _lines(file: BinaryIO) -> Iterator[str]:
    for number, line in enumerate(file, start=1):
        try:
            yield line.rstrip(b"\r\n").decode("utf-8")
        except UnicodeDecodeError:
            raise DataError(f"line {number} is not UTF-8; convert the text, say with iconv") from None


def _watched(lines: Iterable[str]) -> Iterator[str]:
    """The lines, with a count on stderr that leaves no trace."""
    from rich.progress import Progress, TextColumn

    columns = TextColumn("embedding: {task.completed:,} lines")
    with Progress(columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("", total=None)
        for line in lines:
            yield line
            bar.update(task, advance=1)
