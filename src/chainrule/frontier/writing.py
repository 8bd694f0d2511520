"""Ways to write on from a prompt: greedily or drawn, plain or with somebody who guesses ahead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from chainrule.decoding import GREEDY, Sampling, generate_tokens
from chainrule.decoding.drafts import Drafter
from chainrule.errors import DataError
from chainrule.evaluation.likelihood import protocol_for, score
from chainrule.frontier.task import Output, Quality, Task, Way, distinct_names, run_identity, runs_fact
from chainrule.runs import TextRun

PROMPT = 64  # tokens of the held-out text that are read,
LENGTH = 200  # and tokens that are written after them
PROMPTS = 32
CHOICES = {"greedy": GREEDY, "sampled": Sampling()}


class HeldOut:
    """A text that a run has not seen, in the tokens of the run."""

    def __init__(self, opened: TextRun, data: str, prompts: int) -> None:
        self.opened = opened
        self.corpus, _, _ = opened.corpus(None, data)
        tokens = self.corpus.tokens
        if len(tokens) <= PROMPT:
            raise DataError(
                f"{data!r} has {len(tokens)} tokens, and a prompt takes {PROMPT} of them; give a longer text"
            )
        begins = [index * (len(tokens) - PROMPT) // prompts for index in range(prompts)]
        self.prompts = [tokens[begin : begin + PROMPT].tolist() for begin in begins]  # from all over the text

    @cached_property
    def quality(self) -> Quality:
        model = self.opened.autoregressive
        found = score(model, self.corpus, protocol_for(model, self.corpus))
        return Quality(figures={"bits/byte": found.bits_per_byte})


class WritingWay(Way):
    """Texts by one rule of choice; with a draft, the same ones."""

    def __init__(self, run: str, text: HeldOut, choice: str, draft: TextRun | str | None = None) -> None:
        label, twin = choice, None
        if draft is not None:
            label, twin = f"{choice}, draft {draft if isinstance(draft, str) else draft.path.name}", choice
        super().__init__(run, text.opened.config.family, label, twin=twin)
        self.text, self.draft = text, draft
        self.sampling = CHOICES[choice]

    def write(self, items: Sequence[int], batch: int) -> list[Output]:
        """Ends of documents are written on over, so that all texts have one length. An item has a seed of its own."""
        written: list[Output] = []
        for begin in range(0, len(items), batch):
            group = items[begin : begin + batch]
            found = generate_tokens(
                self.text.opened.autoregressive,
                [self.text.prompts[item] for item in group],
                length=LENGTH,
                sampling=self.sampling,
                seeds=group,
                draft=self._drafter,
            )
            written += [Output(tuple(one.ids), len(one.ids)) for one in found]
        return written

    def assess(self) -> Quality:
        """That of the run: how it is decoded changes nothing about what it thinks of a text."""
        return self.text.quality

    @cached_property
    def _drafter(self) -> Drafter | None:
        return None if self.draft is None else self.text.opened.drafter(self.draft)


class Writing(Task):
    """Prompts from a text that the runs have not seen."""

    item, rate = "text", "tokens"
    measure, more_is_better = "bits/byte", False

    def __init__(
        self, runs: Sequence[TextRun], data: str, *, draft: TextRun | None = None, limit: int | None = None
    ) -> None:
        """So many prompts as the `limit` says."""
        self.runs, self.names = runs, distinct_names(runs)
        self.items = limit or PROMPTS
        self.data = data
        self.texts = [HeldOut(run, data, self.items) for run in runs]
        self.ways = [
            WritingWay(name, text, choice, guesses)
            for name, text in zip(self.names, self.texts, strict=True)
            for choice in CHOICES
            for guesses in _drafts(draft)
        ]

    def facts(self) -> dict[str, Any]:
        return {
            "runs": runs_fact(self.names, self.runs),
            "held-out text": self.data,
            "prompts": f"{self.items:,} of {PROMPT} tokens, from all over the text",
            "written": f"{LENGTH} tokens after each; sampled at temperature 1, each text with a seed of its own",
            "quality": "bits/byte of the whole held-out text, which no way of decoding changes",
            "same text": "what a draft gives is compared with what is written without, token by token, in every turn",
        }

    def identity(self) -> dict[str, Any]:
        return {
            "choice of runs": [run_identity(run) for run in self.runs],
            "choice of ways": [way.name for way in self.ways],
            "text": [text.corpus.fingerprint for text in self.texts],
            "number of prompts": self.items,
        }


def _drafts(draft: TextRun | None) -> Iterator[TextRun | str | None]:
    yield None
    yield "self"
    yield "ngram"
    if draft is not None:
        yield draft
