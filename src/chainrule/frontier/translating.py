"""Ways to translate: token by token, by beam search, by drafts, or in parallel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from chainrule.data.cache import fingerprint
from chainrule.decoding import Search, TranslatedText
from chainrule.decoding.drafts import Drafter
from chainrule.errors import ConfigError, DataError
from chainrule.evaluation.translation import corpus_scores, metrics
from chainrule.frontier.task import Output, Quality, Task, Way, distinct_names, run_identity, runs_fact
from chainrule.interface.capabilities import BlockPredictor
from chainrule.interface.conditional import ParallelModel
from chainrule.models.hybrid_regressive import HybridRegressive
from chainrule.runs import TranslationRun

PASSES = (1, 2, 4, 10)
QUALITY_BATCH = 16  # sentences at once where nobody looks at the clock
GREEDY = "greedy"


class Sentences(NamedTuple):
    """What is translated, and what it should become."""

    sources: list[str]
    references: list[str]
    language: str  # of the references, or "" where nobody says


class TranslatingWay(Way):
    """Translations by one search; with a draft, the same ones."""

    def __init__(
        self,
        run: str,
        opened: TranslationRun,
        sentences: Sentences,
        label: str,
        search: Search,
        draft: TranslationRun | str | None = None,
    ) -> None:
        super().__init__(run, opened.config.family, label, twin=None if draft is None else GREEDY)
        self.opened, self.sentences, self.search, self.draft = opened, sentences, search, draft
        self.translator = opened.translator()

    def write(self, items: Sequence[int], batch: int) -> list[Output]:
        found = self._translate([self.sentences.sources[item] for item in items], batch)
        return [Output(best.text, best.tokens) for best in found]

    def assess(self) -> Quality:
        sources, references, language = self.sentences
        metrics(language)  # what is missing is said before the work, not after it
        texts = [best.text for best in self._translate(sources, QUALITY_BATCH)]
        found: dict[str, Any] = corpus_scores(texts, references, target_language=language)
        return Quality(
            figures={"BLEU": found["bleu"], "chrF": found["chrf"]},
            signatures={"BLEU": found["bleu_signature"], "chrF": found["chrf_signature"]},
        )

    def _translate(self, texts: Sequence[str], batch: int) -> list[TranslatedText]:
        found = self.translator.translate_texts(texts, self.search, batch=batch, draft=self._drafter)
        return [best for best, *_ in found]

    @cached_property
    def _drafter(self) -> Drafter | None:
        return None if self.draft is None else self.opened.drafter(self.draft)


class Translating(Task):
    """Sentences with their references."""

    item, rate = "sentence", "sentences"
    measure, more_is_better = "BLEU", True

    def __init__(
        self,
        runs: Sequence[TranslationRun],
        sources: Sequence[str],
        references: Sequence[str],
        *,
        beam: int = 5,
        passes: Sequence[int] = PASSES,
        draft: TranslationRun | None = None,
        limit: int | None = None,
    ) -> None:
        """The first `limit` sentences, or all of them."""
        if len(sources) != len(references):
            raise DataError(
                f"{len(sources)} sources came with {len(references)} references; give one reference to each"
            )
        if not sources:
            raise DataError("there is nothing to translate: the sources are empty; give at least one line")
        if not passes or min(passes) < 1:
            raise ConfigError(f"passes are counted from 1 on, got {list(passes)}; for example 1,2,4,10")
        self.runs, self.names = runs, distinct_names(runs)
        language = next(filter(None, (run.config.data.target_language for run in runs)), "")
        self.sentences = Sentences(list(sources[:limit]), list(references[:limit]), language)
        self.items = len(self.sentences.sources)
        self.beam, self.draft = beam, draft
        self.ways = [
            TranslatingWay(name, run, self.sentences, label, search, guesses)
            for name, run in zip(self.names, runs, strict=True)
            for label, search, guesses in self._choices(run, passes)
        ]

    def _choices(
        self, run: TranslationRun, passes: Sequence[int]
    ) -> Iterator[tuple[str, Search, TranslationRun | str | None]]:
        """The ways that a run has: what to call it, how to search, and who guesses ahead."""
        model = run.model
        if isinstance(model, HybridRegressive):
            yield f"every {ordinal(model.config.every)} token", Search(), None
        elif isinstance(model, ParallelModel):
            for count in passes if model.default_budget.passes > 1 else [1]:
                yield f"{count} pass{'es' if count > 1 else ''}", Search(passes=count, beam=1), None
            if self.beam > 1 and model.default_budget.beam > 1:
                yield f"1 pass, beam {self.beam}", Search(beam=self.beam), None
        else:
            yield GREEDY, Search(beam=1), None
            if isinstance(model, BlockPredictor):
                yield "speculative", Search(beam=1), "self"
            if self.draft is not None:
                yield f"draft {self.draft.path.name}", Search(beam=1), self.draft
            if self.beam > 1:
                yield f"beam {self.beam}", Search(beam=self.beam), None

    def facts(self) -> dict[str, Any]:
        return {
            "runs": runs_fact(self.names, self.runs),
            "sentences": self.items,
            "quality": f"of all {self.items:,} sentences, {QUALITY_BATCH} at a time",
            "speed": "from text to text: cutting into tokens and joining them is part of it",
        }

    def identity(self) -> dict[str, Any]:
        return {
            "choice of runs": [run_identity(run) for run in self.runs],
            "choice of ways": [way.name for way in self.ways],
            "text": fingerprint("lines", self.sentences.sources, self.sentences.references),
        }


def ordinal(number: int) -> str:
    """2 as 2nd."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10 if number % 100 not in (11, 12, 13) else 0, "th")
    return f"{number}{ending}"
