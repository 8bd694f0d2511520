"""Speculative decoding gives the text of plain decoding with fewer model calls."""

import itertools
import math
from types import SimpleNamespace

import pytest
import torch

from chainrule.data.corpus import Corpus
from chainrule.decoding import (
    GREEDY,
    FallbackDrafter,
    LookupDrafter,
    ModelDrafter,
    Sampling,
    generate_tokens,
    speculative,
    stream_tokens,
)
from chainrule.decoding.block_size import BlockSize, FixedBlockSize
from chainrule.decoding.compiled import CompiledGeneration
from chainrule.decoding.drafts import DeferredDrafter, Drafter, Prefix, ngram_draft_model
from chainrule.decoding.incremental import RewindableReader
from chainrule.errors import DecodingError
from chainrule.models.ngram import NGram, NGramConfig
from chainrule.testing.tiny import tiny_model
from chainrule.training import counting
from chainrule.types import Sequences, Step

PROMPTS = [[1, 2, 3], [], [4], [2, 2, 1], [3, 1, 4, 1, 2, 3], [2] * 15]
WILD = Sampling(temperature=1.3, top_k=4, top_p=0.9, min_p=0.01, repetition_penalty=1.2)
SAMPLINGS = pytest.mark.parametrize("sampling", [GREEDY, Sampling(), WILD], ids=["greedy", "plain", "wild"])


def assert_same(one, other):
    assert [(g.ids, g.finished) for g in one] == [(g.ids, g.finished) for g in other]
    assert [g.log_prob for g in one] == pytest.approx([g.log_prob for g in other])


class Oracle(Drafter):
    """Proposes the true continuation with `honest` correct tokens per row, then wrong ones."""

    def __init__(self, texts, honest):
        self.texts, self.honest = texts, honest

    def check(self, model):
        pass

    def begin(self, source):
        self.calls = 0

    def propose(self, texts, count, pick):
        self.calls += 1
        found = []
        for owner, ids in texts:
            following = [*self.texts[owner][len(ids) :], *[0] * count][:count]
            honest = self.honest[owner]
            found.append([token if place < honest else (token + 1) % 5 for place, token in enumerate(following)])
        return found


class Counted(torch.nn.Module):
    """Counts the calls of `extend`."""

    def __init__(self, model):
        super().__init__()
        self.reads, extend = 0, model.extend

        def counting_extend(tokens, state):
            self.reads += 1
            return extend(tokens, state)

        model.extend = counting_extend


@pytest.fixture(params=["itself", "another", "the text", "either", "nothing like it"])
def drafter(request, model, make_unigram):
    if request.param == "the text":
        return LookupDrafter(shortest=1)
    return {
        "itself": ModelDrafter(model),
        "either": FallbackDrafter(LookupDrafter(shortest=2), ModelDrafter(tiny_model("gpt", seed=1).double())),
        "another": ModelDrafter(tiny_model("recurrent", "gru").double()),
        "nothing like it": ModelDrafter(make_unigram([0.2] * 5)),
    }[request.param]


@SAMPLINGS
@pytest.mark.parametrize("width", [2, 5])
def test_any_drafter_leaves_the_text_unchanged(model, drafter, sampling, width):
    settings = {"length": 30, "sampling": sampling, "seeds": range(6), "eos": 0}
    plain = generate_tokens(model, PROMPTS, **settings)
    assert_same(generate_tokens(model, PROMPTS, draft=drafter, block_size=FixedBlockSize(width), **settings), plain)
    if not sampling.greedy:
        assert len({len(text.ids) for text in plain}) > 1  # some rows reach EOS before the others


def test_blocks_of_a_fixed_size_are_drafted_from_the_first_token_on():
    model = tiny_model("gpt")  # has a compiled step, which chooses tokens in a pause of drafting
    size = FixedBlockSize(4)
    settings = {"length": 10, "sampling": GREEDY, "seeds": [0]}
    generate_tokens(model, [[1, 2]], draft=ModelDrafter(model), block_size=size, **settings)
    assert size.drafted == size.accepted == 3 + 3  # tokens 2 to 4 and 6 to 8; the model itself adds the others


