"""Which runs are taken to use an invariant, from the text of what they collect."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpuinvariants.scan import roots, uses_invariants

MARKED = "import pytest\n@pytest.mark.no_implicit_sync\ndef test_a(): ...\n"
PLAIN = "def test_b(): ...\n"


def config(pytester: pytest.Pytester, *args: str) -> pytest.Config:
    # The outer run's plugin is enough: the inner configuration is only read.
    return pytester.parseconfig("-p", "no:gpuinvariants", *args)


@pytest.mark.parametrize(
    ("files", "args", "used"),
    [
        ({"test_a.py": MARKED}, [], True),
        ({"test_b.py": PLAIN}, [], False),
        ({"test_b.py": PLAIN, "sub/test_a.py": MARKED}, ["test_b.py"], False),
        ({"test_b.py": PLAIN, "sub/test_a.py": MARKED}, ["sub"], True),
        ({"test_b.py": PLAIN, "sub/test_a.py": MARKED}, ["sub/test_a.py::test_a"], True),
        ({"sub/test_b.py": PLAIN, "conftest.py": "from pytest_gpuinvariants import allow_sync\n"}, ["sub"], True),
        ({"test_b.py": PLAIN, ".git/hook.py": MARKED, "env/pyvenv.cfg": "", "env/x.py": MARKED}, [], False),
        ({"tests/test_b.py": PLAIN, "other/test_a.py": MARKED, "pytest.ini": "[pytest]\ntestpaths=tests\n"}, [], False),
        ({"tests/test_a.py": MARKED, "pytest.ini": "[pytest]\ntestpaths=tests\n"}, [], True),
    ],
    ids=[
        "marked",
        "plain",
        "other file",
        "folder",
        "node id",
        "conftest above",
        "not ours",
        "testpaths",
        "in testpaths",
    ],
)
def test_uses(pytester: pytest.Pytester, files: dict[str, str], args: list[str], used: bool) -> None:
    for name, text in files.items():
        path = pytester.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    pytester.makefile(".toml", pyproject="") if "pytest.ini" not in files else None
    assert uses_invariants(config(pytester, "--rootdir", str(pytester.path), *args)) is used


def test_packages_named_with_pyargs_are_found(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    package = pytester.path / "site" / "shipped_suite"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "test_a.py").write_text(MARKED)
    monkeypatch.syspath_prepend(package.parent)
    given = config(pytester, "--pyargs", "shipped_suite")
    assert [Path(root) for root in roots(given)] == [package]
    assert uses_invariants(given)
