"""Every family passes every check that applies to it, and every check fails on a model with the bug it is there for."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from chainrule.decoding import Generation, beam_search
from chainrule.evaluation import verify
from chainrule.evaluation.verify import CheckFailed
from chainrule.families import FAMILIES
from chainrule.interface.base import Advance, AutoregressiveModel, CountModel, DensityModel, NeuralModel, Trainable
from chainrule.interface.conditional import Conditional
from chainrule.models.gpt import GPT, GPTConfig
from chainrule.models.ngram import NGram, NGramConfig
from chainrule.models.recurrent import Recurrent, RecurrentConfig
from chainrule.models.seq2seq import Seq2Seq, Seq2SeqConfig, Seq2SeqState
from chainrule.models.transformer import Transformer, TransformerConfig
from chainrule.testing import check_model, tiny_model
from chainrule.testing.checks import all_checks
from chainrule.testing.table import check_rows
from chainrule.testing.tiny import COMPOSED, TINY, composed_variants, variants
from chainrule.types import Batch, Sequences, State, map_state

APPLIES_TO: dict[str, type] = {
    "no_gradient_reaches_the_future": Trainable,
    "gradient_accumulation_equals_the_full_batch": NeuralModel,
    "resuming_is_bit_exact": NeuralModel,
    "counting_in_chunks_equals_counting_at_once": CountModel,
    "padding_of_the_source_does_not_matter": Conditional,
    "the_source_matters": Conditional,
}
"""Checks of models of one kind; all others apply to every autoregressive model."""


@pytest.mark.parametrize(("family", "variant"), [*variants(), *composed_variants()])
@pytest.mark.parametrize("check", sorted(all_checks(lambda: tiny_model("gpt"))))
def test_family_passes(family: str, variant: str, check: str) -> None:
    """... or the check is for models of another kind, or the family declares an exception: both count as skipped."""
    [finding] = check_model(lambda: tiny_model(family, variant), only=check)
    if finding.status == "not applicable":
        assert not issubclass(FAMILIES[family], APPLIES_TO[check])
    if finding.status != "passed":
        pytest.skip(f"{finding.status}: {finding.message}")


def test_every_registered_family_has_a_tiny_form() -> None:
    assert {*TINY, *COMPOSED} == {name for name, kind in FAMILIES.items() if issubclass(kind, AutoregressiveModel)}


DECLARED = [(name, check) for name, kind in FAMILIES.items() for check in kind.check_exceptions]


@pytest.mark.parametrize(("family", "check"), DECLARED)
def test_a_declared_exception_is_needed_by_some_variant_and_gives_a_reason(family: str, check: str) -> None:
    kind = FAMILIES[family]
    assert len(kind.check_exceptions[check].split()) > 5
    if check == "check_model":
        assert not issubclass(kind, DensityModel)
    else:
        forms = [variant for name, variant in [*variants(), *composed_variants()] if name == family]
        statuses = [check_model(partial(tiny_model, family, form), only=check)[0].status for form in forms]
        assert "exception" in statuses


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_family_without_a_likelihood_declares_why_check_model_does_not_apply(family: str) -> None:
    kind = FAMILIES[family]
    assert issubclass(kind, DensityModel) != ("check_model" in kind.check_exceptions)


def test_an_exception_must_name_a_check_that_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NGram, "check_exceptions", {"no_such_check": "because"})
    with pytest.raises(CheckFailed, match="do not exist"):
        check_model(lambda: tiny_model("ngram"))


def test_a_declared_exception_is_reported_with_its_reason_and_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    check = "the_source_matters"
    ignoring = BUGS[check]
    monkeypatch.setattr(IgnoresTheSource, "check_exceptions", {check: "it is a language model that takes a source"})
    expected = ("the source matters", "exception", "it is a language model that takes a source")
    assert check_model(ignoring, only=check) == [expected]
    assert expected in verify.verify(ignoring())


def test_the_table_of_checks_lists_results_reasons_and_exceptions() -> None:
    [ngram] = check_rows("ngram")
    assert (ngram.suite, ngram.passed) == ("check_model", "14 of 19")
    assert "2: the model has no source" in ngram.notes
    [classifier] = check_rows("classifier")
    assert "states can be merged and selected: a target is one label" in classifier.notes
    none, embedder = check_rows("word2vec")
    assert (none.suite, none.passed) == ("check_model", "not applicable")
    assert "no distribution over sequences" in none.notes
    assert (embedder.suite, embedder.passed, embedder.notes) == ("check_embedder", "5 of 5", "")


# Models with one bug each


def small_gpt(**changes: Any) -> GPTConfig:
    return GPTConfig(vocabulary=5, layers=1, width=8, heads=2, context=16, **changes)


def perturbed(model: AutoregressiveModel) -> AutoregressiveModel:
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model.eval()


class WrongShape(GPT):
    def readout(self, hidden: Tensor) -> Tensor:
        return super().readout(hidden)[..., :-1]


class Unnormalised(GPT):
    def log_prob(self, batch: Batch) -> Tensor:
        return super().log_prob(batch) + 1e-6


class ReadsTheTargetToken(GPT):
    """Reads the token it should predict."""

    def hidden(self, batch: Batch) -> Tensor:
        shifted = Sequences(batch.target.ids.roll(-1, dims=1), batch.target.lengths)
        return super().hidden(batch) + 0.1 * super().hidden(Batch(shifted))


class NormalisesOverTime(GPT):
    """Normalises over the whole sequence, as a batch norm would."""

    def hidden(self, batch: Batch) -> Tensor:
        hidden = super().hidden(batch)
        return hidden - hidden.mean(1, keepdim=True)


class CachesTheWrongPosition(GPT):
    """The cached position is one behind."""

    def advance(self, tokens: Tensor, state: State) -> Any:
        hidden, after = super().advance(tokens, state)
        return Advance(hidden, after._replace(positions=(after.positions - 1).clamp(min=1)))


class ReadsThePadding(GPT):
    def hidden(self, batch: Batch) -> Tensor:
        return super().hidden(batch) + batch.target.ids.sum(1)[:, None, None] * 0.01 * batch.target.mask[..., None]


class MixesRows(GPT):
    def hidden(self, batch: Batch) -> Tensor:
        hidden = super().hidden(batch)
        return hidden + 0.01 * hidden.mean(0)


class SharesOneState(Recurrent):
    """Gives all rows the state of the first."""

    def advance(self, tokens: Tensor, state: State) -> Any:
        if len(tokens) > 1:
            state = map_state(lambda tensor: tensor[:1].expand_as(tensor).contiguous(), state)
        return super().advance(tokens, state)


class HasAnUnsavedWeight(GPT):
    """Has a number that is not in the saved file."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__(config)
        self.register_buffer("scale", torch.rand(1), persistent=False)

    def readout(self, hidden: Tensor) -> Tensor:
        return super().readout(hidden) * (1 + self.scale)


