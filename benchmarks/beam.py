"""Greedy and beam decoding of `transformer` against the `generate` of Hugging Face's MarianMTModel of the same shape.

    python benchmarks/beam.py [--threads 1] [--repeats 5] [--batches 1 16] [--beams 1 5] [--length 25] [--json]

Both have 3 + 3 layers, width 256, 4 heads, one table of 8,000 tokens for source, target and readout, and random
weights. EOS is suppressed, so both generate the same number of tokens; sources have 10 to 30 tokens and come in padded
batches. Timing is by interleaved rounds (see timing.py).
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

from chainrule.decoding import beam_search
from chainrule.models.transformer import Transformer, TransformerConfig
from chainrule.types import Sequences
from timing import compare_speed

VOCABULARY = 8000
LAYERS, WIDTH, HEADS = 3, 256, 4
PADDING = VOCABULARY  # a separate id, as in Marian
SHORTEST, LONGEST = 10, 30  # tokens of a source


class Measurement(NamedTuple):
    batch: int
    beam: int
    ours: float  # sentences per second
    transformers: float
    ratio: float


def our_model() -> Transformer:
    config = TransformerConfig(
        vocabulary=VOCABULARY,
        source_vocabulary=VOCABULARY,
        shared_embeddings=True,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        width=WIDTH,
        heads=HEADS,
    )
    return with_random_weights(Transformer(config))


def their_model() -> Any:
    config = transformers.MarianConfig(
        vocab_size=VOCABULARY + 1,
        d_model=WIDTH,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS,
        encoder_ffn_dim=4 * WIDTH,
        decoder_ffn_dim=4 * WIDTH,
        max_position_embeddings=256,
        pad_token_id=PADDING,
        decoder_start_token_id=PADDING,
        eos_token_id=0,
        forced_eos_token_id=None,
    )
    return with_random_weights(transformers.MarianMTModel(config))


def with_random_weights(model: Any) -> Any:
    """The same random initialization on both sides, so that hypotheses are reordered about equally often."""
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(std=0.05, generator=generator)
    return model.eval()


def sentences(count: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(SHORTEST, LONGEST + 1, (count,), generator=generator).tolist()
    return [torch.randint(1, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]


def generate_ours(model: Transformer, sources: Sequence[Sequence[int]], beam: int, length: int) -> list[list[int]]:
    found = beam_search(
        model, [[]] * len(sources), width=beam, length=length, suppress=[0], source=Sequences.pack(sources)
    )
    return [best.ids for best, *_ in found]


def generate_theirs(model: Any, sources: Sequence[Sequence[int]], beam: int, length: int) -> list[list[int]]:
    ids, lengths = Sequences.pack(sources)
    mask = torch.arange(ids.shape[1]) < lengths[:, None]
    how = transformers.GenerationConfig(
        num_beams=beam,
        do_sample=False,
        max_new_tokens=length,
        min_new_tokens=length,
        eos_token_id=0,
        pad_token_id=PADDING,
        decoder_start_token_id=PADDING,
        bad_words_ids=[[PADDING]],
    )
    generated = model.generate(ids.masked_fill(~mask, PADDING), attention_mask=mask.long(), generation_config=how)
    return generated[:, 1:].tolist()


def measure(batches: Sequence[int], beams: Sequence[int], length: int, repeats: int) -> list[Measurement]:
    mine, peer = our_model(), their_model()
    found = []
    for batch in batches:
        sources = sentences(batch)
        for beam in beams:
            for generated in (generate_ours(mine, sources, beam, length), generate_theirs(peer, sources, beam, length)):
                assert [len(ids) for ids in generated] == [length] * batch
            speeds = compare_speed(
                lambda sources=sources, beam=beam: generate_ours(mine, sources, beam, length),
                lambda sources=sources, beam=beam: generate_theirs(peer, sources, beam, length),
                batch,
                repeats,
            )
            found.append(Measurement(batch, beam, *speeds))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--beams", type=int, nargs="+", default=[1, 5])
    parser.add_argument("--length", type=int, default=25, help="tokens to generate")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    transformers.logging.set_verbosity_error()
    found = measure(arguments.batches, arguments.beams, arguments.length, arguments.repeats)
    if arguments.json:
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        rows = [row._asdict() for row in found]
        print(json.dumps({"threads": arguments.threads, **versions, "rows": rows}, indent=2))
        return
    print(
        f"{arguments.threads} thread(s), torch {torch.__version__}, transformers {transformers.__version__}; "
        f"sentences/s of {arguments.length} tokens"
    )
    print(f"{'batch':>6}{'beam':>6}{'chainrule':>12}{'transformers':>14}{'ratio':>8}")
    for batch, beam, ours, theirs, ratio in found:
        print(f"{batch:6}{beam:6}{ours:12,.1f}{theirs:14,.1f}{ratio:8.2f}")


if __name__ == "__main__":
    main()
