"""Options that several verbs share, and the two consoles."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

if TYPE_CHECKING:
    from chainrule.runs import EmbeddingRun, FillingRun, ImageRun, PredictingRun, Run, TextRun, TranslationRun

output = Console()
errors = Console(stderr=True)

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of a table for people.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, mps, or auto for the fastest that is there.")]
Threads = Annotated[int | None, typer.Option(min=1, help="Threads to compute with; all cores by default.")]
Checkpoint = Annotated[str, typer.Option(help="best: by validation; last: where training stood.")]


def use_threads(threads: int | None) -> None:
    """Set the threads of torch, and of NumPy's BLAS, which reads its number when NumPy is first imported."""
    if threads is not None:
        os.environ["OPENBLAS_NUM_THREADS"] = str(threads)
        import torch

        torch.set_num_threads(threads)


def open_run(path: Path, *, device: str = "auto", threads: int | None = None, checkpoint: str = "best") -> Run:
    """Load a run with the given number of threads."""
    use_threads(threads)
    from chainrule.errors import ConfigError
    from chainrule.runs import load

    if checkpoint not in ("best", "last"):
        raise ConfigError(f"--checkpoint takes best or last, got {checkpoint!r}")
    return load(path, device=device, checkpoint=checkpoint)


def open_writer(path: Path, **how: Any) -> TextRun:
    """... that writes text."""
    run = open_run(path, **how)
    from chainrule.runs import TextRun, require

    return require(run, TextRun)


def open_translator(path: Path, **how: Any) -> TranslationRun:
    """... that translates."""
    run = open_run(path, **how)
    from chainrule.runs import TranslationRun, require

    return require(run, TranslationRun)


def open_drawer(path: Path, **how: Any) -> ImageRun:
    """... that draws images."""
    run = open_run(path, **how)
    from chainrule.runs import ImageRun, require

    return require(run, ImageRun)


def open_embedder(path: Path, **how: Any) -> EmbeddingRun:
    """... that embeds texts."""
    run = open_run(path, **how)
    from chainrule.runs import EmbeddingRun, require

    return require(run, EmbeddingRun)


def open_filler(path: Path, **how: Any) -> FillingRun:
    """... that fills gaps."""
    run = open_run(path, **how)
    from chainrule.runs import FillingRun, require

    return require(run, FillingRun)


def open_predictor(path: Path, **how: Any) -> PredictingRun:
    """... that says something about texts."""
    run = open_run(path, **how)
    from chainrule.runs import PredictingRun, require

    return require(run, PredictingRun)  # type: ignore[type-abstract]  # nothing is made of it


def read_lines(path: Path) -> list[str]:
    """All lines of a text file, empty ones too."""
    from chainrule.data.text import find_files, read_text

    (file,), _ = find_files(str(path))
    lines = "".join(read_text(file)).split("\n")
    return lines if lines[-1] else lines[:-1]


def print_json(values: Mapping[str, Any] | Sequence[Any]) -> None:
    """One JSON value on standard output, and nothing else."""
    typer.echo(json.dumps(values, ensure_ascii=False, indent=2))


def print_table(rows: Mapping[str, Any], title: str | None = None) -> None:
    """Names on the left, values on the right."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim")
    table.add_column()
    for name, value in rows.items():
        table.add_row(name.replace("_", " "), escape(show(value)))
    output.print(table)


def show(value: Any) -> str:
    """A value as people write it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4f}" if abs(value) < 1e5 else f"{value:,.0f}"
    return "–" if value is None else str(value)


PREDICTED = (
    "macro_f1", "majority", "nats_per_label", "whole", "examples", "texts", "exact_match", "f1", "sentence_exact_match",
    "sentence_f1", "finds", "answers_here", "answers_here_majority", "questions", "passages",
)  # fmt: skip
"""Figures of labels, tags and answers."""


def score_rows(found: Mapping[str, Any]) -> dict[str, Any]:
    """The lines of a score, with the protocol in one."""
    names = (
        "nats_per_image", "bits_per_dim", "nats_per_token", "bits_per_byte", "perplexity", "word_perplexity",
        "accuracy", "tokens", "images", "bytes", *PREDICTED,
    )  # fmt: skip
    rows = {name: found[name] for name in names if name in found and not isinstance(found[name], dict)}
    if found.get("unknown"):
        rows["unknown_tokens"] = f"{found['unknown']:,} (bits/byte is too low by what they hide)"
    return rows | {"protocol": protocol_line(found["protocol"])} if "protocol" in found else rows


def pair_rows(about: Mapping[str, Any]) -> dict[str, Any]:
    """What a run that translates has more to tell: which pairs were left, and BLEU at its last validation."""
    from chainrule.data.cleaning import CleaningReport

    cleaning: Mapping[str, Any] = about.get("cleaning", {})
    rows: dict[str, Any] = {f"{split}_pairs": CleaningReport(**found).summary() for split, found in cleaning.items()}
    if (found := about.get("bleu")) is not None:
        names = ("valid_bleu", "valid_chrf", "valid_exact_match", "bleu_signature")
        rows |= {name: found[name] for name in names}
    return rows


def protocol_line(protocol: Mapping[str, Any]) -> str:
    """How the text was read, in one line."""
    parts = [str(protocol["method"])]
    if protocol.get("context"):
        parts.append(f"context {protocol['context']}, stride {protocol['stride']}")
    parts.append("state carried over" if protocol["carry_over"] else "no carry-over")
    parts.append("EOS counted" if protocol["eos"] else "no EOS")
    if protocol.get("source"):
        parts.append("given the source")
    if protocol.get("tokens"):
        parts.append(f"the first {protocol['tokens']:,} tokens only")
    return ", ".join(parts)
