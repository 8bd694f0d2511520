"""`chainrule embed`: one vector per line of standard input."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chainrule.cli.lines import text_lines, with_progress
from chainrule.cli.options import Checkpoint, Device, RunPath, Threads, errors, open_embedding_run
from chainrule.errors import ConfigError
from chainrule.files import require_parent, require_suffix

if TYPE_CHECKING:
    from chainrule.tasks.embeddings import EmbeddingRun

FORMATS = (".npz", ".npy")


def embed(
    run: RunPath,
    out: Annotated[
        Path | None,
        typer.Option(help="Output file, .npz or .npy. Default: .npz to standard output.", show_default=False),
    ] = None,
    per_token: Annotated[
        bool, typer.Option("--per-token", help="One vector per token instead of their mean per line.")
    ] = False,
    layer: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Layer of elmo or bert, 0 is the token embedding. Default: the layer mix of elmo, the last of bert.",
            show_default=False,
        ),
    ] = None,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Embed each line of standard input as a vector.

    A .npz file has `vectors` (lines, width). With --per-token it has `vectors` (tokens, width), `tokens` (their texts)
    and `offsets` (lines + 1): the tokens of line i are offsets[i] to offsets[i + 1]. A .npy file has the vectors only.
    Lines longer than the context are read in pieces; an empty line has a zero vector. Bytes that are not UTF-8 are
    replaced by U+FFFD, and a note counts such lines. For example

        chainrule embed runs/bert --out vectors.npz < my.txt
    """
    import numpy as np

    if out is None and sys.stdout.isatty():
        raise ConfigError("refusing to print binary data to a terminal; use --out vectors.npz, or redirect with >")
    if out is not None:
        require_suffix(out, FORMATS)
        require_parent(out)
    opened = open_embedding_run(run, device=device, threads=threads, checkpoint=checkpoint)
    arrays = _arrays(opened, with_progress(text_lines(sys.stdin.buffer), "embedding"), per_token=per_token, layer=layer)
    if out is None:
        np.savez(sys.stdout.buffer, **arrays)
        return
    from chainrule.files import whole_file

    with whole_file(out) as temporary, temporary.open("wb") as file:
        if out.suffix == ".npy":
            np.save(file, arrays["vectors"])
        else:
            np.savez(file, **arrays)
    shape = " × ".join(f"{size:,}" for size in arrays["vectors"].shape)
    errors.print(f"{shape} vectors in {out}", highlight=False, soft_wrap=True)


def _arrays(run: EmbeddingRun, texts: Iterable[str], *, per_token: bool, layer: int | None) -> dict[str, Any]:
    """The arrays of the output file by name."""
    import numpy as np

    if not per_token:
        return {"vectors": run.embed(texts, layer=layer)}
    found = list(run.features(texts, layer=layer))
    return {
        "vectors": np.concatenate([one.vectors for one in found]) if found else run.embed([]),
        "tokens": np.array([piece for one in found for piece in one.pieces], dtype=np.str_),
        "offsets": np.cumsum([0, *(len(one.pieces) for one in found)]),
    }
