"""What `make demo` runs: an n-gram model in seconds, then every family compared, and text from the best.

python examples/demo.py [--minutes 2] [--out demo]

The first neural model compiles the decoding step, once on a machine; done before the comparison, that takes none of its
minutes. Each step is a command of chainrule, printed before it runs. The data is English prose that ships with Python.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

DATA = "builtin:prose"
PROMPT = "The "
TOTAL, LAST = 180.0, 10.0  # seconds of all steps, and of the last


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, help="budget of the comparison; default: the rest of three, at most 2")
    parser.add_argument("--families", help="only these families, separated by commas")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder of the demo; replaced if it exists")
    arguments = parser.parse_args()
    shutil.rmtree(arguments.out, ignore_errors=True)
    began = time.monotonic()

    ngram, comparison = arguments.out / "ngram", arguments.out / "comparison"
    title("1. An n-gram model, counted in seconds", began)
    chainrule("train", "ngram", "--data", DATA, "--set", "model.order=6", "--out", ngram)
    chainrule("generate", ngram, "--prompt", PROMPT, "--length", "240", "--temperature", "0.7", "--seed", "1")

    title("2. A neural model after a few steps", began)
    neural = arguments.out / "finite_memory"
    chainrule("train", "finite_memory", "--data", DATA, "--steps", "20", "--valid-fraction", "0.02", "--out", neural)
    chainrule("generate", neural, "--prompt", PROMPT, "--length", "40")

    title("3. Every family with the same budget, on the same held-out text", began)
    minutes = arguments.minutes or max(1.0, min(2.0, (TOTAL - LAST - (time.monotonic() - began)) / 60))
    budget = ["--minutes", f"{minutes:.2g}", "--valid-fraction", "0.05"]  # less text to score: less to wait for
    chosen = ["--families", arguments.families] if arguments.families else []
    chainrule("compare", "--data", DATA, *chosen, *budget, "--out", comparison)

    title("4. Text from the best of them", began)
    best = json.loads((comparison / "results.json").read_text())["rows"][0]["run"]
    chainrule(
        "generate", comparison / best,
        "--prompt", PROMPT, "--length", "300", "--temperature", "0.7", "--seed", "2",
    )  # fmt: skip
    print(f"\n{time.monotonic() - began:.0f} s. The report of the comparison: {comparison / 'report.html'}")
    program = Path(sys.executable).parent / "chainrule"
    print(f"See and try these models in the browser: {program} serve {comparison / 'runs'}")


def title(text: str, began: float) -> None:
    print(f"\n{text}  [{time.monotonic() - began:.0f} s]\n", flush=True)


def chainrule(*arguments: object) -> None:
    """Print a command and run it."""
    words = [str(argument) for argument in arguments]
    print("$ chainrule", *(f'"{word}"' if " " in word else word for word in words), flush=True)
    subprocess.run([sys.executable, "-m", "chainrule", *words], check=True)
    print(flush=True)


if __name__ == "__main__":
    main()
