"""Each seam of the table under a fake and after it, in the versions that are installed."""

from __future__ import annotations

import importlib
import operator
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from pytest_gpuinvariants.hardware.fakes import parse_fake
from pytest_gpuinvariants.integrations import constants
from pytest_gpuinvariants.integrations.faking import Faking
from pytest_gpuinvariants.integrations.seams import SEAMS, Seam

WORDS = ("sm80", "sm90", "sm100", "sm103", "sm110", "sm120", "sm121")
CAPABILITIES = {"get_device_properties", "get_device_capability", "get_compute_capability", "current_platform"}
CAPABILITIES |= {"nvmlDeviceGetCudaComputeCapability"}
ASKED = [seam for seam in SEAMS if seam.ask is not None]
Answers = dict[str, dict[str, object]]

pytestmark = [pytest.mark.usefixtures("card"), pytest.mark.filterwarnings("ignore")]


def _module(seam: Seam) -> Any:
    try:
        installed = Version(version(seam.package))
    except PackageNotFoundError:
        pytest.skip(f"{seam.package} is not installed")
    if installed < Version(seam.since):
        pytest.skip(f"{seam.package} {installed} is older than {seam.since}")
    if seam.name.endswith("LazyVal"):
        pytest.importorskip("expecttest")
    return importlib.import_module(seam.module)


def _ask(seam: Seam) -> object:
    assert seam.ask is not None
    return seam.ask(_module(seam))


@pytest.fixture(scope="module")
def answers() -> Answers:
    """Every seam's answers: the truth, under each fake, and the truth after each."""
    result: Answers = {}

    def ask(when: str) -> None:
        result[when] = {}
        for seam in ASKED:
            try:
                result[when][seam.name] = _ask(seam)
            except pytest.skip.Exception:
                continue

    ask("before")
    for word in WORDS:
        faking = Faking(parse_fake(word))
        ask(word)
        faking.leave()
        assert faking.leftovers() == []
        ask(f"after {word}")
    return result


@pytest.mark.parametrize("seam", SEAMS, ids=lambda seam: seam.name)
def test_each_is_where_the_table_says(seam: Seam) -> None:
    module = _module(seam)
    operator.attrgetter(seam.attribute)(module)
    for cache in seam.caches:
        assert operator.attrgetter(cache)(module).cache_info()


@pytest.mark.parametrize("seam", ASKED, ids=lambda seam: seam.name)
def test_each_tells_the_fake_and_then_the_truth(seam: Seam, answers: Answers) -> None:
    _module(seam)
    before = answers["before"][seam.name]
    assert any(answers[word][seam.name] != before for word in WORDS)
    if seam.attribute.rpartition(".")[2] in CAPABILITIES:
        assert [answers[word][seam.name] for word in WORDS] == [parse_fake(word).capability for word in WORDS]
    assert [answers[f"after {word}"][seam.name] for word in WORDS] == [before] * len(WORDS)


def test_flashinfer_goes_back_to_the_card_where_the_environment_names_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a real GPU: the simulated one is named in the environment."""
    pytest.importorskip("flashinfer")
    import flashinfer.jit.core as core

    monkeypatch.delenv("FLASHINFER_CUDA_ARCH_LIST", raising=False)
    for seam in SEAMS:
        if seam.renew is not None:
            seam.renew(_module(seam))
    before = set(core.current_compilation_context.TARGET_CUDA_ARCHS)
    faking = Faking(parse_fake("sm80"))
    assert {(8, "0")} == core.current_compilation_context.TARGET_CUDA_ARCHS
    faking.leave()
    assert before == core.current_compilation_context.TARGET_CUDA_ARCHS
    assert faking.leftovers() == []
    core.current_compilation_context.TARGET_CUDA_ARCHS.add((8, "0"))
    left = [one.partition(" = ")[0] for one in faking.leftovers()]
    assert left == ["flashinfer.jit.core.current_compilation_context"]
    monkeypatch.undo()
    core.refresh_current_compilation_context()


def test_names_imported_earlier_see_it() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("vllm")
    pytest.importorskip("flashinfer")
    from flashinfer.utils import get_compute_capability, is_sm120a_supported
    from torch.cuda import get_device_capability
    from vllm.platforms import current_platform

    device = torch.device("cuda", 0)

    def seen() -> tuple[object, ...]:
        platform = tuple(current_platform.get_device_capability() or ())
        return platform, get_compute_capability(device), get_device_capability(), is_sm120a_supported(device)

    before = seen()
    faking = Faking(parse_fake("sm120"))
    assert seen() == ((12, 0), (12, 0), (12, 0), True)
    faking.leave()
    assert seen() == before
    assert before[0] != (12, 0)


def test_what_a_library_works_out_at_import_is_worked_out_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("vllm")
    name = "vllm.v1.attention.ops.prefix_prefill"
    monkeypatch.delitem(sys.modules, name, raising=False)  # its constants are to be made under the fake
    faking = Faking(parse_fake("sm75"))
    module: Any = importlib.import_module(name)
    assert (module.BASE_BLOCK, module.IS_TURING) == (64, True)
    faking.leave()
    assert (module.BASE_BLOCK, module.IS_TURING) == (128, False)
    assert faking.leftovers() == []
    module.IS_TURING = True
    try:
        assert f"{name}.IS_TURING = True" in faking.leftovers()
    finally:
        constants.work_out()
    assert module.IS_TURING is False


def test_a_capability_that_a_module_spells_out_is_no_leftover(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "gi_spelled.py").write_text("HOPPER = (9, 0)\nADA: tuple = (8, 9)\n_seen = None\n")
    (tmp_path / "gi_taking.py").write_text("from gi_spelled import HOPPER as WANTED\nimport gi_spelled\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("gi_spelled", "gi_taking"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    faking = Faking(parse_fake("sm90"))
    importlib.import_module("gi_taking")
    module: Any = sys.modules["gi_spelled"]
    faking.leave()
    assert faking.leftovers() == []
    module._seen = module.ADA = (9, 0)  # what the source says otherwise was found out
    own = [left for left in faking.leftovers() if left.startswith("gi_")]
    assert own == ["gi_spelled.ADA = (9, 0)", "gi_spelled._seen = (9, 0)"]
    for name in ("gi_spelled", "gi_taking"):
        monkeypatch.delitem(sys.modules, name)


def _kept(faking: Faking, keep: Callable[[], None]) -> list[str]:
    faking.leave()
    keep()
    return faking.leftovers()


def test_a_cache_of_the_table_that_is_filled_again_is_told() -> None:
    pytest.importorskip("flashinfer")
    seam = next(one for one in SEAMS if one.name == "flashinfer.utils.get_compute_capability")

    def keep() -> None:
        _ask(seam)

    assert "the cache of flashinfer.utils.get_compute_capability" in _kept(Faking(parse_fake("sm89")), keep)
