"""Small tokenizers of every kind, trained once for all tests."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from chainrule.tokenizers import Tokenizer, train_tokenizer

ENGLISH = "the cat sat on the mat\nthe dog sat on the log\n\nA <unk> word,  two  spaces;\tand a tab\n" * 20
CHINESE = "我们在北京学习自然语言处理。\n今天天气很好,我们去公园散步。\n" * 10
TEXT = ENGLISH + CHINESE


@pytest.fixture(scope="session")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Specs of files written by other programs: SentencePiece, GPT-2 and BERT."""
    import sentencepiece

    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    folder = tmp_path_factory.mktemp("foreign")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT.split("\n")), model_prefix=str(folder / "foreign"), vocab_size=60,
        hard_vocab_limit=False, minloglevel=2, num_threads=1,
    )  # fmt: skip

    gpt2 = Tokenizer(models.BPE())
    gpt2.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    gpt2.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    gpt2.train_from_iterator(
        [TEXT], trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    )
    gpt2.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    gpt2.enable_truncation(4)
    gpt2.enable_padding(length=4)
    (folder / "gpt2").mkdir()
    gpt2.save(str(folder / "gpt2" / "tokenizer.json"))

    bert = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    bert.normalizer = normalizers.Lowercase()
    bert.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    bert.decoder = decoders.WordPiece()
    bert.train_from_iterator(
        [ENGLISH],
        trainers.WordPieceTrainer(vocab_size=80, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False),
    )
    bert.save(str(folder / "bert.json"))

    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "[CLS]"}}))
    return {
        "sentencepiece:FILE": f"sentencepiece:{folder / 'foreign.model'}",
        "huggingface:gpt2": f"huggingface:{folder / 'gpt2'}",
        "huggingface:bert": f"huggingface:{folder / 'bert.json'}",
    }


@pytest.fixture(scope="session")
def trained(foreign: dict[str, str]) -> Callable[[str], Tokenizer]:
    """The tokenizer of a spec, trained on a little English and Chinese."""

    @functools.cache
    def train(spec: str) -> Tokenizer:
        if spec.startswith("jieba"):
            pytest.importorskip("jieba")
        return train_tokenizer(foreign.get(spec, spec), lambda: [TEXT[:700], TEXT[700:]])

    return train


@pytest.fixture(scope="session")
def text() -> str:
    return TEXT


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tokenizer.json"
