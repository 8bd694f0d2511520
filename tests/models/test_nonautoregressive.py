"""Non-autoregressive translation; properties of every parallel family are in tests/testing."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from chainrule.errors import DataError, DecodingError
from chainrule.interface.conditional import DecodingBudget, ParallelModel
from chainrule.kernels.step import torch_only
from chainrule.models import nonautoregressive
from chainrule.models.hybrid_regressive import HybridRegressive, HybridRegressiveConfig
from chainrule.models.ngram import NGram, NGramConfig
from chainrule.models.nonautoregressive import (
    CTCOutput,
    Draft,
    FusionConfig,
    MaskPredictOutput,
    NonAutoregressive,
    NonAutoregressiveConfig,
    lowest,
)
from chainrule.models.transformer import Transformer
from chainrule.nn.ctc import CandidatesOfRows, FusionWeights
from chainrule.testing import tiny_parallel
from chainrule.training.learner import WholeTargets
from chainrule.types import Batch, Sequences
from tests.models.copying import pairs

EOS = 0
SOURCE = Sequences(torch.tensor([[3, 1, 2, 0], [4, 0, 0, 0], [5, 2, 0, 0]]), torch.tensor([4, 2, 3]))


def of(variant: str, **settings: object) -> NonAutoregressive:
    """A small model in float64 whose weights are all random."""
    model = tiny_parallel("nonautoregressive", variant)
    assert isinstance(model, NonAutoregressive)
    if settings:
        torch.manual_seed(0)
        model = NonAutoregressive(model.config.model_copy(update=settings))
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.4)
    return model.double().eval()


@torch.no_grad()
def test_the_frames_of_a_row_depend_on_its_own_source_only() -> None:
    model = of("ctc", frames_per_token=1.6)
    single = Sequences(SOURCE.ids[1:2, :2], SOURCE.lengths[1:2])
    target = Sequences(torch.tensor([[4, 2]]), torch.tensor([2]))
    batched = Sequences(target.ids.expand(3, -1), target.lengths.expand(3))
    torch.testing.assert_close(
        model.log_prob(Batch(target, single))[0], model.log_prob(Batch(batched, SOURCE))[1], rtol=1e-9, atol=1e-9
    )
    assert model.log_prob(Batch(Sequences(torch.tensor([[1, 2, 3, 4]]), torch.tensor([4])), single)) > -torch.inf
    five = Batch(Sequences(torch.tensor([[1, 2, 3, 4, 1]]), torch.tensor([5])), single)
    assert model.log_prob(five) == -torch.inf  # 3.2 frames are rounded up to 4


def repeated(source: Sequences, row: int, times: int) -> Sequences:
    return Sequences(source.ids[row : row + 1].expand(times, -1), source.lengths[row : row + 1].expand(times))


@pytest.mark.parametrize(("variant", "shortest"), [("ctc", 0), ("masked", 1)])
@torch.no_grad()
def test_the_probabilities_of_all_targets_sum_to_one(variant: str, shortest: int) -> None:
    """Including the empty target of CTC: with two frames per source token no target of two is longer than four."""
    model = of(variant, vocabulary=3, context=4)
    total = 0.0
    for length in range(shortest, 5):
        every = list(itertools.product(range(3), repeat=length))
        target = Sequences(torch.tensor(every).view(len(every), length), torch.full((len(every),), length))
        if not length:
            target = Sequences(torch.zeros(1, 1, dtype=torch.int64), torch.tensor([0]))
        total += float(model.log_prob(Batch(target, repeated(SOURCE, 1, len(every)))).exp().sum())
    assert total == pytest.approx(1.0)


# CTC


@torch.no_grad()
def test_a_target_that_needs_more_frames_than_its_source_has_is_impossible() -> None:
    model = of("ctc")
    target = Sequences.full(torch.tensor([[1, 2, 3, 4, 0], [1, 2, 3, 0, 0], [1, 2, 3, 4, 0]]))
    fits, too_long, also_fits = model.log_prob(Batch(target, SOURCE)).tolist()
    assert too_long == -math.inf
    assert -math.inf < min(fits, also_fits)


def test_an_impossible_target_adds_neither_loss_nor_gradient() -> None:
    model = of("ctc").train()
    batch = Batch(Sequences.full(torch.tensor([[1, 2, 3, 4, 0]])), Sequences.full(torch.tensor([[4, 0]])))
    loss = model.loss(batch, model.draw_noise(batch))
    loss.backward()
    assert loss.item() == 0.0
    assert all(parameter.grad is None or not parameter.grad.any() for parameter in model.parameters())


def test_ctc_refuses_several_passes_or_length_candidates() -> None:
    for budget in (DecodingBudget(2, 1), DecodingBudget(1, 3)):
        with pytest.raises(DecodingError, match="decodes in one pass and predicts no length"):
            of("ctc").generate(SOURCE, budget)


@torch.no_grad()
def test_glancing_reveals_tokens_of_the_best_path_in_training() -> None:
    """Glancing happens in training, changes the loss, and shows more where more is wrong."""
    model = of("ctc", glancing=1.0, dropout=0.0)
    batch = Batch(Sequences(torch.tensor([[1, 2, 0], [1, 0, 0], [2, 0, 0]]), torch.tensor([3, 2, 2])), SOURCE)
    noise = model.draw_noise(batch)
    assert noise.shape == (3, 8)
    plain, glanced = (float(model.train(mode).loss(batch, noise)) for mode in (False, True))
    assert plain == pytest.approx(-float(model.log_prob(batch).sum()))
    assert glanced != pytest.approx(plain)


# Mask-predict


@torch.no_grad()
def test_a_pass_changes_the_masked_tokens_only() -> None:
    model = of("masked")
    output = model.output
    assert isinstance(output, MaskPredictOutput)
    lengths = torch.tensor([5, 3, 4])
    ids = torch.randint(5, (3, 5), generator=torch.Generator().manual_seed(2))
    draft = Draft(ids, torch.full((3, 5), -0.5, dtype=torch.float64))
    unknown = torch.tensor([[0, 1, 0, 0, 1], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]]).bool()
    source = model.body.encode(SOURCE)
    after = output.predict_masked(model.body, source, draft, unknown, lengths, ())
    assert torch.equal(after.ids[~unknown], ids[~unknown])
    assert torch.equal(after.log_probs[~unknown], draft.log_probs[~unknown])
    assert (after.ids[unknown] < model.vocabulary).all()
    hidden = ids.masked_fill(unknown, 4)  # the model does not see the masked tokens
    again = output.predict_masked(model.body, source, Draft(hidden, draft.log_probs), unknown, lengths, ())
    assert torch.equal(again.ids[unknown], after.ids[unknown])


@torch.no_grad()
def test_fewer_tokens_are_predicted_again_in_each_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = of("masked"), []
    predict_masked = MaskPredictOutput.predict_masked

    def recording(
        self: MaskPredictOutput, body: object, source: object, draft: Draft, unknown: torch.Tensor, *rest: object
    ) -> Draft:
        calls.append((unknown.sum(1).tolist(), draft))
        found = predict_masked(self, body, source, draft, unknown, *rest)  # type: ignore[arg-type]
        if len(calls) > 1:  # the least confident of the previous pass
            kept = draft.log_probs.masked_fill(unknown, math.inf)[:, :6].min(1).values
            assert (draft.log_probs.masked_fill(~unknown, -math.inf).max(1).values <= kept).all()
        return found

    monkeypatch.setattr(MaskPredictOutput, "predict_masked", recording)
    output = model.output
    assert isinstance(output, MaskPredictOutput)
    source = model.body.encode(SOURCE)
    output.refine(model.body, source, torch.tensor([6, 6, 6]), 3, ())
    assert [counts for counts, _ in calls] == [[6, 6, 6], [4, 4, 4], [2, 2, 2]]


@torch.no_grad()
def test_the_log_probability_of_a_single_pass_is_exact() -> None:
    model = of("masked")
    for row, output in enumerate(model.generate(SOURCE, DecodingBudget())):
        target = Sequences.full(torch.tensor([output.ids]))
        assert float(model.log_prob(Batch(target, repeated(SOURCE, row, 1)))) == pytest.approx(output.log_prob)
        assert output.score <= 0


@torch.no_grad()
def test_more_length_candidates_never_give_a_worse_score() -> None:
    model = of("masked")
    scores = [[one.score for one in model.generate(SOURCE, DecodingBudget(2, count))] for count in (1, 3, 12, 99)]
    for fewer, more in itertools.pairwise(scores):
        assert all(two >= one - 1e-12 for one, two in zip(fewer, more, strict=True))
    assert scores[0] != scores[2] == scores[3]


@torch.no_grad()
def test_the_mask_predict_objective_is_that_of_the_docstring() -> None:
    model = of("masked")
    output = model.output
    assert isinstance(output, MaskPredictOutput)
    ids, length = torch.tensor([[1, 2, 3, 0]]), 4
    batch = Batch(Sequences.full(ids), repeated(SOURCE, 0, 1))
    noise = torch.tensor([[0.3, 0.9, 0.1, 0.2, 0.8]], dtype=torch.float64)  # two masks, on the second and third
    source = model.body.encode(repeated(SOURCE, 0, 1))
    masked = torch.tensor([[False, True, True, False]])
    hidden = output.hidden(model.body, source, ids.masked_fill(masked, model.body.placeholder), torch.tensor([4]))
    nats = model.body.tokens.readout(hidden).log_softmax(-1).gather(2, ids[..., None])[masked].sum()
    one_pass = output.hidden(model.body, source, torch.full_like(ids, model.body.placeholder), torch.tensor([4]))
    whole = model.body.tokens.readout(one_pass).log_softmax(-1).gather(2, ids[..., None]).sum()
    of_length = float(model.log_prob(batch)) - float(whole)
    assert float(model.loss(batch, noise)) == pytest.approx(-of_length - length / 2 * float(nats))


def test_the_lowest_eligible_entries_are_selected() -> None:
    order = torch.tensor([[0.5, 0.1, 0.9, 0.2], [0.4, 0.3, 0.2, 0.1]])
    among = torch.tensor([[True, True, True, False], [True, True, True, True]])
    found = lowest(order, among, torch.tensor([2, 1]))
    assert found.tolist() == [[True, True, False, False], [False, False, False, True]]


# Hybrid-regressive


def hybrid(chunk_size: int) -> HybridRegressive:
    model = tiny_parallel("hybrid_regressive", "every second" if chunk_size == 2 else "every third")
    assert isinstance(model, HybridRegressive)
    return model.double().eval()


@pytest.mark.parametrize("chunk_size", [2, 3])
@torch.no_grad()
def test_every_kth_token_is_that_of_greedy_autoregressive_decoding(chunk_size: int) -> None:
    model = hybrid(chunk_size)
    state = model.skip_at.initial(SOURCE, 3)
    token = torch.full((3, 1), model.skip_at.bos)
    expected_anchors = []
    for _ in range(3):
        hidden, state = model.skip_at.advance(token, state)
        token = model.skip_at.readout(hidden).argmax(-1)
        expected_anchors.append(token[:, 0])
    for row, output in enumerate(model.generate(SOURCE, DecodingBudget())):
        anchors = output.ids[chunk_size - 1 :: chunk_size]
        assert len(output.ids) == chunk_size * len(anchors)
        assert anchors[:3] == [int(token[row]) for token in expected_anchors][: len(anchors)]
        assert EOS not in anchors[:-1]


@pytest.mark.parametrize("chunk_size", [2, 3])
@torch.no_grad()
def test_the_likelihood_is_the_product_of_both_factors(chunk_size: int) -> None:
    model = hybrid(chunk_size)
    padded = torch.tensor([[1, 2, 3, 4, 0, 0]])  # the same for both: [1, 2, 3, 4, 0] with its EOS repeated
    source = repeated(SOURCE, 0, 1)
    expected_anchors = padded[:, chunk_size - 1 :: chunk_size]
    expected = float(Transformer.log_prob(model.skip_at, Batch(Sequences.full(expected_anchors), source)))
    masked = torch.ones(6, dtype=torch.bool)
    masked[chunk_size - 1 :: chunk_size] = False
    memory = model.skip_cmlm.encoder_memory(model.skip_at.encode(source), source.lengths)
    inputs = model.skip_at.tokens.embed(padded.masked_fill(masked, model.skip_at.bos))
    hidden = model.skip_cmlm.bidirectional(inputs, torch.tensor([6]), memory)
    nats = model.skip_at.readout(hidden).log_softmax(-1).gather(2, padded[..., None])[0, :, 0]
    expected += float(nats[masked].sum())
    found = model.log_prob(Batch(Sequences.full(padded[:, :5]), source))
    assert float(found) == pytest.approx(expected)


def test_sequences_longer_than_the_context_are_refused() -> None:
    for model in (of("ctc"), of("masked"), hybrid(3)):
        target = Sequences.full(torch.ones(1, 13, dtype=torch.int64))
        with pytest.raises(DataError, match="13 tokens does not fit into the context of 12"):
            model.log_prob(Batch(target, repeated(SOURCE, 0, 1)))
        with pytest.raises(DataError, match="needs a source, but none was given"):
            model.log_prob(Batch(Sequences.full(torch.ones(1, 3, dtype=torch.int64))))


# Training


def learner(name: str) -> ParallelModel:
    torch.manual_seed(0)
    sizes = {"vocabulary": 8, "source_vocabulary": 8, "width": 32, "heads": 2, "context": 12, "dropout": 0.0}
    layers = {"encoder_layers": 1, "decoder_layers": 1}
    if name == "hybrid_regressive":
        return HybridRegressive(HybridRegressiveConfig.parse({**sizes, **layers}))
    return NonAutoregressive(NonAutoregressiveConfig.parse({**sizes, **layers, "output": name}))


@pytest.mark.parametrize(("name", "reverse"), [("ctc", True), ("masked", False), ("hybrid_regressive", True)])
def test_it_learns_to_reverse_or_copy_a_sequence(name: str, reverse: bool) -> None:
    """Mask-predict learns to reverse more slowly, because the source position then depends on the length, too."""
    model = learner(name).train()
    teacher = WholeTargets(model)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, weight_decay=0.0)
    noise = torch.Generator().manual_seed(1)
    for step in range(300):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * (1 - step / 310)
        optimizer.zero_grad()
        teacher.gradient(pairs(model, 32, reverse=reverse, generator=noise))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()
    target, source = pairs(model, 64, reverse=reverse, generator=torch.Generator().manual_seed(2))
    assert source is not None
    outputs = model.generate(source, model.default_budget)
    wanted = [ids[:length] for ids, length in zip(target.ids.tolist(), target.lengths.tolist(), strict=True)]
    right = [one.ids[: len(ids)] == ids for one, ids in zip(outputs, wanted, strict=True)]
    assert sum(right) / len(right) > 0.8


def fitted(**fusion: object) -> NonAutoregressive:
    model = of("ctc", fusion=FusionConfig(**fusion))  # type: ignore[arg-type]
    model.fit_statistics((np.array([1, 0]), np.array(target)) for target in ([1, 2, 3, 0], [1, 2, 0], [4, 2, 3, 0]))
    return model


@torch.no_grad()
def test_fit_statistics_estimates_the_ngram_model_for_shallow_fusion() -> None:
    model = fitted(order=3)
    assert model.default_budget.beam > 1
    assert isinstance(model.output, CTCOutput)
    assert model.output.language_model is not None
    nats = model.output.language_model.log_prob(Batch(Sequences.pack([[1, 2, 3, 0], [3, 2, 1, 0]])))
    assert nats[0] > nats[1] + 1
    assert of("ctc", fusion=FusionConfig(order=0)).default_budget == DecodingBudget()


def test_at_most_fusion_tokens_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nonautoregressive, "COUNTED_AT_ONCE", 1)
    sizes = []
    for tokens in (1, 5, 10_000):
        output = fitted(order=2, tokens=tokens).output
        assert isinstance(output, CTCOutput)
        assert output.language_model is not None
        sizes.append(output.language_model.sizes[1])
    assert sizes == [4, 5, 7]  # pairs of tokens in the first target, in two, and in all


def test_a_large_fusion_weight_restricts_outputs_to_observed_targets() -> None:
    """With a large weight only observed prefixes are generated, and with a large bonus some are not empty."""
    model = fitted(order=3, weight=50.0, bonus=60.0)
    assert isinstance(model.output, CTCOutput)
    with torch.no_grad():
        model.output.blank_bias.fill_(-2.0)  # makes blanks less likely
    seen = ([1, 2, 3, 0], [1, 2, 0], [4, 2, 3, 0])
    written = [one.ids for one in model.generate(SOURCE, DecodingBudget(beam=50))]
    assert any(written)
    for ids in written:
        first = ids[: ids.index(0) + 1] if 0 in ids else ids  # more targets may follow EOS
        assert any(first == target[: len(first)] for target in seen)
    assert written != [one.ids for one in model.generate(SOURCE, DecodingBudget())]


@torch.no_grad()
def test_without_shallow_fusion_beam_search_finds_a_target_at_least_as_likely_as_the_best_path() -> None:
    """Beam search sums over the alignments of a target, so it beats the target of the single best alignment."""
    model = fitted(weight=0.0, bonus=0.0)
    assert isinstance(model.output, CTCOutput)
    model.output.blank_bias.fill_(-1.0)  # otherwise the best path is all blank
    gains = []
    for row, pair in enumerate(
        zip(model.generate(SOURCE, DecodingBudget(beam=50)), model.generate(SOURCE, DecodingBudget()), strict=True)
    ):
        source = repeated(SOURCE, row, 1)
        best, path = (float(model.log_prob(Batch(Sequences.pack([one.ids]), source))) for one in pair)
        assert pair[0].log_prob <= best + 1e-9  # a sum over some of its alignments
        gains.append(best - path)
    assert min(gains) >= -1e-9
    assert max(gains) > 0.1


@torch.no_grad()
def test_beam_search_emits_blanks_where_all_tokens_are_suppressed() -> None:
    model = fitted(order=2)
    assert isinstance(model.output, CTCOutput)
    model.output.blank_bias.fill_(-1000.0)  # blanks have almost no probability
    every = list(range(model.vocabulary))
    assert [one.ids for one in model.generate(SOURCE, DecodingBudget(beam=3), suppress=every)] == [[], [], []]
    some = model.generate(SOURCE, DecodingBudget(beam=3), suppress=every[2:])
    for row, output in enumerate(some):
        assert set(output.ids) <= {0, 1}
        nats = float(model.log_prob(Batch(Sequences.pack([output.ids]), repeated(SOURCE, row, 1))))
        assert output.log_prob <= nats + 1e-9  # suppressing tokens does not renormalise


@pytest.mark.parametrize("width", [1, 3, 20])
def test_the_compiled_search_with_shallow_fusion_finds_what_python_finds(width: int) -> None:
    generator = np.random.default_rng(width)
    language = NGram(NGramConfig(vocabulary=9, order=3))
    language.observe(Sequences.pack([generator.integers(0, 9, 12).tolist() for _ in range(40)]))
    language.estimate()
    counts = generator.integers(0, 5, 30)
    tokens = np.concatenate([np.sort(generator.choice(9, count, replace=False)) for count in counts])
    frames = np.array([12, 0, 1, 17])
    candidates = CandidatesOfRows(generator.random(30), counts, tokens, generator.random(counts.sum()), frames)
    weights = FusionWeights(0.4, 1.5)
    with torch_only():
        expected = language.fused_targets(candidates, weights, width)
    found = language.fused_targets(candidates, weights, width)
    assert [one.ids for one in found] == [one.ids for one in expected]
    assert any(len(one.ids) > 3 for one in found)
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours.log_prob, ours.score) == pytest.approx((theirs.log_prob, theirs.score), abs=1e-12)
