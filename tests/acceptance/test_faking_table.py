"""(true card, fake, kind of test) → verdict, over all combinations, as whole runs; and the cases that fakes fail at."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest

from pytest_gpuinvariants.hardware.fakes import parse_layers
from pytest_gpuinvariants.hardware.native_build import cache_root
from pytest_gpuinvariants.hardware.profiles import PROFILES
from tests.acceptance.conftest import Run, text

CACHE = str(cache_root().parent)  # before pytester gives its runs another home

CARDS = ("h200", "gb300", "l4")
FAKES = ("", "fake:sm90", "fake:gb300", "fake:gb300,fake:sm90", "fake:sm89")


@pytest.fixture(autouse=True)
def _one_simulator_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", CACHE)


KINDS = """
    import pytest
    import torch
    from pytest_gpuinvariants import requires_sm90

    AT_IMPORT = torch.cuda.get_device_capability()
    TRUE = torch.cuda.get_device_capability

    @requires_sm90(host_only=True)
    def test_host_only():
        assert TRUE() == AT_IMPORT

    @requires_sm90
    def test_kernels():
        raise AssertionError("no card here runs kernels")

    def test_unmarked():
        assert TRUE() == {true}

    @pytest.mark.skipif(AT_IMPORT != (9, 0), reason="needs SM90")
    def test_skipif():
        assert TRUE() == {true}

    @pytest.mark.parametrize("major", range(AT_IMPORT[0], AT_IMPORT[0] + 1))
    def test_parametrised(major):
        assert TRUE() == {true}
"""


def _expected(card: str, fakes: str) -> Mapping[str, str]:
    """By the rules of docs/faking.md, not by what a run printed."""
    profile = PROFILES[card]
    fake = parse_layers(f"real,{fakes}")[1] if fakes else None
    seen = fake.capability if fake else profile.capability
    faked = f"simulated {profile.label} faking {fake.label}" if fake else f"simulated {profile.label}"
    unmarked = (
        f"not verified: passed without a gate on simulated {profile.label}, collected as {fake.label}" if fake else ""
    )
    true_number, seen_number = (f"SM {major}.{minor}" for major, minor in (profile.capability, seen))
    if profile.major == 9:
        kernels = f"simulated {profile.label}, {true_number}, where kernels do not run"
        kernels = f"not verified: runs kernels, and needs a real SM 9.x; this is {kernels}"
    elif fake:
        kernels = "not verified: runs kernels, and needs a real SM 9.x; "
        kernels += f"this is simulated {profile.label}, {true_number} (faking {fake.label})"
    else:
        kernels = f"not verified: needs SM 9.x; this is simulated {profile.label}, {true_number}"
    return {
        "test_host_only": f"verified on {faked}"
        if seen[0] == 9
        else f"not verified: needs SM 9.x; this is {faked}, {seen_number}",
        "test_kernels": kernels,
        "test_unmarked": unmarked,
        "test_skipif": unmarked if seen == (9, 0) else "",
        f"test_parametrised[{seen[0]}]": unmarked,
    }


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize("fakes", FAKES)
def test_every_combination_has_its_verdict(run: Run, pytester: pytest.Pytester, card: str, fakes: str) -> None:
    choice = f"simulate:{card},{fakes}".rstrip(",")
    true = PROFILES[card].capability
    result = run(KINDS.format(true=true), f"--gpu={choice}", "--junitxml=report.xml", "-rs")
    expected = _expected(card, fakes)
    skipped = [name for name, verdict in expected.items() if verdict.startswith("not verified: needs")]
    skipped += ["test_kernels"] if "test_kernels" not in skipped else []
    seen = expected.keys() & {"test_parametrised[9]"}
    closed = 0 if seen and _is_exactly_90(card, fakes) else 1
    result.assert_outcomes(passed=5 - len(skipped) - closed, skipped=len(skipped) + closed)
    assert _verdicts(pytester) == {name: verdict for name, verdict in expected.items() if verdict}


def _is_exactly_90(card: str, fakes: str) -> bool:
    fake = parse_layers(f"real,{fakes}")[1] if fakes else None
    return (fake.capability if fake else PROFILES[card].capability) == (9, 0)


def _verdicts(pytester: pytest.Pytester) -> dict[str, str]:
    import xml.etree.ElementTree as ET

    tree = ET.parse(pytester.path / "report.xml")
    return {
        str(case.get("name")): str(one.get("value"))
        for case, one in itertools.chain.from_iterable(
            ((case, one) for one in case.iter("property") if one.get("name") == "gpuinvariants.verdict")
            for case in tree.iter("testcase")
        )
    }


def test_the_summary_tells_tests_that_only_the_fake_let_through(run: Run) -> None:
    result = run(
        """
        import pytest
        import torch

        pytestmark = pytest.mark.skipif(torch.cuda.get_device_capability() != (9, 0), reason="needs SM90")

        def test_looks_verified():
            pass
        """,
        "--gpu=simulate:gb300,fake:sm90",
    )
    result.assert_outcomes(passed=1)
    assert "1 not verified: passed without a gate on simulated GB300, collected as sm_90" in text(result)


def test_a_block_fakes_another_card_and_is_named(run: Run) -> None:
    result = run(
        """
        import functools
        import pytest
        import torch
        from pytest_gpuinvariants import MarkerArgumentError, faking, requires_sm

        @functools.cache
        def cached():
            return torch.cuda.get_device_capability()

        KEPT = None

        @pytest.mark.parametrize("card", ["sm80", "sm121"])
        @requires_sm(7, or_newer=True, host_only=True)
        def test_block(card):
            assert cached() == (9, 0)
            with faking(card) as fake:
                assert cached() == torch.cuda.get_device_capability() == fake.capability
            assert cached() == (9, 0)

        @requires_sm(7, or_newer=True, host_only=True)
        def test_keeps():
            global KEPT
            with faking("sm103"):
                KEPT = torch.cuda.get_device_capability()

        def test_needs_a_host_only_test():
            with pytest.raises(MarkerArgumentError, match="host_only=True"), faking("sm80"):
                pass

        @requires_sm(7, or_newer=True, host_only=True)
        def test_unknown():
            with pytest.raises(MarkerArgumentError, match="known: sm70"), faking("sm42"):
                pass
        """,
        "--gpu=simulate:gb300,fake:sm90",
    )
    result.assert_outcomes(passed=4, failed=1)
    assert "the fake outlives its block: test_it.KEPT = (10, 3)" in text(result)
    assert "1 verified on simulated GB300 faking sm_90 faking sm_121" in text(result)
