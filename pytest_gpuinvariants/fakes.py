"""``faking("sm89")``: another card for a part of a host-only test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pytest_gpuinvariants import regions, session
from pytest_gpuinvariants.decorators import MarkerArgumentError
from pytest_gpuinvariants.hardware.fakes import Fake, parse_fake
from pytest_gpuinvariants.hardware.machine import MachineKind


@contextmanager
def faking(card: str) -> Iterator[Fake]:
    """Make the card look like another while the block runs, to all threads of the process.

    Over a fake of the run (``--gpu fake:gb300``) it is one more layer.  Kernels other than torch's own
    are refused meanwhile.  Verdicts name the fake.

    Args:
        card: a capability, ``sm89`` or ``sm100a``, or a profile, ``gb300``.

    Raises:
        MarkerArgumentError: the fake is not known, or the test is not ``host_only``.
        pytest.skip.Exception: there is no card to lay a fake over.
        pytest.fail.Exception: at the end, something still holds the fake.
    """
    try:
        fake = parse_fake(card)
    except ValueError as error:
        raise MarkerArgumentError(f"faking: {error}") from error
    run = session.current()
    if run.current is None or not run.current.host_only:
        raise MarkerArgumentError(
            "faking: for tests that launch no kernel of their own: mark it requires_sm…(host_only=True)"
        )
    if run.machine.kind not in (MachineKind.REAL, MachineKind.SIMULATED):
        regions.skip(f"not verified: {run.machine.absence}")
    with run.faked(fake):
        yield fake
