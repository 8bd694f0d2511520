"""What `make demo` runs: every family on the same prose, a report, and a few lines in the words of the best.

python examples/demo.py [--minutes 4] [--out demo]
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

import chainrule

DATA = "builtin:prose"  # the English prose in Python's own documentation: nothing to download


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=4.0, help="time of the whole comparison")
    parser.add_argument("--families", help="some of them only, as in ngram,gpt")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder of the comparison; written anew")
    arguments = parser.parse_args()
    shutil.rmtree(arguments.out, ignore_errors=True)

    words = ["compare", "--data", DATA, "--minutes", f"{arguments.minutes:g}", "--out", str(arguments.out)]
    if arguments.families:
        words += ["--families", arguments.families]
    print("chainrule", *words, flush=True)
    subprocess.run([sys.executable, "-m", "chainrule", *words], check=True)

    run = chainrule.load(arguments.out / "runs" / "mixture")
    [text] = run.generate("The ", length=300, temperature=0.7, seed=1)
    print("\nIn its own words (the mixture, temperature 0.7):\n")
    print("The " + text.text)


if __name__ == "__main__":
    main()
