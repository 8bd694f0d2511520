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
    "accumulated_pieces_are_the_big_batch": NeuralModel,
    "a_resumed_run_is_the_uninterrupted_one": NeuralModel,
    "observing_in_pieces_is_observing_at_once": CountModel,
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
    monkeypatch.setattr(IgnoresTheSource, "check_exceptions", {check: "it is a language model in disguise"})
    expected = ("the source matters", "exception", "it is a language model in disguise")
    assert check_model(ignoring, only=check) == [expected]
    assert expected in verify.verify(ignoring())


def test_the_table_of_checks_lists_results_reasons_and_exceptions() -> None:
    [ngram] = check_rows("ngram")
    assert (ngram.suite, ngram.passed) == ("check_model", "14 of 19")
    assert "2: the model has no source" in ngram.notes
    [classifier] = check_rows("classifier")
    assert "states can be taken apart: a target is one label" in classifier.notes
    none, embedder = check_rows("word2vec")
    assert (none.suite, none.passed) == ("check_model", "not applicable")
    assert "no distribution over sequences" in none.notes
    assert (embedder.suite, embedder.passed, embedder.notes) == ("check_embedder", "5 of 5", "")


# Models with one bug each


def small_gpt(**changes: Any) -> GPTConfig:
    return GPTConfig(vocabulary=5, layers=1, width=8, heads=2, context=16, **changes)


def shaken(model: AutoregressiveModel) -> AutoregressiveModel:
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


class PeeksAtTheNext(GPT):
    """Reads the token it should predict."""

    def hidden(self, batch: Batch) -> Tensor:
        shifted = Sequences(batch.target.ids.roll(-1, dims=1), batch.target.lengths)
        return super().hidden(batch) + 0.1 * super().hidden(Batch(shifted))


class MeanOverTime(GPT):
    """Normalises over the whole sequence, as a batch norm would."""

    def hidden(self, batch: Batch) -> Tensor:
        hidden = super().hidden(batch)
        return hidden - hidden.mean(1, keepdim=True)


class ForgetsItsPosition(GPT):
    """The cache stays one behind."""

    def advance(self, tokens: Tensor, state: State) -> Any:
        hidden, after = super().advance(tokens, state)
        return Advance(hidden, after._replace(positions=(after.positions - 1).clamp(min=1)))


class ReadsThePadding(GPT):
    def hidden(self, batch: Batch) -> Tensor:
        return super().hidden(batch) + batch.target.ids.sum(1)[:, None, None] * 0.01 * batch.target.mask[..., None]


class SeesOtherRows(GPT):
    def hidden(self, batch: Batch) -> Tensor:
        hidden = super().hidden(batch)
        return hidden + 0.01 * hidden.mean(0)


class ShuffledMemory(Recurrent):
    """Keeps the state of all rows in the first."""

    def advance(self, tokens: Tensor, state: State) -> Any:
        if len(tokens) > 1:
            state = map_state(lambda tensor: tensor[:1].expand_as(tensor).contiguous(), state)
        return super().advance(tokens, state)


