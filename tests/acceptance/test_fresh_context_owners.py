"""``fresh_config_context`` and what other fixtures, tests and packages hold."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import Run, text
from tests.acceptance.test_fresh_context import HEAD, findings

pytest.importorskip("torch")

WIDER = """
    import types, sys
    pools = types.ModuleType("pools")
    exec("pool = None\\ndef make(value):\\n    global pool\\n    pool = value\\n", pools.__dict__)
    sys.modules["pools"] = pools
    ENTRY = variable("pools.pool", "pools:pool", created_by=("pools:make",))

    @pytest.fixture(scope="session")
    def wide():
        os.environ["WIDE"] = "1"
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        yield
        assert os.environ.pop("WIDE") == "1"
        torch.distributed.destroy_process_group()
"""


def test_what_an_unmarked_test_leaves_is_not_inherited(run: Run, pytester: pytest.Pytester) -> None:
    result = run(
        (HEAD + WIDER).replace("pytestmark = fresh_config_context", "")
        + """
    @pytest.fixture(autouse=True)
    def registered(gpu_singletons):
        gpu_singletons.register(ENTRY)

    def test_unmarked(): pools.make("left")

    @fresh_config_context
    def test_marked(): assert pools.pool is None

    def test_gets_its_own_back(): assert pools.pool == "left"
""",
        "--junitxml=junit.xml",
    )
    result.assert_outcomes(passed=3)
    notes = findings(pytester.path / "junit.xml", "note")
    assert notes["test_marked"] == ["set-aside:pools.pool@test_it.test_marked"]


def test_fixtures_of_the_test_clean_up_after_themselves(run: Run) -> None:
    run(
        HEAD
        + """
    @pytest.fixture
    def tidy(monkeypatch):
        monkeypatch.setenv("LEFT", "1")
        torch.set_default_dtype(torch.float64)
        yield
        torch.set_default_dtype(torch.float32)

    def test_tidy(tidy): assert torch.get_default_dtype() is torch.float64
"""
    ).assert_outcomes(passed=1)


def test_a_session_fixture_keeps_what_it_made_and_is_reported(run: Run, pytester: pytest.Pytester) -> None:
    result = run(
        HEAD
        + WIDER
        + """
    def test_sets_up(wide): assert torch.distributed.is_initialized() and os.environ["WIDE"] == "1"
    def test_uses(wide): assert torch.distributed.is_initialized() and os.environ["WIDE"] == "1"
    @fresh_config_context(singletons="torch.default_group")
    def test_declares(wide): assert torch.distributed.is_initialized()
""",
        "--junitxml=junit.xml",
    )
    result.assert_outcomes(passed=3, errors=2)
    found = findings(pytester.path / "junit.xml")
    assert {name: [one.partition("@")[0] for one in ids] for name, ids in found.items()} == {
        "test_sets_up": ["inherited:torch.default_group"],
        "test_uses": ["inherited:torch.default_group"],
        "test_declares": [],
    }
    assert "torch.default_group: session fixture 'wide' made it" in text(result)


def test_a_module_fixture_with_parameters_is_torn_down_in_peace(run: Run, pytester: pytest.Pytester) -> None:
    result = run(
        HEAD
        + """
    @pytest.fixture(scope="module", params=["a", "b"])
    def wide(request):
        os.environ["WIDE"] = request.param
        yield request.param
        assert os.environ.pop("WIDE") == request.param

    def test_one(wide): assert os.environ["WIDE"] == wide
    def test_two(wide): assert os.environ["WIDE"] == wide

    def test_after(): assert os.environ["WIDE"] == "b"  # it is still alive
