"""Translation: batches of sources, ranking, coverage, copying of unknown words, and agreement of two models."""

import itertools
import math

import pytest
import torch

from chainrule.data.batching import by_length
from chainrule.decoding import Search, Translator, agreement, beam_search, decode_sources
from chainrule.decoding.beam import power, wu
from chainrule.decoding.copying import replace_unknown, surface_forms
from chainrule.decoding.translation import attention, coverage, log_probs
from chainrule.decoding.translator import TranslatedText
from chainrule.errors import ConfigError, DecodingError
from chainrule.interface.base import Recomputed
from chainrule.interface.capabilities import Composite
from chainrule.models.transformer import Transformer
from chainrule.testing import tiny_model
from chainrule.tokenizers.words import Words
from chainrule.types import Batch, Sequences

EOS = 0
VOCABULARY = 5
FAMILIES = [("seq2seq", "attention"), ("seq2seq", "plain"), ("transformer", "rotary")]
SOURCES = [[3, 1, 0], [0], [2, 5, 4, 1, 3, 3, 2, 0], [5, 0], [1, 1, 1, 1, 0], [4, 2, 0]]
SHORT = Search(beam=3, n_best=3, growth=1.0, slack=3)


def random_model(family, variant, seed=2):
    """Large random weights in float64, so that there are no near ties."""
    model = tiny_model(family, variant).double().eval()
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    model.tokens.bias.data[EOS] -= 3.0  # makes translations longer
    return model


@pytest.fixture(params=FAMILIES, ids=" ".join)
def model(request):
    return random_model(*request.param)


@pytest.fixture
def attentive():
    return random_model("transformer", "rotary")


def log_prob(model, source, ids):
    return model.log_prob(Batch(Sequences.pack([ids], model.device), Sequences.pack([source], model.device))).item()


def assert_same(one, other):
    assert [(found.ids, found.finished) for found in one] == [(found.ids, found.finished) for found in other]
    assert [found.log_prob for found in one] == pytest.approx([found.log_prob for found in other])
    assert [found.score for found in one] == pytest.approx([found.score for found in other])


@pytest.mark.parametrize("normaliser", ["power", "wu"])
@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0])
def test_a_beam_as_wide_as_all_translations_is_exhaustive_search(model, normaliser, penalty):
    length = 3
    divide = {"power": power, "wu": wu}[normaliser]
    words = range(1, VOCABULARY)
    for source in SOURCES[:3]:
        ended = [[*ids, EOS] for size in range(length) for ids in itertools.product(words, repeat=size)]
        scores = {tuple(ids): log_prob(model, source, ids) / divide(len(ids), penalty) for ids in ended}
        wanted = sorted(scores, key=lambda ids: -scores[ids])[:6]
        search = Search(beam=5**3, n_best=6, length_penalty=penalty, normaliser=normaliser, growth=0.0, slack=length)
        [found] = decode_sources(model, [source], search)
        assert [(*one.ids, EOS) for one in found] == wanted
        assert [one.score for one in found] == pytest.approx([scores[ids] for ids in wanted])


@pytest.mark.parametrize("search", [SHORT, Search(beam=1), Search(beam=4, n_best=2, length_penalty=0.0)])
@pytest.mark.parametrize("batch", [1, 2, 6])
def test_a_batch_of_sources_gives_what_each_gives_by_itself_in_order(model, search, batch):
    together = decode_sources(model, SOURCES, search, batch=batch)
    for source, found in zip(SOURCES, together, strict=True):
        assert_same(found, decode_sources(model, [source], search)[0])
    assert len({found[0].log_prob for found in together}) == len(SOURCES)


def test_scores_and_log_probs_are_those_of_the_model(model):
    for source, found in zip(SOURCES, decode_sources(model, SOURCES, SHORT), strict=True):
        assert found
        for one in found:
            written = one.with_eos(EOS)
            assert one.log_prob == pytest.approx(log_prob(model, source, written))
            assert one.score == pytest.approx(one.log_prob / len(written))


def test_finished_translations_rank_before_cut_ones(model):
    for found in decode_sources(model, SOURCES, Search(beam=5, n_best=5, growth=0.0, slack=2)):
        cut = [one.finished == "length" for one in found]
        assert cut == sorted(cut)
        assert all(len(one.ids) == 2 for one in found if one.finished == "length")


