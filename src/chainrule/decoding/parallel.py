"""Translating by models that write all tokens at once, in batches of sources of similar length.

How a target is written is the model's own business (`ParallelModel.write`). What is left here is what a decoder knows:
which sources go together, how much the model may do for them, and where a target ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from chainrule.data.batching import by_length
from chainrule.decoding.translation import TOKENS_AT_ONCE, Search, Translation
from chainrule.interface.conditional import DecodingBudget, ParallelModel, ParallelOutput
from chainrule.types import Sequences


@torch.inference_mode()
def write(
    model: ParallelModel,
    sources: Sequence[Sequence[int]],
    search: Search,
    *,
    eos: int = 0,
    suppress: Sequence[int] = (),
    batch: int = 32,
) -> list[list[Translation]]:
    """The translation of each source (ids that end with EOS), in the order of the sources; a list of one for each.

    What a source gives does not depend on those beside it.
    """
    budget = effort_of(model, search)
    found: list[list[Translation]] = [[] for _ in sources]
    for rows in by_length([len(source) for source in sources], batch, TOKENS_AT_ONCE // budget.lengths):
        written = model.generate(
            Sequences.pack([sources[row] for row in rows], model.device), budget, eos=eos, suppress=suppress
        )
        for row, one in zip(rows, written, strict=True):
            found[row] = [_translation(one, eos)]
    return found


def effort_of(model: ParallelModel, search: Search) -> DecodingBudget:
    """What the search allows, or what is usual for the model."""
    usual = model.default_budget
    beam = search.beam if usual.beam > 1 else 1
    return DecodingBudget(search.passes or usual.passes, search.length_candidates or usual.lengths, beam)


def _translation(written: ParallelOutput, eos: int) -> Translation:
    """What stands after the first EOS means nothing."""
    ids, ended = written.ids, eos in written.ids
    return Translation(
        ids[: ids.index(eos)] if ended else ids, written.log_prob, written.score, "eos" if ended else "length"
    )
