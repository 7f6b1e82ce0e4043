"""What the answers of a resolver, in two orders, are found to be."""

from __future__ import annotations

import pytest

from pytest_gpuinvariants.events import Answer, ConfigRead, Frame, Resolutions, Thread
from pytest_gpuinvariants.invariants.context_independence import check

_THREAD = Thread(1, "MainThread")
_TEST = Frame("test_it", "test_one", "test_it.py", 3)
_READER = Frame("library", "Layer.__init__", "library.py", 7)


def _resolutions(values: str, condition: str, asked: str, read: bool) -> Resolutions:
    """``values``: the answers in order, "ab,ba": inside first, then outside first; "ab": outside first alone."""
    pairs = values.split(",")
    first = len(pairs) == 2
    counts = iter(int(one) for one in asked)
    orders: list[tuple[Answer, Answer]] = []
    for pair in pairs:
        one, other = (
            Answer(under=under, value=ord(letter), shown=letter, asked=next(counts, 0))
            for letter, under in zip(pair, (first, not first), strict=True)
        )
        orders.append((one, other))
        first = not first
    reads = (
        ((ConfigRead(function="current", answer="None", thread=_THREAD, stack=(_READER, _TEST)), 2),) if read else ()
    )
    return Resolutions(
        resolver="library.resolve",
        condition=condition,
        name="in context",
        orders=tuple(orders),
        reads=reads,
        thread=_THREAD,
        stack=(_TEST,),
    )


@pytest.mark.parametrize(
    ("values", "condition", "asked", "kind"),
    [
        ("aa,aa", "context", "1111", None),
        ("aa,aa", "context", "0000", None),
        ("aa", "import", "10", None),
        ("ab,ba", "context", "1111", "depends-on-context"),
        ("ab,ba", "environment", "0000", "depends-on-environment"),
        ("ab", "import", "00", "depends-on-import"),
        ("aa,bb", "context", "1010", "depends-on-order"),
        ("ab,bb", "context", "1111", "depends-on-order"),
        ("ab,cd", "context", "1111", "depends-on-order"),
        ("ab,ab", "context", "1111", "depends-on-order"),  # the second answer is another, in context or not
        ("aa,aa", "context", "1000", "depends-on-order"),  # kept from the very first call
        ("aa,aa", "context", "2001", None),
    ],
)
def test_kinds(values: str, condition: str, asked: str, kind: str | None) -> None:
    found = check(_resolutions(values, condition, asked, read=False))
    assert (found.kind if found else None) == kind
    if found is not None:
        assert found.stack == (_TEST,)


def test_a_finding_tells_the_answers_and_the_reads() -> None:
    found = check(_resolutions("ab,ba", "context", "1111", read=True))
    assert found is not None
    assert found.id == "depends-on-context:library.resolve@library.Layer.__init__"
    assert found.line == (
        "library.resolve answers a in context, then b without it; in fresh caches, b without it, then a in context "
        "(read outside of a context by 2 x library.Layer.__init__)"
    )
