"""Every parallel family passes every check, and the checks can fail: each is shown a model with a bug."""

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


class SeesOtherRows(NonAutoregressive):
    def generate(self, source: Sequences, budget: DecodingBudget, **settings: Any) -> list[ParallelOutput]:
        extra = len(source.ids) - 1
        return [one._replace(score=one.score + 1e-3 * extra) for one in super().generate(source, budget, **settings)]


class Boasts(NonAutoregressive):
    """Says that what it writes is likelier than it is."""

    def generate(self, source: Sequences, budget: DecodingBudget, **settings: Any) -> list[ParallelOutput]:
        return [one._replace(log_prob=one.log_prob / 100) for one in super().generate(source, budget, **settings)]


class WritesWhatItLikes(NonAutoregressive):
    def generate(
        self, source: Sequences, budget: DecodingBudget, *, suppress: Sequence[int] = (), **settings: Any
    ) -> list[ParallelOutput]:
        return super().generate(source, budget, **settings)


class IgnoresItsSource(NonAutoregressive):
    def log_prob(self, batch: Batch) -> Tensor:
        assert batch.source is not None
        return super().log_prob(Batch(batch.target, Sequences(batch.source.ids * 0, batch.source.lengths)))


class KeepsAThingToItself(NonAutoregressive):
    """A number that is not saved."""

    def __init__(self, config: NonAutoregressiveConfig) -> None:
        super().__init__(config)
        self.own = torch.rand(())

    def log_prob(self, batch: Batch) -> Tensor:
        return super().log_prob(batch) - self.own


class MixesUpChances(NonAutoregressive):
    """A row has the numbers of another one, and of another one again where the batch is cut."""

    def loss(self, batch: Batch, chance: Tensor, *, smoothing: float = 0.0) -> Tensor:
        return super().loss(batch, chance.flip(0), smoothing=smoothing)


class HasAnIdleWeight(NonAutoregressive):
    def __init__(self, config: NonAutoregressiveConfig) -> None:
        super().__init__(config)
        self.idle = torch.nn.Parameter(torch.ones(1))


BUGS = {
    "probabilities_are_at_most_one": Unnormalised,
    "padding_does_not_matter": ReadsThePadding,
    "rows_do_not_see_each_other": SeesOtherRows,
    "what_is_written_is_as_likely_as_it_says": Boasts,
    "suppressed_tokens_are_never_written": WritesWhatItLikes,
    "the_source_matters": IgnoresItsSource,
    "saving_keeps_every_bit": KeepsAThingToItself,
    "accumulated_pieces_are_the_big_batch": MixesUpChances,
    "every_weight_learns": HasAnIdleWeight,
}


@pytest.mark.parametrize("check", BUGS)
def test_a_check_fails_on_the_bug_it_is_there_for(check: str) -> None:
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


def test_a_user_can_have_a_parallel_run_verified() -> None:
    findings = verify_parallel(tiny_parallel("nonautoregressive"))
    assert {finding.status for finding in findings} == {"passed"}
