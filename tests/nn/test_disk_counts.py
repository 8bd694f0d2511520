"""n-gram models whose counts are on disk: the same models, in bounded memory."""

from __future__ import annotations

import pickle
import tracemalloc
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from chainrule.data.token_files import TokenFile
from chainrule.errors import ConfigError, TrainingError
from chainrule.models.ngram import NGram, NGramConfig
from chainrule.nn.columns import Store
from chainrule.nn.sorted_runs import Run, SortedRuns
from chainrule.types import Batch, Sequences

VOCABULARY = 50


@cache
def text(length: int, seed: int = 0) -> torch.Tensor:
    random = np.random.default_rng(seed)
    return torch.from_numpy(np.minimum(random.geometric(0.1, length), VOCABULARY) - 1)


def counted(
    folder: Path | None, memory: int = 0, *, pieces: int = 400, length: int = 12000, **settings: object
) -> NGram:
    """A model of a text that comes in pieces."""
    model = NGram(NGramConfig.parse({"vocabulary": VOCABULARY, "order": 4, **settings}, where="model"))
    if folder is not None:
        folder.mkdir(exist_ok=True)
        model.count_on_disk(folder, memory)
    state = None
    for piece in text(length).split(pieces):
        state = model.observe(Sequences.full(piece[None]), state)
    model.estimate()
    return model.eval()


def assert_same(one: NGram, other: NGram) -> None:
    mine, theirs = one.state_dict(), other.state_dict()
    assert mine.keys() == theirs.keys()
    for name, tensor in mine.items():
        assert tensor.dtype == theirs[name].dtype
        assert tensor.numpy().tobytes() == theirs[name].numpy().tobytes(), name


@pytest.mark.parametrize(
    "settings",
    [{}, {"prune": (0, 0, 1)}, {"bits": 16}, {"order": 1}, {"order": 2, "prune": (0, 2)}],
    ids=["plain", "pruned", "quantised", "unigrams", "pruned bigrams"],
)
@pytest.mark.parametrize("memory", [1, 1 << 19, 1 << 30], ids=["tiny", "small", "ample"])
def test_the_model_is_the_same_bit_for_bit(tmp_path: Path, memory: int, settings: dict[str, object]) -> None:
    assert_same(counted(tmp_path / "counts", memory, **settings), counted(None, **settings))


