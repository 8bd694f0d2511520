import math

import pytest
import torch

from chainrule.decoding import GREEDY, Sampling, generate_tokens, stream_tokens
from chainrule.decoding.incremental import IncrementalReader
from chainrule.errors import DecodingError, NotANumber
from chainrule.types import Batch, Sequences

PROMPTS = [[1, 2, 3], [], [4], [2, 2, 1], [3, 1, 4, 1, 2, 3], [2] * 15]
WILD = Sampling(temperature=1.3, top_k=4, repetition_penalty=1.1)


def assert_same(one, other):
    assert [(g.ids, g.finished) for g in one] == [(g.ids, g.finished) for g in other]
    assert [g.log_prob for g in one] == pytest.approx([g.log_prob for g in other])


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(), WILD], ids=["greedy", "plain", "wild"])
@pytest.mark.parametrize("eos", [None, 0])
def test_a_batch_of_prompts_gives_what_each_gives_by_itself(model, sampling, eos):
    seeds = range(10, 10 + len(PROMPTS))
    together = generate_tokens(model, PROMPTS, length=30, sampling=sampling, seeds=seeds, eos=eos)
    alone = [
        generate_tokens(model, [prompt], length=30, sampling=sampling, seeds=[seed], eos=eos)[0]
        for prompt, seed in zip(PROMPTS, seeds, strict=True)
    ]
    assert_same(together, alone)


def test_greedy_takes_the_most_probable_token_of_the_recomputed_prediction(model, predict):
    for prompt in PROMPTS:
        (result,) = generate_tokens(model, [prompt], length=20, sampling=GREEDY, seeds=[0])
        history, total = list(prompt), 0.0
        for token in result.ids:
            log_probs = predict(model, history)
            assert token == log_probs.argmax()
            total += log_probs[token].item()
            history.append(token)
        assert result.log_prob == pytest.approx(total)


def test_a_seed_reproduces_its_text(model):
    first, second, other = (
        generate_tokens(model, [[1]], length=20, sampling=Sampling(), seeds=[seed])[0] for seed in (4, 4, 5)
    )
    assert first == second
    assert first.ids != other.ids


def test_a_shorter_length_gives_a_prefix_of_the_longer_text(model):
    long, short = (generate_tokens(model, [[1]], length=n, sampling=WILD, seeds=[4])[0] for n in (100, 37))
    assert long.ids[:37] == short.ids


def test_log_prob_is_that_of_the_model_with_any_sampling_settings(recurrent):
    for sampling in (GREEDY, Sampling(temperature=3.0, top_k=2, repetition_penalty=2.0)):
        (result,) = generate_tokens(recurrent, [[1, 2]], length=10, sampling=sampling, seeds=[1], suppress=[3])
        whole = Batch(Sequences.pack([[1, 2, *result.ids]]))
        assert result.log_prob == pytest.approx(recurrent.token_log_probs(whole)[0, 2:].sum().item())


def test_log_prob_includes_eos_and_ids_do_not(recurrent):
    results = generate_tokens(recurrent, [[1]] * 8, length=50, sampling=Sampling(), seeds=range(8), eos=0)
    ended = [result for result in results if result.finished == "eos"]
    assert len(ended) > 2
    for result in ended:
        assert 0 not in result.ids
        whole = Batch(Sequences.pack([[1, *result.ids, 0]]))
        assert result.log_prob == pytest.approx(recurrent.token_log_probs(whole)[0, 1:].sum().item())


def test_a_row_ends_by_its_stop_criterion(recurrent):
    free = generate_tokens(recurrent, [[1], [2, 3]], length=12, sampling=Sampling(), seeds=[0, 1])
    wanted = free[0].ids[3:5]

    def ends_with_the_pair(ids):
        return list(ids[-2:]) == wanted

    stopped = generate_tokens(
        recurrent, [[1], [2, 3]], length=12, sampling=Sampling(), seeds=[0, 1], stop=ends_with_the_pair
    )
    end = next(n for n in range(2, 13) if ends_with_the_pair(free[0].ids[:n]))
    assert (stopped[0].ids, stopped[0].finished) == (free[0].ids[:end], "stop")
    assert stopped[1].ids == free[1].ids[: len(stopped[1].ids)]


def test_the_stop_criterion_does_not_see_the_prompt(recurrent):
    shown = []
    generate_tokens(
        recurrent,
        [[4, 4, 4], []],
        length=3,
        sampling=GREEDY,
        seeds=[0, 0],
        stop=lambda ids: bool(shown.append(len(ids))),
    )
    assert shown == [1, 1, 2, 2, 3, 3]


def test_streaming_yields_the_tokens_of_unfinished_rows_step_by_step(recurrent):
    arguments = {"length": 40, "sampling": Sampling(), "seeds": range(6), "eos": 0}
    results = generate_tokens(recurrent, PROMPTS, **arguments)
    ids = [[] for _ in PROMPTS]
    finished = [None] * len(PROMPTS)
    for tokens in stream_tokens(recurrent, PROMPTS, **arguments):
        for token in tokens:
            assert finished[token.row] is None
            ids[token.row].append(token.id)
            finished[token.row] = token.finished
    assert finished == [result.finished for result in results]
    assert ids == [result.ids + [0] * (result.finished == "eos") for result in results]
    assert len({len(row) for row in ids}) > 2  # rows end at different steps


