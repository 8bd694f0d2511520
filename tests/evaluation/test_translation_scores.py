"""Metrics of translations against references."""

import builtins
import math

import pytest
import torch

from chainrule.decoding import Search, Translator
from chainrule.errors import DataError, MissingExtra
from chainrule.evaluation.translation import corpus_scores, score_translations
from chainrule.testing import tiny_model
from chainrule.tokenizers.words import Words

REFERENCES = ["Der Hund sitzt auf der Matte .", "Ein Vogel in der Hand ist viel wert ."]


def test_the_references_themselves_have_perfect_scores():
    found = corpus_scores(REFERENCES, REFERENCES)
    assert found["bleu"] == pytest.approx(100.0)
    assert found["chrf"] == pytest.approx(100.0)
    assert found["exact_match"] == 1.0


def test_scores_and_signatures_are_those_of_sacrebleu():
    sacrebleu = pytest.importorskip("sacrebleu")
    hypotheses = ["Der Hund liegt auf der Matte .", REFERENCES[1]]
    found = corpus_scores(hypotheses, REFERENCES)
    assert found["bleu"] == pytest.approx(sacrebleu.corpus_bleu(hypotheses, [REFERENCES]).score)
    assert found["chrf"] == pytest.approx(sacrebleu.corpus_chrf(hypotheses, [REFERENCES]).score)
    assert found["exact_match"] == 0.5
    assert "case:mixed" in found["bleu_signature"]
    assert "tok:13a" in found["bleu_signature"]
    assert "nc:6" in found["chrf_signature"]


def test_matching_is_cased_and_ignores_surrounding_white_space():
    assert corpus_scores([f" {REFERENCES[0]}\n"], REFERENCES[:1])["exact_match"] == 1.0
    assert corpus_scores([REFERENCES[0].lower()], REFERENCES[:1])["bleu"] < 90.0


@pytest.mark.parametrize("language", ["zh", "zh-CN", "ZH_tw"])
def test_chinese_is_tokenized_by_characters(language):
    hypotheses, references = ["我喜欢喝热的绿茶"], ["我喜欢喝冷的绿茶"]
    found = corpus_scores(hypotheses, references, target_language=language)
    assert "tok:zh" in found["bleu_signature"]
    assert found["bleu"] > corpus_scores(hypotheses, references)["bleu"]


@pytest.mark.parametrize(("hypotheses", "references"), [(["a"], []), ([], [])])
def test_unpaired_or_missing_texts_are_refused(hypotheses, references):
    with pytest.raises(DataError, match="give"):
        corpus_scores(hypotheses, references)


def test_without_sacrebleu_the_error_names_the_extra(monkeypatch):
    real = builtins.__import__

    def refuse(name, *arguments, **words):
        if name.startswith("sacrebleu"):
            raise ImportError(name)
        return real(name, *arguments, **words)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(MissingExtra, match=r"chainrule\[translation\]"):
        corpus_scores(["a"], ["a"])


@pytest.fixture
def translator():
    model = tiny_model("transformer").eval()
    torch.manual_seed(3)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    return Translator(model, Words(["a", "b", "c", "d"]), Words(["x", "y", "z"]))


def test_a_model_is_scored_by_its_translations_and_by_the_likelihood_of_the_references(translator):
    pytest.importorskip("sacrebleu")
    sources = ["a b", "", "c " * 40, "d a"]
    references = ["x y", "", "z", "y " * 40]
    seen = []
    found = score_translations(translator, sources, references, Search(beam=2, slack=3), batch=2, progress=seen.append)
    assert (found.sentences, found.untranslated, found.unscored) == (4, 2, 2)
    pairs = translator.log_probs([sources[0], sources[1]], [references[0], references[1]])
    assert found.tokens == sum(tokens for _, tokens in pairs) == 4
    assert found.nats_per_token == pytest.approx(-sum(nats for nats, _ in pairs) / 4)
    assert math.isfinite(found.bleu)
    assert seen == [0.25, 0.5, 0.75, 1.0]


def test_sources_and_references_of_different_numbers_are_refused(translator):
    with pytest.raises(DataError, match="got 1 references for 2 sources"):
        score_translations(translator, ["a", "b"], ["x"], Search())
