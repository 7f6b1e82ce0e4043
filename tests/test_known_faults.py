"""Declared upstream faults: which versions, and which findings are the declared one."""

from __future__ import annotations

from importlib import metadata

import pytest

from pytest_gpuinvariants.events import Frame, Thread
from pytest_gpuinvariants.findings import Finding
from pytest_gpuinvariants.known_faults import KnownFault

ID = "sync:cudaStreamSynchronize@lib.core.plan"


def found(caller: str = "app.State.plan", function: str = "plan") -> Finding:
    module, _, name = caller.partition(".")
    stack = (Frame("lib.core", function, "/f.py", 1), Frame(module, name, "/g.py", 2))
    return Finding("no_implicit_sync", "sync", "cudaStreamSynchronize", "text", Thread(1, "t"), stack)


def fault(versions: str = ">=1.0,<2", called_from: str | None = None) -> KnownFault:
    return KnownFault(finding=ID, package="some-package", versions=versions, reason="r", called_from=called_from)


@pytest.mark.parametrize(
    ("installed", "applies"),
    [
        ("0.9", False),
        ("1.0", True),
        ("1.9.post1", True),
        ("1.5.dev3", True),
        ("1.2+cu130", True),
        ("2.0", False),
        (None, False),
    ],
)
def test_range(installed: str | None, applies: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        assert package == "some-package"
        if installed is None:
            raise metadata.PackageNotFoundError(package)
        return installed

    monkeypatch.setattr(metadata, "version", version)
    assert fault().applies is applies


def test_only_the_declared_finding_is_it() -> None:
    assert fault().mismatch([found(), found("app.other")]) is None
    assert fault().mismatch([]) == "the known fault was not found: mend its declaration if the release is fixed"
    other = fault().mismatch([found(), found(function="run")])
    assert other == "not the known fault alone: sync:cudaStreamSynchronize@lib.core.run"


def test_called_from_must_be_on_every_stack() -> None:
    declared = fault(called_from="app.State.plan")
    assert declared.mismatch([found("app.State.plan")]) is None
    text = declared.mismatch([found("app.State.plan"), found("app.other")])
    assert text == "the known fault, but not called from app.State.plan"