def test_gradients_are_disabled_within_steps_only(recurrent):
    inside = []
    for _ in stream_tokens(
        recurrent,
        [[1]],
        length=2,
        sampling=GREEDY,
        seeds=[0],
        stop=lambda _: bool(inside.append(torch.is_inference_mode_enabled())),
    ):
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
    assert inside == [True, True]


def test_suppressed_ids_are_never_generated(model):
    results = generate_tokens(model, PROMPTS, length=40, sampling=Sampling(), seeds=range(6), suppress=[1, 3])
    assert {token for result in results for token in result.ids} == {0, 2, 4}


def test_the_repetition_penalty_applies_to_prompt_and_output(make_unigram):
    model = make_unigram([0.3, 0.25, 0.2, 0.15, 0.1])
    (result,) = generate_tokens(
        model, [[0, 1]], length=3, sampling=Sampling(greedy=True, repetition_penalty=9.0), seeds=[0]
    )
    assert result.ids == [2, 3, 4]


def test_running_rows_keep_their_repetition_penalties_when_others_end(make_unigram):
    model = make_unigram([0.3, 0.25, 0.2, 0.15, 0.06, 0.04])
    ended, went_on = generate_tokens(
        model,
        [[0], [0, 1]],
        length=4,
        sampling=Sampling(greedy=True, repetition_penalty=9.0),
        seeds=[0, 0],
        stop=lambda ids: ids[0] == 1,
    )
    assert (ended.ids, went_on.ids) == ([1], [2, 3, 4, 5])


@pytest.mark.parametrize("context", [1, 2, 3, 7, 8])
def test_text_beyond_the_context_is_generated_by_a_sliding_window(make_bounded, predict, context):
    model = make_bounded(context)
    results = generate_tokens(model, PROMPTS, length=3 * context + 2, sampling=Sampling(), seeds=range(6))
    for prompt, result in zip(PROMPTS, results, strict=True):
        history, total = list(prompt), 0.0
        for token in result.ids:
            total += predict(model, history)[token].item()
            history.append(token)
        assert len(result.ids) == 3 * context + 2
        assert result.log_prob == pytest.approx(total)


def test_continuing_a_text_equals_generating_it_at_once(bounded):
    (whole,) = generate_tokens(bounded, [[1, 2]], length=40, sampling=GREEDY, seeds=[0])
    for cut in range(1, 40):
        (rest,) = generate_tokens(bounded, [[1, 2, *whole.ids[:cut]]], length=40 - cut, sampling=GREEDY, seeds=[0])
        assert whole.ids[cut:] == rest.ids


def test_the_window_keeps_at_least_half_of_the_context(make_bounded):
    for context in range(1, 20):
        window = IncrementalReader(make_bounded(context)).window
        visible = [window.visible(length) for length in range(5 * context)]
        assert visible[:context] == list(range(context))
        assert {*visible[context:]} == set(range(context // 2, context))


def test_a_long_prompt_read_in_pieces_gives_the_same_prediction(recurrent, monkeypatch):
    whole = IncrementalReader(recurrent).read([[1, 2, 3, 4] * 5], [0]).logits
    monkeypatch.setattr("chainrule.decoding.incremental.PREFILL_LOGITS", 35)
    assert torch.allclose(IncrementalReader(recurrent).read([[1, 2, 3, 4] * 5], [0]).logits, whole)


def test_each_row_is_conditioned_on_its_own_source_also_when_others_end_and_windows_move(model, predict):
    sentences, prompts = [[1], [2, 3, 4], [4, 4], [3]], [[1, 1], [], [2], []]
    arguments = {"length": 25, "sampling": Sampling(), "eos": 0}
    together = generate_tokens(model, prompts, seeds=range(4), source=Sequences.pack(sentences), **arguments)
    assert len({len(result.ids) for result in together}) > 1
    for row, (prompt, sentence) in enumerate(zip(prompts, sentences, strict=True)):
        source = Sequences.pack([sentence])
        assert_same(together[row : row + 1], generate_tokens(model, [prompt], seeds=[row], source=source, **arguments))
        history, total = list(prompt), 0.0
        for token in together[row].ids + [0] * (together[row].finished == "eos"):
            total += predict(model, history, source)[token].item()
            history.append(token)
        assert together[row].log_prob == pytest.approx(total)


def test_no_prompts_give_no_results(recurrent):
    assert generate_tokens(recurrent, [], length=3, sampling=GREEDY, seeds=[]) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"length": 0}, "at least 1 token"),
        ({"prompts": [[1, 9]]}, "has the id 9"),
        ({"prompts": [[-1]]}, "has the id -1"),
        ({"seeds": []}, "0 seeds for 1 prompts"),
        ({"eos": 5}, "eos has the id 5"),
        ({"suppress": [7]}, "suppress has the id 7"),
        ({"suppress": range(5)}, "all 5 ids are suppressed"),
        ({"source": Sequences.pack([[1], [2]])}, "2 sources for 1 prompts"),
    ],
)
def test_invalid_arguments_are_refused_before_anything_is_computed(recurrent, change, message):
    request = {"prompts": [[1]], "length": 3, "sampling": GREEDY, "seeds": [0], **change}
    with pytest.raises(DecodingError, match=message):
        stream_tokens(recurrent, **request)


@pytest.mark.parametrize("sampling", [GREEDY, Sampling()])
def test_a_model_that_predicts_nan_is_reported(recurrent, sampling):
    recurrent.head.bias.data.fill_(math.nan)
    with pytest.raises(NotANumber, match="predicts NaN"):
        generate_tokens(recurrent, [[1]], length=3, sampling=sampling, seeds=[0])