def test_the_limit_grows_with_the_source_and_stays_within_the_context(attentive):
    search = Search(beam=1, growth=2.0, slack=3)
    assert [search.limit(length, None) for length in (1, 4)] == [5, 11]
    assert search.limit(100, attentive.context) == attentive.context
    endless = random_model("transformer", "rotary")
    endless.tokens.bias.data[EOS] = -1e9
    [short], [long] = decode_sources(endless, [[1, 0], [1] * 9 + [0]], search)
    assert (len(short.ids), short.finished) == (7, "length")
    assert (len(long.ids), long.finished) == (attentive.context, "length")


def test_the_normaliser_of_wu_is_weaker_for_short_translations():
    assert wu(1, 0.6) == 1.0
    assert wu(7, 1.0) == pytest.approx(2.0)
    assert power(7, 1.0) == 7.0
    assert power(7, 0.0) == wu(7, 0.0) == 1.0


def test_the_search_works_without_a_cache_and_leaves_its_source_unchanged(model):
    """Without a cache the source is part of the state, whose rows the search copies in place."""
    source = Sequences.pack(SOURCES, model.device)
    before = source.ids.clone(), source.lengths.clone()
    found = [
        beam_search(any_model, [[]] * len(SOURCES), width=4, length=6, eos=EOS, num=2, source=source)
        for any_model in (model, Recomputed(model))
    ]
    for fast, slow in zip(*found, strict=True):
        assert [one.ids for one in fast] == [one.ids for one in slow]
    assert source.ids.equal(before[0])
    assert source.lengths.equal(before[1])


def test_suppressed_ids_are_never_generated(model):
    for found in decode_sources(model, SOURCES, SHORT, suppress=[1, 2]):
        assert all(not {1, 2} & {*one.ids} for one in found)


def test_groups_are_of_similar_length_and_bounded():
    lengths = [5, 1, 9, 1, 5, 30]
    groups = list(by_length(lengths, rows=2, tokens=12))
    assert sorted(itertools.chain(*groups)) == list(range(6))
    assert [[lengths[index] for index in group] for group in groups] == [[1, 1], [5, 5], [9], [30]]


def test_a_language_model_is_refused():
    with pytest.raises(DecodingError, match="text model, which has no source to translate"):
        decode_sources(tiny_model("recurrent"), [[1, 0]], Search())


def test_more_results_than_the_beam_holds_are_refused():
    with pytest.raises(ConfigError, match="raise beam to 4"):
        Search.parse({"beam": 2, "n_best": 4})


def test_lengths_that_do_not_match_the_prompts_are_refused(attentive):
    with pytest.raises(DecodingError, match="1 lengths for 2 prompts"):
        beam_search(attentive, [[], []], width=1, length=[3], source=Sequences.pack(SOURCES[:2], attentive.device))


def test_pairs_beyond_the_context_have_probability_zero(attentive):
    sources, targets = [[1, 0], [1] * 20 + [0], [1, 0]], [[2, 0], [2, 0], [2] * 20 + [0]]
    fits, long_source, long_target = log_probs(attentive, sources, targets)
    assert fits == pytest.approx(log_prob(attentive, [1, 0], [2, 0]))
    assert long_source == long_target == -math.inf


# Attention


def test_coverage_is_zero_for_full_attention_and_lower_otherwise():
    full = torch.tensor([[0.5, 0.5], [0.5, 0.5]])
    half = torch.tensor([[1.0, 0.0], [0.5, 0.5]])
    none = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert coverage(full, 2) == 0.0
    assert coverage(half, 2) == pytest.approx(math.log(0.5))
    assert -math.inf < coverage(none, 2) < coverage(half, 2)
    assert coverage(none, 1) == 0.0


