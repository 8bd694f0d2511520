"""Parallel decoding: in batches, cut at EOS, within the decoding budget."""

from __future__ import annotations

import pytest
import torch

from chainrule.decoding import Search, Translator, decode_sources
from chainrule.decoding.translation import decoding_budget, log_probs
from chainrule.errors import DecodingError
from chainrule.evaluation.translation import score_translations
from chainrule.interface.conditional import DecodingBudget, ParallelModel, ParallelOutput
from chainrule.testing import tiny_model, tiny_parallel
from chainrule.testing.tiny import parallel_variants
from chainrule.tokenizers.words import Words
from chainrule.types import Batch, Sequences

EOS = 0
SOURCES = [[3, 1, 0], [0], [2, 5, 4, 1, 3, 3, 2, 0], [5, 0], [1, 1, 1, 1, 0], [4, 2, 0]]
VARIANTS = [pair for pair in parallel_variants() if "shared" not in pair[1]]


def random_model(family: str, variant: str) -> ParallelModel:
    """Large random weights in float64, so that there are no near ties."""
    model = tiny_parallel(family, variant).double().eval()
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model


@pytest.fixture(params=VARIANTS, ids=" ".join)
def model(request: pytest.FixtureRequest) -> ParallelModel:
    return random_model(*request.param)


@pytest.mark.parametrize("batch", [1, 2, 6])
def test_a_batch_of_sources_gives_what_each_gives_by_itself_in_order(model: ParallelModel, batch: int) -> None:
    together = decode_sources(model, SOURCES, Search(), batch=batch)
    for source, [found] in zip(SOURCES, together, strict=True):
        [[alone]] = decode_sources(model, [source], Search())
        assert (found.ids, found.finished) == (alone.ids, alone.finished)
        assert (found.log_prob, found.score) == pytest.approx((alone.log_prob, alone.score))
    assert len({found.log_prob for [found] in together}) == len(SOURCES)


class Wordy(tiny_parallel("nonautoregressive").__class__):  # type: ignore[misc]
    """Has the same output for every source."""

    def generate(self, source: Sequences, budget: DecodingBudget, **settings: object) -> list[ParallelOutput]:
        return [
            ParallelOutput([3, 1, EOS, 2, EOS], -1.0, -0.5),
            ParallelOutput([3, 1], -1.0, -0.5),
            ParallelOutput([EOS], 0.0, 0.0),
        ]


def test_a_translation_ends_at_its_first_eos() -> None:
    model = Wordy(tiny_parallel("nonautoregressive").config)
    found = decode_sources(model, [[1, 0], [2, 0], [3, 0]], Search())
    assert [(one.ids, one.finished) for [one] in found] == [([3, 1], "eos"), ([3, 1], "length"), ([], "eos")]


def test_the_budget_is_that_of_the_search_or_the_default() -> None:
    masked, ctc = (tiny_parallel("nonautoregressive", variant) for variant in ("masked", "ctc"))
    assert decoding_budget(masked, Search()) == masked.default_budget
    assert decoding_budget(masked, Search(passes=10, length_candidates=2)) == DecodingBudget(10, 2)
    assert decoding_budget(masked, Search(passes=1)) == DecodingBudget(1, masked.default_budget.lengths)
    assert decoding_budget(ctc, Search(beam=3)) == DecodingBudget(beam=3)
    assert decoding_budget(masked, Search(beam=3)).beam == 1


def translator(model: object) -> Translator:
    return Translator(model, Words(["a", "b", "c", "d"]), Words(["x", "y", "z"]))  # type: ignore[arg-type]


def test_a_parallel_model_translates_texts(model: ParallelModel) -> None:
    texts = ["a b c", "", "d", "a " * 50]
    found = [one for [one] in translator(model).translate_texts(texts, Search())]
    assert [one.finished for one in found[1::2]] == ["empty", "too long"]
    assert set(found[0].text.split()) <= {"x", "y", "z"}  # never <unk>
    assert found[0].log_prob < 0


def test_passes_of_an_autoregressive_model_are_refused() -> None:
    for search in (Search(passes=2), Search(length_candidates=2)):
        with pytest.raises(DecodingError, match="this model is autoregressive"):
            translator(tiny_model("transformer")).translate_texts(["a"], search)


def test_log_probs_of_pairs_are_those_of_the_model(model: ParallelModel) -> None:
    targets = [[1, 0], [0], [2, 3, 1, 0], [1, 0], [2, 2, 0], [4, 0]]
    found = log_probs(model, SOURCES, targets)
    for nats, source, target in zip(found, SOURCES, targets, strict=True):
        with torch.no_grad():
            alone = float(
                model.log_prob(Batch(Sequences.pack([target], model.device), Sequences.pack([source], model.device)))
            )
        assert nats == pytest.approx(alone)


def test_translations_are_scored_against_references() -> None:
    pytest.importorskip("sacrebleu")
    writer = translator(random_model("nonautoregressive", "masked"))
    sources = ["a b c", "d", "b b"]
    references = [one.text for [one] in writer.translate_texts(sources, Search())]
    found = score_translations(writer, sources, references, Search())
    assert found.exact_match == 1.0
    assert found.nats_per_token > 0
    assert found.unscored == 0


def test_results_have_the_form_of_beam_search() -> None:
    one, other = (
        decode_sources(random_model("nonautoregressive", "ctc"), SOURCES[:2], Search()),
        decode_sources(tiny_model("transformer"), SOURCES[:2], Search(beam=2, slack=3, growth=1)),
    )
    assert [len(found) for found in one] == [len(found) for found in other] == [1, 1]
