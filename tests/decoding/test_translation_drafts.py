"""Speculative decoding of translations equals greedy search."""

import random

import pytest
import torch

from chainrule.decoding import ModelDrafter, Search, Translator, decode_sources
from chainrule.decoding.block_size import FixedBlockSize
from chainrule.decoding.drafts import LookaheadDrafter
from chainrule.errors import DecodingError
from chainrule.testing import tiny_model
from chainrule.testing.tiny import tiny_parallel
from chainrule.tokenizers.words import Words

EOS = 0
GREEDY = Search(beam=1, growth=2.0, slack=6)
DRAW = random.Random(7)
SOURCES = [[*(DRAW.randint(1, 5) for _ in range(DRAW.randint(0, 7))), EOS] for _ in range(60)]
MODELS = {  # family, variant, seed, and a bias of EOS: some texts end, others are cut
    "hybrid": ("hybrid", "gated", 6, -2.0),
    "hybrid with a short plan": ("hybrid", "short plan", 1, -2.0),
    "transformer": ("transformer", "rotary", 0, -2.0),
    "seq2seq": ("seq2seq", "attention", 1, 0.0),
}
PAIRS = [
    ("hybrid", "self"),
    ("hybrid with a short plan", "self"),
    ("transformer", "seq2seq"),
    ("seq2seq", "transformer"),
    ("hybrid", "transformer"),
]


def random_model(name):
    """Large random weights in float64, so that there are no near ties."""
    family, variant, seed, ease = MODELS[name]
    model = tiny_model(family, variant).double().eval()
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    model.tokens.bias.data[EOS] += ease
    return model


@pytest.fixture(params=PAIRS, ids=" by ".join)
def pair(request):
    """A model and its drafter."""
    name, draft = request.param
    model = random_model(name)
    return model, LookaheadDrafter(model) if draft == "self" else ModelDrafter(random_model(draft))


@pytest.fixture
def always_guessing(monkeypatch):
    """Blocks of four tokens."""
    monkeypatch.setattr("chainrule.decoding.translation.BlockSize", lambda: FixedBlockSize(4))


def assert_same(ours, theirs):
    for [one], [other] in zip(ours, theirs, strict=True):
        assert (one.ids, one.finished) == (other.ids, other.finished)
        assert (one.log_prob, one.score) == pytest.approx((other.log_prob, other.score))


@pytest.mark.usefixtures("always_guessing")
@pytest.mark.parametrize("batch", [1, 5, 60])
def test_every_token_is_that_of_greedy_search_in_any_batch(pair, batch):
    model, draft = pair
    plain = decode_sources(model, SOURCES, GREEDY, suppress=[1], batch=60)
    assert {found[0].finished for found in plain} == {"eos", "length"}
    assert sum(len(found[0].ids) for found in plain) > 300
    assert_same(decode_sources(model, SOURCES, GREEDY, suppress=[1], batch=batch, draft=draft), plain)


def test_the_block_size_does_not_change_the_result(pair):
    model, draft = pair
    assert_same(decode_sources(model, SOURCES, GREEDY, draft=draft), decode_sources(model, SOURCES, GREEDY))


@pytest.mark.usefixtures("always_guessing")
def test_accepted_draft_tokens_save_model_calls(monkeypatch):
    """If the drafter is the model itself, every draft token is accepted."""
    model, twin = (random_model("seq2seq") for _ in range(2))
    for endless in (model, twin):
        endless.tokens.bias.data[EOS] = -1e9
    readings = []
    extend = type(model).extend

    def counted(self, tokens, state):
        if self is model:
            readings.append(tokens.shape)
        return extend(self, tokens, state)

    monkeypatch.setattr(type(model), "extend", counted)
    [[found]] = decode_sources(model, [[1, 2, 3, EOS]], Search(beam=1, growth=0.0, slack=13), draft=ModelDrafter(twin))
    assert len(found.ids) == 13
    assert [width for _, width in readings] == [1, 4, 4, 4]  # BOS, and three blocks


@pytest.mark.usefixtures("always_guessing")
def test_the_coverage_penalty_works_with_a_draft():
    model = random_model("hybrid")
    short = Search(beam=1, growth=0.0, slack=2)  # too short to cover a source
    search = short.model_copy(update={"coverage_penalty": 0.4})
    drafted = decode_sources(model, SOURCES[:6], search, draft=LookaheadDrafter(model))
    assert_same(drafted, decode_sources(model, SOURCES[:6], search))
    uncovered = decode_sources(model, SOURCES[:6], short)
    assert any(one[0].score < other[0].score for one, other in zip(drafted, uncovered, strict=True))


def test_a_draft_with_a_beam_or_a_parallel_model_is_refused():
    model = random_model("hybrid")
    with pytest.raises(DecodingError, match="the beam width is 5; set the beam width to 1"):
        decode_sources(model, SOURCES, Search(), draft=LookaheadDrafter(model))
    source, target = Words(["a", "b", "c", "d"]), Words(["x", "y", "z"])
    parallel = Translator(tiny_parallel("nonautoregressive"), source, target)
    with pytest.raises(DecodingError, match="cannot use a draft"):
        parallel.translate_texts(["a b"], GREEDY, draft=LookaheadDrafter(model))
