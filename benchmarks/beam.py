"""Greedy and beam decoding of `transformer` against a Marian model of the same shape: transformers and CTranslate2.

    python benchmarks/beam.py [--threads 1] [--repeats 5] [--batches 1 16] [--beams 1 5] [--length 25]
        [--width 256] [--vocabulary 8000] [--json]

All have 3 + 3 layers, 4 heads, one table for source, target and readout, and random weights; `--width 192 --vocabulary
4000 --length 15` is the transformer of Multi30k. CTranslate2 has the weights of the Marian model in float32, exported
from transformers, and must generate the same tokens greedily before timing starts. EOS is suppressed, so all generate
the same number of tokens; sources have 10 to 30 tokens and come in padded batches. Timing is by interleaved rounds (see
timing.py). Without CTranslate2 its column is empty.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

from chainrule.decoding import Search
from chainrule.decoding.translation import decode_sources
from chainrule.models.transformer import Transformer, TransformerConfig
from chainrule.types import Sequences
from timing import Work, medians, set_threads, time_rounds

LAYERS, HEADS = 3, 4
SHORTEST, LONGEST = 10, 30  # tokens of a source


class Shape(NamedTuple):
    width: int
    vocabulary: int

    @property
    def padding(self) -> int:
        """A separate id, as in Marian."""
        return self.vocabulary


class Measurement(NamedTuple):
    batch: int
    beam: int
    speeds: dict[str, float]  # sentences per second
    ratios: dict[str, float]  # of chainrule to each peer


def our_model(shape: Shape) -> Transformer:
    config = TransformerConfig(
        vocabulary=shape.vocabulary,
        source_vocabulary=shape.vocabulary,
        shared_embeddings=True,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        width=shape.width,
        heads=HEADS,
    )
    return with_random_weights(Transformer(config))


def their_model(shape: Shape) -> Any:
    config = transformers.MarianConfig(
        vocab_size=shape.vocabulary + 1,
        d_model=shape.width,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=4 * shape.width,
        decoder_ffn_dim=4 * shape.width,
        activation_function="relu",
        max_position_embeddings=256,
        pad_token_id=shape.padding,
        decoder_start_token_id=shape.padding,
        eos_token_id=0,
        forced_eos_token_id=None,
    )
    model = with_random_weights(transformers.MarianMTModel(config))
    model.get_input_embeddings().weight.data[shape.padding] = 0  # where Marian and CTranslate2 start from
    return model


def with_random_weights(model: Any) -> Any:
    """The same random initialization on both sides, so that hypotheses are reordered about equally often."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.dim() > 1 and parameter.requires_grad:  # positions stay sinusoids
            parameter.data.normal_(std=0.05, generator=generator)
    return model.eval()


class NamedTokens:
    """Stands in for the tokenizer that CTranslate2's converter asks for the vocabulary."""

    eos_token, unk_token, pad_token = "t0", "t0", "<pad>"

    def __init__(self, shape: Shape) -> None:
        self.vocabulary = {f"t{index}": index for index in range(shape.vocabulary)} | {"<pad>": shape.padding}

    def get_vocab(self) -> dict[str, int]:
        return self.vocabulary


def converted(model: Any, shape: Shape) -> Any:
    """The Marian model as a translator of CTranslate2; None where that is not installed."""
    if find_spec("ctranslate2") is None:
        return None
    import ctranslate2

    class Converter(ctranslate2.converters.TransformersConverter):
        def load_tokenizer(self, *_: Any, **__: Any) -> NamedTokens:
            return NamedTokens(shape)

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(f"{folder}/marian")
        Converter(f"{folder}/marian").convert(f"{folder}/converted", quantization="float32")
        threads = torch.get_num_threads()
        return ctranslate2.Translator(f"{folder}/converted", compute_type="float32", intra_threads=threads)


