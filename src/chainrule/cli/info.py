"""`chainrule info`: what is in this folder?"""

from __future__ import annotations

from chainrule.cli.options import Json, RunPath, open_run, output, pair_rows, print_json, print_table, score_rows


def info(run: RunPath, json: Json = False) -> None:
    """Tell what a run is: family, size, vocabulary, data, how long it trained and how it scores."""
    about = open_run(run, device="cpu").info()
    if json:
        print_json(about)
        return
    tables = ("validation", "test", "cleaning", "bleu")
    print_table({name: value for name, value in about.items() if name not in tables} | pair_rows(about))
    for split in ("validation", "test"):
        if about[split] is not None:
            output.print()
            print_table(score_rows(about[split]), title=f"[bold]{split}[/bold]: {about[split]['data']}")
