"""What the end of a run counts: kinds, files of which nothing was checked, and the ledger of expected tests."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import Run, text

KINDS = """
    import pytest
    from pytest_gpuinvariants import no_implicit_sync, requires_sm90, requires_sm100

    @no_implicit_sync
    def test_verified(): pass

    @requires_sm90
    def test_kernels(): raise AssertionError

    @requires_sm100(host_only=True)
    def test_elsewhere(): raise AssertionError

    @no_implicit_sync
    def test_skips_itself(): pytest.skip("no network")

    @pytest.mark.skip(reason="slow")
    @no_implicit_sync
    def test_marked(): raise AssertionError

    def test_plain(): pytest.skip("says nothing about GPUs")
"""
WORKERS = pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])


@WORKERS
def test_one_line_for_each_kind(run: Run, workers: tuple[str, ...]) -> None:
    result = run(KINDS, "--gpu", "simulate:h100", *workers)
    result.assert_outcomes(passed=1, skipped=5)
    result.stdout.fnmatch_lines(
        [
            "1 verified on simulated H100",
            "2 not verified:",
            "  1: needs SM 10.x; this is simulated H100, SM 9.0",
            "  1: runs kernels, and needs a real SM 9.x; this is simulated H100, SM 9.0, where kernels do not run",
            "2 skipped:",
            "  1: no network",
            "  1: slow",
        ],
        consecutive=True,
    )


HOST = """
    from pytest_gpuinvariants import no_implicit_sync, requires_sm90

    @no_implicit_sync
    def test_host(): pass

    @requires_sm90
    def test_kernel(): raise AssertionError
"""
KERNELS = """
    from pytest_gpuinvariants import requires_sm90

    @requires_sm90
    def test_kernel(): raise AssertionError
