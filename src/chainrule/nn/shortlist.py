"""Vocabulary shortlists: the readout is restricted to the target tokens that are likely given the source.

    L(s) = {frequent tokens} ∪ ⋃_n partners(s_n) ∪ {EOS}

where the partners of a source token are the rare target tokens with the strongest co-occurrence in the training data
(Jean et al., 2015; L'Hostis et al., 2016). A step then scores |L| tokens instead of V.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping
from typing import ClassVar, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from chainrule.interface.base import AutoregressiveModel, TabledReadout
from chainrule.interface.capabilities import TokenPairs
from chainrule.interface.conditional import Conditional, TranslationConfig
from chainrule.kernels import step as kernels
from chainrule.kernels.instructions import Vector
from chainrule.kernels.program import ProgramBuilder
from chainrule.kernels.step import Compilable
from chainrule.types import Batch, Sequences, State, Step

EOS = 0  # of every tokenizer
NO_PARTNER = -1  # pads the table where a token has fewer partners


class Shortlists(TabledReadout, Compilable):
    """Capability of a translation model: decoding with a shortlist."""

    @abstractmethod
    def shortlisted(self) -> Shortlisted:
        """The model restricted to the shortlist of each source."""

    @abstractmethod
    def describe_hidden(self, program: ProgramBuilder) -> Vector:
        """Describe how one token changes the state, and gives the hidden vector that the readout takes."""


class Shortlist(nn.Module):
    """The table of shortlists. Before `set` is called, every token is listed."""

    frequent: Tensor  # (V,) bool
    partners: Tensor  # (source vocabulary, C) target ids, or NO_PARTNER

    def __init__(self, source_vocabulary: int, vocabulary: int, partners: int) -> None:
        super().__init__()
        self.register_buffer("frequent", torch.ones(vocabulary, dtype=torch.bool))
        self.register_buffer("partners", torch.full((source_vocabulary, partners), NO_PARTNER))

    def set(self, frequent: Tensor, partners: Tensor) -> None:
        """Set the tokens that are always listed, (V,) bool, and the partners of source tokens (see `partners_of`)."""
        self.frequent.copy_(frequent)
        self.frequent[EOS] = True
        self.partners.copy_(partners)

    def of(self, source: Sequences) -> Tensor:
        """(B, V) bool: the shortlist of each row."""
        ids = source.ids.masked_fill(~source.mask, 0)
        partners = self.partners[ids].masked_fill(~source.mask[..., None], NO_PARTNER).flatten(1)  # (B, S · C)
        listed = self.frequent.repeat(len(ids), 1)
        found = partners != NO_PARTNER
        return listed.scatter_(1, partners.where(found, EOS), True)  # EOS is listed anyway


def partners_of(pairs: TokenPairs, rare: npt.NDArray[np.bool_], source_vocabulary: int, count: int) -> Tensor:
    """(source vocabulary, C): for each source token its C best partners among the rare target tokens (V,).

    Ranked by Dice's coefficient 2 n(s, y) / (n(s) + n(y)) over sentences: plain counts would favour tokens that
    co-occur with everything.
    """
    sources: Counter[int] = Counter()
    targets: Counter[int] = Counter()
    together: Counter[tuple[int, int]] = Counter()
    for source, target in pairs:
        words = set(map(int, source))
        rarer = {word for word in map(int, target) if rare[word]}
        sources.update(words)
        targets.update(rarer)
        together.update((word, other) for word in words for other in rarer)
    ranked: list[list[tuple[float, int]]] = [[] for _ in range(source_vocabulary)]
    for (word, other), times in together.items():
        ranked[word].append((-2 * times / (sources[word] + targets[other]), other))
    table = torch.full((source_vocabulary, count), NO_PARTNER)
    for word, found in enumerate(ranked):
        best = [other for _, other in sorted(found)[:count]]
        table[word, : len(best)] = torch.tensor(best, dtype=torch.int64)
    return table


class ShortlistedState(NamedTuple):
    listed: Tensor  # (B, L) the shortlist of each row, in ascending order, then padding
    counts: Tensor  # (B,) its length
    inner: State  # of the wrapped model


class Shortlisted(Conditional, AutoregressiveModel, Compilable):
    """A translation model restricted to the shortlist of each source.

        P_L(y_t | y_<t, s) = P(y_t | y_<t, s) / Σ_{w ∈ L(s)} P(w | y_<t, s)        for y_t ∈ L(s), else 0

    It is normalised over the sequences of listed tokens, and a compiled step reads only the vectors of these.
    The likelihood of a target is at least that of the wrapped model if all its tokens are listed, and 0 (−∞ nats)
    otherwise. So it is meant for decoding; training and reported likelihoods use the wrapped model.
    """

    Config = TranslationConfig
    task = "translation"
    check_exceptions: ClassVar[Mapping[str, str]] = {
        "saving_and_loading_is_bit_exact": "it is never saved: it is derived from a model that is",
        "the_source_matters": "random targets hold words off the list, whose log-probability is −∞ for either source",
    }
    config: TranslationConfig

    def __init__(self, model: Shortlists, shortlist: Shortlist) -> None:
        super().__init__(model.config)
        self.model = model
        self.shortlist = shortlist

    @property
    def context(self) -> int | None:
        return self.model.context

    @property
    def source_context(self) -> int | None:
        return self.model.source_context

    def logits(self, batch: Batch) -> Tensor:
        listed = self.shortlist.of(self.require_source(batch.source))
        return self.model.logits(batch).masked_fill(~listed[:, None], -torch.inf)

    def start(self, source: Sequences | None = None, *, batch_size: int = 1) -> Step:
        given = self.require_source(source)
        rows, ids = self.shortlist.of(given).nonzero(as_tuple=True)
        counts = rows.bincount(minlength=len(given.ids))
        listed = torch.nn.utils.rnn.pad_sequence(list(torch.split(ids, counts.tolist())), True)
        bos = torch.full((len(given.ids), 1), self.model.bos, dtype=torch.int64, device=self.device)
        return self.extend(bos, ShortlistedState(listed, counts, self.model.initial(given, len(bos))))

    def extend(self, tokens: Tensor, state: State) -> Step:
        if (compiled := kernels.extend(self, tokens, state)) is not None:
            return compiled
        listed, counts, before = cast(ShortlistedState, state)
        hidden, after = self.model.advance(tokens, before)
        real = torch.arange(listed.shape[1], device=listed.device) < counts[:, None]
        absent = torch.ones(len(listed), self.vocabulary, dtype=torch.bool, device=listed.device)
        absent.scatter_(1, listed.where(real, EOS), False)  # EOS is listed anyway
        logits = self.model.readout(hidden).masked_fill(absent[:, None], -torch.inf)
        return Step(logits, ShortlistedState(listed, counts, after))

    @property
    def has_program(self) -> bool:
        return kernels.has_program(self.model)

    def describe_step(self, program: ProgramBuilder) -> None:
        weight, bias = self.model.readout_table()
        hidden = program.new(weight.shape[1])
        with program.part_of_model(2, program.result()):
            program.copy(self.model.describe_hidden(program), hidden)
        program.listed_logits(hidden, weight[: self.vocabulary], bias, listed=0, counts=1)

    def make_room(self, state: State, count: int) -> State:
        listed, counts, inner = cast(ShortlistedState, state)
        return ShortlistedState(listed, counts, self.model.make_room(inner, count))

    def room(self, state: State) -> float:
        return self.model.room(cast(ShortlistedState, state).inner)
