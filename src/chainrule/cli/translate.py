"""`chainrule translate`: translate standard input line by line."""

from __future__ import annotations

import json as json_module
import os
import stat
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from chainrule.cli.lines import input_lines, with_progress
from chainrule.cli.options import (
    Checkpoint,
    Device,
    Gamma,
    RunPath,
    Threads,
    Weights,
    errors,
    open_translation_run,
    require_runs,
    with_weights,
)

if TYPE_CHECKING:
    from chainrule.decoding import Search, TranslatedText

BUFFERED_BATCHES = 16  # batches whose lines are buffered to batch them by length

Beam = Annotated[int, typer.Option(min=1, help="Beam width; 1 is greedy decoding.")]
LengthPenalty = Annotated[
    float,
    typer.Option(help="A: 0 ranks by probability, 1 by its mean per token, higher values prefer longer translations."),
]
Normaliser = Annotated[
    str, typer.Option(help="Length normalization: power is log P / length^A, wu is log P / ((5 + length) / 6)^A.")
]
CoveragePenalty = Annotated[float, typer.Option(min=0, help="Weight of the coverage penalty of Wu et al. 2016.")]
Passes = Annotated[
    int | None,
    typer.Option(min=1, help="Parallel models: number of refinement passes. Default: the model's.", show_default=False),
]
LengthCandidates = Annotated[
    int | None,
    typer.Option(min=1, help="Parallel models that predict a length: number of lengths to try.", show_default=False),
]
Shortlist = Annotated[
    bool, typer.Option("--shortlist", help="Score only a shortlist of words per source, for fat runs that have one.")
]
BatchSize = Annotated[int, typer.Option("--batch", min=1, help="Number of lines decoded at once.")]


def translate(
    run: RunPath,
    beam: Beam = 5,
    n_best: Annotated[int, typer.Option(min=1, help="Number of translations per line, best first.")] = 1,
    length_penalty: LengthPenalty = 1.0,
    normaliser: Normaliser = "power",
    coverage_penalty: CoveragePenalty = 0.0,
    passes: Passes = None,
    length_candidates: LengthCandidates = None,
    shortlist: Shortlist = False,
    gamma: Gamma = None,
    copy_unknown: Annotated[
        bool,
        typer.Option("--copy-unknown", help="Replace unknown words by the source word with the most attention."),
    ] = False,
    agree_with: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN", help="Rank the candidates of both runs by the mean of their scores.", show_default=False
        ),
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(
            metavar="RUN|self|int8",
            help="Speculative decoding (with --beam 1): same output, less time. Draft tokens from a smaller run, from "
            "the parallel branch of a hybrid run, or from the model with int8 weights.",
            show_default=False,
        ),
    ] = None,
    weights: Weights = "float32",
    batch: BatchSize = 32,
    longest: Annotated[int, typer.Option(min=1, help="Maximum source tokens; longer lines are passed through.")] = 1000,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
    threads: Threads = None,
    json: Annotated[bool, typer.Option("--json", help="One line of JSON per line, with scores.")] = False,
) -> None:
    """Translate standard input to standard output, one line per line.

    Input of any length is streamed. Empty lines stay empty. Lines that are too long or not UTF-8 are passed through and
    counted in the summary on standard error. With --n-best N each line has up to N output lines: the index of the
    source line, the text and the score, separated by |||. For example

        chainrule translate runs/en-de --beam 5 < test.en > test.de
    """
    require_runs(run)
    from chainrule.decoding import Search

    search = Search.parse(
        {
            "beam": max(beam, n_best), "n_best": n_best, "length_penalty": length_penalty,
            "normaliser": normaliser, "coverage_penalty": coverage_penalty, "shortlist": shortlist,
            "passes": passes, "length_candidates": length_candidates,
        }
    )  # fmt: skip
    loading: dict[str, Any] = {"device": device, "threads": threads, "checkpoint": checkpoint}
    opened = with_weights(open_translation_run(run, **loading).with_gamma(gamma), weights)
    other = None if agree_with is None else open_translation_run(agree_with, **loading)
    drafted_by = draft if draft in (None, "self", "int8") else open_translation_run(Path(draft), device=device)
    window = 1 if sys.stdin.isatty() else BUFFERED_BATCHES * batch  # interactive: no buffering
    begin = time.perf_counter()
    counts: Counter[str] = Counter()
    lines = Lines(sys.stdin.buffer)
    results = opened.translate(
        lines,
        search,
        batch=batch,
        longest=longest,
        copy_unknown=copy_unknown,
        agree_with=other,
        draft=drafted_by,
        window=window,
    )
    for number, found in enumerate(with_progress(results, "translating", fraction=lines.fraction)):
        counts[found[0].finished] += 1
        typer.echo(format_result(number, found, search, as_json=json).encode("utf-8", "replace"))
    errors.print(summary(counts, time.perf_counter() - begin), highlight=False, soft_wrap=True)


class Lines:
    """The lines of a binary file as text, and the progress of their translation."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.total = file_size(file)
        self.translated = 0  # bytes
        self.pending: deque[int] = deque()  # bytes of each line that was read and is not translated yet

    def __iter__(self) -> Iterator[str | TranslatedText]:
        from chainrule.decoding import TranslatedText

        for line in input_lines(self.file):
            self.pending.append(line.size)
            yield line.text if line.valid else TranslatedText.untranslated(line.text, "not text")

    def fraction(self, done: int) -> float | None:
        """How much of the file the first `done` lines are, called for each of them in turn; None for a pipe."""
        self.translated += self.pending.popleft()
        return self.translated / self.total if self.total else None


def file_size(file: BinaryIO) -> int | None:
    """Bytes of a regular file; None for a pipe."""
    try:
        status = os.fstat(file.fileno())
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def format_result(number: int, found: list[TranslatedText], search: Search, *, as_json: bool) -> str:
    """The output of one source line; line ends within a translation become spaces."""
    if as_json:
        return json_module.dumps({"line": number, "translations": [one._asdict() for one in found]}, ensure_ascii=False)
    texts = [one.text.replace("\r", " ").replace("\n", " ") for one in found]
    if search.n_best == 1:
        return texts[0]
    return "\n".join(f"{number} ||| {text} ||| {one.score:.4f}" for text, one in zip(texts, found, strict=True))


def summary(counts: Counter[str], seconds: float) -> str:
    """The number of translated and other lines, and the speed."""
    from chainrule.decoding.translator import UNTRANSLATED

    total = counts.total()
    parts = [f"{total - sum(counts[reason] for reason in UNTRANSLATED):,} of {total:,} lines translated"]
    parts += [f"{counts[reason]:,} {reason}, passed through" for reason in UNTRANSLATED if counts[reason]]
    if counts["length"]:
        parts.append(f"{counts['length']:,} cut at the length limit")
    return "; ".join(parts) + f" ({seconds:,.1f} s, {total / max(seconds, 1e-9):,.1f} lines/s)"
