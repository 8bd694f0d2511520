"""The same properties for every family, whose states are less simple than those of the test models."""

import pytest
import torch

from chainrule.decoding import GREEDY, Sampling, beam_search, generate_tokens
from chainrule.interface.conditional import Conditional
from chainrule.testing.tiny import tiny_model, variants
from chainrule.types import Sequences

PROMPTS = [[1, 2, 3], [], [4], [2, 2, 1], [3, 1, 4, 1, 2, 3], [2] * 15]


@pytest.fixture(params=variants(), ids="-".join)
def family(request):
    torch.set_default_dtype(torch.float64)
    yield tiny_model(*request.param)
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def source_of(family):
    """The sources of some prompts if the family needs them, including one of a single token."""

    def some(*rows):
        if not isinstance(family, Conditional):
            return None
        random = torch.Generator().manual_seed(0)
        width = min(5, family.source_context or 5)
        ids = torch.randint(family.source_vocabulary, (len(PROMPTS), width), generator=random)
        lengths = torch.tensor([5, 1, 3, 4, 5, 2]).clamp(max=width)
        chosen = torch.tensor(rows or range(len(PROMPTS)))
        return Sequences(ids[chosen], lengths[chosen])

    return some


@pytest.mark.parametrize("sampling", [GREEDY, Sampling()], ids=["greedy", "sampled"])
def test_a_batch_gives_what_each_prompt_gives_by_itself(family, source_of, sampling):
    together = generate_tokens(family, PROMPTS, length=20, sampling=sampling, seeds=range(6), eos=0, source=source_of())
    for row, prompt in enumerate(PROMPTS):
        (alone,) = generate_tokens(
            family, [prompt], length=20, sampling=sampling, seeds=[row], eos=0, source=source_of(row)
        )
        assert (together[row].ids, together[row].finished) == (alone.ids, alone.finished)
        assert together[row].log_prob == pytest.approx(alone.log_prob)


def test_a_beam_of_width_one_is_greedy(family, source_of):
    greedy = generate_tokens(family, PROMPTS, length=12, sampling=GREEDY, seeds=range(6), eos=0, source=source_of())
    beams = beam_search(family, PROMPTS, width=1, length=12, eos=0, source=source_of())
    assert [beam[0].ids for beam in beams] == [single.ids for single in greedy]


def test_batched_beam_search_gives_what_each_prompt_gives_by_itself(family, source_of):
    together = beam_search(family, PROMPTS, width=3, length=12, eos=0, num=2, source=source_of())
    for row, (prompt, results) in enumerate(zip(PROMPTS, together, strict=True)):
        (alone,) = beam_search(family, [prompt], width=3, length=12, eos=0, num=2, source=source_of(row))
        assert [result.log_prob for result in results] == pytest.approx([result.log_prob for result in alone])
        if not family.task.endswith("labels"):  # whose predictions do not depend on earlier ones, so that orders tie
            assert [result.ids for result in results] == [result.ids for result in alone]


def test_log_prob_is_that_of_the_recomputed_predictions(family, source_of, predict):
    results = generate_tokens(family, PROMPTS, length=12, sampling=Sampling(), seeds=range(6), source=source_of())
    for row, (prompt, result) in enumerate(zip(PROMPTS, results, strict=True)):
        history, total = list(prompt), 0.0
        for token in result.ids:
            total += predict(family, history, source_of(row))[token].item()
            history.append(token)
        assert result.log_prob == pytest.approx(total)
