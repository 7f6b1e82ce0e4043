"""One rank of vLLM's FlashInfer all-reduce with the trtllm backend: see ``test_all_reduce_two_gpus.py``.

Run as ``all_reduce_rank.py RANK WORLD_SIZE FOLDER LIMIT_S MACHINE``; writes ``rankN.json``.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

HIDDEN = 4096
DTYPES = ("bfloat16", "float16", "float32")
ROUNDS = 2  # create, use, destroy; and again
REPEATS = 4  # the kernel rotates three buffers
# Tokens by name, of those that the gate's limit allows.  Up to 16 the kernel's end is signalled early.
SIZES: dict[str, Callable[[int], int]] = {
    "one": lambda limit: 1,
    "two": lambda limit: 2,
    "early-end": lambda limit: 16,
    "late-end": lambda limit: 17,
    "odd": lambda limit: 1001,
    "half": lambda limit: limit // 2,
    "limit": lambda limit: limit,
    "above": lambda limit: limit + 1,
}
VALUES = ("integers", "random")


def guard_is_installed() -> str:
    """Ask for a multicast workspace where the refusal is in place; what the refusal says."""
    from flashinfer.comm.trtllm_mnnvl_ar import MNNVLAllReduceFusionWorkspace as Workspace

    if not hasattr(Workspace.__init__, "__wrapped__"):
        raise SystemExit("the constructor of mnnvl workspaces is not guarded here: nothing is run")
    try:
        Workspace(mapping=None)
    except RuntimeError as error:
        return f"{type(error).__name__}: {error}"
    raise SystemExit("a mnnvl workspace was not refused: nothing is run")


def input_of(
    torch: Any, rank: int, shape: tuple[int, int], dtype: Any, values: str, seed: int, device: Any = "cuda"
) -> Any:
    """What a rank puts in; any rank can make it."""
    generator = torch.Generator(device=device).manual_seed(1000 * seed + rank)
    if values == "integers":  # their sum is exact in each dtype
        whole = torch.randint(-8, 9, shape, generator=generator, device=device, dtype=torch.int32)
        return whole.to(dtype)
    return torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(dtype)


def excess(torch: Any, output: Any, world_size: int, values: str, seed: int) -> float:
    """The largest error, in units of what is allowed: none for integers, one place of the dtype for the others."""
    asked = (tuple(output.shape), output.dtype, values, seed, output.device)
    inputs = [input_of(torch, rank, *asked) for rank in range(world_size)]
    exact = sum(one.double() for one in inputs)
    error = (output.double() - exact).abs()
    if values == "integers":
        return float(error.max()) if torch.isfinite(error).all() else float("inf")
    limits = torch.finfo(output.dtype)
    ratio = error / (limits.eps * exact.abs() + limits.eps * limits.smallest_normal)
    return float(ratio.max()) if torch.isfinite(ratio).all() else float("inf")


def use(torch: Any, reduce: Any, dtype: Any, number: int) -> list[dict[str, Any]]:
    """Ask the gate for each size, and reduce what it lets through."""
    limit = reduce.max_workspace_size // (HIDDEN * dtype.itemsize)
    records = []
    for at, (size, tokens_of) in enumerate(SIZES.items()):
        tokens = tokens_of(limit)
        for values in VALUES:
            worst = 0.0
            gate = True
            for repeat in range(REPEATS):
                seed = 100 * at + repeat
                mine = input_of(torch, reduce.rank, (tokens, HIDDEN), dtype, values, seed)
                gate = gate and bool(reduce.should_use_fi_ar(mine))
                if not gate:
                    break
                output = reduce.all_reduce(mine)
                torch.cuda.synchronize()
                worst = max(worst, excess(torch, output, reduce.world_size, values, seed))
            record = {"round": number, "dtype": str(dtype).removeprefix("torch."), "size": size, "values": values}
            records.append({**record, "tokens": tokens, "gate": gate, "excess": worst if gate else None})
    return records


def place_of(function: Any) -> tuple[str, str, str, int]:
    """Module, qualified name, file and first line."""
    code = function.__code__
    return function.__module__, code.co_qualname, code.co_filename, code.co_firstlineno


def main(rank: int, world_size: int, folder: Path, machine: str) -> dict[str, Any]:
    """Go through all of it; the record."""
    from pytest_gpuinvariants.integrations import multicast

    multicast.join()
    if machine.startswith("simulate:"):
        from pytest_gpuinvariants.hardware.machine import choose

        choose(machine, used=True)
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(rank)
    store = f"file://{folder / 'store'}"
    dist.init_process_group("gloo", store, timedelta(seconds=400), rank=rank, world_size=world_size)
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed.device_communicators import flashinfer_all_reduce as module

    result: dict[str, Any] = {"guard": guard_is_installed(), "records": [], "workspaces": [], "failures": []}
    create = module.flashinfer_comm.create_allreduce_fusion_workspace

    def creating(**kwargs: Any) -> Any:
        assert kwargs["backend"] == "trtllm", kwargs["backend"]
        try:
            return create(**kwargs)
        except Exception as error:  # vLLM logs it and goes on
            place = " > ".join(
                f"{frame.name}: {frame.line}" for frame in traceback.extract_tb(error.__traceback__)[-2:]
            )
            result["failures"].append(f"{type(error).__name__}: {error} ({place})")
            raise

    module.flashinfer_comm.create_allreduce_fusion_workspace = creating
    group = dist.group.WORLD
    for dtype in (getattr(torch, name) for name in DTYPES):
        for number in range(ROUNDS):
            free = torch.cuda.mem_get_info()[0]
            with set_current_vllm_config(VllmConfig()):
                reduce = module.FlashInferAllReduce(group, torch.device("cuda", rank))
            usable = reduce.should_use_fi_ar(torch.zeros((1, HIDDEN), dtype=dtype, device="cuda"))
            if not usable:
                result["disabled"] = reduce.disabled
                result["failed_flag"] = module._fi_ar_workspace_failed
                reduce.destroy()
                result["failed_flag_after_destroy"] = module._fi_ar_workspace_failed
                return result
            workspace = module._fi_ar_workspace
            result["workspaces"].append(
                {
                    "round": number,
                    "dtype": str(dtype).removeprefix("torch."),
                    "class": type(workspace).__name__,
                    "backend": workspace.backend,
                    "multicast": [handle.mc_ptr for handle in workspace.mem_handles],
                    "destroy": place_of(type(workspace).destroy),
                }
            )
            result["records"] += use(torch, reduce, dtype, number)
            dist.barrier()
            reduce.destroy()
            del workspace
            gc.collect()
            torch.cuda.empty_cache()
            result["workspaces"][-1]["gone"] = module._fi_ar_workspace is None
            result["workspaces"][-1]["bytes_kept"] = free - torch.cuda.mem_get_info()[0]
            dist.barrier()
    dist.destroy_process_group()
    return result


if __name__ == "__main__":
    faulthandler.dump_traceback_later(float(sys.argv[4]), exit=True)  # should the parent die
    place = Path(sys.argv[3])
    written = main(int(sys.argv[1]), int(sys.argv[2]), place, sys.argv[5])
    (place / f"rank{sys.argv[1]}.json").write_text(json.dumps(written))
