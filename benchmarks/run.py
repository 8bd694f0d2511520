"""All benchmarks that matter, one after the other, with their peers: `make bench`.

    python benchmarks/run.py [--only NAME ...] [--out benchmarks/results.json]

Writes the results of each with the machine, the versions and the threads, prints a table of ratios and the rows of the
README, and draws the costs against length, vocabulary and batch into docs/images. n-grams are measured on WikiText-2,
if the folder CHAINRULE_DATA has it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
IMAGES = HERE.parent / "docs" / "images"
PACKAGES = ("chainrule", "torch", "numpy", "numba", "transformers", "ctranslate2", "gensim", "kenlm")

MULTI30K = ("--width", "192", "--vocabulary", "4000", "--length", "15")  # its transformer
WIKITEXT = Path(os.environ.get("CHAINRULE_DATA", HERE)) / "wikitext-2"

BENCHMARKS = {
    "startup": ["startup.py"],
    "decoding": ["decoding.py", "--threads", "1", "--repeats", "3"],
    "speculative": ["speculative.py", "--threads", "1", "--minutes", "1", "--repeats", "3", "--draft", "ngram", "int8"],
    "loop": ["loop.py", "--threads", "1"],
    "scaling": ["scaling.py", "--threads", "1"],
    "recurrent": ["recurrent.py", "--threads", "1", "--quick"],
    "convolutions": ["convolutions.py", "--threads", "1", "--repeats", "3"],
    "beam": ["beam.py", "--threads", "1", "--repeats", "3", *MULTI30K],
    "translation": ["translation.py", "--threads", "1", "--repeats", "3"],
    "one_pass": ["one_pass.py", "--threads", "1", "--repeats", "3"],
    "precision": ["precision.py", "--threads", "1", "--repeats", "5"],
    "serving": ["serving.py", "--threads", "1"],
}
if (WIKITEXT / "train.txt.gz").exists():
    texts = "--train", str(WIKITEXT / "train.txt.gz"), "--test", str(WIKITEXT / "test.txt.gz")
    BENCHMARKS["ngram"] = ["ngram.py", *texts, "--repeats", "3"]
WRITE_FILES = {"serving.py"}  # benchmarks that print a table and write their results into a file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=list(BENCHMARKS))
    parser.add_argument("--out", type=Path, default=HERE / "results.json")
    arguments = parser.parse_args()
    results: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    for name in arguments.only:
        print(f"{name} …", file=sys.stderr, flush=True)
        began = time.perf_counter()
        found = measured(BENCHMARKS[name])
        if found is None:
            continue
        seconds = round(time.perf_counter() - began)
        results[name] = {"machine": machine(), "versions": versions(), "seconds": seconds, "results": found}
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")
    if "decoding" in results:
        print_decoding(results["decoding"]["results"]["rows"])
    if "speculative" in results:
        for row in results["speculative"]["results"]["rows"]:
            about = f"--draft {row['draft']}, {row['sampling']}, batch {row['batch']}"
            print(f"README, {about}: {row['ratio']:.2f} times as fast")
    if "beam" in results:
        for row in results["beam"]["results"]["rows"]:
            about = "greedy" if row["beam"] == 1 else f"beam {row['beam']}"
            ratios = ", ".join(f"{ratio:.2f} times {peer}" for peer, ratio in row["ratios"].items())
            print(f"README, translation, {about}, batch {row['batch']}: {ratios}")
    if "translation" in results:
        for row in results["translation"]["results"]["rows"]:
            if row["family"].startswith("fat") and "batch 1," in row["work"]:
                print(f"{row['family']} against transformer, {row['work']}: {row['ratio']:.2f}")
    if "one_pass" in results:
        for work, speed in results["one_pass"]["results"]["sentences_per_second"].items():
            print(f"nonautoregressive, {work}: {speed:,.0f} sentences/s")
    if "precision" in results:
        for row in results["precision"]["results"]["rows"]:
            print(f"{row['family']}, width {row['width']}, training in bfloat16 against float32: {row['ratio']:.2f}")
    if "loop" in results:
        for row in results["loop"]["results"]["rows"]:
            shares = ", ".join(f"{work} {share:.0%}" for work, share in row["shares"].items())
            print(f"{row['model']}, share of the decoding loop: {shares}")
    if "scaling" in results:
        draw_scaling(results["scaling"]["results"]["rows"], IMAGES / "decoding-cost.svg")


def measured(command: list[str]) -> Any:
    """What a benchmark prints as JSON; None, with a message, if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "results.json"
        to_file = [str(file)] if command[0] in WRITE_FILES else []
        done = subprocess.run(
            [sys.executable, str(HERE / command[0]), *command[1:], "--json", *to_file],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            print(f"{command[0]} failed: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
            return None
        return json.loads(file.read_text() if to_file else done.stdout[done.stdout.index("{") :])


def machine() -> dict[str, Any]:
    return {"processor": processor(), "cores": os.cpu_count(), "system": platform.system(), "load": os.getloadavg()[0]}


def processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def print_decoding(rows: list[dict[str, Any]]) -> None:
    """The speeds and ratios as a table in Markdown, and the row of the README."""
    names = list(rows[0]["speeds"])
    ratios = list(rows[0]["ratios"])
    print(f"| tokens/s, greedy | {' | '.join([*names, *ratios, 'of the read speed'])} |")
    print("|---" * (len(names) + len(ratios) + 2) + "|")
    for row in rows:
        cells = [f"{row['speeds'][name]:,.0f}" for name in names] + [f"{row['ratios'][name]:.2f}" for name in ratios]
        share = "" if row["read_share"] is None else f"{row['read_share']:.0%} of {row['read_gigabytes']:.0f} GB/s"
        print(f"| {row['size']}, batch {row['batch']} | {' | '.join([*cells, share])} |")
    for peer in ("transformers", "CTranslate2"):
        found = {
            batch: [row["ratios"][f"chainrule / {peer}"] for row in rows if row["batch"] == batch] for batch in (1, 16)
        }
        spans = [f"{min(of):.1f} to {max(of):.1f} at batch {batch}" for batch, of in found.items() if of]
        print(f"README, gpt greedy: speed-up over {peer} {', '.join(spans)}")


def draw_scaling(rows: list[dict[str, Any]], file: Path) -> None:
    """Milliseconds per token against length, vocabulary and batch."""
    try:
        import matplotlib
    except ImportError:
        print("no plot: it needs matplotlib (pip install 'chainrule[plots]')", file=sys.stderr)
        return
    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    for axis, variable in zip(axes, ("length", "vocabulary", "batch"), strict=True):
        for weights in ("float32", "int8"):
            points = [row for row in rows if row["variable"] == variable and row["weights"] == weights]
            axis.plot(
                [row["value"] for row in points], [row["milliseconds"] for row in points], marker="o", label=weights
            )
        axis.set(xscale="log", yscale="log", xlabel=variable, ylabel="ms per token and row")
        axis.legend()
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)
    print(f"{file}", file=sys.stderr)


if __name__ == "__main__":
    main()
