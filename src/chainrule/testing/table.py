"""Which family passes which checks: `python -m chainrule.testing.table` runs them and prints a Markdown table.

It takes the first tiny form of every family; the tests of the package run every form.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

from chainrule.evaluation.verify import Finding
from chainrule.families import FAMILIES
from chainrule.interface.base import AutoregressiveModel
from chainrule.interface.capabilities import Embedder
from chainrule.interface.conditional import ParallelModel
from chainrule.testing.checks import check_model
from chainrule.testing.embedder_checks import check_embedder
from chainrule.testing.parallel_checks import check_parallel
from chainrule.testing.tiny import tiny_embedder, tiny_model, tiny_parallel


class CheckRow(NamedTuple):
    """The findings of one suite of checks on one family."""

    family: str
    suite: str
    findings: list[Finding]
    reason: str  # why the suite does not apply, where there are no findings

    @property
    def passed(self) -> str:
        if not self.findings:
            return "not applicable"
        return f"{sum(finding.status == 'passed' for finding in self.findings)} of {len(self.findings)}"

    @property
    def notes(self) -> str:
        """The reasons why checks do not apply, with the number of checks, and the declared exceptions."""
        if not self.findings:
            return self.reason
        reasons = Counter(finding.message for finding in self.findings if finding.status == "not applicable")
        exceptions = [f"{one.check}: {one.message}" for one in self.findings if one.status == "exception"]
        return "; ".join([*(f"{count}: {reason}" for reason, count in reasons.items()), *exceptions])


def check_rows(name: str) -> Iterator[CheckRow]:
    """Run the suites that apply to a family."""
    kind = FAMILIES[name]
    if issubclass(kind, AutoregressiveModel):
        yield CheckRow(name, "check_model", check_model(partial(tiny_model, name)), "")
    elif issubclass(kind, ParallelModel):
        yield CheckRow(name, "check_parallel", check_parallel(partial(tiny_parallel, name)), "")
    else:
        yield CheckRow(name, "check_model", [], kind.check_exceptions["check_model"])
    if issubclass(kind, Embedder):
        yield CheckRow(name, "check_embedder", check_embedder(partial(tiny_embedder, name)), "")


def main() -> None:
    print("| family | checks | passed | not applicable, or declared exception |\n|---|---|---|---|")
    for name in FAMILIES:
        for row in check_rows(name):
            print(f"| `{row.family}` | `{row.suite}` | {row.passed} | {row.notes} |", flush=True)


if __name__ == "__main__":
    main()