def test_an_adaptive_block_size_leaves_the_text_unchanged(model):
    settings = {"length": 60, "sampling": Sampling(), "seeds": range(6)}
    plain = generate_tokens(model, PROMPTS, **settings)
    assert_same(generate_tokens(model, PROMPTS, draft=model, **settings), plain)


@pytest.mark.parametrize(("family", "draft"), [("gpt", "ngram"), ("ngram", "gpt"), ("recurrent", "self")])
def test_greedy_text_is_the_same_for_thousands_of_prompts(family, draft):
    model, prompts = tiny_model(family), torch.randint(5, (2000, 6), generator=torch.Generator().manual_seed(0))
    drafter = LookupDrafter(shortest=1) if draft == "self" else ModelDrafter(tiny_model(draft, seed=3))
    for batch in prompts.split(250):
        rows = [row[: 1 + index % 6] for index, row in enumerate(batch.tolist())]
        settings = {"length": 12, "sampling": GREEDY, "seeds": [0] * len(rows)}
        plain = generate_tokens(model, rows, **settings)
        drafted = generate_tokens(model, rows, draft=drafter, block_size=FixedBlockSize(4), **settings)
        assert [text.ids for text in drafted] == [text.ids for text in plain]


def test_sampled_sequences_follow_the_distribution_of_the_model(make_bigram):
    target = [[0.7, 0.2, 0.1], [0.1, 0.5, 0.4], [0.3, 0.3, 0.4], [0.5, 0.25, 0.25]]
    other = [[0.5, 0.3, 0.2], [0.2, 0.6, 0.2], [0.1, 0.1, 0.8], [0.4, 0.4, 0.2]]
    count = 6000
    found = generate_tokens(
        make_bigram(target),
        [[]] * count,
        length=3,
        sampling=Sampling(),
        seeds=range(count),
        draft=ModelDrafter(make_bigram(other)),
        block_size=FixedBlockSize(3),
    )
    texts = [tuple(text.ids) for text in found]
    statistic = 0.0
    for first, second, third in itertools.product(range(3), repeat=3):
        expected = count * target[3][first] * target[first][second] * target[second][third]
        statistic += (texts.count((first, second, third)) - expected) ** 2 / expected
    assert statistic < 54.1  # chi-square, 26 degrees of freedom, p = 0.001


def test_rows_advance_by_their_own_accepted_tokens(model):
    settings = {"length": 40, "sampling": Sampling(), "seeds": range(6)}
    plain = generate_tokens(model, PROMPTS, **settings)
    texts = [[*prompt, *text.ids] for prompt, text in zip(PROMPTS, plain, strict=True)]
    oracle = Oracle(texts, honest=[0, 1, 2, 3, 4, 5])
    assert_same(generate_tokens(model, PROMPTS, draft=oracle, block_size=FixedBlockSize(5), **settings), plain)


def test_accepted_draft_tokens_save_model_calls(recurrent):
    [plain] = generate_tokens(recurrent, [[1]], length=41, sampling=GREEDY, seeds=[0])
    counted = Counted(recurrent)
    oracle = Oracle([[1, *plain.ids]], honest=[9])
    generate_tokens(recurrent, [[1]], length=41, sampling=GREEDY, seeds=[0], draft=oracle, block_size=FixedBlockSize(5))
    assert counted.reads == 2 + 40 / 5  # BOS, the prompt, which gives the first token, and every block gives five more