def test_the_coverage_penalty_ranks_all_hypotheses_by_score_and_coverage(attentive):
    plain = Search(beam=5, n_best=5, growth=1.0, slack=4)
    weighted = plain.model_copy(update={"coverage_penalty": 2.0})
    results = zip(
        SOURCES, decode_sources(attentive, SOURCES, plain), decode_sources(attentive, SOURCES, weighted), strict=True
    )
    changed = False
    for source, before, after in results:
        maps = attention(attentive, [source] * len(before), [one.with_eos(EOS) for one in before])
        wanted = {
            tuple(one.ids): one.score + 2.0 * coverage(weights, len(source))
            for one, weights in zip(before, maps, strict=True)
        }
        assert {tuple(one.ids): one.score for one in after} == pytest.approx(wanted)
        ended = [one.score for one in after if one.finished == "eos"]
        assert ended == sorted(ended, reverse=True)
        changed = changed or [one.ids for one in before] != [one.ids for one in after]
    assert changed


def test_coverage_of_a_translation_that_fills_the_context_is_no_error(attentive):
    attentive.tokens.bias.data[EOS] = -1e9
    [[found]] = decode_sources(attentive, [[1, 2, 0]], Search(beam=2, slack=99, coverage_penalty=1.0))
    assert len(found.ids) == attentive.context


def test_a_model_without_cross_attention_is_refused():
    model = random_model("seq2seq", "plain")
    with pytest.raises(DecodingError, match="attention"):
        decode_sources(model, SOURCES, Search(coverage_penalty=1.0))
    with pytest.raises(DecodingError, match="attention"):
        translator(model).translate_texts(["a"], Search(), copy_unknown=True)


@pytest.mark.parametrize(
    ("text", "pieces", "wanted"),
    [
        ("the Zorg sat", ["the", " \ufffd", " sat"], ["the", "Zorg", "sat"]),
        ("Zig Zag  sat", ["\ufffd", " \ufffd", " sat"], ["Zig", "Zag", "sat"]),
        ("sat by Zig Zag", ["sat", " by", " \ufffd", " \ufffd"], ["sat", "by", "Zig", "Zag"]),
        ("aβγd", ["a", "\ufffd", "\ufffd", "d"], ["a", "β", "γ", "d"]),
        ("a b c d", ["a", " \ufffd", " d"], ["a", "b c", "d"]),
        ("the the Zorg the", ["the", " the", " \ufffd", " the"], ["the", "the", "Zorg", "the"]),
        ("Case", ["case"], ["case"]),
        ("", [], []),
    ],
)
def test_surface_forms_of_unknown_tokens_are_the_text_between_known_ones(text, pieces, wanted):
    assert surface_forms(text, pieces) == wanted


def test_an_unknown_word_becomes_the_source_word_with_the_most_attention():
    weights = torch.tensor([[0.1, 0.2, 0.7], [0.2, 0.5, 0.3], [0.0, 0.1, 0.9]])  # last column: source EOS
    text = replace_unknown(["der", " \ufffd", " \ufffd"], [False, True, True], ["the", "Zorg"], weights)
    assert text == "der Zorg Zorg"
    assert replace_unknown(["\ufffd"], [False], ["the"], weights) == "\ufffd"


# Text


SOURCE_WORDS, TARGET_WORDS = Words(["a", "b", "c", "d"]), Words(["x", "y", "z"])


def translator(model, normalise=str):
    return Translator(model, SOURCE_WORDS, TARGET_WORDS, normalise)


def test_results_are_in_the_order_of_the_texts(attentive):
    texts = ["a b", "", "c d a", "  ", "a " * 5000, "b"]
    found = translator(attentive).translate_texts(texts, Search(beam=2, slack=4), batch=2)
    assert [results[0].finished for results in found][1::2] == ["empty", "empty", "eos"]
    assert found[4] == [TranslatedText.untranslated(texts[4], "too long")]
    alone = translator(attentive).translate_texts(["c d a"], Search(beam=2, slack=4))
    assert found[2][0].text == alone[0][0].text
    assert found[2][0].log_prob == pytest.approx(alone[0][0].log_prob)


def test_the_maximum_source_length_can_be_set(attentive):
    [[short], [long]] = translator(attentive).translate_texts(["a", "a b"], Search(), longest=2)
    assert (short.is_untranslated, long.is_untranslated) == (False, True)


