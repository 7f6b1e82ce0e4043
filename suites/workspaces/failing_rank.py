"""One rank of a group whose workspace creation fails on some ranks: see ``test_all_reduce_creation.py``.

Run as ``failing_rank.py RANK WORLD_SIZE FOLDER LIMIT_S MACHINE CASES``, the cases a JSON list of the lists of ranks
that fail; writes ``rankN.json``.  Nothing is created: FlashInfer's creation is replaced by one that meets the other
ranks, as the real one does, and then fails or not.
"""

from __future__ import annotations

import faulthandler
import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any


def main(rank: int, world_size: int, folder: Path, machine: str, cases: list[list[int]]) -> list[dict[str, Any]]:
    """In each case ask the gate twice; what it said, and what is left."""
    from pytest_gpuinvariants.integrations import multicast

    multicast.join()
    if machine.startswith("simulate:"):
        from pytest_gpuinvariants.hardware.machine import choose

        choose(machine, used=True)
    import torch
    import torch.distributed as dist

    store = f"file://{folder / 'store'}"
    dist.init_process_group("gloo", store, timedelta(seconds=60), rank=rank, world_size=world_size)
    from vllm.distributed.device_communicators import flashinfer_all_reduce as module

    class Workspace:
        backend = "trtllm"

        def is_buffer_size_sufficient(self, **asked: object) -> bool:
            return True

        def destroy(self) -> None:
            pass

    created: list[object] = []
    failing: list[int] = []

    def create(**kwargs: object) -> Workspace:
        created.append(kwargs["backend"])
        dist.barrier()
        if rank in failing:
            raise RuntimeError("out of handles, on this rank")
        return Workspace()

    module.flashinfer_comm.create_allreduce_fusion_workspace = create
    tensor = torch.empty((8, 128), dtype=torch.bfloat16, device="cuda")
    results = []
    for case in cases:
        failing[:] = case
        created.clear()
        reduce = module.FlashInferAllReduce(dist.group.WORLD, torch.device("cuda:0"))
        answers = [reduce.should_use_fi_ar(tensor) for _ in range(2)]
        results.append({"created": [*created], "answers": answers, "failed_flag": module._fi_ar_workspace_failed})
        module.destroy_fi_ar_workspace()
        dist.barrier()
    dist.destroy_process_group()
    return results


if __name__ == "__main__":
    faulthandler.dump_traceback_later(float(sys.argv[4]), exit=True)  # should the parent die
    place = Path(sys.argv[3])
    written = main(int(sys.argv[1]), int(sys.argv[2]), place, sys.argv[5], json.loads(sys.argv[6]))
    (place / f"rank{sys.argv[1]}.json").write_text(json.dumps(written))