def test_a_step_yields_all_tokens_of_a_row_in_order(recurrent):
    settings = {"length": 21, "sampling": GREEDY, "seeds": [0]}
    [plain] = generate_tokens(recurrent, [[1]], **settings)
    steps = list(
        stream_tokens(recurrent, [[1]], draft=Oracle([[1, *plain.ids]], [9]), block_size=FixedBlockSize(5), **settings)
    )
    assert [len(tokens) for tokens in steps] == [1, 5, 5, 5, 5]
    assert [token.id for tokens in steps for token in tokens] == plain.ids
    assert [token.finished for tokens in steps for token in tokens] == [None] * 20 + ["length"]


def test_a_row_stopped_within_a_block_yields_nothing_after_it(recurrent):
    [free] = generate_tokens(recurrent, [[1]], length=20, sampling=Sampling(), seeds=[0])
    stop_after = {"length": 20, "sampling": Sampling(), "seeds": [0], "stop": lambda ids: len(ids) == 8}
    [stopped] = generate_tokens(
        recurrent, [[1]], draft=Oracle([[1, *free.ids]], [9]), block_size=FixedBlockSize(5), **stop_after
    )
    assert (stopped.ids, stopped.finished) == (free.ids[:8], "stop")


def test_draft_tokens_count_for_the_repetition_penalty(make_unigram):
    model = make_unigram([0.3, 0.25, 0.2, 0.15, 0.1])
    sampling = Sampling(greedy=True, repetition_penalty=9.0)
    draft = Oracle([[0, 1, 2, 3, 4]], honest=[9])
    [found] = generate_tokens(
        model, [[]], length=5, sampling=sampling, seeds=[0], draft=draft, block_size=FixedBlockSize(5)
    )
    assert found.ids == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("context", [1, 2, 3, 7])
def test_blocks_end_where_the_window_of_the_model_moves(make_bounded, context):
    model = make_bounded(context)
    settings = {"length": 4 * context + 3, "sampling": Sampling(), "seeds": range(6)}
    plain = generate_tokens(model, PROMPTS, **settings)
    for draft in (make_bounded(4), LookupDrafter(shortest=1)):  # the first has a window of its own
        assert_same(generate_tokens(model, PROMPTS, draft=draft, block_size=FixedBlockSize(4), **settings), plain)


def test_a_conditional_model_can_have_a_draft_with_or_without_a_source():
    model, source = tiny_model("transformer").double(), Sequences.pack([[1, 2, 3], [4], [5, 0]])
    settings = {"length": 9, "sampling": Sampling(), "seeds": range(3), "source": source}
    plain = generate_tokens(model, [[]] * 3, **settings)
    for draft in (tiny_model("seq2seq", seed=1), tiny_model("ngram")):
        assert_same(generate_tokens(model, [[]] * 3, draft=draft, block_size=FixedBlockSize(4), **settings), plain)


def test_a_draft_of_another_vocabulary_is_refused(recurrent):
    with pytest.raises(DecodingError, match=r"vocabulary of 7 tokens and the model one of 5.*same tokenizer"):
        stream_tokens(
            recurrent, [[1]], length=3, sampling=GREEDY, seeds=[0], draft=tiny_model("recurrent", "gru", vocabulary=7)
        )


def test_a_conditional_draft_of_an_unconditional_model_is_refused(recurrent):
    with pytest.raises(DecodingError, match="draft model needs a source"):
        stream_tokens(recurrent, [[1]], length=3, sampling=GREEDY, seeds=[0], draft=tiny_model("seq2seq"))


# Rewinding


@pytest.mark.parametrize("family", ["gpt", "recurrent", "causal_conv", "ngram"])
@pytest.mark.parametrize("counts", [[0, 3, 1], [2, 2, 2], [0, 0, 0], [4, 4, 0]])
@torch.no_grad()
def test_rewound_tokens_leave_no_trace(family, counts):
    model = tiny_model(family).double()
    tokens = torch.randint(5, (3, 7), generator=torch.Generator().manual_seed(0))
    reader = RewindableReader(model, model.extend(tokens[:, :3], model.start(batch_size=3).state).state)
    reader.mark()
    reader.read(tokens[:, 3:5])
    reader.read(tokens[:, 5:])
    reader.rewind(counts)
    following = torch.tensor([[1, 4], [2, 0], [3, 3]])
    found = reader.read(following)
    for row, count in enumerate(counts):
        kept = torch.cat([tokens[row, : 7 - count], following[row]])[None]
        expected: Step = model.extend(kept, model.start().state)
        torch.testing.assert_close(found[row], expected.logits[0, -2:], rtol=0, atol=1e-5)


