"""Sequence-level distillation: a translation model learns from the translations of another, its teacher."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from pathlib import Path

from chainrule.data.cache import building, cache_root, find, fingerprint
from chainrule.data.cleaning import CleanPairs, sentence
from chainrule.data.source import Normalisation, TextSource
from chainrule.data.workers import on_executor, results
from chainrule.decoding import Search
from chainrule.decoding.translator import BUFFERED_LINES
from chainrule.errors import RunError
from chainrule.tasks import load
from chainrule.tasks.translation import TranslationRun
from chainrule.training.checkpoint import RunFolder
from chainrule.types import Progress

DISTILLATION_SEARCH = Search(beam=5)
DISTILLED_FILE = "target.txt"  # the file name by which a side of cleaned pairs is found


def distilled(
    pairs: CleanPairs,
    teacher: str,
    *,
    limit: int | None = None,
    device: str = "auto",
    batch: int = 32,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> CleanPairs:
    """The same sources with the translations of a teacher run: sequence-level distillation (Kim & Rush, 2016).

    References translate the same source in many ways, and a model that predicts all tokens independently mixes them.
    The translations of one model vary less (Zhou et al., 2020). Training and validation targets are replaced; reported
    scores always use the original references. With a `limit`, only the first targets are replaced. The translations are
    cached by the sources and the teacher's weights.
    """
    folder = RunFolder(Path(teacher))
    made_from = (pairs.source.identity(), pairs.target.identity(), _identity(folder), DISTILLATION_SEARCH.model_dump())
    entry = (cache or cache_root()) / fingerprint("distilled", *made_from, *([] if limit is None else [limit]))
    if find(entry, lambda found: (found / DISTILLED_FILE).stat()) is None:
        with (
            building(entry) as temporary,
            (temporary / DISTILLED_FILE).open("w", encoding="utf-8", newline="\n") as file,
        ):
            for number, target in enumerate(_teacher_targets(pairs, folder, device, batch, limit), start=1):
                file.write(target + "\n")
                if progress is not None:
                    progress(number, pairs.report.kept)
    return replace(pairs, target=replace(pairs.target, cleaned=entry))


def _identity(folder: RunFolder) -> tuple[object, ...]:
    """Changes with the model, wherever its folder is."""
    config = folder.config()
    try:
        with (folder.path / "model.safetensors").open("rb") as weights:
            digest = hashlib.file_digest(weights, "blake2b").hexdigest()
    except OSError as error:
        raise RunError(
            f"the run {str(folder.path)!r} cannot be distilled: its weights cannot be read ({error.strerror}); "
            "train it to its first checkpoint"
        ) from None
    return (config.family, config.model, digest)


def _teacher_targets(pairs: CleanPairs, folder: RunFolder, device: str, batch: int, limit: int | None) -> Iterator[str]:
    """One line per pair; the original target if the teacher generates nothing, and after the limit."""
    targets = iter(pairs.target.documents())
    for generated in _generated(pairs, folder.path.absolute(), device, batch, limit):
        target = next(targets)
        yield generated or target
    yield from targets


def _generated(pairs: CleanPairs, teacher: Path, device: str, batch: int, limit: int | None) -> Iterator[str]:
    """The translations of the sources, empty where there is none; by the workers of a cluster, if there is one.

    They translate as many lines at a time as are sorted by length here, so that batches and translations are the same.
    """
    if not on_executor():
        yield from _translations(pairs.source, 0, limit, teacher, device, batch)
        return
    count = pairs.report.kept if limit is None else min(limit, pairs.report.kept)
    starts = range(0, count, BUFFERED_LINES)
    jobs = [(pairs.source, start, min(start + BUFFERED_LINES, count), teacher, device, batch) for start in starts]
    done: dict[int, list[str]] = {}
    following = 0
    for index, lines in results(translate_part, jobs):
        done[index] = lines
        while following in done:
            yield from done.pop(following)
            following += 1


def translate_part(
    source: TextSource, begin: int, end: int | None, teacher: Path, device: str, batch: int
) -> list[str]:
    """What one job translates."""
    return list(_translations(source, begin, end, teacher, device, batch))


def _translations(
    source: TextSource, begin: int, end: int | None, teacher: Path, device: str, batch: int
) -> Iterator[str]:
    """The teacher's translations of some sentences; empty where it generates nothing."""
    sentences = islice(source.documents(), begin, end)
    for best, *_ in _opened(teacher, device).translate(sentences, DISTILLATION_SEARCH, batch=batch):
        yield "" if best.is_untranslated else sentence(best.text, Normalisation())


@lru_cache(1)
def _opened(teacher: Path, device: str) -> TranslationRun:
    return load(teacher, TranslationRun, device=device)
