"""FAT with each of its options on and off: BLEU and target tokens per second of runs trained with them.

    python benchmarks/fat_switches.py --plain RUN [--reversed RUN] [--shortlist RUN] [--skip RUN] \\
        --source test.en --references test.de [--beam 5] [--batch 16] [--limit 200] [--repeats 1] \\
        [--threads 1] [--clock cpu] [--json]

`--plain` is the run with all options off, `--reversed` one with model.direction=right_to_left (two rows: by itself,
and with the plain one by agreement), `--shortlist` one with model.shortlist.partners, decoded without and with its
shortlist, and `--skip` one with model.skip.threshold. BLEU is of all sentences; speed, from text to text, of the first
`--limit`.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path

import torch

import chainrule
from chainrule.decoding import Search, TranslatedText
from chainrule.evaluation.translation import corpus_scores
from chainrule.tasks.translation import TranslationRun
from timing import CLOCKS, medians, time_rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("plain", "reversed", "shortlist", "skip"):
        parser.add_argument(f"--{name}", required=name == "plain")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--references", type=Path, required=True)
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--limit", type=int, default=200, help="number of sentences to time")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=list(CLOCKS), default="wall")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    sources, references = (
        path.read_text(encoding="utf-8").splitlines() for path in (arguments.source, arguments.references)
    )
    named = {name: getattr(arguments, name) for name in ("plain", "reversed", "shortlist", "skip")}
    runs = {name: chainrule.load(path) for name, path in named.items() if path is not None}
    methods = {
        name: partial(translate, run, search=Search(beam=arguments.beam), batch=arguments.batch, agree_with=None)
        for name, run in runs.items()
    }
    if "reversed" in runs:
        methods["both, by agreement"] = partial(methods["plain"], agree_with=runs["reversed"])
    if "shortlist" in runs:
        listed = Search(beam=arguments.beam, shortlist=True)
        methods["shortlist, used in decoding"] = partial(methods["shortlist"], search=listed)

    found = {name: method(sources) for name, method in methods.items()}
    timed = sources[: arguments.limit]
    works = [partial(method, timed) for method in methods.values()]
    seconds = medians(time_rounds(works, arguments.repeats, CLOCKS[arguments.clock]))
    rows = {}
    for (name, translations), taken in zip(found.items(), seconds, strict=True):
        tokens = sum(one.tokens for one in translations[: len(timed)])
        bleu = corpus_scores([one.text for one in translations], references)["bleu"]
        rows[name] = {"bleu": bleu, "tokens_per_second": tokens / taken}
    if arguments.json:
        print(json.dumps({"threads": arguments.threads, "torch": torch.__version__, "rows": rows}, indent=2))
        return
    first = rows["plain"]["tokens_per_second"]
    for name, row in rows.items():
        speed = row["tokens_per_second"]
        print(f"{name:28} BLEU {row['bleu']:6.2f}  {speed:7.0f} tokens/s ({speed / first:.2f})")


def translate(
    run: TranslationRun, texts: list[str], *, search: Search, batch: int, agree_with: TranslationRun | None
) -> list[TranslatedText]:
    return [best for best, *_ in run.translate(texts, search, batch=batch, agree_with=agree_with)]


if __name__ == "__main__":
    main()