# Drafters


class Nothing:
    """Lookup needs no logits."""

    greedy = True


nothing = Nothing()


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_greedy_drafts_of_an_ngram_are_its_greedy_text(order):
    model = NGram(NGramConfig(vocabulary=5, order=order))
    model.observe(Sequences.full(torch.randint(5, (1, 300), generator=torch.Generator().manual_seed(order))))
    model.estimate()
    texts = [[], [3], [1, 2, 3, 4, 0, 1], *torch.randint(5, (50, 9)).tolist()]
    written = generate_tokens(model, texts, length=8, sampling=GREEDY, seeds=[0] * len(texts))
    assert [model.greedy_draft(text, 8) for text in texts] == [text.ids for text in written]


def test_greedy_drafts_of_an_ngram_follow_new_counts():
    model = NGram(NGramConfig(vocabulary=5, order=2))
    for text, expected in (([1, 2] * 9, 2), ([1, 3] * 99, 3)):
        model.observe(Sequences.full(torch.tensor([text])))
        model.estimate()
        assert model.greedy_draft([1], 1) == [expected]


@pytest.mark.parametrize(
    ("text", "proposal"),
    [
        ([1, 2, 3, 9, 8, 7, 1, 2, 3], [9, 8, 7, 1]),
        ([1, 2, 3, 9, 4, 2, 3, 5, 1, 2, 3], [9, 4, 2, 3]),  # the longest suffix wins over the later 2 3
        ([6, 1, 2, 1, 2, 1, 2], [1, 2, 1, 2]),  # periodic
        ([5, 5], [5, 5, 5, 5]),
        ([1, 2, 3, 4], []),
        ([], []),
    ],
)
def test_lookup_proposes_what_followed_the_longest_repeated_suffix(text, proposal):
    drafter = LookupDrafter(shortest=1)
    drafter.begin(None)
    drafter.propose([Prefix(0, text[:2])], 4, nothing)  # the next call extends it
    assert drafter.propose([Prefix(0, text)], 4, nothing) == [proposal]


def test_short_suffixes_are_ignored():
    drafter = LookupDrafter(shortest=3)
    drafter.begin(None)
    assert drafter.propose([Prefix(0, [1, 2, 9, 1, 2])], 4, nothing) == [[]]
    assert drafter.propose([Prefix(1, [1, 2, 3, 9, 1, 2, 3])], 2, nothing) == [[9, 1]]


def test_the_second_drafter_is_used_where_the_first_has_no_proposal():
    model = NGram(NGramConfig(vocabulary=5, order=2))
    model.observe(Sequences.full(torch.tensor([[1, 2, 3, 4, 0] * 9])))
    model.estimate()
    drafter = FallbackDrafter(LookupDrafter(shortest=2), ModelDrafter(model))
    drafter.begin(None)
    assert drafter.propose([Prefix(0, [1, 0, 4, 1, 0]), Prefix(1, [1, 2])], 2, nothing) == [[4, 1], [3, 4]]


def test_an_ngram_draft_model_is_cached(tmp_path, monkeypatch):
    corpus = Corpus.of_tokens([1, 2, 3, 1, 2, 4] * 20, vocabulary=5)
    first = ngram_draft_model(corpus, 5, cache=tmp_path)
    turned = ngram_draft_model(corpus, 5, right_to_left=True, cache=tmp_path)
    monkeypatch.setattr(counting, "count", None)
    again = ngram_draft_model(corpus, 5, cache=tmp_path)
    assert all(torch.equal(one, other) for one, other in zip(first.buffers(), again.buffers(), strict=True))
    texts = [generate_tokens(model, [[1]], length=3, sampling=GREEDY, seeds=[0])[0].ids for model in (again, turned)]
    assert texts[0][0] == 2
    assert texts[1][0] in (3, 4)


