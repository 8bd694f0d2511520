"""Import and export of whole models with their tokenizers: Hugging Face folders, ARPA and word2vec files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from chainrule.errors import ConfigError, RunError
from chainrule.features.folders import read_config
from chainrule.files import write_whole
from chainrule.interface.base import Model
from chainrule.interop.arpa import read_arpa, write_arpa
from chainrule.interop.bert import bert_tokenizer, read_bert, write_bert
from chainrule.interop.huggingface import read_gpt2, write_gpt2
from chainrule.interop.tokenizers import as_huggingface
from chainrule.interop.word2vec import named_vectors, read_word2vec, write_word2vec
from chainrule.models.bert import BERT
from chainrule.models.gpt import GPT
from chainrule.models.ngram import NGram
from chainrule.models.word2vec import Word2Vec, Word2VecConfig
from chainrule.tokenizers import Tokenizer
from chainrule.tokenizers.chars import Chars
from chainrule.tokenizers.huggingface import HuggingFace
from chainrule.tokenizers.words import UNKNOWN, Words

EXPORTED = {"arpa": ("model.arpa",), "word2vec": ("vectors.bin", "vectors.txt")}
"""The files that an export writes into its folder and an import reads, by format."""


def exported_file(path: Path, form: str) -> Path:
    """The file to import: the one that an export has written, if the path is its folder."""
    return next((file for name in EXPORTED.get(form, ()) if (file := path / name).is_file()), path)


def export_arpa(model: Model, tokenizer: Tokenizer, folder: Path) -> list[Path]:
    """An n-gram model as `model.arpa`."""
    if not isinstance(model, NGram):
        raise ConfigError(f"ARPA files hold n-gram models, got a {type(model).__name__}; export an ngram run")
    file = folder / "model.arpa"
    write_arpa(model, token_names(tokenizer), file)
    return [file]


def token_names(tokenizer: Tokenizer) -> list[str]:
    """A unique name for every id: the text of the token, or `<id>` if the text is empty or not unique."""
    names = [tokenizer.pieces([index])[0] for index in range(tokenizer.vocabulary)]
    names[tokenizer.eos] = "<eos>"
    if tokenizer.unknown is not None:
        names[tokenizer.unknown] = "<unk>"
    seen: dict[str, int] = {}
    for name in names:
        seen[name] = seen.get(name, 0) + 1
    return [name if name and seen[name] == 1 else f"<{index}>" for index, name in enumerate(names)]


def export_huggingface(model: Model, tokenizer: Tokenizer, folder: Path) -> list[Path]:
    """A GPT in the GPT-2 layout or a BERT as a folder for `from_pretrained`, with its tokenizer where possible."""
    form = as_huggingface(tokenizer)
    texts: dict[str, dict[str, Any]] = {}
    if isinstance(model, GPT):
        write_gpt2(model, folder, eos=tokenizer.eos)
        if form is not None:
            description, eos = form
            settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos, "bos_token": eos}
            texts = {"tokenizer.json": description, "tokenizer_config.json": settings}
    elif isinstance(model, BERT):
        write_bert(model, folder)
        if form is not None:
            texts = dict(zip(("tokenizer.json", "tokenizer_config.json"), bert_tokenizer(model, form[0]), strict=True))
    else:
        raise ConfigError(
            f"only gpt and bert can be exported to Hugging Face, got a {type(model).__name__}; "
            "train one with: chainrule train gpt --set model.layout=gpt2, or chainrule train bert"
        )
    for name, content in texts.items():
        write_whole(folder / name, json.dumps(content, ensure_ascii=False, indent=1))
    return [folder / name for name in ("config.json", "model.safetensors", *texts)]


def import_huggingface(path: Path) -> tuple[str, Model, Tokenizer]:
    """A Hugging Face folder of a GPT-2 or a BERT: family, model and tokenizer."""
    kind = read_config(path).get("model_type")
    if kind not in ("gpt2", "bert"):
        raise RunError(f"{str(path)!r} holds a model of type {kind!r}; only 'gpt2' and 'bert' are supported")
    tokenizer = HuggingFace.read(path / "tokenizer.json")
    model: Model = read_gpt2(path) if kind == "gpt2" else read_bert(path, tokenizer)
    if tokenizer.vocabulary > model.vocabulary:
        raise ConfigError(
            f"the tokenizer in {str(path)!r} has {tokenizer.vocabulary} ids but the model only {model.vocabulary}; "
            "check that they belong together"
        )
    return "gpt" if kind == "gpt2" else "bert", model, tokenizer


def import_arpa(path: Path) -> tuple[str, Model, Tokenizer]:
    """An ARPA file: family, model and tokenizer, which splits text at white space."""
    model, names = read_arpa(path)
    if len(names) < 2 or names[1] != "<unk>":
        raise ConfigError(f"{str(path)!r} has no <unk>, so it cannot score unseen words; build it with one")
    characters = "".join(names[2:])
    if list(characters) == sorted(set(names[2:])):  # exported from a run with the tokenizer `chars`
        return "ngram", model, Chars(characters)
    return "ngram", model, Words(names[2:])


def export_word2vec(model: Model, tokenizer: Tokenizer, folder: Path) -> list[Path]:
    """Word vectors as `vectors.txt` and, in binary form, `vectors.bin`."""
    if not isinstance(model, Word2Vec):
        raise ConfigError(
            f"word2vec files hold one vector per word, got a {type(model).__name__}; export a word2vec run"
        )
    files = [folder / "vectors.txt", folder / "vectors.bin"]
    for file in files:
        write_word2vec(named_vectors(model, tokenizer), file, binary=file.suffix == ".bin")
    return files


def import_word2vec(path: Path) -> tuple[str, Model, Tokenizer]:
    """A file of word vectors: family, model and tokenizer. Entries with white space in the word are skipped."""
    words, vectors = read_word2vec(path)
    kept = [row for row, word in enumerate(words) if word.split() == [word] and word != UNKNOWN]
    if not kept:
        raise ConfigError(f"{str(path)!r} holds no word without white space; check the file")
    tokenizer = Words([words[row] for row in kept])
    model = Word2Vec(
        Word2VecConfig(
            vocabulary=tokenizer.vocabulary, width=vectors.shape[1], unknown=tokenizer.unknown, ends=(tokenizer.eos,)
        )
    )
    with torch.no_grad():
        model.inputs[2:] = torch.from_numpy(vectors[kept])
        if UNKNOWN in words:
            model.inputs[1] = torch.from_numpy(vectors[words.index(UNKNOWN)])
    return "word2vec", model, tokenizer
