"""Every embedder passes every check, and every check fails on a model with the bug it is there for."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from chainrule.evaluation.verify import CheckFailed
from chainrule.models.elmo import ELMo, ELMoConfig
from chainrule.testing import check_embedder, tiny_embedder
from chainrule.testing.embedder_checks import all_embedder_checks
from chainrule.testing.tiny import embedder_variants
from chainrule.types import Sequences


@pytest.mark.parametrize(("family", "variant"), embedder_variants())
@pytest.mark.parametrize("check", sorted(all_embedder_checks(lambda: tiny_embedder("elmo"))))
def test_family_passes(family: str, variant: str, check: str) -> None:
    [finding] = check_embedder(lambda: tiny_embedder(family, variant), only=check)
    assert finding.status == "passed"


class Constant(ELMo):
    def embed(self, texts: Sequences) -> Tensor:
        return torch.ones_like(super().embed(texts))


class ReadsThePadding(ELMo):
    def embed(self, texts: Sequences) -> Tensor:
        return super().embed(Sequences.full(texts.ids))


class SeesOtherRows(ELMo):
    def embed(self, texts: Sequences) -> Tensor:
        vectors = super().embed(texts)
        return vectors + 1e-3 * vectors[:, :1].mean(0)


class HasAnUnsavedWeight(ELMo):
    def __init__(self, config: ELMoConfig) -> None:
        super().__init__(config)
        self.own = torch.rand(())

    def embed(self, texts: Sequences) -> Tensor:
        return super().embed(texts) + self.own


class DiffersEachTime(HasAnUnsavedWeight):
    def __init__(self, config: ELMoConfig) -> None:
        super().__init__(config)
        torch.seed()
        self.own = torch.rand(())


BUGS = {
    "vectors_have_the_right_shape": Constant,
    "padding_does_not_matter": ReadsThePadding,
    "rows_are_independent": SeesOtherRows,
    "saving_and_loading_is_bit_exact": HasAnUnsavedWeight,
    "building_is_deterministic": DiffersEachTime,
}


@pytest.mark.parametrize("check", sorted(all_embedder_checks(lambda: tiny_embedder("elmo"))))
def test_check_fails_on_its_bug(check: str) -> None:
    def build() -> ELMo:
        torch.manual_seed(0)
        return BUGS[check](ELMoConfig(vocabulary=5, layers=1, width=6)).eval()

    with pytest.raises(CheckFailed, match=check):
        check_embedder(build, only=check)