def test_a_damaged_cache_entry_is_counted_again(tmp_path):
    corpus = Corpus.of_tokens([1, 2, 3, 1, 2, 4] * 20, vocabulary=5)
    ngram_draft_model(corpus, 5, cache=tmp_path)
    [file] = tmp_path.glob("*/model.safetensors")
    file.write_bytes(file.read_bytes()[:50])
    [text] = generate_tokens(ngram_draft_model(corpus, 5, cache=tmp_path), [[1]], length=1, sampling=GREEDY, seeds=[0])
    assert text.ids == [2]


# The block size


def run(block_size, blocks, accuracy, cost, drafting=0.0, left=10_000):
    """Simulate blocks of one text with so many tokens left, and record them; the sizes that were chosen."""
    chosen = []
    random = torch.Generator().manual_seed(0)
    block_size.begin(1)
    for _ in range(blocks):
        width = block_size.next(left)
        chosen.append(width)
        right = 0
        if width > 1:
            hits = torch.rand(width - 1, generator=random) < accuracy
            right = int(hits.long().cumprod(0).sum())
            block_size.record_drafting(width - 1, drafting * (width - 1))
            block_size.record_acceptance([width - 1], [right])
            block_size.record_block(width, cost(width), left=left, accepted=[right], drafting=drafting * (width - 1))
        else:
            block_size.record_single(1, cost(1))
        left -= 1 + right
    return chosen


def test_blocks_grow_with_the_acceptance_rate():
    def cost(width):
        return 1.0 if width == 1 else 1.5 + 0.1 * width

    widths = [max(set(found := run(BlockSize(), 200, a, cost)[50:]), key=found.count) for a in (0.98, 0.7)]
    assert widths[0] == 16
    assert widths[1] in (4, 8)


@pytest.mark.parametrize(
    ("accuracy", "cost", "drafting"),
    [(0.05, lambda width: 1 + 0.1 * width, 0.0), (0.95, lambda width: width, 0.1), (0.8, lambda width: 1.0, 2.0)],
    ids=["low acceptance", "a block costs what its tokens cost", "expensive drafts"],
)
def test_drafting_pauses_where_it_does_not_pay_off_and_is_tried_again(accuracy, cost, drafting):
    block_size = BlockSize()
    chosen = run(block_size, 2000, accuracy, cost, drafting)
    assert chosen.count(1) > 1950
    assert any(width > 1 for width in chosen[100:])
    again = run(block_size, 2000, 0.99, lambda width: 1.0)
    assert again[-100:].count(16) > 80  # the text has changed, and drafting pays off


def test_exploration_costs_little_where_blocks_save_nothing():
    """As in a large batch, which uses the processor fully without drafts."""
    spent, written = 0, 0
    for width in run(BlockSize(), 200, 0.4, lambda width: width):
        spent += width
        written += 1 + (width > 1)  # about one accepted token per drafted block
    assert spent < 1.1 * written


def test_one_slow_measurement_has_no_lasting_effect():
    block_size = BlockSize()
    slow = itertools.count()
    chosen = run(block_size, 300, 0.98, lambda width: 50.0 if width == 16 and next(slow) == 0 else 1.0)
    assert chosen[-50:].count(16) > 30


