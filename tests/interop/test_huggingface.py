import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from chainrule.errors import RunError
from chainrule.interop.huggingface import read_gpt2, write_gpt2
from chainrule.models.gpt import GPT, GPTConfig
from chainrule.types import Batch, Sequences

os.environ["HF_HUB_OFFLINE"] = "1"
transformers = pytest.importorskip("transformers")

VOCABULARY, BOS = 40, 3


def theirs(**settings: object) -> torch.nn.Module:
    """A GPT-2 of transformers with random values for all parameters, also those initialised to 0 or 1."""
    torch.manual_seed(0)
    values = {"vocab_size": VOCABULARY, "n_positions": 16, "n_embd": 24, "n_layer": 2, "n_head": 3}
    tokens = {"bos_token_id": BOS, "eos_token_id": None}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**(values | tokens | settings))).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model


def saved(folder: Path, **settings: object) -> torch.nn.Module:
    model = theirs(**settings)
    model.save_pretrained(folder)
    return model


def ours(**settings: object) -> GPT:
    torch.manual_seed(0)
    values = {"vocabulary": VOCABULARY, "layout": "gpt2", "layers": 2, "width": 24, "heads": 3, "context": 16}
    model = GPT(GPTConfig.parse(values | {"bos": BOS} | settings)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return model


@torch.no_grad()
def assert_same_logits(model: GPT, twin: torch.nn.Module, bos: int = BOS) -> None:
    ids = torch.randint(model.vocabulary, (3, 16), generator=torch.Generator().manual_seed(1))
    inputs = torch.cat([torch.full((3, 1), bos), ids[:, :-1]], dim=1)
    expected = twin(inputs).logits
    assert expected.std() > 0.5  # large enough to tell one GELU from another
    torch.testing.assert_close(model.logits(Batch(Sequences.full(ids))), expected, rtol=0, atol=1e-4)


def test_an_imported_model_has_the_logits_of_transformers(tmp_path: Path) -> None:
    twin = saved(tmp_path)
    assert_same_logits(read_gpt2(tmp_path), twin)


def test_an_exported_model_has_the_same_logits_in_transformers(tmp_path: Path) -> None:
    model = ours()
    write_gpt2(model, tmp_path)
    twin, report = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert twin.config.bos_token_id == BOS
    assert_same_logits(model, twin.eval())


@pytest.mark.parametrize("settings", [{"tied": False}, {"mlp_ratio": 2}, {"layers": 1, "heads": 1}])
def test_an_exported_model_is_imported_unchanged(tmp_path: Path, settings: dict[str, object]) -> None:
    model = ours(**settings)
    write_gpt2(model, tmp_path)
    again = read_gpt2(tmp_path)
    assert all(torch.equal(again.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
    assert_same_logits(again, transformers.GPT2LMHeadModel.from_pretrained(tmp_path).eval())


@torch.no_grad()
def test_greedy_generation_is_that_of_transformers(tmp_path: Path) -> None:
    twin = saved(tmp_path)
    model = read_gpt2(tmp_path)
    step, written = model.start(), []
    for _ in range(15):
        token = step.logits[:, -1].argmax(-1)
        written.append(token.item())
        step = model.step(token, step.state)
    start = torch.tensor([[BOS]])
    expected = twin.generate(
        start, attention_mask=torch.ones_like(start), max_new_tokens=15, do_sample=False, pad_token_id=0
    )
    assert written == expected[0, 1:].tolist()


def test_parameter_names_without_the_prefix_are_accepted(tmp_path: Path) -> None:
    twin = saved(tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    save_file({name.removeprefix("transformer."): tensor for name, tensor in weights.items()}, file)
    assert_same_logits(read_gpt2(tmp_path), twin)


def test_sharded_weights_are_read_through_their_index(tmp_path: Path) -> None:
    twin = theirs()
    twin.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert_same_logits(read_gpt2(tmp_path), twin)


def test_half_precision_weights_are_converted_to_float32(tmp_path: Path) -> None:
    theirs().to(torch.bfloat16).save_pretrained(tmp_path)
    twin = transformers.GPT2LMHeadModel.from_pretrained(tmp_path, dtype=torch.float32)
    assert_same_logits(read_gpt2(tmp_path), twin.eval())


def test_a_bos_beyond_the_vocabulary_is_ignored(tmp_path: Path) -> None:
    twin = saved(tmp_path, bos_token_id=50256)
    assert_same_logits(read_gpt2(tmp_path), twin, bos=0)


def test_the_eos_of_the_tokenizer_is_exported(tmp_path: Path) -> None:
    write_gpt2(ours(), tmp_path, eos=7)
    assert transformers.GPT2Config.from_pretrained(tmp_path).eos_token_id == 7


def refusal(folder: Path) -> str:
    with pytest.raises(RunError) as refused:
        read_gpt2(folder)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_the_modern_layout_cannot_be_exported(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"--set model\.layout=gpt2"):
        write_gpt2(GPT(GPTConfig(vocabulary=VOCABULARY)), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_a_config_is_refused(tmp_path: Path) -> None:
    assert "has no config.json" in refusal(tmp_path)


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert "a model of type 'llama'; only 'gpt2'" in refusal(tmp_path)


def test_pickled_weights_are_never_loaded(tmp_path: Path) -> None:
    saved(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    assert "pickle" in refusal(tmp_path)


def test_a_truncated_weights_file_is_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    assert "cannot be read" in refusal(tmp_path)


def test_weights_that_do_not_match_the_config_are_refused(tmp_path: Path) -> None:
    saved(tmp_path)
    file = tmp_path / "config.json"
    settings = json.loads(file.read_text())
    file.write_text(json.dumps(settings | {"n_positions": 17}))
    assert "(16, 24) where config.json implies (17, 24)" in refusal(tmp_path)
    file.write_text(json.dumps(settings | {"n_layer": 3}))
    assert "have no 'h.2.ln_1.weight'" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("activation_function", "relu"), ("scale_attn_by_inverse_layer_idx", True), ("layer_norm_epsilon", 1e-3)],
)
def test_unsupported_settings_are_refused(tmp_path: Path, setting: str, value: object) -> None:
    saved(tmp_path, **{setting: value})
    assert f"sets {setting} to {value!r}" in refusal(tmp_path)


@pytest.mark.parametrize("missing", ["n_embd", "vocab_size", "n_positions"])
def test_a_config_without_a_size_is_refused(tmp_path: Path, missing: str) -> None:
    saved(tmp_path)
    file = tmp_path / "config.json"
    settings = json.loads(file.read_text())
    del settings[missing]
    file.write_text(json.dumps(settings))
    assert f"has no '{missing}'" in refusal(tmp_path)
