"""Options: command line > marker > ini > environment > default, each step, and errors that name the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpuinvariants import settings
from pytest_gpuinvariants.invariants.no_implicit_sync import DEFAULT_KINDS
from pytest_gpuinvariants.settings import OPTIONS, SettingError, Settings, for_marker, resolve


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for option in OPTIONS:
        monkeypatch.delenv(option.variable, raising=False)
    monkeypatch.delenv("VLLM_GPU_SYNC_CHECK", raising=False)
    # The inner configuration is only read: it must neither look for a GPU nor stop at a wrong value.
    monkeypatch.setattr("pytest_gpuinvariants.session.start", lambda config: None)


def configure(pytester: pytest.Pytester, *args: str, ini: str = "") -> pytest.Config:
    (pytester.path / "pytest.ini").write_text(f"[pytest]\n{ini}\n")
    return pytester.parseconfig("--rootdir", str(pytester.path), *args)


def test_defaults(pytester: pytest.Pytester) -> None:
    expected = Settings(
        "auto",
        DEFAULT_KINDS,
        0,
        mode="error",
        strict_allowances=False,
        full_stacks=False,
        allow_multicast=False,
        require_verified="no",
        ledger="",
        ledger_update=False,
        shuffle_check=False,
        shuffle_timeout=600.0,
    )
    assert resolve(configure(pytester)) == expected


# One row for each pair of neighbours: the higher one wins, and without it the lower one counts.
STEPS = [
    ("gpu", ["--gpu=simulate:l4"], {}, "gpu = simulate:a100", None, "simulate:l4"),
    ("gpu", [], {}, "gpu = simulate:a100", "simulate:h200", "simulate:a100"),
    ("gpu", [], {}, "", "simulate:h200", "simulate:h200"),
    ("kinds", ["--gpu-sync-kinds=sync"], {"kinds": "gapped-copy"}, "", None, {"sync"}),
    ("kinds", [], {"kinds": ["gapped-copy", "sync"]}, "gpu_sync_kinds = blocking-copy", None, {"gapped-copy", "sync"}),
    ("kinds", [], {}, "gpu_sync_kinds = blocking-copy, sync", "pageable-copy", {"blocking-copy", "sync"}),
    ("kinds", [], {}, "", "pageable-copy", {"pageable-copy"}),
    ("pageable_threshold", ["--gpu-pageable-threshold=1"], {"pageable_threshold": 2}, "", None, 1),
    ("pageable_threshold", [], {"pageable_threshold": 0}, "gpu_pageable_threshold = 3", None, 0),
    ("pageable_threshold", [], {}, "gpu_pageable_threshold = 3", "4", 3),
    ("pageable_threshold", [], {}, "", "4", 4),
    ("mode", ["--gpu-sync-mode=warn"], {"mode": "error"}, "", None, "warn"),
    ("mode", [], {"mode": "error"}, "gpu_sync_mode = warn", None, "error"),
    ("mode", [], {}, "gpu_sync_mode = warn", "error", "warn"),
    ("mode", [], {}, "", "warn", "warn"),
    ("strict_allowances", ["--gpu-strict-allowances"], {}, "gpu_strict_allowances = false", None, True),
    ("strict_allowances", [], {}, "gpu_strict_allowances = true", None, True),
    ("full_stacks", ["--no-gpu-full-stacks"], {}, "gpu_full_stacks = true", None, False),
    ("full_stacks", ["--gpu-full-stacks"], {}, "gpu_full_stacks = false", None, True),
    ("full_stacks", [], {}, "gpu_full_stacks = false", "1", False),
    ("full_stacks", [], {}, "gpu_full_stacks = yes", "0", True),
    ("full_stacks", [], {}, "", "on", True),
    ("shuffle_check", ["--no-gpu-shuffle-check"], {}, "gpu_shuffle_check = true", None, False),
    ("shuffle_timeout", [], {}, "gpu_shuffle_timeout = 2.5", "3", 2.5),
]


@pytest.mark.parametrize(("name", "cli", "marker", "ini", "environment", "expected"), STEPS)
def test_precedence(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    cli: list[str],
    marker: dict[str, object],
    ini: str,
    environment: str | None,
    expected: object,
) -> None:
    option = next(option for option in OPTIONS if option.name == name)
    if environment is not None:
        monkeypatch.setenv(option.variable, environment)
    config = configure(pytester, *cli, ini=ini)
    chosen = for_marker(config, resolve(config), marker, "no_implicit_sync")
    assert getattr(chosen, name) == expected


def test_a_boolean_of_pyproject_works(pytester: pytest.Pytester) -> None:
    pytester.makepyprojecttoml("[tool.pytest.ini_options]\ngpu_full_stacks = true\n")
    config = pytester.parseconfig("--rootdir", str(pytester.path))
    assert resolve(config).full_stacks is True


@pytest.mark.parametrize(("own", "expected"), [(None, "warn"), ("error", "error")])
def test_vllms_mode_is_the_default(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, own: str | None, expected: str
) -> None:
    monkeypatch.setenv("VLLM_GPU_SYNC_CHECK", "warn")
    if own is not None:
        monkeypatch.setenv("PYTEST_GPU_SYNC_MODE", own)
    assert resolve(configure(pytester)).mode == expected


def test_exemptions_of_the_ini_file_count_while_their_package_is_in_range(pytester: pytest.Pytester) -> None:
    config = configure(
        pytester,
        ini="""gpu_allowances =
    where=lib.core.*; kind=sync; requires=pytest>=8; max_count=2; reason=upstream #1
    requires=pytest<1; reason=upstream #2
    requires=no-such-package; reason=upstream #3
    api=cudaEvent*; reason=upstream #4
