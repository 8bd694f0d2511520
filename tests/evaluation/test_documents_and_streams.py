"""Bits per byte of documents and of the same text as a stream refer to the same bytes."""

import random

import chainrule
from chainrule.config import DataConfig
from chainrule.data.corpus import encode_file
from chainrule.tokenizers import train_tokenizer


def test_bits_per_byte_of_documents_and_of_their_stream_have_the_same_denominator(tmp_path):
    rng = random.Random(0)
    names = ["".join(rng.choices("abcdeé", k=rng.randrange(3, 9))) for _ in range(400)]
    (tmp_path / "names.txt").write_text("\n".join(names) + "\n", encoding="utf-8")
    scores = {}
    for unit in ("documents", "stream"):
        options = {"data": str(tmp_path / "names.txt"), "out": tmp_path / unit, "progress": False}
        run = chainrule.train("ngram", overrides=[f"data.unit={unit}", "model.order=2"], **options)
        scores[unit] = run.score(data=str(tmp_path / "names.txt"))
        assert f"bytes of {scores[unit].protocol.bytes}" in run.card()
    assert scores["documents"].bytes == scores["stream"].bytes == (tmp_path / "names.txt").stat().st_size
    assert scores["documents"].protocol.bytes == "UTF-8, with one line end per document"
    assert abs(scores["documents"].bits_per_byte - scores["stream"].bits_per_byte) < 0.1


def test_a_document_that_keeps_its_line_end_has_no_other(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two\\n"}\n')
    tokenizer = train_tokenizer("bytes", lambda: iter(["x"]))
    documents, stream = (
        encode_file(DataConfig(train="", unit=unit), tokenizer, str(tmp_path / "a.jsonl"))
        for unit in ("documents", "stream")
    )
    assert documents.bytes == stream.bytes == len(stream) == 8
