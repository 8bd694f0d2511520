"""`check_embedder`: the properties of a model that maps every token of a text to a vector.

from chainrule.testing import check_embedder
check_embedder(lambda: MyModel(MyConfig(vocabulary=5, width=8)))
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from chainrule.evaluation.verify import Finding, require, require_close, saved_and_loaded
from chainrule.interface.base import Model
from chainrule.interface.capabilities import Embedder
from chainrule.testing.checks import run_checks
from chainrule.types import Sequences

Build = Callable[[], Model]


class EmbedderSubject:
    """A model under test, and random texts of different lengths."""

    def __init__(self, model: Model) -> None:
        self.model = copy.deepcopy(model).double().eval()
        width = min(7, (model.context or 8) - 1)  # one position is left for more padding
        ids = torch.randint(model.vocabulary, (4, width), generator=torch.Generator().manual_seed(0))
        self.texts = Sequences(ids, torch.linspace(width, 1, 4).long())

    @torch.no_grad()
    def embed(self, texts: Sequences, model: Model | None = None) -> Tensor:
        """(B, T, D), zero past the lengths, where vectors are undefined."""
        vectors = cast(Embedder, model or self.model).embed(texts)
        return vectors.masked_fill(~texts.mask[..., None], 0.0)


def check_embedder(build: Build, *, only: str | None = None) -> list[Finding]:
    """Run every check in float64 and return what each found; the first failure is raised."""
    return run_checks(all_embedder_checks(build), lambda: EmbedderSubject(build()), {}, only)


def all_embedder_checks(build: Build) -> Mapping[str, Callable[[EmbedderSubject], None]]:
    return {
        "building_is_deterministic": lambda _: building_is_deterministic(build),
        **{check.__name__: check for check in CHECKS},
    }


def building_is_deterministic(build: Build) -> None:
    first, second = EmbedderSubject(build()), EmbedderSubject(build())
    found = second.embed(first.texts)
    require(torch.equal(first.embed(first.texts), found), "`build` returns another model the second time")


def vectors_have_the_right_shape(subject: EmbedderSubject) -> None:
    """(B, T, D), finite, and not the same for every token."""
    vectors = subject.embed(subject.texts)
    expected = (*subject.texts.ids.shape, cast(Embedder, subject.model).embedding_width)
    require(tuple(vectors.shape) == expected, f"vectors have the shape {tuple(vectors.shape)}, expected {expected}")
    require(bool(vectors.isfinite().all()), "vectors are not finite")
    require(not torch.equal(vectors[0, :1].expand_as(vectors[0]), vectors[0]), "every token has the same vector")


def padding_does_not_matter(subject: EmbedderSubject) -> None:
    """Neither the ids past a row's length nor their number change a vector."""
    texts, vocabulary = subject.texts, subject.model.vocabulary
    expected = subject.embed(texts)
    noise = torch.where(texts.mask, texts.ids, (texts.ids + 1) % vocabulary)
    require_close(subject.embed(Sequences(noise, texts.lengths)), expected, "the ids in the padding change a vector")
    wider = subject.embed(Sequences(F.pad(texts.ids, (0, 1), value=1), texts.lengths))
    require_close(wider[:, :-1], expected, "more padding changes a vector")


def rows_are_independent(subject: EmbedderSubject) -> None:
    """A text has the same vectors by itself, without padding, as in a batch."""
    expected = subject.embed(subject.texts)
    for row, length in enumerate(subject.texts.lengths.tolist()):
        single = Sequences.full(subject.texts.ids[row : row + 1, :length])
        require_close(subject.embed(single)[0], expected[row, :length], "a text by itself has other vectors")


def saving_and_loading_is_bit_exact(subject: EmbedderSubject) -> None:
    """Weights saved and loaded again give the same vectors to the last bit."""
    found = subject.embed(subject.texts, saved_and_loaded(subject.model, seed=0))
    require(torch.equal(found, subject.embed(subject.texts)), "a model that was saved and loaded gives other vectors")


CHECKS: tuple[Callable[[EmbedderSubject], None], ...] = (
    vectors_have_the_right_shape,
    padding_does_not_matter,
    rows_are_independent,
    saving_and_loading_is_bit_exact,
)
