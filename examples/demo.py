"""What `make demo` runs: an n-gram and a GPT on the same prose, side by side, and a few lines of the GPT's own.

python examples/demo.py [--minutes 2] [--out demo]
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from rich.console import Console
from rich.table import Table

import chainrule
from chainrule.training.progress import LiveLine

DATA = "builtin:prose"  # the English prose in Python's own documentation: nothing to download


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=2.0, help="training time of the GPT")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder of the two runs; written anew")
    arguments = parser.parse_args()
    console = Console()

    shutil.rmtree(arguments.out, ignore_errors=True)
    runs = {}
    for family, words in (("ngram", {"settings": {"model": {"order": 6}}}), ("gpt", {"minutes": arguments.minutes})):
        console.print(f"[bold]{family}[/bold] on {DATA}")
        out = arguments.out / family
        runs[family] = chainrule.train(family, data=DATA, out=out, reporter=LiveLine(console), **words)

    table = Table(title="the same held-out prose", title_justify="left", box=None)
    for column in ("family", "parameters", "bits/byte", "perplexity", "accuracy"):
        table.add_column(column, justify="left" if column == "family" else "right")
    for family, run in runs.items():
        about = run.info()
        found = about["validation"]
        table.add_row(
            family,
            f"{about['parameters']:,}",
            f"{found['bits_per_byte']:.3f}",
            f"{found['perplexity']:.3f}",
            f"{found['accuracy']:.1%}",
        )
    console.print(table)

    console.print("\n[bold]In its own words[/bold] (gpt, temperature 0.8)\n")
    [text] = runs["gpt"].generate("The ", length=400, temperature=0.8, seed=1)
    console.print("The " + text.text, markup=False, highlight=False)
    console.print(
        f"\nboth runs are in [green]{arguments.out}/[/green]; try: chainrule score {arguments.out}/gpt --text …"
    )


if __name__ == "__main__":
    main()