class DependsOnTheBatchSize(GPT):
    """The cached path of many rows differs from that of one, as with a padding bug."""

    def advance(self, tokens: Tensor, state: State) -> Any:
        hidden, after = super().advance(tokens, state)
        return Advance(hidden * (-1.0 if len(tokens) > 1 else 1.0), after)


class DropsTheCountingState(NGram):
    def observe(self, target: Sequences, state: State | None = None) -> State:
        return super().observe(target, None)


class AveragesWithinAPiece(GPT):
    """Divides by the size of a piece: the classic bug of gradient accumulation."""

    def readout(self, hidden: Tensor) -> Tensor:
        return super().readout(hidden / len(hidden)) if hidden.ndim == 2 else super().readout(hidden)


class HasAnUnsavedGenerator(GPT):
    """Draws noise from a generator that is not saved with the run."""

    noise = torch.Generator().manual_seed(0)

    def hidden(self, batch: Batch) -> Tensor:
        hidden = super().hidden(batch)
        return hidden + 0.1 * torch.rand(1, generator=self.noise) if self.training else hidden


class DiffersEachTime(GPT):
    made = 0

    def __init__(self, config: GPTConfig) -> None:
        super().__init__(config)
        DiffersEachTime.made += 1
        self.register_buffer("number", torch.tensor(float(DiffersEachTime.made)))

    def readout(self, hidden: Tensor) -> Tensor:
        return super().readout(hidden) * self.number


def small_transformer() -> TransformerConfig:
    return TransformerConfig(
        vocabulary=5, source_vocabulary=6, encoder_layers=1, decoder_layers=1, width=8, heads=2, context=16
    )


class AttendsToPadding(Transformer):
    """Treats every source as long as the longest."""

    def require_source(self, source: Sequences | None) -> Sequences:
        given = super().require_source(source)
        return Sequences.full(given.ids.masked_fill(~given.mask, 0))


class ReversesThePadding(Seq2Seq):
    """The backward direction begins in the padding: the classic mistake."""

    def initial(self, source: Sequences | None, batch_size: int) -> Seq2SeqState:
        given = self.require_source(source)
        turned = Sequences.full(given.ids.masked_fill(~given.mask, 0).flip(1))
        return super().initial(given, batch_size)._replace(layers=super().initial(turned, batch_size).layers)


class IgnoresTheSource(Seq2Seq):
    """A language model that does not read its source."""

    def initial(self, source: Sequences | None, batch_size: int) -> Seq2SeqState:
        given = self.require_source(source)
        return super().initial(given._replace(ids=torch.zeros_like(given.ids)), batch_size)


