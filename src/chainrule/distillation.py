"""Learning from what another model writes: sequence-level knowledge distillation (Kim & Rush, 2016).

A sentence has many good translations, and people choose among them as they please. A model that writes all tokens at
once cannot: it would mix the beginning of one with the end of another. The translations of a single model differ less
from each other, and what is left of them is what can be told from the source (Zhou et al., 2020). So the targets of the
training pairs, and those of the validation pairs that training watches, are replaced by what a trained run makes of
their sources with beam search. Reported figures always refer to the pairs as people wrote them.

It is done once: what a run has written is in the cache, found again by the sources and by the weights of the run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from chainrule.data.cache import building, cache_root, find, fingerprint
from chainrule.data.cleaning import CleanPairs, sentence
from chainrule.data.counting import Progress
from chainrule.data.source import Normalisation
from chainrule.decoding import Search
from chainrule.errors import RunError
from chainrule.runs import TranslationRun, load
from chainrule.training.checkpoint import RunFolder

SEARCH = Search(beam=5)
TARGETS = "target.txt"  # the name by which a side of cleaned pairs finds its file


def distilled(
    pairs: CleanPairs,
    teacher: str,
    *,
    device: str = "auto",
    batch: int = 32,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> CleanPairs:
    """The same sources with the translations of a run, written unless that has been done before."""
    folder = RunFolder(Path(teacher))
    made_from = (pairs.source.identity(), pairs.target.identity(), _identity(folder), SEARCH.model_dump())
    entry = (cache or cache_root()) / fingerprint("distilled", *made_from)
    if find(entry, lambda found: (found / TARGETS).stat()) is None:
        with building(entry) as temporary, (temporary / TARGETS).open("w", encoding="utf-8", newline="\n") as file:
            for number, target in enumerate(_targets(pairs, folder, device, batch), start=1):
                file.write(target + "\n")
                if progress is not None:
                    progress(number, pairs.report.kept)
    return replace(pairs, target=replace(pairs.target, cleaned=entry))


def _identity(folder: RunFolder) -> tuple[object, ...]:
    """Changes with the model, wherever its folder lies."""
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


def _targets(pairs: CleanPairs, folder: RunFolder, device: str, batch: int) -> Iterator[str]:
    """A line for each pair; where the run has nothing to say, what stood there before."""
    run = load(folder.path, TranslationRun, device=device)
    found = run.translate(pairs.source.documents(), SEARCH, batch=batch)
    for target, (best, *_) in zip(pairs.target.documents(), found, strict=True):
        written = sentence(best.text, Normalisation())
        yield target if best.is_untranslated or not written else written