def test_the_source_is_normalised_as_in_training(attentive):
    plain, lower = translator(attentive), translator(attentive, str.lower)
    assert lower.translate_texts(["A B"], Search()) == plain.translate_texts(["a b"], Search())


def test_unknown_words_are_suppressed_unless_they_are_copied(attentive):
    attentive.tokens.bias.data[1] = 50.0
    attentive.tokens.bias.data[EOS] = 40.0
    [[plain]] = translator(attentive).translate_texts(["a Zorg"], Search(beam=1, growth=0.0, slack=3))
    [[copy]] = translator(attentive).translate_texts(["a Zorg"], Search(beam=1, growth=0.0, slack=3), copy_unknown=True)
    assert "\ufffd" not in plain.text + copy.text
    assert set(copy.text.split()) <= {"a", "Zorg"}
    assert copy.text


def test_streaming_keeps_the_order_and_buffers_no_more_than_a_window(attentive):
    seen = []

    class Uppercase(Translator):
        def translate_texts(self, texts, search, **options):
            seen.append(len(texts))
            return [[TranslatedText(text.upper(), -1.0, -1.0, 1, "eos")] for text in texts]

    odd = TranslatedText.untranslated("?", "not text")
    lines = iter(["a", odd, "b", "c", odd, odd, "d", "never read"])
    inner = translator(attentive)
    upper = Uppercase(inner.model, inner.source_tokenizer, inner.tokenizer)
    found = upper.translate_stream(lines, Search(), window=3)
    assert [results[0].text for results in itertools.islice(found, 7)] == ["A", "?", "B", "C", "?", "?", "D"]
    assert seen == [2, 1, 2]


def test_an_alignment_has_the_tokens_of_both_texts(attentive):
    found = translator(attentive).align("a Zorg c", "x y")
    assert found.source == ["a", " \ufffd", " c", ""]
    assert found.target == ["x", " y", ""]
    assert found.weights.shape == (3, 4)
    assert found.weights.sum(-1).tolist() == pytest.approx([1.0] * 3)


class RightToLeft(Transformer, Composite):
    """A right-to-left model."""

    components = ()
    backwards = True


def test_texts_of_a_right_to_left_model_are_in_reading_order(attentive):
    backwards = RightToLeft(attentive.config).double().eval()
    backwards.load_state_dict(attentive.state_dict())
    forth, back = translator(attentive), translator(backwards)
    texts = ["c d a", "a b", "d"]
    search = Search(beam=3, n_best=3, growth=0.0, slack=4)
    turned = [[" ".join(one.text.split()[::-1]) for one in found] for found in forth.translate_texts(texts, search)]
    assert [[one.text for one in found] for found in back.translate_texts(texts, search)] == turned
    assert any(" " in text for found in turned for text in found)
    assert back.log_probs(["a"], ["x y z"]) == forth.log_probs(["a"], ["z y x"])
    ours, theirs = back.align("a b", "x y z"), forth.align("a b", "z y x")
    assert ours.target == ["x", " y", " z", ""]
    assert ours.weights.tolist() == theirs.weights[[2, 1, 0, 3]].tolist()


# Agreement


def test_agreement_ranks_the_candidates_of_both_models_by_their_mean_score():
    one = translator(random_model("transformer", "rotary", seed=1))
    other = translator(random_model("seq2seq", "attention", seed=2))
    texts = ["a b c", "d", "", "c c"]
    search = Search(beam=4, n_best=3, growth=0.0, slack=3)
    wide = search.model_copy(update={"n_best": 4})
    found = agreement(one, other, texts, search)
    assert found[2] == [TranslatedText.untranslated("", "empty")]
    for index in (0, 1, 3):
        both = [model.translate_texts([texts[index]], wide)[0] for model in (one, other)]
        candidates = {result.text for results in both for result in results}
        scores = {}
        for text in candidates:
            opinions = [model.log_probs([texts[index]], [text])[0] for model in (one, other)]
            scores[text] = sum(nats / tokens for nats, tokens in opinions) / 2
        wanted = sorted(scores, key=lambda text: -scores[text])[:3]
        assert [result.text for result in found[index]] == wanted
        assert [result.score for result in found[index]] == pytest.approx([scores[text] for text in wanted])