def generate_converted(translator: Any, sources: Sequence[Sequence[int]], beam: int, length: int) -> list[list[int]]:
    found = translator.translate_batch(
        [[f"t{token}" for token in source] for source in sources],
        beam_size=beam,
        max_decoding_length=length,
        min_decoding_length=length,
        max_batch_size=len(sources),
        suppress_sequences=[["t0"]],
    )
    return [[int(token[1:]) for token in result.hypotheses[0]] for result in found]


def sentences(count: int, shape: Shape) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(SHORTEST, LONGEST + 1, (count,), generator=generator).tolist()
    return [torch.randint(1, shape.vocabulary, (length,), generator=generator).tolist() for length in lengths]


def generate_ours(model: Transformer, sources: Sequence[Sequence[int]], beam: int, length: int) -> list[list[int]]:
    search = Search(beam=beam, growth=0, slack=length)
    return [best.ids for best, *_ in decode_sources(model, sources, search, suppress=[0], batch=len(sources))]


def generate_theirs(model: Any, sources: Sequence[Sequence[int]], beam: int, length: int) -> list[list[int]]:
    padding = model.config.pad_token_id
    ids, lengths = Sequences.pack(sources)
    mask = torch.arange(ids.shape[1]) < lengths[:, None]
    how = transformers.GenerationConfig(
        num_beams=beam,
        do_sample=False,
        max_new_tokens=length,
        min_new_tokens=length,
        eos_token_id=0,
        pad_token_id=padding,
        decoder_start_token_id=padding,
        bad_words_ids=[[padding]],
    )
    generated = model.generate(ids.masked_fill(~mask, padding), attention_mask=mask.long(), generation_config=how)
    return generated[:, 1:].tolist()


def measure(shape: Shape, batches: Sequence[int], beams: Sequence[int], length: int, repeats: int) -> list[Measurement]:
    mine, peer = our_model(shape), their_model(shape)
    translator = converted(peer, shape)
    found = []
    for batch in batches:
        sources = sentences(batch, shape)
        for beam in beams:
            works: dict[str, Work] = {
                "chainrule": lambda sources=sources, beam=beam: generate_ours(mine, sources, beam, length),
                "transformers": lambda sources=sources, beam=beam: generate_theirs(peer, sources, beam, length),
            }
            if translator is not None:
                works["CTranslate2"] = lambda sources=sources, beam=beam: generate_converted(
                    translator, sources, beam, length
                )
            generated = {name: work() for name, work in works.items()}
            for name, texts in generated.items():
                assert [len(ids) for ids in texts] == [length] * batch, f"{name} generates other lengths"
            if translator is not None and beam == 1:
                assert generated["CTranslate2"] == generated["transformers"], "CTranslate2 generates other tokens"
            rounds = time_rounds(list(works.values()), repeats)
            speeds = {name: batch / typical for name, typical in zip(works, medians(rounds), strict=True)}
            ratios = {
                name: statistics.median(times[index] / times[0] for times in rounds)
                for index, name in enumerate(works)
                if index
            }
            found.append(Measurement(batch, beam, speeds, ratios))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--length", type=int, default=25, help="tokens to generate")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=8000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    set_threads(arguments.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    shape = Shape(arguments.width, arguments.vocabulary)
    found = measure(shape, arguments.batches, arguments.beams, arguments.length, arguments.repeats)
    if arguments.json:
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        rows = [row._asdict() for row in found]
        print(json.dumps({"threads": arguments.threads, **versions, **shape._asdict(), "rows": rows}, indent=2))
        return
    names = list(found[0].speeds)
    print(
        f"{arguments.threads} thread(s), torch {torch.__version__}, transformers {transformers.__version__}; width "
        f"{shape.width}, {shape.vocabulary:,} tokens; sentences/s of {arguments.length} tokens"
    )
    print(f"{'batch':>6}{'beam':>6}" + "".join(f"{name:>14}" for name in names))
    for row in found:
        ratios = "; ".join(f"{ratio:.2f} times {name}" for name, ratio in row.ratios.items())
        print(f"{row.batch:6}{row.beam:6}" + "".join(f"{row.speeds[name]:14,.1f}" for name in names) + f"  {ratios}")


if __name__ == "__main__":
    main()
