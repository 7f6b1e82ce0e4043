"""Run a script as the ranks of one process group, each in a process of its own, and read what each wrote."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pytest_gpuinvariants.integrations import multicast


def run_ranks(
    script: Path, folder: Path, arguments: tuple[str, ...] = (), *, world_size: int = 2, limit_s: float
) -> list[Mapping[str, Any]]:
    """What each rank wrote, in order; the processes and all that they started are gone when this returns.

    The script is run as ``script RANK WORLD_SIZE FOLDER ARGUMENTS…`` and writes ``FOLDER/rankN.json``.  NVLink
    multicast is refused in it, whatever the run allows, once it calls ``multicast.join()``.

    Args:
        script: the ranks' program.
        folder: an empty one, for the rendezvous and the results.
        arguments: handed on to the script.
        world_size: how many.
        limit_s: seconds that all of them have together; what still runs then is killed, and the test fails.
    """
    environment = {
        **os.environ,
        **multicast.ENVIRONMENT,
        "VLLM_FLASHINFER_ALLREDUCE_BACKEND": "trtllm",  # never "auto" or "mnnvl", which makes multicast objects
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    logs = [folder / f"rank{rank}.log" for rank in range(world_size)]
    ranks: list[subprocess.Popen[bytes]] = []
    try:
        for rank, log in enumerate(logs):
            command = [sys.executable, str(script), str(rank), str(world_size), str(folder), *arguments]
            with log.open("wb") as output:
                ranks.append(
                    subprocess.Popen(
                        command, env=environment, stdout=output, stderr=output, start_new_session=True, cwd=folder
                    )
                )
        end = time.monotonic() + limit_s
        while any(rank.poll() is None for rank in ranks) and time.monotonic() < end:
            if any(rank.poll() for rank in ranks):  # the others would wait for one that failed
                end = min(end, time.monotonic() + 20)
            time.sleep(0.2)
        codes = [rank.poll() for rank in ranks]
    finally:
        for process in ranks:
            # Its session: a compiler that it started goes, too.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if any(codes) or None in codes:
        ends = "\n".join(f"--- rank {rank}\n{log.read_text()[-3000:]}" for rank, log in enumerate(logs))
        pytest.fail(f"the ranks ended with {codes} (None: killed after {limit_s:.0f} s)\n{ends}", pytrace=False)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(world_size)]
