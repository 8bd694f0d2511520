"""What compiled code finds in back-off tables is what torch computes from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from chainrule.data.corpus import Corpus
from chainrule.decoding import GREEDY, Sampling, generate_tokens
from chainrule.decoding.noise import LARGE
from chainrule.evaluation.likelihood import score, surprisals
from chainrule.kernels import keyed_noise
from chainrule.kernels.caching import sources_of
from chainrule.kernels.keyed_noise import gumbels_of
from chainrule.kernels.step import torch_only
from chainrule.models.ngram import NGram, NGramConfig
from chainrule.types import Batch, Sequences

VOCABULARY = 30
SAMPLINGS = {"greedy": GREEDY, "sampled": Sampling(), "filtered": Sampling(temperature=0.8, top_k=9, top_p=0.9)}


@pytest.fixture(autouse=True, scope="module")
def _double_precision() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def text(length: int, seed: int) -> np.ndarray:
    """Tokens of which some are far more frequent than others."""
    random = np.random.default_rng(seed)
    return np.minimum(random.geometric(0.15, length), VOCABULARY) - 1


def frequent_and_rare(vocabulary: int) -> np.ndarray:
    """Tokens of a large vocabulary, by Zipf's law."""
    return (np.random.default_rng(0).zipf(1.3, 20_000) - 1) % vocabulary


def trained(order: int, vocabulary: int = VOCABULARY) -> NGram:
    model = NGram(NGramConfig(vocabulary=vocabulary, order=order))
    ids = text(3000, 0) if vocabulary == VOCABULARY else frequent_and_rare(vocabulary)
    model.observe(Sequences.full(torch.from_numpy(ids)[None]))
    model.estimate()
    return model.eval()


def imported(order: int, vocabulary: int = VOCABULARY) -> NGram:
    """Tables as another tool may write them: a longer context may make its tokens less probable than a shorter one."""
    model = trained(order, vocabulary)
    generator = torch.Generator().manual_seed(0)
    tables = [
        table._replace(
            log_probs=-4 * torch.rand(table.log_probs.shape, generator=generator),
            log_backoffs=-torch.rand(table.log_backoffs.shape, generator=generator),
        )
        for table in model.tables()
    ]
    model.set_tables(tables)
    return model


@pytest.fixture(params=[1, 2, 4], ids="order {}".format)
def order(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(params=[trained, imported], ids=["trained", "imported"])
def model(request: pytest.FixtureRequest, order: int) -> NGram:
    found: NGram = request.param(order)
    return found


def test_scores_and_hits_are_those_of_all_probabilities(model: NGram) -> None:
    rows = Sequences.pack([text(length, seed) for seed, length in enumerate([200, 37, 1])])
    found = model.score_tokens(rows, hits=True)
    logits = model.logits(Batch(rows))
    expected = logits.gather(-1, rows.ids[..., None])[..., 0].masked_fill(~rows.mask, 0.0)
    torch.testing.assert_close(found.log_probs, expected, rtol=0, atol=1e-12)
    assert found.hits is not None
    assert found.hits.equal((logits.argmax(-1) == rows.ids) & rows.mask)
    assert 0 < int(found.hits.sum()) < int(rows.lengths.sum())


def test_scores_go_on_from_a_state(model: NGram) -> None:
    whole = torch.from_numpy(text(100, 5))[None]
    expected = model.score_tokens(Sequences.full(whole), hits=True)
    first = model.score_tokens(Sequences.full(whole[:, :41]), hits=True)
    rest = model.score_tokens(Sequences.full(whole[:, 41:]), first.state, hits=True)
    assert torch.cat([first.log_probs, rest.log_probs], dim=1).equal(expected.log_probs)
    assert first.hits is not None
    assert rest.hits is not None
    assert expected.hits is not None
    assert torch.cat([first.hits, rest.hits], dim=1).equal(expected.hits)
    assert rest.state.equal(expected.state)  # type: ignore[union-attr]


def test_torch_gives_the_same_scores_and_hits(model: NGram) -> None:
    rows = Sequences.pack([text(length, seed) for seed, length in enumerate([60, 7])])
    found = model.score_tokens(rows, hits=True)
    with torch_only():
        expected = model.score_tokens(rows, hits=True)
    torch.testing.assert_close(found.log_probs, expected.log_probs, rtol=0, atol=1e-12)
    assert found.hits is not None
    assert expected.hits is not None
    assert found.hits.equal(expected.hits)
    assert found.state.equal(expected.state)  # type: ignore[union-attr]


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_generated_texts_are_those_of_torch(model: NGram, sampling: Sampling) -> None:
    prompts = [[1, 2, 3], [], [7, 5]]
    options = {"length": 80, "sampling": sampling, "seeds": [1, 2, 3], "suppress": [2, 4]}
    with torch_only():
        expected = generate_tokens(model, prompts, **options)  # type: ignore[arg-type]
    found = generate_tokens(model, prompts, **options)  # type: ignore[arg-type]
    assert [one.ids for one in found] == [one.ids for one in expected]
    assert not any({2, 4} & set(one.ids) for one in found)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 3.0])
