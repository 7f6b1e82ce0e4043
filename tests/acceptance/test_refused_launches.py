"""Kernels under a fake: refused before the driver hears of them, by the test's name; copies and torch's own run.

The card below the fake is that of this run: real, where it has a real one.
"""

from __future__ import annotations

import pytest

from pytest_gpuinvariants import session
from pytest_gpuinvariants.hardware.machine import MachineKind
from pytest_gpuinvariants.hardware.native_build import cache_root
from tests.acceptance.conftest import Run, text

CACHE = str(cache_root().parent)  # before pytester gives its runs another home

FAKE = "GB300"


@pytest.fixture(autouse=True)
def _one_simulator_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", CACHE)


@pytest.fixture
def faked() -> tuple[str, str]:
    """The option, and the card as verdicts name it."""
    machine = session.current().machine
    base, name = ("real", machine.label) if machine.kind is MachineKind.REAL else ("simulate:h200", "simulated H200")
    return f"--gpu={base},fake:{FAKE.lower()}", f"{name} faking {FAKE}"


HEAD = """
    import ctypes
    import pytest
    import torch
    from pytest_gpuinvariants import requires_sm103
"""

TRITON = """
    import triton
    import triton.language as tl

    @triton.jit
    def double(pointer):
        tl.store(pointer, tl.load(pointer) * 2)

    def launch():
        double[(1,)](torch.ones(1, device="cuda"))
"""
CUBLAS = """
    def launch():
        torch.ones(4, 4, device="cuda") @ torch.ones(4, 4, device="cuda")
"""
VLLM = """
    import vllm._custom_ops
    from vllm.platforms import current_platform
    current_platform.import_kernels()

    def launch():
        x = torch.ones(4, 8, device="cuda")
        torch.ops._C.rms_norm(torch.empty_like(x), x, torch.ones(8, device="cuda"), 1e-6)
"""
FLASHINFER = """
    import flashinfer.jit.core as core

    class Module:
        def plan(self):
            return 1
        def run(self):
            raise AssertionError("ran")

    class Spec(core.JitSpec):
        name = "mla"
        build = get_library_path = is_compiled = load = lock_path = None
        def __init__(self):
            pass
        def try_load(self):
            return Module()

    def launch():
        loaded = Spec().build_and_load()
        assert loaded.plan() == 1
        loaded.run()
"""
TESTS = """
    @requires_sm103(host_only=True)
    def test_launches():
        launch()

    @requires_sm103(host_only=True)
    def test_catches():
        with pytest.raises(RuntimeError, match="refused"):
            launch()
"""
TRUE = """
    def test_true_card():
        launch()
"""


@pytest.mark.parametrize(
    ("source", "kernel", "after"),
    [
        pytest.param(TRITON, "Triton kernel double", TRUE, id="triton"),
        pytest.param(CUBLAS, "cuBLAS kernel aten::mm", TRUE, id="cublas"),
        pytest.param(VLLM, "vLLM kernel rms_norm", TRUE, id="vllm"),
        pytest.param(FLASHINFER, "FlashInfer kernel mla.run", "", id="flashinfer"),
    ],
)
def test_each_family_is_refused_by_kernel_and_test(
    run: Run, faked: tuple[str, str], source: str, kernel: str, after: str
) -> None:
    option, card = faked
    result = run(f"{HEAD}{source}{TESTS}{after}", option, "-Wignore")
    result.assert_outcomes(failed=2, passed=1 if after else 0)
    said = f"{kernel} refused: the card only looks like {FAKE}"
    assert f"test_it.py::test_launches: {said}" in text(result)
    assert f"test_it.py::test_catches: {said}" in text(result)
    assert f"2 violated on {card}" in text(result)


def test_copies_and_torchs_own_kernels_run(run: Run, faked: tuple[str, str]) -> None:
    result = run(
        f"""{HEAD}
    @requires_sm103(host_only=True)
    def test_copies():
        x = torch.zeros(8, device="cuda")
        x.add_(1)
        x.copy_(torch.arange(8.0))
        assert x.cpu().tolist() == list(range(8))
        y = x.clone()
        assert y.cpu().tolist() == list(range(8))
    """,
        faked[0],
    )
    result.assert_outcomes(passed=1)
    assert f"1 verified on {faked[1]}" in text(result)


@pytest.mark.parametrize(("marked", "error"), [(True, 209), (False, 0)])
def test_the_simulated_card_refuses_what_gets_past_python(run: Run, marked: bool, error: int) -> None:
    if session.current().machine.kind is MachineKind.REAL:
        pytest.skip("not verified: of the simulated card, and this run has a real one")
    result = run(
        f"""{HEAD}
    from pytest_gpuinvariants.hardware.simulate.runtime import opened

    {"@requires_sm103(host_only=True)" if marked else ""}
    def test_launches():
        torch.cuda.init()
        driver = ctypes.CDLL(None)
        core = opened()._core
        core.sim_kernel_new.restype = ctypes.c_void_p
        kernel = ctypes.c_void_p(core.sim_kernel_new(b"attention", b"libforeign.so"))
        shape = (ctypes.c_uint * 8)(1, 1, 1, 1, 1, 1)
        assert core.sim_launch(b"cudaLaunchKernel", kernel, None, shape) == {error}
    """,
        f"--gpu=simulate:h200,fake:{FAKE.lower()}",
    )
    result.assert_outcomes(failed=int(marked), passed=int(not marked))
    assert ("cudaLaunchKernel of attention from libforeign.so (refused)" in text(result)) == marked
