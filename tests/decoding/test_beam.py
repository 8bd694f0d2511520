import itertools
import math

import pytest
import torch

from chainrule.decoding import GREEDY, beam_search, generate_tokens
from chainrule.decoding.beam import beam_steps, top_choices
from chainrule.errors import DecodingError, NotANumber
from chainrule.kernels.step import torch_only
from chainrule.types import Sequences

PROMPTS = [[1, 2, 3], [], [4], [2, 2, 1], [3, 1, 4, 1, 2, 3], [2] * 15]


def assert_same(one, other):
    assert [(g.ids, g.finished) for g in one] == [(g.ids, g.finished) for g in other]
    assert [g.log_prob for g in one] == pytest.approx([g.log_prob for g in other])


def exhaustive(model, prompt, predict, *, length, eos, penalty, stop=None, source=None):
    """Every possible continuation as (score, ids, log_prob), best first."""
    found = []

    def visit(ids, log_prob):
        log_probs = predict(model, [*prompt, *ids], source).tolist()
        for token, nats in enumerate(log_probs):
            after, total = [*ids, token], log_prob + nats
            score = total / len(after) ** penalty
            if token == eos:
                found.append((score, ids, total))
            elif len(after) == length or (stop is not None and stop(after)):
                found.append((score, after, total))
            else:
                visit(after, total)

    visit([], 0.0)
    return sorted(found, key=lambda entry: -entry[0])


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0, -0.5])
def test_a_beam_as_wide_as_all_sequences_is_exhaustive_search(model, predict, penalty):
    for prompt in ([], [1, 2], [2] * 15):
        everything = exhaustive(model, prompt, predict, length=3, eos=0, penalty=penalty)
        for num in (1, 20):
            (results,) = beam_search(model, [prompt], width=5**3, length=3, eos=0, length_penalty=penalty, num=num)
            assert [result.ids for result in results] == [ids for _, ids, _ in everything[:num]]
            assert [result.log_prob for result in results] == pytest.approx([nats for *_, nats in everything[:num]])


def test_an_exhaustive_beam_respects_the_stop_criterion_and_the_source(recurrent, predict):
    def stop(ids):
        return sum(ids) > 6

    sources = Sequences.pack([[1, 2, 3], [4]])
    results = beam_search(recurrent, [[], [2]], width=5**4, length=4, eos=0, num=9, stop=stop, source=sources)
    for prompt, source, found in zip([[], [2]], [[1, 2, 3], [4]], results, strict=True):
        wanted = exhaustive(
            recurrent, prompt, predict, length=4, eos=0, penalty=1.0, stop=stop, source=Sequences.pack([source])
        )
        assert [result.ids for result in found] == [ids for _, ids, _ in wanted[:9]]
        assert all(result.finished == "stop" for result in found if sum(result.ids) > 6)


@pytest.mark.parametrize("eos", [None, 0])
@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
def test_a_beam_of_width_one_is_greedy(model, eos, penalty):
    greedy = generate_tokens(model, PROMPTS, length=20, sampling=GREEDY, seeds=[0] * 6, eos=eos)
    beam = beam_search(model, PROMPTS, width=1, length=20, eos=eos, length_penalty=penalty)
    assert_same([results[0] for results in beam], greedy)


@pytest.mark.parametrize("width", [2, 5])
@pytest.mark.parametrize("eos", [None, 0])
def test_a_batch_of_prompts_gives_what_each_gives_by_itself(model, width, eos):
    together = beam_search(model, PROMPTS, width=width, length=20, eos=eos, num=2)
    for prompt, results in zip(PROMPTS, together, strict=True):
        assert_same(results, beam_search(model, [prompt], width=width, length=20, eos=eos, num=2)[0])


def test_each_row_is_conditioned_on_its_own_source_also_when_windows_move(model):
    sentences = [[1], [2, 3, 4], [4, 4]]
    together = beam_search(model, [[]] * 3, width=3, length=20, num=3, source=Sequences.pack(sentences))
    for sentence, results in zip(sentences, together, strict=True):
        alone = beam_search(model, [[]], width=3, length=20, num=3, source=Sequences.pack([sentence]))
        assert_same(results, alone[0])
    assert together[0] != together[1]


def test_log_prob_is_that_of_the_recomputed_predictions_also_beyond_the_context(model, predict):
    for prompt, results in zip(PROMPTS, beam_search(model, PROMPTS, width=3, length=20, eos=0, num=3), strict=True):
        for result in results:
            generated = result.ids + [0] * (result.finished == "eos")
            history, total = list(prompt), 0.0
            for token in generated:
                total += predict(model, history)[token].item()
                history.append(token)
            assert result.log_prob == pytest.approx(total)