@pytest.mark.parametrize("kind", [trained, imported], ids=["trained", "imported"])
def test_sampling_from_a_large_vocabulary_is_that_of_torch(
    kind: Callable[[int, int], NGram], temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = kind(3, LARGE + 70)
    options = {"length": 60, "sampling": Sampling(temperature=temperature), "seeds": [1, 2, 3], "suppress": [2, 4]}
    with torch_only():
        expected = generate_tokens(model, [[1, 2, 3], [], [7, 5]], **options)  # type: ignore[arg-type]
    drawn = []
    monkeypatch.setattr(keyed_noise, "gumbels_of", lambda *of: drawn.append(of) or gumbels_of(*of))
    found = generate_tokens(model, [[1, 2, 3], [], [7, 5]], **options)  # type: ignore[arg-type]
    assert [one.ids for one in found] == [one.ids for one in expected]
    assert not any({2, 4} & set(one.ids) for one in found)
    assert len({token for one in found for token in one.ids}) > 5
    assert len(drawn) == 3, "after the first token of each row, the noise of most tokens is not computed"


@pytest.mark.parametrize("known", [0, 1, 2, 6])
def test_a_greedy_draft_is_the_greedy_text(model: NGram, known: int) -> None:
    ids = text(known, 3).tolist()
    [greedy] = generate_tokens(model, [ids], length=12, sampling=GREEDY, seeds=[0])
    assert model.greedy_draft(ids, 12) == greedy.ids
    with torch_only():
        assert model.greedy_draft(ids, 12) == greedy.ids


@pytest.mark.parametrize("documents", [False, True], ids=["stream", "documents"])
def test_a_score_without_all_probabilities_is_the_same(documents: bool) -> None:
    model, lengths = trained(3), [1, 39, 1, 460, 399] if documents else [900]
    rows = [text(length, seed) for seed, length in enumerate(lengths)]
    corpus = Corpus.of_rows(rows, VOCABULARY) if documents else Corpus.of_tokens(rows[0], VOCABULARY)
    found = surprisals(model, corpus)
    logits = [model.logits(Batch(Sequences.pack([row])))[0].log_softmax(-1) for row in rows]
    expected = [-one.gather(1, torch.from_numpy(row)[:, None])[:, 0] for one, row in zip(logits, rows, strict=True)]
    np.testing.assert_allclose(found.nats, torch.cat(expected).numpy(), rtol=1e-6)
    hits = [one.argmax(-1).numpy() == row for one, row in zip(logits, rows, strict=True)]
    assert score(model, corpus).accuracy == pytest.approx(np.concatenate(hits).mean())


def test_the_lookup_is_not_compiled_again_when_the_decoding_steps_of_networks_change() -> None:
    assert not {"interpreter", "step"} & sources_of("backoff")
    assert {"backoff", "arithmetic", "choice"} <= sources_of("backoff")
    assert "backoff" in sources_of("interpreter")  # n-grams are parts of mixtures
