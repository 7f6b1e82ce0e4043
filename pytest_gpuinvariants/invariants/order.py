"""A verdict depends on no order: that of a test alone is that in its module, forwards and backwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

NOT_RUN = "not run"
ORDERS = ("alone", "in order", "reversed")


@dataclass(frozen=True)
class Verdict:
    """What a test came to in one process; ``detail`` is for the reader, and may differ from run to run."""

    text: str
    detail: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.text}: {self.detail}" if self.detail else self.text


Table = Mapping[str, Mapping[str, Verdict]]
"""For each of :data:`ORDERS`, the verdict of each test."""


def check(tests: list[str], table: Table) -> Iterator[tuple[str, str]]:
    """Each test whose verdict depends on the order, or could not be compared, with what there is to say of it.

    Args:
        tests: names, in order.
        table: the verdicts; a test without one did not run.
    """
    for test in tests:
        verdicts = [table[order].get(test, Verdict(NOT_RUN)) for order in ORDERS]
        if any(verdict.text.startswith(NOT_RUN) for verdict in verdicts):
            what = "could not be compared"
        elif len(set(verdicts)) > 1:
            what = "depends on the order"
        else:
            continue
        yield test, "\n".join([what, *(f"  {order}: {one}" for order, one in zip(ORDERS, verdicts, strict=True))])