def test_an_exhaustive_beam_is_at_least_as_probable_as_greedy(model):
    greedy = generate_tokens(model, PROMPTS, length=3, sampling=GREEDY, seeds=[0] * 6)
    beam = beam_search(model, PROMPTS, width=125, length=3)
    assert all(results[0].log_prob >= single.log_prob - 1e-9 for results, single in zip(beam, greedy, strict=True))


@pytest.mark.parametrize("penalty", [0.5, 1.0, 2.0])
def test_the_length_penalty_does_not_count_the_prompt(make_unigram, penalty):
    """A model that ignores its history gives the same ranking after any prompt (transformers#26624)."""
    model = make_unigram([0.35, 0.3, 0.2, 0.15])
    short, long, none = beam_search(model, [[1], [1] * 40, []], width=8, length=5, eos=0, num=8, length_penalty=penalty)
    assert short == long == none
    scores = [g.log_prob / (len(g.ids) + (g.finished == "eos")) ** penalty for g in short]
    assert scores == sorted(scores, reverse=True)


def test_a_penalty_of_zero_prefers_short_results_and_a_large_one_long_results(make_unigram):
    model = make_unigram([0.4, 0.35, 0.25])
    ((by_sum,),) = beam_search(model, [[]], width=50, length=4, eos=0, length_penalty=0.0)
    ((by_length,),) = beam_search(model, [[]], width=50, length=4, eos=0, length_penalty=3.0)
    assert (by_sum.ids, by_sum.finished) == ([], "eos")
    assert len(by_length.ids) >= 3


UNIFORM, SURE = [0.2] * 5, [0, 0, 0, 0, 1.0]


def test_a_finished_hypothesis_keeps_its_slot_in_the_beam(make_bigram):
    """With a finished hypothesis of 0.6, a beam of two extends one other: 1 2 with 0.204, not 1 3 with 0.196."""
    model = make_bigram([UNIFORM, [0, 0, 0.51, 0.49, 0], UNIFORM, SURE, UNIFORM, [0.6, 0.4, 0, 0, 0]])
    ((best, second),) = beam_search(model, [[]], width=2, length=3, eos=0, length_penalty=0.0, num=2)
    assert (best.ids, second.ids) == ([], [1, 2])
    assert second.log_prob == pytest.approx(math.log(0.4 * 0.51 * 0.2))


def test_a_finished_hypothesis_that_leaves_the_beam_is_not_lost(make_bigram):
    """With a finished hypothesis of 0.3, both 1 2 (0.357) and 1 3 (0.343) are extended; only 1 3 stays probable."""
    model = make_bigram([UNIFORM, [0, 0, 0.51, 0.49, 0], UNIFORM, SURE, UNIFORM, [0.3, 0.7, 0, 0, 0]])
    ((best, second),) = beam_search(model, [[]], width=2, length=3, eos=0, length_penalty=0.0, num=2)
    assert (best.ids, best.finished) == ([1, 3, 4], "length")
    assert (second.ids, second.finished) == ([], "eos")


def test_a_long_hypothesis_with_an_improbable_start_can_win(make_bigram):
    model = make_bigram([UNIFORM, SURE, UNIFORM, UNIFORM, SURE, [0.8, 0.1, 0.1, 0, 0]])
    ((best,),) = beam_search(model, [[]], width=2, length=30, eos=0, length_penalty=1.0)
    assert best.ids == [1] + [4] * 29


def test_a_longer_hypothesis_can_win_when_length_is_penalised(make_bigram):
    ends = [1.0, 0, 0, 0, 0]
    model = make_bigram([UNIFORM, ends, UNIFORM, UNIFORM, UNIFORM, [0.3, 0.7, 0, 0, 0]])
    ((best,),) = beam_search(model, [[]], width=2, length=50, eos=0, length_penalty=-0.5)
    assert best.ids == [1]


def test_suppressed_ids_are_never_generated(model):
    for results in beam_search(model, PROMPTS, width=4, length=12, eos=0, num=4, suppress=[0, 3]):
        assert all(result.finished == "length" and not {0, 3} & {*result.ids} for result in results)


def test_fewer_results_are_returned_if_fewer_exist(make_unigram):
    ((first, second),) = beam_search(make_unigram([0.6, 0.4]), [[]], width=10, num=10, length=1)
    assert (first.ids, second.ids) == ([0], [1])


