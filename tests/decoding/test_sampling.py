import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from chainrule.decoding import GREEDY, Sampling, choose
from chainrule.decoding.noise import LARGE
from chainrule.decoding.sampling import (
    Gumbels,
    gumbel_max,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    penalise_repetition,
)

CPU = torch.device("cpu")
rows_of_logits = st.lists(
    st.lists(st.integers(-20, 20).map(lambda n: n / 4), min_size=6, max_size=6), min_size=1, max_size=3
).map(lambda rows: torch.tensor(rows, dtype=torch.float64))


def noise(rows, vocabulary, seed=0):
    """(rows, V) Gumbel noise."""
    return Gumbels([seed], vocabulary, CPU).peek(rows)[0]


def kept(filtered, logits):
    """The ids of each row that a filter kept, after checking that their logits are unchanged."""
    stays = filtered > -math.inf
    assert torch.equal(filtered[stays], logits[stays])
    return [set(row.nonzero()[:, 0].tolist()) for row in stays]


@settings(deadline=None)
@given(rows_of_logits, st.integers(1, 8))
def test_top_k_keeps_the_k_most_probable_tokens_and_ties(logits, k):
    for row, ids in zip(logits.tolist(), kept(keep_top_k(logits, k), logits), strict=True):
        assert ids == {i for i, logit in enumerate(row) if sum(other > logit for other in row) < k}


@settings(deadline=None)
@given(rows_of_logits, st.floats(0.001, 0.999))
def test_top_p_keeps_the_smallest_set_of_tokens_with_the_mass(logits, mass):
    for row, ids in zip(logits.softmax(-1).tolist(), kept(keep_top_p(logits, mass), logits), strict=True):
        order = sorted(range(len(row)), key=lambda i: (-row[i], i))
        assert ids == set(order[: len(ids)])
        assert sum(row[i] for i in order[: len(ids)]) >= mass - 1e-9
        assert sum(row[i] for i in order[: len(ids) - 1]) < mass + 1e-9


def test_top_p_of_one_keeps_all():
    logits = torch.tensor([[0.0, -50.0, -200.0]])
    assert kept(keep_top_p(logits, 1.0), logits) == [{0, 1, 2}]


@settings(deadline=None)
@given(rows_of_logits, st.floats(0.001, 0.999))
def test_min_p_keeps_tokens_by_their_relative_probability(logits, fraction):
    for row, ids in zip(logits.softmax(-1).tolist(), kept(keep_min_p(logits, fraction), logits), strict=True):
        assert {i for i, p in enumerate(row) if p > fraction * max(row) * (1 + 1e-9)} <= ids
        assert ids <= {i for i, p in enumerate(row) if p > fraction * max(row) * (1 - 1e-9)}


@settings(deadline=None)
@given(rows_of_logits)
def test_the_strictest_filters_keep_the_most_probable_token(logits):
    for filtered in (keep_top_p(logits, 1e-9), keep_min_p(logits, 1.0), keep_top_k(logits, 1)):
        assert torch.equal(filtered.amax(-1), logits.amax(-1))


def test_a_repetition_penalty_lowers_positive_and_negative_logits():
    logits = torch.tensor([[2.0, -2.0, 1.0, -1.0]])
    seen = torch.tensor([[True, True, False, False]])
    assert penalise_repetition(logits, seen, 2.0).tolist() == [[1.0, -4.0, 1.0, -1.0]]


def test_settings_are_applied_in_the_documented_order():
    """Penalty, suppression, temperature, top-k, top-p, min-p: each is applied to the result of the previous one."""
    logits = torch.tensor([[4.0, 3.9, 3.0, 2.0, 1.0, 9.0]], dtype=torch.float64)
    sampling = Sampling(temperature=2.0, top_k=3, top_p=0.7, repetition_penalty=2.0)
    seen = torch.tensor([[True, False, False, False, False, False]])
    # the penalty turns 4 into 2, a tie with id 3; without id 5 and at temperature 2 the three best are 1, 2 and (0, 3)
    tempered = torch.tensor([3.9, 3.0, 2.0, 2.0], dtype=torch.float64) / 2
    assert tempered.softmax(-1)[:2].sum() < 0.7 < tempered.softmax(-1)[:3].sum()  # so the nucleus is 1, 2 and 0
    chosen = choose(
        logits.expand(500, -1), sampling, noise(500, 6), seen=seen.expand(500, -1), suppressed=torch.tensor([5])
    )
    assert set(chosen.tolist()) == {0, 1, 2}


def test_greedy_breaks_ties_by_the_lower_id():
    logits = torch.tensor([[0.0, 2.0, 2.0], [5.0, 1.0, 0.0]])
    assert choose(logits, GREEDY, None).tolist() == [1, 0]


def test_a_suppressed_id_is_never_chosen():
    logits = torch.tensor([[9.0, 1.0, 0.0]])
    suppressed = torch.tensor([0])
    assert choose(logits, GREEDY, None, suppressed=suppressed).item() == 1
    assert set(choose(logits.expand(500, -1), Sampling(), noise(500, 3), suppressed=suppressed).tolist()) == {1, 2}


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from([-math.inf, -300.0, 0.0, 0.1, 7.0]), min_size=2, max_size=40),
    st.integers(0, 1000),
)
def test_a_token_without_probability_is_never_sampled(row, seed):
    row = [*row, 0.0, -math.inf]
    for chosen in gumbel_max(torch.tensor([row]).expand(20, -1), noise(20, len(row), seed)).tolist():
        assert row[chosen] > -math.inf