""",
        "--junitxml=junit.xml",
    )
    result.assert_outcomes(passed=5)
    assert findings(pytester.path / "junit.xml", "note") == {
        "test_one[a]": ["kept:env.WIDE@test_it.wide"],
        "test_two[a]": ["kept:env.WIDE@test_it.test_two"],
        # The fixture of before is still there when the test begins.
        "test_one[b]": ["kept:env.WIDE@test_it.test_one", "kept:env.WIDE@test_it.wide"],
        "test_two[b]": ["kept:env.WIDE@test_it.test_two"],
        "test_after": ["kept:env.WIDE@test_it.test_after"],
    }


def test_state_of_ones_own(run: Run, pytester: pytest.Pytester) -> None:
    result = run(
        HEAD
        + WIDER
        + """
    @pytest.fixture(autouse=True)
    def registered(gpu_singletons):
        gpu_singletons.register(ENTRY)

    pools.make("at import")

    def test_leaks():
        assert pools.pool is None  # set aside
        thread = threading.Thread(target=pools.make, args=("left",))
        thread.start(); thread.join()

    def test_after():
        assert pools.pool is None

    @fresh_config_context(singletons="pools.*")
    def test_declares(): pools.make("declared")

    @fresh_config_context(may_leave="pools.pool")
    def test_may_leave(): pools.make("stays")

    def test_last(): assert pools.pool is None

    def teardown_module():
        assert pools.pool == "stays", pools.pool
""",
        "--junitxml=junit.xml",
    )
    result.assert_outcomes(passed=5, errors=1)
    assert findings(pytester.path / "junit.xml")["test_leaks"] == ["leak:pools.pool@pools.make"]
    assert findings(pytester.path / "junit.xml", "note")["test_declares"][-1] == "leak:pools.pool@pools.make"


def test_a_package_registers_state_by_an_entry_point(run: Run, pytester: pytest.Pytester) -> None:
    folder = pytester.mkdir("mine-1.0.dist-info")
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[gpuinvariants.singletons]\npools = mine:ENTRIES\n")
    pytester.makepyfile(
        mine="""
        from pytest_gpuinvariants.integrations.singletons import variable
        pool, CLOSED = None, []
        def make(value):
            global pool
            pool = value
        OPTIONS = {"destroy": CLOSED.append, "created_by": ("mine:make",), "requires": "mine"}
        ENTRIES = [variable("mine.pool", "mine:pool", **OPTIONS)]
        """
    )
    result = run(
        HEAD
        + """
    import mine
    def test_leaks(): mine.make("left")
    def test_after(): assert mine.pool is None and mine.CLOSED == ["left"]
""",
        "--junitxml=junit.xml",
    )
    result.assert_outcomes(passed=2, errors=1)
    assert findings(pytester.path / "junit.xml")["test_leaks"] == ["leak:mine.pool@mine.make"]


def test_a_fixtures_state_is_set_aside_for_others_and_comes_back(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(pools="pool = None\ndef make(value):\n    global pool\n    pool = value\n")
    pytester.makeconftest(
        """
        from pytest_gpuinvariants.integrations import singletons
        ENTRY = singletons.variable("pools.pool", "pools:pool", created_by=("pools:make",))
        builtin = singletons.builtin
        singletons.builtin = lambda: [ENTRY, *builtin()]
        """
    )
    result = run(
        HEAD.replace("pytestmark =", "marked =")
        + """
    import pools

    def test_unmarked(): pools.make("before")

    @pytest.fixture(scope="module")
    def wide():
        pools.make("the fixture's")
        yield
        assert pools.pool == "the fixture's"
        pools.make(None)

    @marked
    def test_makes(wide): assert pools.pool == "the fixture's"
    @marked
    def test_does_not_use_it(): assert pools.pool is None
    @marked
    def test_leaks_beside_it():
        pools.make("left")
    @marked
    def test_uses(wide): assert pools.pool == "the fixture's"
""",
        "--junitxml=junit.xml",
    )
    result.assert_outcomes(passed=5, errors=3)
    assert findings(pytester.path / "junit.xml") == {
        "test_unmarked": [],
        "test_makes": ["inherited:pools.pool@pools.make"],
        "test_does_not_use_it": [],
        "test_leaks_beside_it": ["leak:pools.pool@pools.make"],
        "test_uses": ["inherited:pools.pool@test_it.test_uses"],
    }