""",
    )
    first, second = resolve(config).allowances
    assert (first.where, first.kind, first.max_count, first.reason) == ("lib.core.*", "sync", 2, "upstream #1")
    assert first.label == "upstream #1 (kind=sync, where=lib.core.*)"
    assert (second.api, second.reason) == ("cudaEvent*", "upstream #4")


@pytest.mark.parametrize(
    ("cli", "ini", "environment", "message"),
    [
        (["--gpu=simulate:h1"], "", {}, r"^--gpu: unknown GPU profile 'h1'; known: h100, h200"),
        ([], "gpu = silicon", {}, r"^ini option gpu: 'silicon' is not auto, real or simulate:PROFILE"),
        ([], "", {"PYTEST_GPU": "x"}, r"^environment variable PYTEST_GPU: 'x' is not auto"),
        (["--gpu-sync-kinds=sync,copies"], "", {}, r"^--gpu-sync-kinds: unknown kind 'copies'; kinds: sync, "),
        ([], "gpu_pageable_threshold = 4K", {}, r"^ini option gpu_pageable_threshold: '4K' is not a number of bytes"),
        ([], "gpu_allowances = where=x", {}, r"^ini option gpu_allowances: 'where=x': 'reason' must say why"),
        ([], "gpu_allowances = at=x; reason=y", {}, r"^ini option gpu_allowances: .* 'at=x' is not one of reason=…"),
        (
            [],
            "gpu_allowances = kind=sinc; reason=y",
            {},
            r"^ini option gpu_allowances: .* 'kind' is 'sinc'; accepted: sync",
        ),
        (
            [],
            "gpu_allowances = max_count=0; reason=y",
            {},
            r"^ini option gpu_allowances: .* 'max_count' is 0; accepted",
        ),
        ([], "gpu_allowances = requires=a=b; reason=y", {}, r"^ini option gpu_allowances: .* 'requires' is 'a=b'"),
        (["--gpu-shuffle-timeout=0"], "", {}, r"^--gpu-shuffle-timeout: '0' is not a number of seconds above 0"),
        ([], "gpu_sync_mode = loud", {}, r"^ini option gpu_sync_mode: 'loud' is not error or warn"),
        ([], "gpu_full_stacks = maybe", {}, r"^ini option gpu_full_stacks: "),
        (
            [],
            "",
            {"PYTEST_GPU_FULL_STACKS": "2"},
            r"^environment variable PYTEST_GPU_FULL_STACKS: '2' is not a boolean",
        ),
    ],
)
def test_a_wrong_value_names_its_place(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    cli: list[str],
    ini: str,
    environment: dict[str, str],
    message: str,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    config = configure(pytester, *cli, ini=ini)
    with pytest.raises(SettingError, match=message):
        resolve(config)


def test_every_option_is_documented() -> None:
    readme = (Path(settings.__file__).parents[1] / "README.md").read_text()
    for option in OPTIONS:
        assert option.flag in readme, f"README.md does not tell of {option.flag}"