PROBABILITIES = torch.tensor([0.4, 0.25, 0.2, 0.1, 0.04, 0.01], dtype=torch.float64)
CRITICAL = 20.5  # chi-square, 5 degrees of freedom, p = 0.001


def chi_square(ids, probabilities):
    expected = probabilities * len(ids)
    counts = torch.bincount(ids, minlength=len(probabilities))
    return (((counts - expected) ** 2) / expected).sum().item()


def test_sampling_frequencies_follow_the_model_for_one_seed():
    ids = choose(PROBABILITIES.log().expand(5000, -1), Sampling(), noise(5000, 6, seed=3))
    assert chi_square(ids, PROBABILITIES) < CRITICAL


def test_sampling_frequencies_follow_the_model_across_consecutive_seeds():
    gumbels = Gumbels(range(5000), 6, CPU).peek(1)[:, 0]
    ids = choose(PROBABILITIES.log().expand(5000, -1), Sampling(), gumbels)
    assert chi_square(ids, PROBABILITIES) < CRITICAL


def test_temperature_samples_from_the_tempered_distribution():
    ids = choose(PROBABILITIES.log().expand(5000, -1), Sampling(temperature=0.5), noise(5000, 6))
    sharpened = PROBABILITIES**2 / (PROBABILITIES**2).sum()
    assert chi_square(ids, sharpened) < CRITICAL < chi_square(ids, PROBABILITIES)


def test_sampling_frequencies_in_a_large_vocabulary_follow_the_model():
    """With tokens of the same and of other blocks of noise, and of the last, which is shorter."""
    logits = torch.full((LARGE + 70,), -math.inf, dtype=torch.float64)
    tokens = torch.tensor([0, 1, 127, 128, 3000, LARGE + 69])
    logits[tokens] = PROBABILITIES.log()
    for gumbels in (noise(3000, len(logits), seed=3), Gumbels(range(3000), len(logits), CPU).peek(1)[:, 0]):
        ids = choose(logits.expand(3000, -1), Sampling(), gumbels)
        found = torch.searchsorted(tokens, ids)
        assert torch.equal(tokens[found], ids)
        assert chi_square(found, PROBABILITIES) < CRITICAL


def test_noise_in_a_large_vocabulary_is_independent():
    exponentials = noise(200, LARGE + 70).neg().exp()  # (200, V)
    assert exponentials.mean().item() == pytest.approx(1, abs=0.005)
    assert exponentials.var().item() == pytest.approx(1, abs=0.02)
    for first, second in ((0, 1), (5, 5 + 128), (4000, LARGE + 69)):
        pair = torch.stack([exponentials[:, first], exponentials[:, second]])
        assert abs(torch.corrcoef(pair)[0, 1].item()) < 0.25
    blocks = exponentials[:, :LARGE].view(200, -1, 128)
    assert (128 * blocks.amin(-1)).mean().item() == pytest.approx(1, abs=0.05)
    assert blocks.argmin(-1).double().mean().item() == pytest.approx(63.5, abs=2)
    assert torch.corrcoef(blocks[:, 0, :60].T).tril(-1).mean().abs().item() < 0.02


@pytest.mark.parametrize("vocabulary", [3, LARGE])
def test_the_noise_of_a_row_does_not_depend_on_other_rows(vocabulary):
    together, alone = Gumbels([5, 9, 7], vocabulary, CPU), Gumbels([7], vocabulary, CPU)
    for step in range(200):
        if step == 100:
            together.keep([0, 2])
        assert torch.equal(together.peek(1 + step % 5)[-1, 0], alone.peek(1)[0, 0])
        together.consume([1] * (2 if step >= 100 else 3))
        alone.consume([1])


@pytest.mark.parametrize("vocabulary", [4, LARGE])
def test_rows_may_consume_noise_at_different_speeds(vocabulary):
    rows, whole = Gumbels([1, 2], vocabulary, CPU), Gumbels([1, 2], vocabulary, CPU).peek(300)
    for step in range(70):
        assert torch.equal(rows.peek(3)[0], whole[0, step : step + 3])
        assert torch.equal(rows.peek(3)[1], whole[1, 4 * step : 4 * step + 3])
        rows.consume([1, 4])


def test_similar_distributions_with_the_same_noise_mostly_agree():
    other = torch.tensor([0.3, 0.3, 0.2, 0.1, 0.05, 0.05], dtype=torch.float64)
    apart = (PROBABILITIES - other).abs().sum().item() / 2  # total variation
    one, two = (gumbel_max(p.log().expand(5000, -1), noise(5000, 6)) for p in (PROBABILITIES, other))
    assert (1 - apart) / (1 + apart) - 0.01 < (one == two).double().mean() < 1 - apart


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": 0}, {"top_k": 0}, {"top_p": 0}, {"top_p": 1.1}, {"min_p": -0.1}, {"repetition_penalty": 0}],
)
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(ValidationError):
        Sampling(**wrong)