class ForgetsWhenSaved(GPT):
    """Keeps a learned number where the file does not see it."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__(config)
        self.register_buffer("scale", torch.rand(1), persistent=False)

    def readout(self, hidden: Tensor) -> Tensor:
        return super().readout(hidden) * (1 + self.scale)


class DependsOnTheBatchSize(GPT):
    """The cached path of many rows differs from that of one: padding bugs look like this."""

    def advance(self, tokens: Tensor, state: State) -> Any:
        hidden, after = super().advance(tokens, state)
        return Advance(hidden * (-1.0 if len(tokens) > 1 else 1.0), after)


class LosesTheFirstPiece(NGram):
    def observe(self, target: Sequences, state: State | None = None) -> State:
        return super().observe(target, None)


class MeanOfItsPiece(GPT):
    """A loss that is divided inside a piece: the old bug of gradient accumulation."""

    def readout(self, hidden: Tensor) -> Tensor:
        return super().readout(hidden / len(hidden)) if hidden.ndim == 2 else super().readout(hidden)


class DrawsFromElsewhere(GPT):
    """Noise whose source is not saved with the run."""

    noise = torch.Generator().manual_seed(0)

    def hidden(self, batch: Batch) -> Tensor:
        hidden = super().hidden(batch)
        return hidden + 0.1 * torch.rand(1, generator=self.noise) if self.training else hidden


class AnotherEachTime(GPT):
    made = 0

    def __init__(self, config: GPTConfig) -> None:
        super().__init__(config)
        AnotherEachTime.made += 1
        self.register_buffer("number", torch.tensor(float(AnotherEachTime.made)))

    def readout(self, hidden: Tensor) -> Tensor:
        return super().readout(hidden) * self.number


def small_transformer() -> TransformerConfig:
    return TransformerConfig(
        vocabulary=5, source_vocabulary=6, encoder_layers=1, decoder_layers=1, width=8, heads=2, context=16
    )


class LooksPastTheEnd(Transformer):
    """Takes every source to be as long as the longest."""

    def require_source(self, source: Sequences | None) -> Sequences:
        given = super().require_source(source)
        return Sequences.full(given.ids.masked_fill(~given.mask, 0))


class StartsAtTheWrongEnd(Seq2Seq):
    """The backward direction begins in the padding, which is the classic mistake."""

    def initial(self, source: Sequences | None, batch_size: int) -> Seq2SeqState:
        given = self.require_source(source)
        turned = Sequences.full(given.ids.masked_fill(~given.mask, 0).flip(1))
        return super().initial(given, batch_size)._replace(layers=super().initial(turned, batch_size).layers)


class IgnoresTheSource(Seq2Seq):
    """A language model in disguise."""

    def initial(self, source: Sequences | None, batch_size: int) -> Seq2SeqState:
        given = self.require_source(source)
        return super().initial(given._replace(ids=torch.zeros_like(given.ids)), batch_size)


class SeesOtherSources(Seq2Seq):
    """Encodes with the mean of the batch."""

    def initial(self, source: Sequences | None, batch_size: int) -> Seq2SeqState:
        state = super().initial(source, batch_size)
        return map_state(lambda tensor: tensor + 0.1 * tensor.mean(0) if tensor.is_floating_point() else tensor, state)


class ForgetsTheSource(Seq2Seq):
    """Looks at it for one chunk only, so that the cached path differs from the whole."""

    def advance(self, tokens: Tensor, state: State) -> Any:
        hidden, after = super().advance(tokens, state)
        vectors, lengths = after.source
        return Advance(hidden, after._replace(source=type(after.source)(torch.zeros_like(vectors), lengths)))


def small_seq2seq() -> Seq2SeqConfig:
    return Seq2SeqConfig(vocabulary=5, source_vocabulary=6, layers=1, width=6)


class ForgetsTooMuch(GPT):
    """Takes back twice what it should."""

    def rewind(self, state: State, counts: Tensor) -> Any:
        kept = super().rewind(state, 2 * counts)
        return kept._replace(positions=kept.positions.clamp(min=1))


BUGS = {
    "logits_have_the_right_form": lambda: shaken(WrongShape(small_gpt())),
    "probabilities_sum_to_one": lambda: shaken(Unnormalised(small_gpt())),
    "the_future_does_not_matter": lambda: shaken(PeeksAtTheNext(small_gpt())),
    "no_gradient_reaches_the_future": lambda: shaken(MeanOverTime(small_gpt())),
    "chunks_equal_the_whole": lambda: shaken(ForgetsItsPosition(small_gpt())),
    "padding_does_not_matter": lambda: shaken(ReadsThePadding(small_gpt())),
    "rows_do_not_see_each_other": lambda: shaken(SeesOtherRows(small_gpt())),
    "states_can_be_taken_apart": lambda: shaken(ShuffledMemory(RecurrentConfig(vocabulary=5, width=6))),
    "saving_keeps_every_bit": lambda: shaken(ForgetsWhenSaved(small_gpt())),
    "prompts_in_a_batch_are_as_alone": lambda: shaken(DependsOnTheBatchSize(small_gpt())),
    "observing_in_pieces_is_observing_at_once": lambda: LosesTheFirstPiece(NGramConfig(vocabulary=5, order=3)),
    "accumulated_pieces_are_the_big_batch": lambda: shaken(MeanOfItsPiece(small_gpt())),
    "a_resumed_run_is_the_uninterrupted_one": lambda: shaken(DrawsFromElsewhere(small_gpt())),
    "building_twice_gives_one_model": lambda: shaken(AnotherEachTime(small_gpt())),
    "padding_of_the_source_does_not_matter": lambda: shaken(LooksPastTheEnd(small_transformer())),
    "drafts_change_nothing": lambda: shaken(ForgetsTooMuch(small_gpt())),
    "the_source_matters": lambda: shaken(IgnoresTheSource(small_seq2seq())),
}


@pytest.mark.parametrize("check", sorted(BUGS))
def test_check_fails_on_its_bug(check: str) -> None:
    with pytest.raises((CheckFailed, RuntimeError)):
        check_model(BUGS[check], only=check)


@pytest.mark.parametrize(
    ("model", "check"),
    [
        (StartsAtTheWrongEnd, "padding_of_the_source_does_not_matter"),
        (SeesOtherSources, "rows_do_not_see_each_other"),
        (ForgetsTheSource, "chunks_equal_the_whole"),
    ],
)
def test_check_fails_on_a_bug_about_sources(model: type[Seq2Seq], check: str) -> None:
    with pytest.raises(CheckFailed):
        check_model(lambda: shaken(model(small_seq2seq())), only=check)


SEARCHES = {"beam_of_one_is_greedy", "beam_of_full_width_is_exhaustive"}


@pytest.mark.parametrize("check", sorted(SEARCHES))
def test_check_fails_on_a_misled_search(check: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def misled(model: AutoregressiveModel, prompts: Any, **settings: Any) -> list[list[Generation]]:
        favourite = int(model.start().logits.argmax())
        return beam_search(model, prompts, suppress=[favourite], **settings)

    monkeypatch.setattr(verify, "beam_search", misled)
    with pytest.raises(CheckFailed):
        check_model(lambda: tiny_model("gpt"), only=check)


def test_every_check_has_been_seen_to_fail() -> None:
    assert set(BUGS) | SEARCHES == set(all_checks(lambda: tiny_model("gpt")))
