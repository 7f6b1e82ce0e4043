"""Threads that Python does not know, started by a compiled extension: they never wait for Python's lock."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.acceptance.conftest import Run

EXTENSION = """
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>

static int (*synchronize)(void);
static void *wait_often(void *times) {
  for (intptr_t i = 0; i < (intptr_t)times; i++) synchronize();
  return NULL;
}
int wait_in_threads(int threads, intptr_t times) {
  synchronize = (int (*)(void))dlsym(dlopen("libcudart.so.13", RTLD_NOW | RTLD_NOLOAD), "cudaDeviceSynchronize");
  if (!synchronize) return 1;
  pthread_t started[16];
  for (int i = 0; i < threads; i++) if (pthread_create(&started[i], NULL, wait_often, (void *)times)) return 1;
  for (int i = 0; i < threads; i++) if (pthread_join(started[i], NULL)) return 1;
  return 0;
}
"""
TESTS = """
    import ctypes
    import subprocess
    import sys
    import torch
    from pytest_gpuinvariants import allow_sync, no_implicit_sync

    # Calls through PyDLL keep the GIL, as those of an extension do.
    extension = ctypes.PyDLL("./threads.so")
    torch.ones(1, device="cuda")

    def wait(threads, times):
        assert extension.wait_in_threads(threads, times) == 0

    @no_implicit_sync
    def test_own_thread():
        wait(2, 10)

    @no_implicit_sync(threads="all")
    def test_every_thread():
        wait(3, 1000)

    def test_what_comes_before():
        wait(2, 10)
        with no_implicit_sync(threads="all"):
            pass

    def test_what_comes_after():
        with no_implicit_sync(threads="all"):
            pass
        wait(2, 10)
        with no_implicit_sync(threads="all", kinds="allocation"):
            pass

    def start(then):
        code = f"import ctypes, os, time, torch; ctypes.PyDLL('./threads.so').wait_in_threads(1, 7); {then}"
        return subprocess.run([sys.executable, "-c", code], check=True)

    @no_implicit_sync(children=True)
    def test_child():
        start("time.sleep(0.5)")

    @no_implicit_sync(children=True)
    def test_child_that_ends_as_it_comes_back():
        start("os._exit(0)")

    @no_implicit_sync(children=True)
    def test_the_next_one():
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
"""


def test_they_are_told_when_python_runs_again(run: Run, pytester: pytest.Pytester) -> None:
    source = pytester.path / "threads.c"
    source.write_text(EXTENSION)
    compiler = os.environ.get("CC", "gcc")
    subprocess.run([compiler, "-shared", "-fPIC", "-pthread", "-o", "threads.so", source, "-ldl"], check=True)
    result = run(TESTS, "-v", "-rs")
    result.assert_outcomes(passed=4, skipped=1, failed=2)
    result.stdout.fnmatch_lines(
        [
            "*test_own_thread PASSED*",
            "*test_every_thread FAILED*",
            "*test_what_comes_before PASSED*",
            "*test_what_comes_after PASSED*",
            "*test_child FAILED*",
            "*test_child_that_ends_as_it_comes_back SKIPPED*",
            "*test_the_next_one PASSED*",
            "no_implicit_sync: a native thread: cudaDeviceSynchronize: *(1000 times), and 2000 more calls",
            "no_implicit_sync: a native thread: cudaDeviceSynchronize: *(7 times)",
            "SKIPPED*not verified: a child process could not be policed: process *: it has not told what its native *",
        ]
    )
