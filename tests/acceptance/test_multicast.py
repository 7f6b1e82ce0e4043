"""No NVLink multicast object is made without ``--gpu-allow-multicast``: at the Python seams and at the driver."""

from __future__ import annotations

import re

import pytest

from tests.acceptance.conftest import Run, text

# Every way by which Python code gets to a multicast object.  The simulated driver names a call that reaches it.
WAYS = """
    import os
    import pytest
    from pytest_gpuinvariants import no_implicit_sync

    class Comm:
        def Get_rank(self): return 0
        def Get_size(self): return 2
        def allgather(self, value): return [value, value]
        def bcast(self, value, root): return value
        def barrier(self): pass

    def create_multicast(cuda):
        properties = cuda.CUmulticastObjectProp()
        properties.numDevices, properties.size = 2, 1 << 21
        return cuda.cuMulticastCreate(properties)

    def driver():
        from cuda.bindings import driver as cuda
        create_multicast(cuda)

    def buffer():
        import torch
        from flashinfer.comm.mnnvl import McastGPUBuffer
        McastGPUBuffer(1 << 20, 2, 0, torch.device("cuda:0"), Comm())

    def memory():
        from flashinfer.comm.mnnvl import SymmDeviceMemory
        SymmDeviceMemory(1 << 20, 2, 0, 0, Comm())

    def fusion(backend):
        import torch
        import flashinfer.comm as comm
        comm.create_allreduce_fusion_workspace(
            backend=backend, world_size=2, rank=0, max_token_num=8, hidden_dim=128, dtype=torch.bfloat16,
            comm_backend=Comm())

    def mnnvl(): fusion("mnnvl")

    def auto(): fusion("auto")

    @pytest.fixture(autouse=True)
    def multicast_capable(monkeypatch):
        # As on two H200s: the simulated card says that it has no multicast, which would end these calls early.
        import flashinfer.comm.allreduce
        import flashinfer.comm.mnnvl
        for module in (flashinfer.comm.allreduce, flashinfer.comm.mnnvl):
            monkeypatch.setattr(module, "is_multicast_supported", lambda index: True)

    @pytest.mark.parametrize("way", [driver, buffer, memory, mnnvl, auto])
    @no_implicit_sync
    def test_way(way): way()

    def test_environment():
        assert os.environ.get("NCCL_NVLS_ENABLE") == "0"
        assert os.environ.get("NVSHMEM_DISABLE_NVLS") == "1"
        assert os.environ.get("TORCH_SYMM_MEM_DISABLE_MULTICAST") == "1"
"""


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_every_way_is_refused_by_name_and_none_reaches_the_driver(run: Run, workers: tuple[str, ...]) -> None:
    # Native: Python 3.11 can fail to parse large files again for a traceback (SystemError of its AST constructor).
    result = run(WAYS, "--gpu", "simulate:h100x2", "-rA", "--tb=native", *workers)
    result.assert_outcomes(failed=5, passed=1)
    printed = text(result)
    refused = set(re.findall(r"MulticastRefusedError: (\S+) creates an NVLink multicast object", printed))
    assert refused == {"cuMulticastCreate", "McastGPUBuffer", "SymmDeviceMemory", "MNNVLAllReduceFusionWorkspace"}
    assert re.search(r"refused in test_it\.py::test_way\[driver\]: give --gpu-allow-multicast", printed)
    result.stdout.fnmatch_lines(
        ["NVLink multicast refused: MNNVLAllReduceFusionWorkspace, 2 times (--gpu-allow-multicast)"]
    )
    unsupported = re.findall("answered 'not supported': (.*)", printed)
    assert "cuMulticast" not in "".join(unsupported), "a call has reached the simulated driver"
    assert "multicast:cuMulticastCreate@test_it.create_multicast" in printed, "the note names the caller"


def test_the_option_lets_it_through_to_the_driver(run: Run) -> None:
    # What is counted on the other side must be countable: else the test above could not fail.
    result = run(WAYS, "--gpu", "simulate:h100x2", "--gpu-allow-multicast", "-k", "driver")
    result.assert_outcomes(passed=1, deselected=5)
    result.stdout.fnmatch_lines(["not simulated, answered 'not supported': *cuMulticastCreate*"])
    assert "refused" not in text(result)


def test_who_catches_the_refusal_is_told_of_and_modules_are_put_back(run: Run) -> None:
    result = run(
        """
        import subprocess
        import sys
        import pytest
        from pytest_gpuinvariants import no_implicit_sync

        CHILD = (
            "from pytest_gpuinvariants.children import join; join()\\n"
            "from cuda.bindings import driver\\n"
            "driver.cuMulticastCreate(driver.CUmulticastObjectProp())"
        )

        @no_implicit_sync
        def test_caught():
            from cuda.bindings import driver
            with pytest.raises(RuntimeError, match="multicast"):
                driver.cuMulticastAddDevice(0, 0)

        def test_child():
            done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True)
            assert done.returncode == 1
            assert "refused in test_it.py::test_child" in done.stderr
        """,
        "-rA",
    )
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["NVLink multicast refused: cuMulticastAddDevice, 1 time (--gpu-allow-multicast)"])