@pytest.fixture
def merged_runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many sorted runs each merge has had."""
    found: list[int] = []
    merge = SortedRuns.merge

    def noted(runs: SortedRuns, progress: Callable[[float], None]) -> Run:
        found.append(len(runs._runs))
        return merge(runs, progress)

    monkeypatch.setattr(SortedRuns, "merge", noted)
    return found


@pytest.mark.parametrize(("memory", "least", "most"), [(1, 30, 200), (1 << 19, 3, 10), (1 << 30, 1, 1)])
def test_the_less_memory_the_more_runs_are_merged_into_the_same_model(
    tmp_path: Path, merged_runs: list[int], memory: int, least: int, most: int
) -> None:
    assert_same(counted(tmp_path / "counts", memory), counted(None))
    [runs] = merged_runs
    assert least <= runs <= most


@pytest.mark.parametrize("parts", [1, 3])
def test_a_text_in_a_file_is_counted_in_runs_that_each_job_merges(
    tmp_path: Path, merged_runs: list[int], parts: int
) -> None:
    length, memory = 40_000, 1 << 19
    text(length).numpy().astype(np.uint8).tofile(tmp_path / "tokens.bin")
    file = TokenFile.of(np.memmap(tmp_path / "tokens.bin", np.uint8, "r"), None)
    assert file is not None
    model = NGram(NGramConfig(vocabulary=VOCABULARY, order=4))
    model.count_on_disk(tmp_path, memory)
    for job in model.count_jobs(file, -(-length // parts), 1 / parts):
        model.add_counts(job(None))
    model.estimate()
    assert_same(model, counted(None, length=length))
    assert merged_runs[-1] == parts if parts > 1 else merged_runs[-1] >= 5
    assert len(merged_runs) == (parts + 1 if parts > 1 else 1)
    assert min(merged_runs) >= 3


def test_documents_give_the_same_model(tmp_path: Path) -> None:
    rows = [text(length, seed) for seed, length in enumerate([1, 700, 3, 2, 999, 40])]
    models = []
    for folder in (None, tmp_path):
        model = NGram(NGramConfig(vocabulary=VOCABULARY, order=5))
        if folder is not None:
            model.count_on_disk(folder, 1)
        for row in rows:
            model.observe(Sequences.full(row[None]))
        model.estimate()
        models.append(model)
    assert_same(*models)


def test_memory_is_bounded(tmp_path: Path) -> None:
    """Of two megabytes, for a table of four."""
    memory, length = 2 << 20, 400_000
    counted(tmp_path / "first", memory, length=4000)  # imports
    text(length)
    tracemalloc.start()
    try:
        model = counted(tmp_path / "counts", memory, pieces=10_000, length=length)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(model.sizes) * 16 > 1.5 * memory
    assert peak < 1.25 * memory


def test_left_out_ngrams_are_the_rare_ones_and_predictions_sum_to_one() -> None:
    whole, pruned = counted(None), counted(None, prune=(0, 0, 1))
    tokens = [VOCABULARY, *text(12000).tolist()]
    for order in (1, 2):
        assert pruned.sizes[order - 1] == whole.sizes[order - 1]
    for order in (3, 4):
        counts = Counter(tuple(tokens[at : at + order]) for at in range(len(tokens) - order + 1))
        assert pruned.sizes[order - 1] == sum(count > 1 for count in counts.values()) < whole.sizes[order - 1]
    batch = Batch(Sequences.full(text(300, seed=9)[None]))
    torch.testing.assert_close(pruned.logits(batch).exp().sum(-1), torch.ones(1, 300))


def test_thresholds_may_be_given_as_text() -> None:
    assert NGramConfig.parse({"vocabulary": 5, "prune": "0,0,1"}, where="model").thresholds == [0, 0, 1, 1, 1]


@pytest.mark.parametrize("prune", [(1,), (0, 2, 1), (0, 0, 0, 0, 1)], ids=["unigrams", "decreasing", "too many"])
def test_impossible_thresholds_are_refused(prune: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="try 0,0,1"):
        NGramConfig.parse({"vocabulary": 5, "order": 4, "prune": prune}, where="model")


def test_a_quantised_model_is_close_never_better_and_smaller() -> None:
    whole, small = counted(None), counted(None, bits=16)
    held_out = Sequences.full(text(3000, seed=5)[None])
    exact, lossy = (float(model.score_tokens(held_out).log_probs.mean()) for model in (whole, small))
    assert exact - 0.002 < lossy < exact
    sizes = [sum(tensor.nbytes for tensor in model.state_dict().values()) for model in (whole, small)]
    assert sizes[1] < 0.85 * sizes[0]
    batch = Batch(held_out)
    chosen = small.logits(batch).gather(-1, held_out.ids[..., None])[..., 0]
    torch.testing.assert_close(chosen, small.score_tokens(held_out).log_probs, rtol=0, atol=1e-5)


def test_an_empty_text_is_refused(tmp_path: Path) -> None:
    model = NGram(NGramConfig(vocabulary=VOCABULARY, order=3))
    model.count_on_disk(tmp_path, 1 << 20)
    with pytest.raises(TrainingError, match="counted no token"):
        model.estimate()


def test_chunks_and_blocks_follow_the_memory() -> None:
    small, large = Store(None, 1 << 20), Store(None, 1 << 24)
    assert small.chunk < large.chunk
    assert next(end - begin for begin, end in small.blocks(100_000)) * 8 <= 1 << 18
    assert Store().blocks(10**9) == [(0, 10**9)]


@pytest.mark.parametrize("documents", [None, [0, 1, 700, 701, 4000]], ids=["stream", "documents"])
@pytest.mark.parametrize("size", [1, 333, 1 << 20], ids=["tiny parts", "small parts", "one part"])
def test_parts_that_are_counted_elsewhere_give_the_same_model(
    tmp_path: Path, size: int, documents: list[int] | None
) -> None:
    length = 300 if size == 1 else 4000
    tokens = text(4000).numpy().astype(np.uint8)
    file = tmp_path / "tokens.bin"
    (np.concatenate([tokens[:5], tokens])).tofile(file)
    mapped = np.memmap(file, np.uint8, "r")[5 : 5 + length]  # a part of a file
    offsets = None if documents is None else np.minimum(np.array(documents), length)[: 3 if size == 1 else None]
    whole = NGram(NGramConfig(vocabulary=VOCABULARY, order=5))
    for row in [tokens[:length]] if offsets is None else np.split(tokens[: offsets[-1]], offsets[1:-1]):
        whole.observe(Sequences.full(torch.from_numpy(row.astype(np.int64))[None]))
    whole.estimate()

    model = NGram(NGramConfig(vocabulary=VOCABULARY, order=5))
    model.count_on_disk(tmp_path, 1 << 20)
    found = TokenFile.of(mapped[: None if offsets is None else offsets[-1]], offsets)
    assert found is not None
    for job in model.count_jobs(found, size, 0.5):
        model.add_counts(pickle.loads(pickle.dumps(job))(None))
    model.estimate()
    assert_same(model, whole)


def test_only_tokens_one_after_the_other_in_a_file_are_counted_elsewhere(tmp_path: Path) -> None:
    np.arange(10, dtype=np.uint16).tofile(tmp_path / "tokens.bin")
    mapped = np.memmap(tmp_path / "tokens.bin", np.uint16, "r")
    found = TokenFile.of(mapped[3:], None)
    assert found is not None
    assert found.read(1, 3).tolist() == [4, 5]
    assert TokenFile.of(mapped[::-1], None) is None
    assert TokenFile.of(np.array(mapped), None) is None
