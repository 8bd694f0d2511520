"""Writing on from prompts, token by token: `stream` yields each step's tokens, `generate` collects them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from chainrule.decoding.choose import Gumbels, Sampling, choose
from chainrule.decoding.drafts import Drafter, ModelDrafter, Text, count_right
from chainrule.decoding.reading import Reader
from chainrule.decoding.speculative import Block, Continuation, Pace
from chainrule.errors import DecodingError
from chainrule.interface.base import AutoregressiveModel
from chainrule.types import Sequences

Finish: TypeAlias = Literal["eos", "stop", "length"]

Stop: TypeAlias = Callable[[Sequence[int]], bool]
"""Given the ids that a row has generated so far: is it done?"""


class Token(NamedTuple):
    """What one row has just generated."""

    row: int  # index of the prompt
    id: int
    log_prob: float  # the model's own, before temperature, penalty and filters
    finished: Finish | None  # None: the row goes on


class Generation(NamedTuple):
    """What a row generated in all."""

    ids: list[int]  # without the prompt and without EOS
    log_prob: float  # nats: the model's own, of all generated tokens and of EOS where it ended the row
    finished: Finish


def generate(
    model: AutoregressiveModel,
    prompts: Sequence[Sequence[int]],
    *,
    length: int | Sequence[int],
    sampling: Sampling,
    seeds: Sequence[int],
    eos: int | None = None,
    suppress: Sequence[int] = (),
    stop: Stop | None = None,
    source: Sequences | None = None,
    draft: AutoregressiveModel | Drafter | None = None,
    pace: Pace | None = None,
) -> list[Generation]:
    """Write at most `length` tokens after each prompt, or as many as it has for each. Row i is what prompt i gives
    alone with seed i.

    With a `draft`, a cheaper model over the same vocabulary or another `Drafter`, the same text is written in less
    time, where the draft is good enough (see `speculative`). How far it guesses ahead is found out while writing,
    unless a `pace` says it.
    """
    ids: list[list[int]] = [[] for _ in prompts]
    log_probs = [0.0] * len(prompts)
    finished: list[Finish] = ["length"] * len(prompts)
    for tokens in stream(
        model,
        prompts,
        length=length,
        sampling=sampling,
        seeds=seeds,
        eos=eos,
        suppress=suppress,
        stop=stop,
        source=source,
        draft=draft,
        pace=pace,
    ):
        for token in tokens:
            log_probs[token.row] += token.log_prob
            finished[token.row] = token.finished or "length"
            if token.finished != "eos":
                ids[token.row].append(token.id)
    return [Generation(*parts) for parts in zip(ids, log_probs, finished, strict=True)]


def stream(
    model: AutoregressiveModel,
    prompts: Sequence[Sequence[int]],
    *,
    length: int | Sequence[int],
    sampling: Sampling,
    seeds: Sequence[int],
    eos: int | None = None,
    suppress: Sequence[int] = (),
    stop: Stop | None = None,
    source: Sequences | None = None,
    draft: AutoregressiveModel | Drafter | None = None,
    pace: Pace | None = None,
) -> Iterator[list[Token]]:
    """As `generate`, but yields after each step the new token of every row that was not finished before it.

    With a draft a step may give a row several tokens, one after the other.
    """
    lengths = one_to_each(length, prompts)
    check_request(model, prompts, length=min(lengths, default=1), eos=eos, suppress=suppress, source=source)
    if len(seeds) != len(prompts):
        raise DecodingError(f"{len(prompts)} prompts came with {len(seeds)} seeds; give each prompt a seed of its own")
    drafter = ModelDrafter(draft) if isinstance(draft, AutoregressiveModel) else draft
    if drafter is not None:
        drafter.check(model)
    rules = Rules(lengths, sampling, eos, tuple(suppress), stop)
    return _steps(Reader(model, source), prompts, rules, seeds, drafter, pace or Pace())


class Rules(NamedTuple):
    """How tokens are chosen, and when a row ends."""

    lengths: list[int]  # of what each prompt may be followed by
    sampling: Sampling
    eos: int | None
    suppress: tuple[int, ...]
    stop: Stop | None


@torch.inference_mode()
def _steps(
    reader: Reader,
    prompts: Sequence[Sequence[int]],
    rules: Rules,
    seeds: Sequence[int],
    drafter: Drafter | None,
    pace: Pace,
) -> Iterator[list[Token]]:
    """The loop. A finished row writes on unheard until half of the batch is finished and leaves it.

    Leaving copies the state of all who stay, so it is put off until it halves the work of the steps to come.
    """
    if not prompts:
        return
    rows = Rows(prompts, rules, seeds, reader.model)
    step = reader.read([text.ids for text in rows.texts], [text.owner for text in rows.texts])
    reading = Continuation(reader, step.state, drafter, pace)
    block = Block(step.logits, [[] for _ in prompts])
    while True:
        chosen = rows.choose(block)
        reading.settle(block.guesses, [len(tokens) - 1 for tokens in chosen])
        yield rows.write(chosen, block.logits)
        if not any(rows.running):
            return
        if 2 * sum(rows.running) <= len(rows.running):
            places = [place for place, goes_on in enumerate(rows.running) if goes_on]
            reading.keep(places)
            rows.keep(places)
        block = reading.read(rows.texts, rows.most - 1, rows.picker())


class Rows:
    """What each row of the batch has written, and the chance that it goes on by."""

    def __init__(
        self, prompts: Sequence[Sequence[int]], rules: Rules, seeds: Sequence[int], model: AutoregressiveModel
    ) -> None:
        self.rules = rules
        self.texts = [Text(row, list(prompt)) for row, prompt in enumerate(prompts)]
        self.running = [True] * len(prompts)
        self._prompts = [len(prompt) for prompt in prompts]  # lengths, of all prompts; the rest is by row of the batch
        self._gumbels = None if rules.sampling.greedy else Gumbels(seeds, model.vocabulary, model.device)
        self._suppressed = torch.tensor(sorted(set(rules.suppress)), device=model.device) if rules.suppress else None
        self._seen: Tensor | None = None  # (B, V), true at the ids of each text
        if rules.sampling.repetition_penalty != 1.0:
            self._seen = torch.zeros(len(prompts), model.vocabulary, dtype=torch.bool, device=model.device)
            for row, prompt in enumerate(prompts):
                self._seen[row, list(prompt)] = True

    @property
    def most(self) -> int:
        """How many tokens a row has yet to write."""
        going = (text for text, goes_on in zip(self.texts, self.running, strict=True) if goes_on)
        return max(self.rules.lengths[owner] + self._prompts[owner] - len(ids) for owner, ids in going)

    def choose(self, block: Block) -> list[list[int]]:
        """What each row writes next: the guesses that it would have chosen, and a token of its own."""
        logits, guesses = block
        rows, width, _ = logits.shape
        gumbels = None if self._gumbels is None else self._gumbels.ahead(width).flatten(0, 1)
        seen = None if self._seen is None else _seen_along(self._seen, guesses, width).flatten(0, 1)
        flat = choose(logits.flatten(0, 1), self.rules.sampling, gumbels, seen=seen, suppressed=self._suppressed)
        chosen: list[list[int]] = flat.view(rows, width).tolist()
        return [tokens[: count_right(guessed, tokens) + 1] for tokens, guessed in zip(chosen, guesses, strict=True)]

    def write(self, chosen: Sequence[Sequence[int]], logits: Tensor) -> list[Token]:
        """Add what was chosen to the texts; tokens of rows that were finished are not told."""
        places = [(row, place) for row, tokens in enumerate(chosen) for place in range(len(tokens))]
        log_probs = iter(nats(_at(logits, places), [token for tokens in chosen for token in tokens]))
        if self._gumbels is not None:
            self._gumbels.pass_by([len(tokens) for tokens in chosen])
        told: list[Token] = []
        for row, tokens in enumerate(chosen):
            owner, ids = self.texts[row]
            if self._seen is not None:
                self._seen[row, list(tokens)] = True
            for token, log_prob in zip(tokens, log_probs, strict=False):
                ids.append(token)
                if self.running[row]:
                    finished = self._finish(owner, ids)
                    self.running[row] = finished is None
                    told.append(Token(owner, token, log_prob, finished))
        return told

    def picker(self) -> Picker:
        """How guesses are made as the choices will be."""
        return Picker(self.rules.sampling, self._gumbels, self._seen, self._suppressed)

    def keep(self, places: Sequence[int]) -> None:
        """Go on with these rows only."""
        self.texts = [self.texts[place] for place in places]
        self.running = [self.running[place] for place in places]
        if self._gumbels is not None:
            self._gumbels.keep(places)
        if self._seen is not None:
            self._seen = self._seen[list(places)]

    def _finish(self, owner: int, ids: Sequence[int]) -> Finish | None:
        prompt = self._prompts[owner]
        if ids[-1] == self.rules.eos:
            return "eos"
        if self.rules.stop is not None and self.rules.stop(ids[prompt:]):
            return "stop"
        return "length" if len(ids) - prompt == self.rules.lengths[owner] else None


class Picker:
    """The choices of the positions to come, one after the other, from predictions that somebody else has made."""

    def __init__(
        self, sampling: Sampling, gumbels: Gumbels | None, seen: Tensor | None, suppressed: Tensor | None
    ) -> None:
        self.greedy = sampling.greedy and seen is None
        self._sampling, self._gumbels, self._suppressed = sampling, gumbels, suppressed
        self._seen = None if seen is None else seen.clone()
        self._place = 0

    def __call__(self, logits: Tensor) -> Tensor:
        gumbels = None if self._gumbels is None else self._gumbels.ahead(self._place + 1)[:, self._place]
        chosen = choose(logits, self._sampling, gumbels, seen=self._seen, suppressed=self._suppressed)
        if self._seen is not None:
            self._seen.scatter_(1, chosen[:, None], True)
        self._place += 1
        return chosen


def nats(logits: Tensor, ids: Sequence[int]) -> list[float]:
    """The log-probability of N ids under logits (N, V), in float32 at least."""
    log_probs = F.log_softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32))
    values: list[float] = log_probs.gather(-1, torch.tensor(ids, device=logits.device)[:, None]).squeeze(1).tolist()
    if any(map(math.isnan, values)):
        raise DecodingError(NOT_A_NUMBER)
    return values


NOT_A_NUMBER = "the model's prediction is not a number; its weights are damaged or its training diverged, train it anew"


def one_to_each(length: int | Sequence[int], prompts: Sequence[Sequence[int]]) -> list[int]:
    """How long the continuation of each prompt may become, from a limit for all or one for each."""
    lengths = [length] * len(prompts) if isinstance(length, int) else list(length)
    if len(lengths) != len(prompts):
        raise DecodingError(f"{len(prompts)} prompts came with {len(lengths)} lengths; give one to each, or one to all")
    return lengths


def check_request(
    model: AutoregressiveModel,
    prompts: Sequence[Sequence[int]],
    *,
    length: int,
    eos: int | None,
    suppress: Sequence[int],
    source: Sequences | None,
) -> None:
    """Refuse what no decoder can do, before anything is computed."""
    vocabulary = model.vocabulary
    if length < 1:
        raise DecodingError(f"the length to generate is {length}; ask for at least 1 token")
    for index, prompt in enumerate(prompts):
        for token in prompt:
            if not 0 <= token < vocabulary:
                raise DecodingError(
                    f"prompt {index} holds the id {token}, the model knows 0 to {vocabulary - 1}; "
                    "encode it with the tokenizer that the model was trained with"
                )
    for name, ids in (("eos", () if eos is None else (eos,)), ("suppress", suppress)):
        for token in ids:
            if not 0 <= token < vocabulary:
                raise DecodingError(f"{name} names the id {token}, the model knows 0 to {vocabulary - 1}; correct it")
    if len(set(suppress)) == vocabulary:
        raise DecodingError(f"all {vocabulary} ids are suppressed; leave at least one to be chosen")
    if source is not None and source.ids.shape[0] != len(prompts):
        raise DecodingError(
            f"{len(prompts)} prompts came with {source.ids.shape[0]} sources; give an empty prompt to each source"
        )


def _seen_along(seen: Tensor, guesses: Sequence[Sequence[int]], width: int) -> Tensor:
    """(B, K, V) from (B, V): what each row has seen before the choice at every place of a block, guesses among it."""
    along = seen[:, None].repeat(1, width, 1)
    for row, guessed in enumerate(guesses):
        for place, token in enumerate(guessed, start=1):
            along[row, place:, token] = True
    return along


def _at(logits: Tensor, places: Sequence[tuple[int, int]]) -> Tensor:
    """(N, V) of (B, K, V): the predictions at some (row, place)."""
    if len(places) == logits.shape[0] * logits.shape[1]:
        return logits.flatten(0, 1)
    rows, columns = zip(*places, strict=True)
    return logits[list(rows), list(columns)]