class MixesSources(Seq2Seq):
    """Encodes with the mean of the batch."""

    def initial(self, source: Sequences | None, batch_size: int) -> Seq2SeqState:
        state = super().initial(source, batch_size)
        return map_state(lambda tensor: tensor + 0.1 * tensor.mean(0) if tensor.is_floating_point() else tensor, state)


class DropsTheSourceState(Seq2Seq):
    """Reads it for one chunk only, so that cached decoding differs from the full pass."""

    def advance(self, tokens: Tensor, state: State) -> Any:
        hidden, after = super().advance(tokens, state)
        vectors, lengths = after.source
        return Advance(hidden, after._replace(source=type(after.source)(torch.zeros_like(vectors), lengths)))


def small_seq2seq() -> Seq2SeqConfig:
    return Seq2SeqConfig(vocabulary=5, source_vocabulary=6, layers=1, width=6)


class RewindsTooFar(GPT):
    """Rewinds twice the number of tokens."""

    def rewind(self, state: State, counts: Tensor) -> Any:
        kept = super().rewind(state, 2 * counts)
        return kept._replace(positions=kept.positions.clamp(min=1))


BUGS = {
    "logits_have_the_right_shape": lambda: perturbed(WrongShape(small_gpt())),
    "probabilities_sum_to_one": lambda: perturbed(Unnormalised(small_gpt())),
    "predictions_ignore_the_future": lambda: perturbed(ReadsTheTargetToken(small_gpt())),
    "no_gradient_reaches_the_future": lambda: perturbed(NormalisesOverTime(small_gpt())),
    "chunked_decoding_equals_the_full_pass": lambda: perturbed(CachesTheWrongPosition(small_gpt())),
    "padding_does_not_matter": lambda: perturbed(ReadsThePadding(small_gpt())),
    "rows_are_independent": lambda: perturbed(MixesRows(small_gpt())),
    "states_can_be_merged_and_selected": lambda: perturbed(SharesOneState(RecurrentConfig(vocabulary=5, width=6))),
    "saving_and_loading_is_bit_exact": lambda: perturbed(HasAnUnsavedWeight(small_gpt())),
    "batched_decoding_equals_single_row_decoding": lambda: perturbed(DependsOnTheBatchSize(small_gpt())),
    "counting_in_chunks_equals_counting_at_once": lambda: DropsTheCountingState(NGramConfig(vocabulary=5, order=3)),
    "gradient_accumulation_equals_the_full_batch": lambda: perturbed(AveragesWithinAPiece(small_gpt())),
    "resuming_is_bit_exact": lambda: perturbed(HasAnUnsavedGenerator(small_gpt())),
    "building_is_deterministic": lambda: perturbed(DiffersEachTime(small_gpt())),
    "padding_of_the_source_does_not_matter": lambda: perturbed(AttendsToPadding(small_transformer())),
    "speculative_decoding_is_exact": lambda: perturbed(RewindsTooFar(small_gpt())),
    "the_source_matters": lambda: perturbed(IgnoresTheSource(small_seq2seq())),
}


@pytest.mark.parametrize("check", sorted(BUGS))
def test_check_fails_on_its_bug(check: str) -> None:
    with pytest.raises((CheckFailed, RuntimeError)):
        check_model(BUGS[check], only=check)


@pytest.mark.parametrize(
    ("model", "check"),
    [
        (ReversesThePadding, "padding_of_the_source_does_not_matter"),
        (MixesSources, "rows_are_independent"),
        (DropsTheSourceState, "chunked_decoding_equals_the_full_pass"),
    ],
)
def test_check_fails_on_a_bug_about_sources(model: type[Seq2Seq], check: str) -> None:
    with pytest.raises(CheckFailed):
        check_model(lambda: perturbed(model(small_seq2seq())), only=check)


SEARCHES = {"beam_of_width_one_is_greedy", "beam_of_full_width_is_exhaustive"}


@pytest.mark.parametrize("check", sorted(SEARCHES))
def test_search_check_fails_if_beam_search_is_wrong(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(model: AutoregressiveModel, prompts: Any, **settings: Any) -> list[list[Generation]]:
        favourite = int(model.start().logits.argmax())
        return beam_search(model, prompts, suppress=[favourite], **settings)

    monkeypatch.setattr(verify, "beam_search", wrong)
    with pytest.raises(CheckFailed):
        check_model(lambda: tiny_model("gpt"), only=check)


def test_every_check_has_been_seen_to_fail() -> None:
    assert set(BUGS) | SEARCHES == set(all_checks(lambda: tiny_model("gpt")))
