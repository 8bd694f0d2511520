"""`chainrule translate`: the same in the other language, line by line."""

from __future__ import annotations

import json as json_module
import os
import stat
import sys
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from chainrule.cli.options import Checkpoint, Device, RunPath, Threads, errors, open_translation_run

if TYPE_CHECKING:
    from chainrule.decoding import Search, TranslatedText

WINDOW = 16  # batches whose lines are held at once, to put lines of similar length together

Beam = Annotated[int, typer.Option(min=1, help="Hypotheses that the search follows; 1 is greedy.")]
LengthPenalty = Annotated[
    float, typer.Option(help="0 ranks by probability, 1 by its mean per token, more prefers longer translations.")
]
Normaliser = Annotated[str, typer.Option(help="power: log P / length^A; wu: log P / ((5 + length) / 6)^A.")]
CoveragePenalty = Annotated[
    float, typer.Option(min=0, help="How much it counts against a translation what its attention has left out.")
]
Passes = Annotated[
    int | None,
    typer.Option(
        min=1, help="Parallel models: passes over a translation; by default the model's own.", show_default=False
    ),
]
LengthCandidates = Annotated[
    int | None,
    typer.Option(min=1, help="Parallel models that choose a length: how many they try.", show_default=False),
]
Shortlist = Annotated[
    bool, typer.Option("--shortlist", help="Of a fat run with a shortlist: score only words that suit the source.")
]
BatchSize = Annotated[int, typer.Option("--batch", min=1, help="Lines that are searched at once.")]


def translate(
    run: RunPath,
    beam: Beam = 5,
    n_best: Annotated[int, typer.Option(min=1, help="Translations of each line, best first.")] = 1,
    length_penalty: LengthPenalty = 1.0,
    normaliser: Normaliser = "power",
    coverage_penalty: CoveragePenalty = 0.0,
    passes: Passes = None,
    length_candidates: LengthCandidates = None,
    shortlist: Shortlist = False,
    copy_unknown: Annotated[
        bool,
        typer.Option("--copy-unknown", help="Write an unknown word as the source word that the model looked at most."),
    ] = False,
    agree_with: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Rank what this run finds, too, by what both find.", show_default=False),
    ] = None,
    draft: Annotated[
        str | None,
        typer.Option(
            metavar="RUN|self",
            help="With --beam 1: the same, sooner. Let a smaller run guess ahead, or the plan of a hybrid run itself.",
            show_default=False,
        ),
    ] = None,
    batch: BatchSize = 32,
    longest: Annotated[int, typer.Option(min=1, help="Longer lines, in tokens, are passed on as they are.")] = 1000,
    checkpoint: Checkpoint = "best",
    device: Device = "auto",
    threads: Threads = None,
    json: Annotated[bool, typer.Option("--json", help="A line of JSON for each line, with all scores.")] = False,
) -> None:
    """Translate standard input to standard output, a line for each line: chainrule translate RUN < in > out.

    Files may be of any length. Empty lines stay empty. A line that is too long or not UTF-8 is passed on as it is and
    counted; the counts are printed on standard error at the end. With --n-best, each translation is a line of its
    own: the number of its source line from 0, the text and the score, separated by |||.
    """
    from chainrule.decoding import Search

    search = Search.parse(
        {
            "beam": max(beam, n_best), "n_best": n_best, "length_penalty": length_penalty,
            "normaliser": normaliser, "coverage_penalty": coverage_penalty, "shortlist": shortlist,
            "passes": passes, "length_candidates": length_candidates,
        }
    )  # fmt: skip
    how: dict[str, Any] = {"device": device, "threads": threads, "checkpoint": checkpoint}
    opened = open_translation_run(run, **how)
    other = None if agree_with is None else open_translation_run(agree_with, **how)
    guesses = draft if draft in (None, "self") else open_translation_run(Path(draft), device=device)
    window = 1 if sys.stdin.isatty() else WINDOW * batch  # a person waits for each line
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
        draft=guesses,
        window=window,
    )
    for number, found in enumerate(lines.watched(results)):
        counts[found[0].finished] += 1
        typer.echo(shown(number, found, search, as_json=json).encode("utf-8", "replace"))
    errors.print(summary(counts, time.perf_counter() - begin), highlight=False, soft_wrap=True)


class Lines:
    """The lines of a binary file as text, and how far their translation has come."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.total = size(file)
        self.waiting: deque[int] = deque()  # bytes of the lines that were read and are not translated

    def __iter__(self) -> Iterator[str | TranslatedText]:
        from chainrule.decoding import TranslatedText

        for number, line in enumerate(self.file):
            self.waiting.append(len(line))
            line = line.rstrip(b"\r\n")
            if number == 0:
                line = line.removeprefix(b"\xef\xbb\xbf")  # a byte order mark
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError:
                yield TranslatedText.untranslated(line.decode("utf-8", "replace"), "not text")

    def watched(self, results: Iterable[list[TranslatedText]]) -> Iterator[list[TranslatedText]]:
        """The results, one for each line, with a progress bar on stderr that leaves no trace."""
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("translating"), BarColumn(24), TextColumn("{task.fields[lines]:,} lines"))
        left = TimeRemainingColumn(compact=True)
        with Progress(*columns, left, console=errors, transient=True, disable=not errors.is_terminal) as bar:
            task = bar.add_task("", total=self.total, lines=0)
            for number, found in enumerate(results, start=1):
                bar.update(task, advance=self.waiting.popleft(), lines=number)
                yield found


def size(file: BinaryIO) -> int | None:
    """The bytes of a regular file; nobody knows how much will come through a pipe."""
    try:
        status = os.fstat(file.fileno())
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def shown(number: int, found: list[TranslatedText], search: Search, *, as_json: bool) -> str:
    """The translations of a line as they are printed: never more or fewer lines than there should be."""
    if as_json:
        return json_module.dumps({"line": number, "translations": [one._asdict() for one in found]}, ensure_ascii=False)
    texts = [one.text.replace("\r", " ").replace("\n", " ") for one in found]
    if search.n_best == 1:
        return texts[0]
    return "\n".join(f"{number} ||| {text} ||| {one.score:.4f}" for text, one in zip(texts, found, strict=True))


def summary(counts: Counter[str], seconds: float) -> str:
    """What became of the lines."""
    from chainrule.decoding.translator import UNTRANSLATED

    total = counts.total()
    parts = [f"{total - sum(counts[reason] for reason in UNTRANSLATED):,} of {total:,} lines translated"]
    parts += [f"{counts[reason]:,} {reason}, passed on" for reason in UNTRANSLATED if counts[reason]]
    if counts["length"]:
        parts.append(f"{counts['length']:,} cut at the limit on their length")
    return "; ".join(parts) + f" ({seconds:,.1f} s, {total / max(seconds, 1e-9):,.1f} lines/s)"
