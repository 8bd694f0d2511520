"""Pretrained models of a few kilobytes in Hugging Face model folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from chainrule.interop.huggingface import write_gpt2
from chainrule.models.gpt import GPT, GPTConfig
from tokenizers import Tokenizer, models, pre_tokenizers

os.environ["HF_HUB_OFFLINE"] = "1"

WORDS = ("cat", "dog", "sat")
PIECES = len(WORDS) + 3  # and the tokens for begin, end and unknown


def write_tokenizer(folder: Path, first: str, end: str) -> None:
    names = [end, first, "[UNK]", *WORDS]
    library = Tokenizer(models.WordLevel({name: index for index, name in enumerate(names)}, "[UNK]"))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.add_special_tokens(names[:3])
    library.save(str(folder / "tokenizer.json"))


def write_bert(folder: Path, *, seed: int = 0, **settings: object) -> torch.nn.Module:
    """A random BERT of transformers, with biases and norms that differ from their initial values."""
    transformers = pytest.importorskip("transformers")
    folder.mkdir(parents=True, exist_ok=True)
    values = {
        "vocab_size": PIECES,
        "max_position_embeddings": 16,
        "hidden_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 20,
    }
    model = transformers.BertModel(transformers.BertConfig(**(values | settings)), add_pooling_layer=False).eval()
    randomise(model, seed)
    model.save_pretrained(folder)
    write_tokenizer(folder, "[CLS]", "[SEP]")
    return model


def write_small_gpt2(folder: Path, *, seed: int = 0) -> GPT:
    """A GPT-2 exported by chainrule."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {"vocabulary": PIECES, "layers": 2, "width": 12, "heads": 3, "context": 16, "bos": 1}
    model = GPT(GPTConfig.parse({"layout": "gpt2", **sizes})).eval()
    randomise(model, seed)
    write_gpt2(model, folder)
    write_tokenizer(folder, "<|begin|>", "<|endoftext|>")
    return model


def randomise(model: torch.nn.Module, seed: int) -> None:
    torch.manual_seed(seed)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
