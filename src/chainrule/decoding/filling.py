"""Filling gaps: the likeliest tokens for the holes of a text, by models that see both sides of them.

A `Cloze` model has one token for each gap. Gaps are filled from left to right, each given those before it and with
those after it still hidden:

    P(g_1 … g_n | text) = Π_i P(g_i | text, g_<i)

An `Infills` model writes spans of any length, sentinel after sentinel: its target is that product already. In either
case a beam holds the likeliest fillings of the gaps so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from chainrule.data.spans import Corruption
from chainrule.decoding.beam import beam_search, likeliest
from chainrule.errors import DecodingError
from chainrule.interface.base import AutoregressiveModel, Model
from chainrule.interface.capabilities import Cloze, Infills
from chainrule.types import Sequences

Ids = Sequence[int]


class Filling(NamedTuple):
    """What belongs in the gaps of a text."""

    spans: tuple[tuple[int, ...], ...]  # one for each gap
    log_prob: float  # nats, given the text around them


class Limits(NamedTuple):
    """How fillings are looked for."""

    beam: int = 8
    longest: int = 16  # tokens in a gap, of models that write spans
    suppress: tuple[int, ...] = ()  # ids that are never written


@torch.inference_mode()
def fill(model: Model, parts: Sequence[Ids], limits: Limits, *, eos: int) -> list[Filling]:
    """The best fillings, best first, of a text that has a gap between each of its parts and the next."""
    if len(parts) < 2:
        raise DecodingError("the text has no gap; write <> where something is missing")
    if isinstance(model, Cloze):
        return _fill_tokens(model, model.device, parts, limits)
    if isinstance(model, Infills) and isinstance(model, AutoregressiveModel):
        return _fill_spans(model, Corruption(sentinels=model.sentinels, eos=eos), parts, limits)
    raise DecodingError(f"a {type(model).__name__} fills no gaps; give a run of bert or t5")


def _fill_tokens(model: Cloze, device: torch.device, parts: Sequence[Ids], limits: Limits) -> list[Filling]:
    gaps = len(parts) - 1
    suppressed = torch.tensor(limits.suppress, dtype=torch.int64, device=device)
    found = [Filling((), 0.0)]
    for gap in range(gaps):
        rows = [_with_holes(parts, one.spans) for one in found]
        ids = torch.tensor(rows, device=device)
        choices = likeliest(
            model.predict(Sequences.full(ids.clamp(min=0)), ids < 0)[:: gaps - gap], limits.beam, suppressed
        )
        found = _best(
            [
                Filling((*one.spans, (token,)), one.log_prob - cost)
                for one, row in zip(found, choices, strict=True)
                for cost, token in row
            ],
            limits.beam,
        )
    return found


def _with_holes(parts: Sequence[Ids], spans: Sequence[Ids]) -> list[int]:
    """The text with its first gaps filled; the others hold −1."""
    row = list(parts[0])
    for gap, part in enumerate(parts[1:]):
        row += spans[gap] if gap < len(spans) else [-1]
        row += part
    return row


def _fill_spans(
    model: AutoregressiveModel, corruption: Corruption, parts: Sequence[Ids], limits: Limits
) -> list[Filling]:
    source = corruption.source([list(part) for part in parts]).tolist()
    sentinels = list(corruption.sentinels[: len(parts) - 1])
    found = [Filling((), 0.0)]
    for gap, closing in enumerate([*sentinels[1:], corruption.eos]):
        written = [_target(sentinels, one.spans) for one in found]
        room = limits.longest if model.context is None else min(limits.longest, model.context - max(map(len, written)))
        if room < 1:
            raise DecodingError(
                f"the gaps before gap {gap + 1} leave no room for it; leave fewer, or raise model.context"
            )
        closers = {*corruption.sentinels, corruption.eos} - {closing}
        results = beam_search(
            model,
            written,
            width=limits.beam,
            num=limits.beam,
            length=room,
            eos=closing,
            length_penalty=0.0,
            ended_first=True,
            suppress=sorted({*closers, *limits.suppress} - {closing}),
            source=Sequences.pack([source] * len(written), model.device),
        )
        ended = any(one.finished == "eos" for row in results for one in row)
        found = _best(
            [
                Filling((*before.spans, tuple(one.ids)), before.log_prob + one.log_prob)
                for before, row in zip(found, results, strict=True)
                for one in row
                if one.finished == "eos" or not ended
            ],
            limits.beam,
        )
    return found


def _target(sentinels: Ids, spans: Sequence[Ids]) -> list[int]:
    """What was written so far, up to the sentinel of the next gap."""
    closed = [token for sentinel, span in zip(sentinels, spans, strict=False) for token in (sentinel, *span)]
    return [*closed, sentinels[len(spans)]]


def _best(fillings: Sequence[Filling], count: int) -> list[Filling]:
    return sorted(fillings, key=lambda one: (-one.log_prob, one.spans))[:count]
