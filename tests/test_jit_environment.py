"""What is set for the packages that compile and tune on a simulated card."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_gpuinvariants.hardware.profiles import PROFILES
from pytest_gpuinvariants.hardware.simulate.build import SimulatorLibraries
from pytest_gpuinvariants.integrations.jit import simulated_environment

CACHES = ("FLASHINFER_WORKSPACE_BASE", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "VLLM_CACHE_ROOT")


def _caches(profile: str, current: dict[str, str]) -> list[Path]:
    libraries = SimulatorLibraries(Path("libraries"), 13000)
    environment = simulated_environment(PROFILES[profile], libraries, current)
    return [Path(environment[variable]) for variable in CACHES]


def test_what_a_simulated_card_tunes_is_cached_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    hopper, ada = _caches("h100", {}), _caches("l4", {})
    assert len({*hopper, *ada}) == 2 * len(CACHES)
    assert all(tmp_path in folder.parents for folder in (*hopper, *ada))


def test_a_folder_of_the_users_for_a_real_card_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "ours"))
    theirs = dict.fromkeys(CACHES, str(tmp_path / "theirs"))
    assert _caches("h100", theirs) == _caches("h100", {})