def test_ties_go_to_the_lower_id():
    logits = torch.tensor([[-1.0, -3.0, -2.0, -2.0], [-2.0, -1.0, -2.0, -math.inf], [-2.0] * 4])
    chosen = [[token for _, token in row] for row in top_choices(logits, 2)]
    assert chosen == [[0, 2], [1, 0], [0, 1]]
    assert [len(row) for row in top_choices(logits, 100)] == [4, 3, 4]


def test_logits_that_differ_in_the_last_digit_are_no_tie():
    """Two of 8,000 tokens with equal log-probabilities in float32."""
    logits = torch.zeros(1, 8000)
    logits[0, 7] = 1e-3
    logits[0, 9] = torch.nextafter(logits[0, 7], torch.tensor(1.0))
    (((_, first), (_, second)),) = top_choices(logits, 2)
    assert (first, second) == (9, 7)


def test_ties_go_to_the_better_parent(make_bigram):
    """1 2, 1 3, 2 1 and 2 3 have 1/8 each; 1 is the more probable first token."""
    model = make_bigram(
        [UNIFORM, [0, 0, 0.25, 0.25, 0.5], [0, 0.5, 0, 0.5, 0], SURE, SURE, [0, 0.5, 0.25, 0.25, 0]],
    )
    (results,) = beam_search(model, [[]], width=4, length=2, length_penalty=0.0, num=4)
    assert [result.ids for result in results] == [[1, 4], [3, 4], [1, 2], [1, 3]]


def test_a_uniform_model_is_searched_in_the_order_of_ids(make_unigram):
    (results,) = beam_search(make_unigram([0.25] * 4), [[]], width=4, length=2, num=4)
    assert [result.ids for result in results] == [
        list(pair) for pair in itertools.islice(itertools.product(range(4), repeat=2), 4)
    ]


@pytest.mark.parametrize(("width", "num"), [(0, 1), (2, 3), (2, 0)])
def test_more_results_than_the_beam_width_are_refused(recurrent, width, num):
    with pytest.raises(DecodingError, match="beam of width"):
        beam_search(recurrent, [[1]], width=width, length=3, num=num)


def test_a_model_that_predicts_nan_is_reported(recurrent):
    recurrent.head.bias.data.fill_(math.nan)
    with pytest.raises(NotANumber, match="predicts NaN"):
        beam_search(recurrent, [[1]], width=2, length=3)


def test_a_beam_that_does_not_fit_into_memory_is_refused_with_one_that_fits(model):
    with pytest.raises(DecodingError, match=r"width 1000000000000 takes about .* is available; a width of \d+ fits"):
        beam_search(model, [[1, 2]], width=10**12, length=40, eos=0)
    beam_search(model, [[1, 2]], width=10**12, length=3, eos=0)  # there are but 5^3 sequences


def test_a_beam_search_reports_its_progress(model):
    shares = []
    beam_search(model, [[1], [2]], width=3, length=[4, 6], progress=shares.append)
    assert shares == sorted(shares)
    assert len(shares) > 1
    assert shares[-1] == 1.0


def test_the_steps_of_a_search_lead_to_its_result(model):
    steps = [[list(beam.live) for beam in beams] for beams in beam_steps(model, [[1], []], width=3, length=4)]
    *_, last = beam_steps(model, [[1], []], width=3, length=4)
    assert [beam.best() for beam in last] == beam_search(model, [[1], []], width=3, length=4)
    assert len(steps) == 4
    assert all(len(hypothesis.ids) == 2 for live in steps[1] for hypothesis in live)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compiled_choices_are_those_of_torch(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(7, 300, generator=generator, dtype=dtype)
    logits[1, 50:70] = logits[1].max()  # ties, by the lower id
    logits[2, 3:] = -math.inf  # fewer tokens than choices
    suppressed = torch.tensor([0, 5, 55, 299])
    for count in (1, 5, 64):
        compiled = top_choices(logits, count, suppressed)
        with torch_only():
            reference = top_choices(logits, count, suppressed)
        assert [[token for _, token in row] for row in compiled] == [[token for _, token in row] for row in reference]
        for one, other in zip(compiled, reference, strict=True):
            assert [cost for cost, _ in one] == pytest.approx([cost for cost, _ in other], abs=1e-5)
    logits[4, 7] = math.nan
    with pytest.raises(NotANumber):
        top_choices(logits, 5, suppressed)
