"""Text generation workload: greedy decoding and sampling, with and without speculative drafts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from chainrule.decoding import GREEDY, Sampling, generate_tokens
from chainrule.decoding.drafts import Drafter
from chainrule.errors import DataError
from chainrule.evaluation.likelihood import score
from chainrule.evaluation.protocol import protocol_for
from chainrule.frontier.workload import (
    BRANCHES,
    DecodedItem,
    DecodingMethod,
    Quality,
    Workload,
    distinct_names,
    gammas_of,
    run_descriptions,
    run_identity,
)
from chainrule.tasks.text import TextRun

PROMPT_TOKENS = 64
GENERATED_TOKENS = 200
PROMPTS = 32
SAMPLINGS = {"greedy": GREEDY, "sampled": Sampling()}


class PromptSet:
    """Prompts from a held-out text, in the tokens of a run."""

    def __init__(self, opened: TextRun, data: str, prompts: int, gamma: float | None = None) -> None:
        self.opened, self.gamma = opened.with_gamma(gamma), gamma
        self.corpus, _, _ = opened.scored_corpus(None, data)
        tokens = self.corpus.tokens
        if len(tokens) <= PROMPT_TOKENS:
            raise DataError(
                f"{data!r} has {len(tokens)} tokens, and a prompt takes {PROMPT_TOKENS} of them; give a longer text"
            )
        begins = [index * (len(tokens) - PROMPT_TOKENS) // prompts for index in range(prompts)]  # evenly spaced
        self.prompts = [tokens[begin : begin + PROMPT_TOKENS].tolist() for begin in begins]

    @cached_property
    def quality(self) -> Quality:
        model = self.opened.autoregressive
        found = score(model, self.corpus, protocol_for(model, self.corpus))
        return Quality(metrics={"bits/byte": found.bits_per_byte})


class GenerationMethod(DecodingMethod):
    """Text generation with one sampling setting, with or without a draft, which does not change the output."""

    def __init__(self, run: str, prompts: PromptSet, sampling: str, draft: TextRun | str | None = None) -> None:
        gamma, reference = prompts.gamma, None
        label = sampling if gamma is None else f"γ {gamma:g}, {sampling}{', one pass' if gamma == 1 else ''}"
        if draft is not None:
            label, reference = f"{sampling}, draft {draft if isinstance(draft, str) else draft.path.name}", sampling
        super().__init__(run, prompts.opened.config.family, label, reference=reference)
        self.prompts, self.draft = prompts, draft
        self.sampling = SAMPLINGS[sampling]

    def decode(self, items: Sequence[int], batch: int) -> list[DecodedItem]:
        """Generation continues after EOS, so that all texts have the same length. Each item has its own random seed."""
        decoded: list[DecodedItem] = []
        for begin in range(0, len(items), batch):
            group = items[begin : begin + batch]
            found = generate_tokens(
                self.prompts.opened.autoregressive,
                [self.prompts.prompts[item] for item in group],
                length=GENERATED_TOKENS,
                sampling=self.sampling,
                seeds=group,
                draft=self._drafter,
            )
            decoded += [DecodedItem(tuple(one.ids), len(one.ids)) for one in found]
        return decoded

    def measure_quality(self) -> Quality:
        """The likelihood of the held-out text under the run at its γ, whatever the decoding method."""
        return self.prompts.quality

    @cached_property
    def _drafter(self) -> Drafter | None:
        return None if self.draft is None else self.prompts.opened.drafter(self.draft)


class GenerationWorkload(Workload):
    """Prompts from a held-out text, each to be continued by a fixed number of tokens."""

    item, throughput = "text", "tokens"
    metric, higher_is_better = "bits/byte", False

    def __init__(
        self,
        runs: Sequence[TextRun],
        data: str,
        *,
        draft: TextRun | None = None,
        limit: int | None = None,
        gammas: Sequence[float] = BRANCHES,
    ) -> None:
        """Use `limit` prompts, by default PROMPTS."""
        self.runs, self.names = runs, distinct_names(runs)
        self.size = limit or PROMPTS
        self.data = data
        named = [
            (name, PromptSet(run, data, self.size, gamma))
            for name, run in zip(self.names, runs, strict=True)
            for gamma in gammas_of(run, gammas)
        ]
        self.prompt_sets = [prompts for _, prompts in named]
        self.methods = [
            GenerationMethod(name, prompts, sampling, drafting)
            for name, prompts in named
            for sampling in SAMPLINGS
            for drafting in (_drafts(draft) if prompts.gamma is None else [None])
        ]

    def protocol(self) -> dict[str, Any]:
        return {
            "runs": run_descriptions(self.names, self.runs),
            "held-out text": self.data,
            "prompts": f"{self.size:,} of {PROMPT_TOKENS} tokens, evenly spaced in the text",
            "generated": f"{GENERATED_TOKENS} tokens after each; sampled at temperature 1, with a random seed per text",
            "quality": "bits/byte of the whole held-out text, whatever the decoding method",
            "same output": "the output with a draft is compared with that without, token by token, in every round",
        }

    def identity(self) -> dict[str, Any]:
        return {
            "choice of runs": [run_identity(run) for run in self.runs],
            "choice of decoding methods": [method.name for method in self.methods],
            "text": [prompts.corpus.fingerprint for prompts in self.prompt_sets],
            "number of prompts": self.size,
        }


def _drafts(draft: TextRun | None) -> Iterator[TextRun | str | None]:
    yield None
    yield "self"
    yield "ngram"
    if draft is not None:
        yield draft
