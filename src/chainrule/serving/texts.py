"""Between texts and tokens: requests of the engine for the prompts of a run, and the text of what it generates."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from chainrule.data.corpus import Corpus
from chainrule.decoding.drafts import Drafter
from chainrule.decoding.generation import Generation
from chainrule.decoding.sampling import Sampling
from chainrule.errors import DecodingError
from chainrule.evaluation.token_scores import Alternative as ScoredAlternative
from chainrule.evaluation.token_scores import token_scores
from chainrule.serving.requests import Alternative, Request, Token
from chainrule.tasks.text import GeneratedText, TextRun

UNFINISHED = "\ufffd"  # a part of a character
CONTEXT_TOKENS = 8  # at least, and up to twice as many, are decoded again with each new token: what it adds to a text
# can depend on those before it


def text_request(
    run: TextRun,
    prompt: str | Sequence[int],
    *,
    max_tokens: int,
    sampling: Sampling,
    seed: int,
    stop: Sequence[str] = (),
    alternatives: int = 0,
    draft: TextRun | Drafter | str | None = None,
    allow_unknown: bool = False,
    **limits: Any,
) -> Request:
    """The request for a continuation of a prompt, by text or ids; `limits` are `client` and `timeout`."""
    if isinstance(prompt, str):
        [ids] = run.prompt_ids([prompt], allow_unknown)
    else:
        ids = list(prompt)
        for token in ids:
            if not 0 <= token < run.model.vocabulary:
                raise DecodingError(
                    f"the prompt has the id {token}, outside the vocabulary of 0 to {run.model.vocabulary - 1}; "
                    "encode it with the tokenizer of the run"
                )
    return Request(
        model=run.autoregressive,
        prompt=ids,
        max_tokens=max_tokens,
        sampling=sampling,
        seed=seed,
        eos=run.tokenizer.eos,
        suppress=tuple(run.suppressed),
        stop=run.stop_condition(stop),
        alternatives=alternatives,
        draft=run.drafter(draft) if isinstance(draft, TextRun | str) else draft,
        **limits,
    )


def prompt_tokens(run: TextRun, ids: Sequence[int], alternatives: int) -> list[Token]:
    """The tokens of a prompt with their log-probabilities, each given those before it."""
    if run.right_to_left:
        raise DecodingError("this model reads from right to left, so its prompt comes last; ask without echo")
    if not ids:
        return []
    tokens = np.asarray(ids)
    corpus = Corpus(tokens=tokens, offsets=None, bytes=1, characters=1, words=1, unknown=0, fingerprint="")
    found = token_scores(run.autoregressive, corpus, alternatives=alternatives)
    return [
        Token(one.token, -one.surprisal, None, tuple(_alternative(other) for other in one.alternatives))
        for one in found
    ]


def _alternative(other: ScoredAlternative) -> Alternative:
    return Alternative(other.token, math.log(max(other.probability, sys.float_info.min)))


class GrowingText:
    """The text of generated tokens: what is final can be sent on, and all pieces together are the whole text.

    Held back are parts of characters and what may become a stop string; the text of a model from right to left, whose
    beginning is generated last, is final only at its end.
    """

    def __init__(self, run: TextRun, stop: Sequence[str]) -> None:
        self.run, self.stop = run, stop
        self.ids: list[int] = []
        self.log_prob = 0.0
        self.result: GeneratedText | None = None
        self._held = max((len(one) - 1 for one in stop), default=0)
        self._text = ""  # of the ids up to `_decoded`
        self._decoded = 0
        self._first, self._tail = 0, ""  # the text of the ids from `_first` to `_decoded`
        self._sent = 0

    def add(self, tokens: Sequence[Token]) -> str:
        """Append tokens and return the next piece of the text."""
        for token in tokens:
            self.log_prob += token.log_prob
            if token.finished != "eos":
                self.ids.append(token.id)
            if token.finished is not None:
                return self._finish(token)
        if self.run.right_to_left:
            return ""
        self._extend()
        return self._send(self._text, len(self._text) - self._held)

    def _extend(self) -> None:
        """Decode the new tokens, after a few of those before, unless they end within a character."""
        if self._decoded - self._first > 2 * CONTEXT_TOKENS:
            self._first = self._decoded - CONTEXT_TOKENS
            self._tail = self.run.tokenizer.decode(self.ids[self._first : self._decoded])
        after = self.run.tokenizer.decode(self.ids[self._first :])
        if after.startswith(self._tail) and not after.endswith(UNFINISHED):
            self._text += after[len(self._tail) :]
            self._decoded, self._tail = len(self.ids), after

    def _finish(self, last: Token) -> str:
        generation = Generation(self.ids, self.log_prob, last.finished or "length")
        self.result = self.run.finished_text(generation, self.stop)
        return self._send(self.result.text, len(self.result.text))

    def _send(self, text: str, end: int) -> str:
        if end <= self._sent:
            return ""
        piece = text[self._sent : end]
        self._sent = end
        return piece