def test_few_tokens_are_drafted_where_drafting_does_not_pay_off(recurrent, monkeypatch):
    """Through the decoder: all draft tokens are wrong, and a block takes the time of its tokens."""
    [plain] = generate_tokens(recurrent, [[1]], length=300, sampling=GREEDY, seeds=[0])
    tokens_read, extend = 0, recurrent.extend

    def ticking(tokens, state):
        nonlocal tokens_read
        tokens_read += tokens.shape[1]
        return extend(tokens, state)

    recurrent.extend = ticking
    monkeypatch.setattr(speculative, "time", SimpleNamespace(perf_counter=lambda: float(tokens_read)))
    liar = Oracle([[1, *plain.ids]], honest=[0])
    assert_same(generate_tokens(recurrent, [[1]], length=300, sampling=GREEDY, seeds=[0], draft=liar), [plain])
    assert 0 < liar.calls < 15
    assert tokens_read < 400


@pytest.mark.parametrize("left", [400, 4000])
@pytest.mark.parametrize("accuracy", [0.0, 0.4, 0.7])
def test_drafts_that_do_not_pay_off_cost_little_of_the_text(left, accuracy):
    """A block takes nearly the time of its tokens, and drafting takes time, too."""
    block_size, spent, generated = BlockSize(), 0.0, 0
    for width in run(block_size, left // 2, accuracy, lambda width: 0.9 * width, 0.2, left=left):
        spent += 0.9 * width + 0.2 * (width - 1)
        generated += 1
    assert spent < 0.9 * 1.03 * (generated + block_size.accepted + left / 2)


def test_no_draft_is_tried_where_the_text_ends_before_it_could_pay_off():
    fast, slow = BlockSize(), BlockSize()
    fast.begin(1, single=30e-6)
    assert (fast.next(left=400), fast.pause) == (1, math.inf)  # twelve milliseconds
    slow.begin(1, single=1.5e-3)
    assert slow.next(left=400) > 1
    assert fast.summary == "no draft was tried: that takes longer than drafts can save in 0 tokens"


def test_a_draft_is_tried_in_a_batch_only_if_it_has_more_time():
    one, many = BlockSize(), BlockSize()
    one.begin(1, single=1e-3)
    many.begin(16, single=1e-3)  # a block costs nearly what its tokens cost
    assert one.next(left=350) > 1
    assert many.next(left=350) == 1


def test_many_short_texts_are_together_long_enough_for_a_draft():
    block_size, tried = BlockSize(), []
    for _ in range(50):
        block_size.begin(1, single=30e-6)
        tried.append(block_size.next(left=400))
        if tried[-1] == 1:
            block_size.record_single(400, 400 * 30e-6)
    assert tried[0] == 1
    assert max(tried) > 1


def test_what_was_learned_serves_the_next_text_of_the_same_model_and_sampling(recurrent):
    draft, settings = LookupDrafter(), {"length": 20, "seeds": [0]}
    generate_tokens(recurrent, [[1]], sampling=GREEDY, draft=draft, **settings)
    learned = draft.record
    generate_tokens(recurrent, [[1, 2]], sampling=GREEDY, draft=draft, **settings)
    assert draft.record is learned
    assert learned.tokens == 2 * 19  # the first token of a text follows from the prompt
    generate_tokens(recurrent, [[1]], sampling=Sampling(), draft=draft, **settings)
    assert draft.record is not learned


def test_where_no_draft_is_tried_as_many_tokens_are_generated_per_call_as_without(monkeypatch):
    model, settings = tiny_model("gpt"), {"length": 200, "sampling": Sampling(), "seeds": [0]}
    monkeypatch.setattr(CompiledGeneration, "seconds_per_step", lambda self, rows: 30e-6)
    monkeypatch.setattr(CompiledGeneration, "tokens_per_call", lambda self, rows: 64)
    draft = Oracle([[]], [0])
    calls = [[len(tokens) for tokens in stream_tokens(model, [[1]], draft=one, **settings)] for one in (None, draft)]
    assert calls[0] == calls[1]
    assert not hasattr(draft, "calls")  # it has not even begun


def test_the_search_for_drafts_pauses_where_none_is_found():
    block_size = BlockSize()
    block_size.begin(1, single=1.5e-3)
    pauses = []
    for _ in range(5):
        assert block_size.next(left=400) > 1
        block_size.record_nothing(1e-5)
        pauses.append(block_size.pause)
        block_size.record_single(int(block_size.pause), 1.5e-3 * block_size.pause)
    assert pauses == [4, 8, 16, 32, 32]


# Drafters that take time to make


class Deferred(DeferredDrafter):
    """Records what making it may take."""

    def __init__(self, made):
        self.savings = []

        def make(saving):
            self.savings.append(saving)
            return made

        super().__init__(make)


LONG = {"length": 400, "sampling": GREEDY, "seeds": [0]}


@pytest.fixture
def blocks_take_a_second(recurrent, monkeypatch):
    """As every step, and nothing else takes any time."""
    counted = Counted(recurrent)
    monkeypatch.setattr(speculative, "time", SimpleNamespace(perf_counter=lambda: float(counted.reads)))


@pytest.mark.usefixtures("blocks_take_a_second")
def test_a_drafter_is_made_once_and_used_if_it_pays_off(recurrent):
    [plain] = generate_tokens(recurrent, [[1]], **LONG)
    draft, block_size = Deferred(Oracle([[1, *plain.ids]], [9])), BlockSize()
    for _ in range(2):
        assert_same(generate_tokens(recurrent, [[1]], draft=draft, block_size=block_size, **LONG), [plain])
    assert len(draft.savings) == 1
    assert block_size.accepted > 500


@pytest.mark.usefixtures("blocks_take_a_second")
def test_decoding_goes_on_without_a_drafter_that_would_take_longer_than_it_saves(recurrent):
    [plain] = generate_tokens(recurrent, [[1]], **LONG)
    draft, block_size = Deferred(None), BlockSize()
    assert_same(generate_tokens(recurrent, [[1]], draft=draft, block_size=block_size, **LONG), [plain])
    assert len(draft.savings) == 1
    assert block_size.drafted == 0
    assert block_size.summary.startswith("no draft was prepared: it would take longer than it saves in ")


@pytest.mark.usefixtures("blocks_take_a_second")
def test_where_the_second_drafter_does_not_pay_off_the_first_goes_on(recurrent):
    [plain] = generate_tokens(recurrent, [[1]], **LONG)
    draft = FallbackDrafter(Oracle([[1, *plain.ids]], [9]), Deferred(None))
    block_size = BlockSize()
    assert_same(generate_tokens(recurrent, [[1]], draft=draft, block_size=block_size, **LONG), [plain])
    assert block_size.accepted > 200


@pytest.mark.usefixtures("blocks_take_a_second")
def test_the_time_of_blocks_is_measured_before_a_drafter_is_made(recurrent):
    draft = Deferred(None)
    generate_tokens(recurrent, [[1]], draft=draft, **LONG)
    [saving] = draft.savings
    assert 200 < saving < 400  # of 400 seconds
    short = Deferred(None)
    generate_tokens(recurrent, [[1]], draft=short, **{**LONG, "length": 40})
    assert short.savings == []


def test_the_user_is_told_what_was_accepted_where_drafting_is_switched_off():
    block_size = BlockSize()
    run(block_size, 100, 0.0, lambda width: width)
    assert block_size.summary is not None
    assert block_size.summary.startswith(f"0% of {block_size.drafted} draft tokens were accepted")
    assert "plain decoding is faster" in block_size.summary
    useful = BlockSize()
    run(useful, 100, 0.95, lambda width: 1.0)
    assert useful.summary is None


def test_an_ngram_draft_model_is_not_counted_where_that_takes_longer_than_it_saves(tmp_path):
    corpus = Corpus.of_tokens([1, 2, 3, 1, 2, 4] * 20, vocabulary=5)
    assert ngram_draft_model(corpus, 5, cache=tmp_path, seconds=1e-6) is None
    assert ngram_draft_model(corpus, 5, cache=tmp_path, seconds=10) is not None
    assert ngram_draft_model(corpus, 5, cache=tmp_path, seconds=1e-6) is not None  # from the cache
