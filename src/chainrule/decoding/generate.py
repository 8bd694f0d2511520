"""Writing on from prompts, token by token: `stream` yields each step's tokens, `generate` collects them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from chainrule.decoding.choose import Sampling, Uniforms, choose
from chainrule.decoding.reading import Reader
from chainrule.errors import DecodingError
from chainrule.models.base import AutoregressiveModel
from chainrule.types import Sequences, select

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
    length: int,
    sampling: Sampling,
    seeds: Sequence[int],
    eos: int | None = None,
    suppress: Sequence[int] = (),
    stop: Stop | None = None,
    source: Sequences | None = None,
) -> list[Generation]:
    """Write at most `length` tokens after each prompt. Row i is what prompt i gives alone with seed i."""
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
    length: int,
    sampling: Sampling,
    seeds: Sequence[int],
    eos: int | None = None,
    suppress: Sequence[int] = (),
    stop: Stop | None = None,
    source: Sequences | None = None,
) -> Iterator[list[Token]]:
    """As `generate`, but yields after each step the new token of every row that was not finished before it."""
    check_request(model, prompts, length=length, eos=eos, suppress=suppress, source=source)
    if len(seeds) != len(prompts):
        raise DecodingError(f"{len(prompts)} prompts came with {len(seeds)} seeds; give each prompt a seed of its own")
    return _steps(Reader(model, source), prompts, length, sampling, seeds, eos, suppress, stop)


@torch.inference_mode()
def _steps(
    reader: Reader,
    prompts: Sequence[Sequence[int]],
    length: int,
    sampling: Sampling,
    seeds: Sequence[int],
    eos: int | None,
    suppress: Sequence[int],
    stop: Stop | None,
) -> Iterator[list[Token]]:
    """The loop. A finished row writes on unheard until half of the batch is finished and leaves it.

    Leaving copies the state of all who stay, so it is put off until it halves the work of the steps to come.
    """
    if not prompts:
        return
    device = reader.model.device
    rows = list(range(len(prompts)))  # the prompt that each row of the batch goes on from
    histories = [list(prompt) for prompt in prompts]  # of the rows of the batch, as are the next three
    running = [True] * len(prompts)
    uniforms = Uniforms(seeds, device)
    seen = _seen(histories, reader.model.vocabulary, device) if sampling.repetition_penalty != 1.0 else None
    suppressed = torch.tensor(sorted(set(suppress)), device=device) if suppress else None

    step = reader.read(histories, rows)
    for position in range(length):
        logits = step.logits.select(1, -1)  # (B, V)
        chosen = choose(logits, sampling, uniforms.draw(), seen=seen, suppressed=suppressed)  # (B,)
        if seen is not None:
            seen.scatter_(1, chosen[:, None], True)

        tokens: list[Token] = []
        for place, (token, log_prob) in enumerate(zip(chosen.tolist(), nats(logits, chosen), strict=True)):
            history = histories[place]
            history.append(token)
            if not running[place]:
                continue
            finished: Finish | None = "length" if position + 1 == length else None
            if token == eos:
                finished = "eos"
            elif stop is not None and stop(history[len(prompts[rows[place]]) :]):
                finished = "stop"
            running[place] = finished is None
            tokens.append(Token(rows[place], token, log_prob, finished))
        yield tokens

        if not any(running):
            return
        state = step.state
        if 2 * sum(running) <= len(running):
            places = [place for place, goes_on in enumerate(running) if goes_on]
            kept = torch.tensor(places, device=device)
            state, chosen = select(state, kept), chosen[kept]
            seen = None if seen is None else seen[kept]
            uniforms.keep(places)
            rows, histories = [rows[place] for place in places], [histories[place] for place in places]
            running = [True] * len(places)
        step = reader.advance(chosen, state, histories, rows)


def nats(logits: Tensor, ids: Tensor) -> list[float]:
    """The log-probability of ids (B,) under logits (B, V), in float32 at least."""
    log_probs = F.log_softmax(logits, -1, dtype=torch.promote_types(logits.dtype, torch.float32))
    values: list[float] = log_probs.gather(-1, ids.unsqueeze(1)).squeeze(1).tolist()
    if any(map(math.isnan, values)):
        raise DecodingError(NOT_A_NUMBER)
    return values


NOT_A_NUMBER = "the model's prediction is not a number; its weights are damaged or its training diverged, train it anew"


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


def _seen(histories: Sequence[Sequence[int]], vocabulary: int, device: torch.device) -> Tensor:
    """(B, V), true at the ids of each history."""
    seen = torch.zeros(len(histories), vocabulary, dtype=torch.bool, device=device)
    for row, history in enumerate(histories):
        seen[row, list(history)] = True
    return seen
