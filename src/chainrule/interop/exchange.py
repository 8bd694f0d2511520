"""Whole models with their vocabularies, written for other tools and read from them."""

from __future__ import annotations

import json
from pathlib import Path

from chainrule.errors import ConfigError
from chainrule.files import write_whole
from chainrule.interop.arpa import read_arpa, write_arpa
from chainrule.interop.huggingface import read_gpt2, write_gpt2
from chainrule.interop.tokenizers import as_huggingface
from chainrule.models.base import AutoregressiveModel
from chainrule.models.gpt import GPT
from chainrule.models.ngram import NGram
from chainrule.tokenizers import Tokenizer
from chainrule.tokenizers.chars import Chars
from chainrule.tokenizers.huggingface import HuggingFace
from chainrule.tokenizers.words import Words


def export_arpa(model: AutoregressiveModel, tokenizer: Tokenizer, folder: Path) -> list[Path]:
    """An n-gram model as `model.arpa`."""
    if not isinstance(model, NGram):
        raise ConfigError(f"ARPA files hold n-gram models, and this is a {type(model).__name__}; export an ngram run")
    file = folder / "model.arpa"
    write_arpa(model, token_names(tokenizer), file)
    return [file]


def token_names(tokenizer: Tokenizer) -> list[str]:
    """A name for every id, no two alike: the text of the token, or its number where texts coincide."""
    names = [tokenizer.pieces([index])[0] for index in range(tokenizer.vocabulary)]
    names[tokenizer.eos] = "<eos>"
    if tokenizer.unknown is not None:
        names[tokenizer.unknown] = "<unk>"
    seen: dict[str, int] = {}
    for name in names:
        seen[name] = seen.get(name, 0) + 1
    return [name if name and seen[name] == 1 else f"<{index}>" for index, name in enumerate(names)]


def export_huggingface(model: AutoregressiveModel, tokenizer: Tokenizer, folder: Path) -> list[Path]:
    """A GPT in the GPT-2 layout as a folder for `GPT2LMHeadModel.from_pretrained`, with its tokenizer if it has one."""
    if not isinstance(model, GPT):
        raise ConfigError(
            f"Hugging Face folders are written for gpt, and this is a {type(model).__name__}; "
            "train one with: chainrule train gpt --set model.layout=gpt2"
        )
    write_gpt2(model, folder, eos=tokenizer.eos)
    files = [folder / "config.json", folder / "model.safetensors"]
    form = as_huggingface(tokenizer)
    if form is not None:
        description, eos = form
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos, "bos_token": eos}
        for name, content in (("tokenizer.json", description), ("tokenizer_config.json", settings)):
            write_whole(folder / name, json.dumps(content, ensure_ascii=False, indent=1))
            files.append(folder / name)
    return files


def import_huggingface(path: Path) -> tuple[str, AutoregressiveModel, Tokenizer]:
    """A Hugging Face GPT-2 folder: family, model and tokenizer."""
    model = read_gpt2(path)
    tokenizer = HuggingFace.read(path / "tokenizer.json")
    if tokenizer.vocabulary > model.vocabulary:
        raise ConfigError(
            f"the tokenizer in {str(path)!r} has {tokenizer.vocabulary} ids and the model {model.vocabulary}; "
            "they do not belong together"
        )
    return "gpt", model, tokenizer


def import_arpa(path: Path) -> tuple[str, AutoregressiveModel, Tokenizer]:
    """An ARPA file, its words parted by white space: family, model and tokenizer."""
    model, names = read_arpa(path)
    if len(names) < 2 or names[1] != "<unk>":
        raise ConfigError(f"{str(path)!r} has no <unk>, so it cannot score new text; build it with an open vocabulary")
    characters = "".join(names[2:])
    if list(characters) == sorted(set(names[2:])):  # written by a run with the tokenizer `chars`
        return "ngram", model, Chars(characters)
    return "ngram", model, Words(names[2:])
