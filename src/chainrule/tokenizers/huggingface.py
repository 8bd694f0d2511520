"""Any fast tokenizer of Hugging Face, loaded from its tokenizer.json with its own ids."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from chainrule.errors import TokenizerError
from chainrule.tokenizers.base import REPLACEMENT, Ids, Texts, Tokenizer, decode_bytes
from chainrule.tokenizers.bytes import ALPHABET, surface
from chainrule.tokenizers.subword import read_library

EOS_NAMES = ("<|endoftext|>", "</s>", "<eos>", "<|end_of_text|>", "<|im_end|>", "[SEP]", "[EOS]")


class HuggingFace(Tokenizer):
    """A loaded tokenizer. It adds no special tokens, and names of special tokens in a text are ordinary text."""

    kind: ClassVar[str] = "huggingface"

    def __init__(self, description: dict[str, Any], eos: int) -> None:
        # Truncation, padding and dropout are settings of a training run, not of the vocabulary.
        self.description = description | {"truncation": None, "padding": None}
        if "dropout" in description["model"]:
            self.description["model"] = description["model"] | {"dropout": None}
        self._library = read_library(self.description)
        self._library.encode_special_tokens = True
        self._eos = eos
        self._tokens = self._read_tokens()
        self._byte_level = is_byte_level(self.description)
        self._surfaces = self._read_surfaces() if self._byte_level else []
        if not 0 <= eos < self.vocabulary:
            raise ValueError(f"the EOS id {eos} is outside the vocabulary")

    @classmethod
    def train(cls, argument: str | None, texts: Texts) -> Self:
        """Load the tokenizer.json, or the folder that contains one, that the argument names."""
        if not argument:
            raise TokenizerError("huggingface needs a file; for example huggingface:gpt2/tokenizer.json")
        path = Path(argument)
        return cls.read(path / "tokenizer.json" if path.is_dir() else path)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Load a tokenizer.json; a tokenizer_config.json beside it names the EOS token."""
        description = _read_object(path)
        if not isinstance(description.get("model"), dict):
            raise TokenizerError(f"{str(path)!r} is not a tokenizer.json of Hugging Face; it has no model")
        settings = path.with_name("tokenizer_config.json")
        named = _read_object(settings).get("eos_token") if settings.exists() else None
        name = named.get("content") if isinstance(named, dict) else named
        vocabulary = read_library(description).get_vocab()
        names = EOS_NAMES if name is None else (name,)
        for name in names:
            if name in vocabulary:
                return cls(description, vocabulary[name])
        raise TokenizerError(
            f"{str(path)!r} has no end-of-sequence token (looked for {', '.join(names)}); "
            "name it as eos_token in a tokenizer_config.json beside it"
        )

    @property
    def vocabulary(self) -> int:
        return len(self._tokens)

    @property
    def eos(self) -> int:
        return self._eos

    @property
    def eos_name(self) -> str:
        """The name of EOS in the library."""
        return str(self._library.id_to_token(self._eos))

    def id_of(self, name: str) -> int | None:
        """Return the id of a token, possibly a special one, by its name in the library."""
        return self._library.token_to_id(name)

    @property
    def special(self) -> list[int]:
        """The ids of special tokens."""
        return [index for index, added in self._library.get_added_tokens_decoder().items() if added.special]

    @property
    def unknown(self) -> int | None:
        model = self.description["model"]
        if model.get("unk_token") is not None:
            return self._library.token_to_id(model["unk_token"])
        index: int | None = model.get("unk_id")
        return index

    @property
    def lossless(self) -> bool:
        return self._byte_level and keeps_text(self.description)

    @property
    def note(self) -> str:
        kept = "the text exactly" if self.lossless else "the text as normalised by the tokenizer"
        unseen = (
            "an unseen character is encoded as bytes"
            if self._byte_level
            else "an unseen character is encoded by the rules of the tokenizer; an unknown token is shown as U+FFFD"
        )
        return f"decoding restores {kept}; {unseen}"

    def _read_tokens(self) -> list[str]:
        """Return the token of each id: empty for special tokens and unused ids, U+FFFD for the unknown one."""
        vocabulary = self._library.get_vocab()
        tokens = [""] * (1 + max(vocabulary.values(), default=-1))
        for token, index in vocabulary.items():
            tokens[index] = token
        for index, added in self._library.get_added_tokens_decoder().items():
            if added.special:
                tokens[index] = ""
        if self.unknown is not None:
            tokens[self.unknown] = REPLACEMENT
        tokens[self._eos] = ""
        return tokens

    def _read_surfaces(self) -> list[bytes]:
        """Return the bytes of each token; added tokens are plain text, not in the byte-level alphabet."""
        added = self._library.get_added_tokens_decoder()
        return [token.encode("utf-8") if index in added else surface(token) for index, token in enumerate(self._tokens)]

    def _encode(self, text: str) -> Ids:
        return np.array(self._library.encode(text, add_special_tokens=False).ids, dtype=np.int32)

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the ids of a text, and the first character and the end of each token in it."""
        found = self._library.encode(text, add_special_tokens=False)
        return list(found.ids), list(found.offsets)

    def _pieces(self, ids: Sequence[int]) -> list[str]:
        if self._byte_level:
            return decode_bytes([self._surfaces[index] for index in ids])
        # The text that a token adds to the previous one, so that the decoder's rules for spaces apply.
        pieces = []
        for position in range(len(ids)):
            before = self._decode(ids[max(0, position - 1) : position])
            pieces.append(self._decode(ids[max(0, position - 1) : position + 1])[len(before) :])
        return pieces

    def _decode(self, ids: Sequence[int]) -> str:
        if self._byte_level:
            return super()._decode(ids)
        tokens = [token for token in (self._tokens[index] for index in ids) if token]
        if self._library.decoder is None:
            return " ".join(tokens)
        text: str = self._library.decoder.decode(tokens)
        return text

    def to_json(self) -> dict[str, Any]:
        return {"tokenizer": self.description, "eos": self._eos}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        return cls(data["tokenizer"], data["eos"])


def _read_object(path: Path) -> dict[str, Any]:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TokenizerError(f"there is no file {str(path)!r}; give a tokenizer.json or its folder") from None
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{str(path)!r} cannot be read as JSON: {error}") from None
    if not isinstance(data, dict):
        raise TokenizerError(f"{str(path)!r} is not a tokenizer file of Hugging Face; it contains no JSON object")
    return data


def _parts(component: dict[str, Any] | None, name: str) -> list[dict[str, Any]]:
    """Return the steps of a normalizer, pre-tokenizer or decoder, which may be a sequence."""
    if component is None:
        return []
    return component[name] if component["type"] == "Sequence" else [component]


def is_byte_level(description: dict[str, Any]) -> bool:
    """Whether tokens are written in the byte-level alphabet and include all 256 bytes."""
    decoders = _parts(description.get("decoder"), "decoders")
    vocabulary = description["model"].get("vocab", {})
    tokens = vocabulary if isinstance(vocabulary, dict) else {token for token, _ in vocabulary}
    return [step["type"] for step in decoders] == ["ByteLevel"] and all(letter in tokens for letter in ALPHABET)


def keeps_text(description: dict[str, Any]) -> bool:
    """Whether a byte-level tokenizer preserves every character."""
    steps = _parts(description.get("pre_tokenizer"), "pretokenizers")
    return (
        not _parts(description.get("normalizer"), "normalizers")
        and any(step["type"] == "ByteLevel" for step in steps)
        and all(step["type"] in ("ByteLevel", "Split", "Digits") for step in steps)
        and not any(step.get("add_prefix_space") or step.get("behavior") == "Removed" for step in steps)
        and not any(token["lstrip"] or token["rstrip"] for token in description.get("added_tokens", []))
    )