"""


WHOLE = "import pytest; pytest.importorskip('no_such_module')\n" + HOST.replace("\n    ", "\n")


@WORKERS
@pytest.mark.parametrize(
    ("required", "source", "short"),
    [
        ("any", HOST, []),
        ("any", KERNELS, ["ERROR: nothing of test_it.py was checked (--gpu-require-verified=any)"]),
        ("real", HOST, ["ERROR: nothing of test_it.py was checked on real hardware (--gpu-require-verified=real)"]),
        ("no", KERNELS, []),
        ("any", WHOLE, ["ERROR: nothing of test_it.py was checked (--gpu-require-verified=any)"]),
    ],
)
def test_something_of_each_file_must_be_checked(
    run: Run, required: str, source: str, short: list[str], workers: tuple[str, ...], pytester: pytest.Pytester
) -> None:
    # States nothing, and so owes nothing.
    pytester.makepyfile(test_plain="import pytest\ndef test_plain(): pass\ndef test_skipped(): pytest.skip('x')")
    pytester.makepyfile(test_whole="import pytest; pytest.skip('x', allow_module_level=True)")
    result = run(source, "--gpu", "simulate:h100", f"--gpu-require-verified={required}", *workers)
    assert result.ret == (pytest.ExitCode.TESTS_FAILED if short else pytest.ExitCode.OK)
    assert [line for line in result.outlines if line.startswith("ERROR: ")] == short
    whole = [line for line in result.outlines if line.startswith("skipped as a whole: ")]
    assert len(whole) == (source == WHOLE)


def test_a_fake_and_a_simulated_card_are_not_real_hardware(run: Run) -> None:
    source = HOST.replace("@requires_sm90", "@requires_sm90(host_only=True)").replace("raise AssertionError", "pass")
    result = run(source, "--gpu", "simulate:gb300,fake:sm90", "--gpu-require-verified=real")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "1 verified on simulated GB300",
            "1 verified on simulated GB300 faking sm_90",
            "ERROR: nothing of test_it.py was checked on real hardware (--gpu-require-verified=real)",
        ]
    )


def test_a_run_that_is_cut_short_owes_nothing_more(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_z="def test_interrupt(): raise KeyboardInterrupt")
    result = run(HOST, "--gpu", "simulate:h100", "--gpu-require-verified=real", "--gpu-ledger=x", "--gpu-ledger-update")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert not [line for line in result.outlines if line.startswith("ERROR: ")]


@pytest.fixture
def updated(run: Run, pytester: pytest.Pytester) -> Run:
    """A run whose ledger was written for HOST, and for a file beside it."""
    pytester.makepyfile(test_other=HOST)
    result = run(HOST, "--gpu", "simulate:h100", "--gpu-ledger=ledger.txt", "--gpu-ledger-update")
    assert result.ret == pytest.ExitCode.OK
    return run


def check(run: Run, source: str, *args: str) -> tuple[int, list[str]]:
    result = run(source, "--gpu", "simulate:h100", "--gpu-ledger=ledger.txt", *args)
    return int(result.ret), [line for line in result.outlines if line.startswith("ERROR: ")]


def test_the_ledger_is_written_and_holds(updated: Run, pytester: pytest.Pytester) -> None:
    lines = (pytester.path / "ledger.txt").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        "any test_it.py::test_host",
        "seen test_it.py::test_kernel",
        "any test_other.py::test_host",
        "seen test_other.py::test_kernel",
    ]
    assert check(updated, HOST) == (0, [])


VANISHED = "ERROR: test_it.py::test_host has vanished: the ledger expects it, and it was not collected"


@WORKERS
@pytest.mark.parametrize(
    ("change", "line"),
    [
        (("test_host", "test_renamed"), VANISHED),
        (("from", "import pytest; pytest.skip('x', allow_module_level=True)\n    from"), VANISHED),
        (
            ("host(): pass", "host(): import pytest; pytest.skip('always')"),
            "ERROR: test_it.py::test_host was not checked, as the ledger expects: skipped: always",
        ),
        (
            ("@no_implicit_sync", ""),
            "ERROR: test_it.py::test_host was not checked, as the ledger expects: it states no invariant any more",
        ),
    ],
    ids=["renamed", "module skipped", "always skips", "states nothing"],
)
def test_a_test_that_vanished_or_always_skips_fails_the_run(
    updated: Run, change: tuple[str, str], line: str, workers: tuple[str, ...]
) -> None:
    status, lines = check(updated, HOST.replace(*change), *workers)
    assert (status, line in lines) == (1, True)


def test_a_file_that_vanished_fails_the_run(updated: Run, pytester: pytest.Pytester) -> None:
    (pytester.path / "test_other.py").unlink()
    status, lines = check(updated, HOST)
    assert status == 1
    assert [line.split(" has vanished")[0] for line in lines] == [
        "ERROR: test_other.py::test_host",
        "ERROR: test_other.py::test_kernel",
    ]


@pytest.mark.parametrize(
    "selection",
    [
        ("-k", "kernel"),
        ("test_it.py::test_kernel",),
        ("test_it.py",),
        ("--deselect", "test_it.py::test_host"),
        ("--ignore", "test_other.py"),
        ("--ignore-glob", "*_other.py"),
        ("-m", "requires_sm90"),
        ("-n", "2", "test_it.py::test_kernel"),
        ("-n", "2", "-k", "kernel"),
        ("--collect-only",),
    ],
    ids=" ".join,
)
def test_what_the_user_leaves_out_has_not_vanished(updated: Run, selection: tuple[str, ...]) -> None:
    assert check(updated, HOST, *selection) == (0, [])


@pytest.mark.parametrize(
    "selection",
    [
        ("-k", "kernel"),
        ("test_it.py", "test_other.py::test_host"),
        ("--ignore", "test_other.py"),
        ("--ignore-glob", "*_other.py"),
        ("--deselect", "test_it.py::test_kernel"),
        ("--collect-only",),
    ],
    ids=" ".join,
)
def test_what_vanished_is_missed_in_a_partial_run(updated: Run, selection: tuple[str, ...]) -> None:
    assert check(updated, HOST.replace("test_host", "test_renamed"), *selection) == (1, [VANISHED])


@pytest.mark.parametrize(
    ("hook", "line"),
    [
        (
            "def pytest_collection_modifyitems(items): items[:] = [one for one in items if 'host' not in one.name]",
            VANISHED,
        ),
        (
            "def pytest_runtest_protocol(item): return True if item.name == 'test_host' else None",
            "ERROR: test_it.py::test_host was collected and did not run, though the run came to its end",
        ),
        ("collect_ignore = ['test_it.py']", VANISHED),
    ],
    ids=["removed", "not run", "ignored"],
)
def test_a_conftest_that_takes_tests_away_is_noticed(
    updated: Run, pytester: pytest.Pytester, hook: str, line: str
) -> None:
    pytester.makeconftest(hook)
    status, lines = check(updated, HOST)
    assert (status, line in lines) == (1, True)


def test_groups_of_xdist_and_parameters_are_no_other_tests(run: Run, pytester: pytest.Pytester) -> None:
    source = """
        import pytest
        from pytest_gpuinvariants import no_implicit_sync

        @pytest.mark.xdist_group("one")
        @pytest.mark.parametrize("text", ["a@b", "x y::z", "é"])
        @no_implicit_sync
        def test_text(text): pass
    """
    grouped = ("-n", "2", "--dist", "loadgroup")
    assert check(run, source, "--gpu-ledger-update", *grouped) == (0, [])
    lines = (pytester.path / "ledger.txt").read_text(encoding="utf-8").splitlines()[2:]
    assert lines == [f"any test_it.py::test_text[{text}]" for text in ("\\xe9", "a@b", "x y::z")]
    assert check(run, source, *grouped) == (0, [])
    assert check(run, source) == (0, [])


def test_what_is_real_on_paper_is_not_reached_on_a_simulated_card(updated: Run, pytester: pytest.Pytester) -> None:
    ledger = pytester.path / "ledger.txt"
    ledger.write_text(ledger.read_text(encoding="utf-8").replace("any test_it", "real test_it"), encoding="utf-8")
    line = "was not checked on real hardware, as the ledger expects: verified on simulated H100"
    assert check(updated, HOST) == (1, [f"ERROR: test_it.py::test_host {line}"])


def test_a_known_fault_is_a_check(run: Run) -> None:
    source = """
        import pytest, torch
        from pytest_gpuinvariants import no_implicit_sync

        FAULT = "sync:cudaDeviceSynchronize@test_it.test_fault"

        @no_implicit_sync
        @pytest.mark.known_fault(FAULT, package="pytest", versions=">=1", reason="upstream")
        def test_fault(): torch.cuda.synchronize()
    """
    result = run(source, "--gpu", "simulate:h100", "--gpu-require-verified=any", "-rA")
    result.stdout.fnmatch_lines(["1 known fault on simulated H100"])
    assert result.ret == pytest.ExitCode.OK


def test_last_failed_tests_alone(updated: Run) -> None:
    failing = HOST.replace("): pass", "): assert False")
    assert check(updated, failing)[0] == 1
    assert check(updated, failing, "--lf") == (1, []), "checked, if not passed"
    assert check(updated, HOST, "--lf") == (0, [])


def test_an_update_keeps_what_was_not_run_and_drops_what_vanished(updated: Run, pytester: pytest.Pytester) -> None:
    changed, args = HOST.replace("test_host", "test_new"), ("--gpu", "simulate:h100", "--gpu-ledger=ledger.txt")
    result = updated(changed, *args, "test_it.py")
    result.stdout.fnmatch_lines(["1 test is not in ledger.txt; --gpu-ledger-update enters them"])
    result = updated(changed, *args, "--gpu-ledger-update", "test_it.py")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["ledger.txt is written: 4 tests, 1 new, 1 vanished, 0 with less than before"])
    written = (pytester.path / "ledger.txt").read_text(encoding="utf-8").splitlines()[-4:]
    assert written == [
        "seen test_it.py::test_kernel",
        "any test_it.py::test_new",
        "any test_other.py::test_host",
        "seen test_other.py::test_kernel",
    ]


@pytest.mark.parametrize(
    ("content", "args", "problem"),
    [
        (None, (), "*--gpu-ledger: *ledger.txt can not be read*"),
        ("all test_it.py::test_a", (), "*--gpu-ledger: *ledger.txt, line 1: 'all test_it.py::test_a' is not one of *"),
        (
            "# x\n\nany",
            (),
            "*--gpu-ledger: *ledger.txt, line 3: 'any' is not one of seen, any, real, a space and a node id*",
        ),
        ("any a.py::b\nreal a.py::b", (), "*--gpu-ledger: *ledger.txt, line 2: a.py::b is there twice*"),
    ],
)
def test_a_wrong_ledger_is_a_usage_error(
    run: Run, pytester: pytest.Pytester, content: str | None, args: tuple[str, ...], problem: str
) -> None:
    if content is not None:
        (pytester.path / "ledger.txt").write_text(content, encoding="utf-8")
    result = run("def test_a(): pass", "--gpu-ledger=ledger.txt", *args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([problem])


def test_an_update_that_can_not_be_written_fails_the_run(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(file="")
    status, lines = check(run, HOST, "--gpu-ledger=file.py/ledger.txt", "--gpu-ledger-update")
    assert (status, len(lines)) == (1, 1)
    assert "file.py/ledger.txt can not be written (" in lines[0]


def test_an_update_needs_a_ledger(run: Run) -> None:
    result = run("def test_a(): pass", "--gpu-ledger-update")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--gpu-ledger-update: there is no ledger to update: give --gpu-ledger too"])


def test_a_wrong_requirement_is_a_usage_error(run: Run) -> None:
    result = run("def test_a(): pass", "--gpu-require-verified=yes")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--gpu-require-verified: 'yes' is not any, real or no"])


def test_a_body_that_never_ran_is_not_verified(run: Run) -> None:
    result = run(
        """
        from pytest_gpuinvariants import requires_sm90

        @requires_sm90(host_only=True)
        def test_set_up_only(): raise AssertionError
        """,
        "--setup-only",
        "--gpu",
        "simulate:h100",
    )
    assert "verified on" not in text(result)
    result.stdout.fnmatch_lines(["1 not verified: the test was not called"])


def test_a_skip_of_ours_that_is_turned_into_a_pass_is_not_verified(run: Run, pytester: pytest.Pytester) -> None:
    """By a helper around the body, and by a plugin that edits reports."""
    pytester.makepyfile(
        no_cuda="""
        import pytest
        import pytest_gpuinvariants.hardware.detection as detection
        detection.platform.system = lambda: "Darwin"

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_makereport(item, call):
            report = yield
            if item.name == "test_edited" and report.skipped:
                report.outcome = "passed"
            return report
        """
    )
    result = run(
        """
        import functools
        import pytest
        from pytest_gpuinvariants import no_implicit_sync, requires_sm90

        def passes_always(test):
            @functools.wraps(test)
            def wrapped():
                try:
                    test()
                except BaseException:
                    pass
            return wrapped

        @passes_always
        def test_swallowed():
            with no_implicit_sync():
                raise AssertionError

        @requires_sm90
        def test_edited(): pass
        """,
        load=("-p", "no_cuda", "-p", "gpuinvariants"),
    )
    result.assert_outcomes(passed=2)
    assert "verified on" not in text(result)
    result.stdout.fnmatch_lines(["2 not verified:"])
