"""Every parallel family passes every check, and every check fails on a model with the bug it is there for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from chainrule.evaluation.verify import CheckFailed
from chainrule.evaluation.verify_parallel import verify_parallel
from chainrule.families import FAMILIES
from chainrule.interface.conditional import DecodingBudget, ParallelModel, ParallelOutput
from chainrule.models.nonautoregressive import NonAutoregressive, NonAutoregressiveConfig
from chainrule.testing import check_parallel, tiny_parallel
from chainrule.testing.parallel_checks import all_parallel_checks
from chainrule.testing.tiny import PARALLEL, parallel_variants
from chainrule.types import Batch, Sequences


@pytest.mark.parametrize(("family", "variant"), parallel_variants())
@pytest.mark.parametrize("check", sorted(all_parallel_checks(lambda: tiny_parallel("nonautoregressive"))))
def test_family_passes(family: str, variant: str, check: str) -> None:
    [finding] = check_parallel(lambda: tiny_parallel(family, variant), only=check)
    assert finding.status == "passed"


def test_every_registered_family_has_a_tiny_form() -> None:
    assert set(PARALLEL) == {name for name, kind in FAMILIES.items() if issubclass(kind, ParallelModel)}


class Unnormalised(NonAutoregressive):
    def log_prob(self, batch: Batch) -> Tensor:
        return super().log_prob(batch) + 8.0


class ReadsThePadding(NonAutoregressive):
    def log_prob(self, batch: Batch) -> Tensor:
        return super().log_prob(batch) - 1e-3 * batch.target.ids.sum(1)


class MixesRows(NonAutoregressive):
    def generate(self, source: Sequences, budget: DecodingBudget, **settings: Any) -> list[ParallelOutput]:
        extra = len(source.ids) - 1
        return [one._replace(score=one.score + 1e-3 * extra) for one in super().generate(source, budget, **settings)]


class OverstatesItsLogProb(NonAutoregressive):
    """Reports a log-probability that is too high."""

    def generate(self, source: Sequences, budget: DecodingBudget, **settings: Any) -> list[ParallelOutput]:
        return [one._replace(log_prob=one.log_prob / 100) for one in super().generate(source, budget, **settings)]


class IgnoresSuppressedTokens(NonAutoregressive):
    def generate(
        self, source: Sequences, budget: DecodingBudget, *, suppress: Sequence[int] = (), **settings: Any
    ) -> list[ParallelOutput]:
        return super().generate(source, budget, **settings)


class IgnoresItsSource(NonAutoregressive):
    def log_prob(self, batch: Batch) -> Tensor:
        assert batch.source is not None
        return super().log_prob(Batch(batch.target, Sequences(batch.source.ids * 0, batch.source.lengths)))


class HasAnUnsavedWeight(NonAutoregressive):
    """Has a number that is not in the saved file."""

    def __init__(self, config: NonAutoregressiveConfig) -> None:
        super().__init__(config)
        self.own = torch.rand(())

    def log_prob(self, batch: Batch) -> Tensor:
        return super().log_prob(batch) - self.own


class ShufflesItsNoise(NonAutoregressive):
    """A row has the numbers of another one, and of another one again where the batch is cut."""

    def loss(self, batch: Batch, chance: Tensor, *, smoothing: float = 0.0) -> Tensor:
        return super().loss(batch, chance.flip(0), smoothing=smoothing)


class HasAnUnusedParameter(NonAutoregressive):
    def __init__(self, config: NonAutoregressiveConfig) -> None:
        super().__init__(config)
        self.idle = torch.nn.Parameter(torch.ones(1))


BUGS = {
    "probabilities_sum_to_at_most_one": Unnormalised,
    "padding_does_not_matter": ReadsThePadding,
    "rows_are_independent": MixesRows,
    "reported_log_probs_are_lower_bounds": OverstatesItsLogProb,
    "suppressed_tokens_are_never_generated": IgnoresSuppressedTokens,
    "the_source_matters": IgnoresItsSource,
    "saving_and_loading_is_bit_exact": HasAnUnsavedWeight,
    "gradient_accumulation_equals_the_full_batch": ShufflesItsNoise,
    "every_parameter_has_a_gradient": HasAnUnusedParameter,
}


@pytest.mark.parametrize("check", BUGS)
def test_check_fails_on_its_bug(check: str) -> None:
    def build() -> NonAutoregressive:
        torch.manual_seed(0)
        settings = {"vocabulary": 5, "source_vocabulary": 6, **PARALLEL["nonautoregressive"]["masked"]}
        model = BUGS[check](NonAutoregressiveConfig.parse(settings))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
        return model.eval()

    with pytest.raises(CheckFailed, match=check):
        check_parallel(build, only=check)


def test_verify_runs_the_checks_on_a_parallel_model() -> None:
    findings = verify_parallel(tiny_parallel("nonautoregressive"))
    assert {finding.status for finding in findings} == {"passed"}
