"""Filling gaps in a text with models that see both sides of them.

A `Cloze` model predicts one token for each gap. Gaps are filled from left to right, each given the earlier ones and
with the later ones masked:

    P(g_1 … g_n | text) = Π_i P(g_i | text, g_<i)

An `Infills` model generates spans of any length, separated by sentinels: its target has this factorisation already. In
either case a beam holds the most probable fillings of the gaps so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from chainrule.data.spans import Corruption
from chainrule.decoding.beam import beam_search, top_choices
from chainrule.errors import DecodingError
from chainrule.interface.base import AutoregressiveModel, Model
from chainrule.interface.capabilities import Cloze, Infills
from chainrule.types import Sequences

Ids = Sequence[int]


class Filling(NamedTuple):
    """A filling of all gaps of a text."""

    spans: tuple[tuple[int, ...], ...]  # one for each gap
    log_prob: float  # nats, given the surrounding text


class FillSearch(NamedTuple):
    """How fillings are searched for."""

    beam: int = 8
    longest: int = 16  # maximum tokens per gap, for models that generate spans
    suppress: tuple[int, ...] = ()  # ids that are never generated


@torch.inference_mode()
def fill(model: Model, parts: Sequence[Ids], search: FillSearch, *, eos: int) -> list[Filling]:
    """The best fillings, best first, of a text with a gap between consecutive parts."""
    if len(parts) < 2:
        raise DecodingError("the text has no gap; mark each with <>")
    if isinstance(model, Cloze):
        return _fill_tokens(model, model.device, parts, search)
    if isinstance(model, Infills) and isinstance(model, AutoregressiveModel):
        return _fill_spans(model, Corruption(sentinels=model.sentinels, eos=eos), parts, search)
    raise DecodingError(f"{type(model).__name__} cannot fill gaps; use a run of bert or t5")


def _fill_tokens(model: Cloze, device: torch.device, parts: Sequence[Ids], search: FillSearch) -> list[Filling]:
    gaps = len(parts) - 1
    suppressed = torch.tensor(search.suppress, dtype=torch.int64, device=device)
    found = [Filling((), 0.0)]
    for gap in range(gaps):
        rows = [_with_masks(parts, one.spans) for one in found]
        ids = torch.tensor(rows, device=device)
        choices = top_choices(
            model.predict(Sequences.full(ids.clamp(min=0)), ids < 0)[:: gaps - gap], search.beam, suppressed
        )
        found = _best(
            [
                Filling((*one.spans, (token,)), one.log_prob - cost)
                for one, row in zip(found, choices, strict=True)
                for cost, token in row
            ],
            search.beam,
        )
    return found


def _with_masks(parts: Sequence[Ids], spans: Sequence[Ids]) -> list[int]:
    """The text with its first gaps filled and −1 in the others."""
    row = list(parts[0])
    for gap, part in enumerate(parts[1:]):
        row += spans[gap] if gap < len(spans) else [-1]
        row += part
    return row


def _fill_spans(
    model: AutoregressiveModel, corruption: Corruption, parts: Sequence[Ids], search: FillSearch
) -> list[Filling]:
    source = corruption.source([list(part) for part in parts]).tolist()
    sentinels = list(corruption.sentinels[: len(parts) - 1])
    found = [Filling((), 0.0)]
    for gap, closing in enumerate([*sentinels[1:], corruption.eos]):
        targets = [_target(sentinels, one.spans) for one in found]
        room = search.longest if model.context is None else min(search.longest, model.context - max(map(len, targets)))
        if room < 1:
            raise DecodingError(
                f"gap {gap + 1} exceeds the context after the gaps before it; use fewer gaps, or raise model.context"
            )
        closers = {*corruption.sentinels, corruption.eos} - {closing}
        results = beam_search(
            model,
            targets,
            width=search.beam,
            num=search.beam,
            length=room,
            eos=closing,
            length_penalty=0.0,
            ended_first=True,
            suppress=sorted({*closers, *search.suppress} - {closing}),
            source=Sequences.pack([source] * len(targets), model.device),
        )
        ended = any(one.finished == "eos" for row in results for one in row)
        found = _best(
            [
                Filling((*before.spans, tuple(one.ids)), before.log_prob + one.log_prob)
                for before, row in zip(found, results, strict=True)
                for one in row
                if one.finished == "eos" or not ended
            ],
            search.beam,
        )
    return found


def _target(sentinels: Ids, spans: Sequence[Ids]) -> list[int]:
    """The target so far, up to the sentinel of the next gap."""
    closed = [token for sentinel, span in zip(sentinels, spans, strict=False) for token in (sentinel, *span)]
    return [*closed, sentinels[len(spans)]]


def _best(fillings: Sequence[Filling], count: int) -> list[Filling]:
    return sorted(fillings, key=lambda one: (-one.log_prob, one.spans))[:count]
