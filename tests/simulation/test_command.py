"""The commands over many simulations, for users and for this repository: processes, results, figures, wrong calls."""

import json
import os
import re
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from pykcl.testing.simulation.delivery import DeliveryChecker
from pykcl.testing.simulation.guarantees import Figures
from tests.simulation import __main__ as measuring
from tests.simulation import runner
from tests.simulation.checkers.rows import RowChecker
from tests.simulation.checkers.validity import ValidityChecker
from tests.simulation.course import Mode
from tests.simulation.effects import MANY_SEEDS, VERY_MANY_SEEDS, Effects, enough
from tests.simulation.faults import KINDS, OF_PRODUCERS, PRODUCED
from tests.simulation.report import (
    BEGIN,
    END,
    Run,
    Totals,
    as_json,
    as_markdown,
    as_text,
    figure_rows,
    masked,
    put_into,
)
from tests.simulation.runner import Job, Pool, SeedResult, load_processor, run_job
from tests.simulation.seeds import COUNT, FIRST, FIXED_COMMIT, NO_FAULTS, SEEDS, current_commit, first_seed_of
from tests.simulation.world import CheckedWorld

ROOT = Path(__file__).parents[2]
OFF = ",".join(sorted(NO_FAULTS))


def measure(*arguments):
    return CliRunner().invoke(measuring.main, list(arguments))


# -- the command -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("arguments", "said"), [
    (["--off", "F99"], "no kind of fault called 'F99'"),
    (["--processor", "shop"], "module:Class"),
    (["--processor", "no_such_module:Orders"], "cannot be imported"),
    (["--processor", "json:Orders"], "has no Orders"),
    (["--processor", "json:JSONDecoder"], "not a subclass of pykcl.RecordProcessor"),
    (["--seeds", "0"], "range"),
    (["--seed", "-1"], "range"),
    (["--seeds"], "requires an argument"),
    (["extra"], "unexpected extra argument"),
    (["--produced", "--acks"], "--acks and --produced do not go together"),
])  # fmt: skip
def test_what_makes_no_sense_is_refused_with_a_reason(arguments, said):
    done = measure(*arguments)
    assert done.exit_code == 2
    assert said in done.output


def test_figures_are_not_written_where_there_is_no_page_for_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "root of the repository" in measure("--write-docs").output
    (tmp_path / "docs/concepts").mkdir(parents=True)
    (tmp_path / "docs/concepts/guarantees.md").write_text("no markers\n")
    done = measure("--write-docs")
    assert done.exit_code == 2
    assert BEGIN in done.output


def test_figures_of_a_run_in_which_a_kind_of_fault_did_not_happen_are_not_written(tmp_path, monkeypatch):
    page = tmp_path / "docs/concepts/guarantees.md"
    page.parent.mkdir(parents=True)
    page.write_text(f"{BEGIN}\n{END}\n")
    monkeypatch.chdir(tmp_path)
    done = measure("--seeds", "1", "--off", OFF, "--write-docs")
    assert done.exit_code == 1
    assert "F7" in done.output.splitlines()[-1]
    assert page.read_text() == f"{BEGIN}\n{END}\n"


def test_a_replay_that_is_kept_ends_with_0_and_tells_its_digest():
    done = measure("--seed", "3", "--off", OFF)
    assert done.exit_code == 0
    assert run_job(Job(3, NO_FAULTS)).digest in done.output
    assert "kept" in done.output


def test_a_replay_that_breaks_a_guarantee_tells_it_in_one_line_with_the_last_60_events():
    done = measure("--seed", "3", "--off", OFF, "--processor", "tests.simulation.processors:CannotBeMade")
    assert done.exit_code == 1
    (line,) = [line for line in done.output.splitlines() if line.startswith("seed=3 ")]
    assert re.search(r"ALL_DELIVERED|BUDGETS", line)
    assert "; replay: python -m tests.simulation --seed 3 --off " in line
    assert line.endswith("--processor tests.simulation.processors:CannotBeMade")
    assert sum(line.startswith("    ") for line in done.output.splitlines()) == 60


def test_many_simulations_in_two_processes_end_with_figures_and_a_verdict(tmp_path):
    figures = tmp_path / "figures.json"
    done = measure("--seeds", "3", "--first", "3", "--jobs", "2", "--off", OFF, "--figures", str(figures))
    assert done.exit_code == 0, done.output
    assert "PASS: 3 seeds" in done.output
    found = json.loads(figures.read_text())
    assert found["seeds"] == {"first": 3, "last": 5, "run": 3, "broken": 0}
    assert found["records"] > 0
    assert set(found["faults"]) == set(KINDS)


def test_simulations_of_producers_end_with_their_own_kinds_of_faults(tmp_path):
    figures = tmp_path / "figures.json"
    done = measure("--seeds", "1", "--produced", "--off", "F24.late", "--figures", str(figures))
    assert done.exit_code == 0, done.output
    found = json.loads(figures.read_text())
    assert set(found["faults"]) == set(PRODUCED)
    assert found["faults"]["F24.late"]["injected"] == 0
    assert any(found["faults"][name]["injected"] for name in OF_PRODUCERS)


@pytest.mark.slow
def test_many_simulations_end_with_what_was_simulated():
    done = measure("--seeds", "2", "--first", "3", "--jobs", "1", "--off", OFF)
    assert done.exit_code == 0, done.output
    assert done.stdout.endswith("\nPASS: 2 seeds, every guarantee kept\n")


@pytest.mark.slow
def test_one_broken_simulation_fails_the_run():
    done = measure(
        "--seeds",
        "1",
        "--first",
        "3",
        "--off",
        OFF,
        "--processor",
        "tests.simulation.processors:CannotBeMade",
    )
    assert done.exit_code == 1
    assert "FAIL: 1 of 1 simulations" in done.output


@pytest.mark.slow
def test_a_run_starts_no_more_simulations_after_its_minutes_but_one_it_must_and_says_how_far_it_came():
    done = measure("--seeds", "100000", "--minutes", "0.0001", "--off", OFF)
    assert done.exit_code == 0
    assert re.search(r"PASS, CUT SHORT: the time was over after [12] of 100000 seeds", done.output)
    assert "PASS:" not in done.output


def _concluded(capsys, results, *, seeds):
    """(exit code, output) of a run that was to have so many seeds and has these results."""
    campaign = measuring.MeasuredCampaign(range(seeds), Job(0), float("inf"))
    for result in results:
        campaign.done(result)
    run = Run("0123abcd", 0, seeds - 1, False, 1, 60.0, campaign.totals, campaign.effects)
    return measuring.conclude(run, campaign, None, False), capsys.readouterr().out


def test_a_run_in_which_no_simulation_came_to_its_end_fails(capsys):
    code, said = _concluded(capsys, [], seeds=1)
    assert (code, "FAIL: no simulation came to its end: nothing is shown" in said) == (1, True)
    code, said = _concluded(capsys, [_result(0)], seeds=1)
    assert (code, "PASS: 1 seeds" in said) == (0, True)


def test_a_simulation_that_dies_of_what_is_no_exception_fails_with_its_seed(monkeypatch):
    def exits(*_, **__):
        raise SystemExit(0)

    monkeypatch.setattr(runner, "run_simulation", exits)
    done = measure("--seed", "3")
    assert done.exit_code == 1
    assert (
        "CRASH of the simulation itself: SystemExit: 0; replay: python -m tests.simulation --seed 3"
        in done.output
    )


@pytest.mark.parametrize(("owner", "method"), [
    (CheckedWorld, "_heard"),
    (CheckedWorld, "_row_changed"),
    (RowChecker, "request_sent"),
    (DeliveryChecker, "ownership_starts"),
    (DeliveryChecker, "batch_starts"),
    (DeliveryChecker, "delivered"),
    (ValidityChecker, "poll"),
])  # fmt: skip
def test_an_error_of_a_check_is_a_crash_and_no_error_of_the_worker_that_asked_it(monkeypatch, owner, method):
    """A worker catches what its listeners, its clients and its processor raise, and goes on."""
    calls, original = [], getattr(owner, method)

    def fails(*args, **options):
        calls.append(True)
        if len(calls) > 5:
            raise KeyError("in a checker")
        return original(*args, **options)

    monkeypatch.setattr(owner, method, fails)
    assert run_job(Job(3)).summary == "CRASH of the simulation itself: KeyError: 'in a checker'"
    assert len(calls) < 50


def test_a_check_that_dies_is_a_failure_with_its_replay_line(capsys):
    crash = SeedResult(Job(3), "CRASH of the simulation itself: KeyError: 'x'", details=("Traceback",))
    code, said = _concluded(capsys, [_result(0), crash], seeds=2)
    assert code == 1
    assert "seed=3 CRASH of the simulation itself: KeyError: 'x'; replay: python -m" in said
    assert "FAIL: 1 of 2 simulations" in said


def test_the_seeds_of_a_commit_follow_from_its_hash_and_there_is_always_one(tmp_path, monkeypatch):
    assert first_seed_of("0000002abcde") == 2000
    assert list(SEEDS) == list(range(FIRST, FIRST + COUNT))
    assert re.fullmatch(r"[0-9a-f]{7,}\+?", current_commit())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert current_commit() == FIXED_COMMIT
    monkeypatch.setenv("PATH", "")
    assert current_commit() == FIXED_COMMIT


# -- processes -------------------------------------------------------------------------------------------------


def _odd_child(connection, dump_file, limit):
    """As `serve`, but seed 1 hangs, seed 2 dies, seed 3 crashes."""

    def run(job):
        if job.seed == 1:
            time.sleep(600)
        if job.seed == 2:
            os._exit(3)
        if job.seed == 3:
            return run_job(job)
        return SeedResult(job, runner.KEPT, "digest")

    def no_simulation(*_, **__):
        raise ZeroDivisionError("of the simulation")

    runner.run_simulation, runner.run_job = no_simulation, run
    runner.serve(connection, dump_file, limit)


def test_a_simulation_that_hangs_dies_or_crashes_is_a_failure_with_its_seed_and_the_others_go_on(monkeypatch):
    # However slowly its process starts: it ends itself after its limit.
    monkeypatch.setattr(runner, "_GRACE_SECONDS", 60.0)
    jobs, results = [Job(seed) for seed in range(6)], {}
    with Pool(2, limit=2.0, body=_odd_child) as pool:
        pool.run(
            lambda: jobs.pop(0) if jobs else None, lambda result: results.update({result.job.seed: result})
        )
    assert sorted(results) == [0, 1, 2, 3, 4, 5]
    assert [seed for seed in results if results[seed].kept] == [0, 4, 5] or {0, 4, 5} == {
        seed for seed in results if results[seed].kept
    }
    assert results[1].summary.startswith("HANG: not over after")
    assert any("_odd_child" in line or "in run" in line for line in results[1].details)
    assert results[2].summary == "CRASH: its process died (exit code 3)"
    assert results[3].summary == "CRASH of the simulation itself: ZeroDivisionError: of the simulation"
    assert any("Traceback" in line for line in results[3].details)


def test_a_processor_is_found_by_its_name():
    assert load_processor("tests.simulation.processors:Sound").__name__ == "Sound"


# -- effects ---------------------------------------------------------------------------------------------------


def _result(seed, injected=(), digest="d", off=frozenset(), summary=runner.KEPT):
    return SeedResult(Job(seed, off), summary, digest, 600.0, 1.0, dict.fromkeys(injected, 2), Figures())


def _exercise(effects, *, differs=lambda name: True, kinds=tuple(KINDS), seeds=MANY_SEEDS):
    """Simulations with all these kinds, and the comparisons they ask for; returns what was found wrong."""
    wrong, compared = [], Counter()
    for seed in range(seeds):
        for job in effects.note(_result(seed, kinds)):
            (name,) = job.off
            compared[name] += 1
            assert effects.is_comparison(job)
            wrong.append(effects.compare(_result(seed, (), "e" if differs(name) else "d", job.off)))
    return [one for one in wrong if one], compared


def _as_it_must(name):
    return not KINDS[name].is_harmless


def test_each_kind_is_compared_until_it_is_shown_often_enough():
    effects = Effects(MANY_SEEDS)
    wrong, compared = _exercise(effects, differs=_as_it_must)
    assert wrong == []
    assert set(compared.values()) == {1}
    assert effects.not_exercised() == {}
    assert not effects.fails_the_run


def test_in_a_very_long_run_each_kind_has_to_be_shown_more_often():
    _, compared = _exercise(Effects(VERY_MANY_SEEDS), differs=_as_it_must)
    assert set(compared.values()) == {enough(VERY_MANY_SEEDS)} == {3}


def test_what_seldom_happens_is_compared_first():
    often, effects = [name for name in KINDS if name != "F7"], Effects(MANY_SEEDS)
    first = list(KINDS)[:10]
    for seed in range(20):
        # Broken simulations count as occasions, and are not compared.
        effects.note(_result(seed, often, summary="STOP"))
    for name in first:
        effects.tried[name] += 1
    assert next(iter(effects.note(_result(20, KINDS))[0].off)) == "F7"


def test_the_hundred_simulations_that_continuous_integration_runs_are_many():
    seeds = re.findall(r"tests.simulation --seeds (\d+)", (ROOT / ".ci/run").read_text("utf-8"))
    assert seeds
    assert all(int(count) >= MANY_SEEDS for count in seeds)


def test_a_kind_that_never_matters_fails_a_long_run():
    effects = Effects(MANY_SEEDS)
    _exercise(effects, differs=lambda name: _as_it_must(name) and name != "F7")
    assert effects.not_exercised() == {"never effective": ["F7"]}
    assert effects.fails_the_run


def test_a_kind_that_never_happens_fails_a_long_run_and_not_a_short_one():
    kinds = [name for name in KINDS if name != "F7"]
    for seeds, fails in ((MANY_SEEDS, True), (MANY_SEEDS - 1, False)):
        effects = Effects(seeds)
        _exercise(effects, differs=_as_it_must, kinds=kinds, seeds=seeds)
        assert effects.not_exercised()["never injected"] == ["F7"]
        assert effects.fails_the_run is fails


def test_a_kind_that_was_left_out_is_not_asked_for():
    effects = Effects(MANY_SEEDS, off=frozenset({"F7"}))
    _exercise(effects, differs=_as_it_must, kinds=[name for name in KINDS if name != "F7"])
    assert not effects.fails_the_run


def test_a_harmless_kind_that_changes_the_course_is_a_violation():
    wrong, _ = _exercise(Effects(VERY_MANY_SEEDS), differs=lambda name: True)
    harmless = [name for name, kind in KINDS.items() if kind.is_harmless]
    assert Counter(one.partition(" ")[0] for one in wrong) == dict.fromkeys(harmless, enough(VERY_MANY_SEEDS))


def test_a_short_run_spends_a_quarter_on_comparisons_and_a_broken_simulation_none():
    _, compared = _exercise(Effects(40), seeds=40)
    assert sum(compared.values()) == 10
    assert Effects(MANY_SEEDS).note(_result(0, KINDS, summary="STOP")) == []


# -- figures ---------------------------------------------------------------------------------------------------


def _run(results=()):
    totals, effects = Totals(), Effects(10)
    for result in results:
        totals.add(result)
        effects.note(result)
    return Run("0123abcd", 3, 5, False, 2, 60.0, totals, effects)


def test_totals_add_up_what_was_counted_and_keep_the_most_of_what_was_measured():
    one, other = _result(1, ["F1"]), _result(2, ["F1"])
    for result, number in ((one, 1), (other, 5)):
        figures = result.figures
        figures.records, figures.deliveries, figures.moves_at_rest = 10 * number, 11 * number, 0
        figures.duplicates["crash"] = figures.most_duplicates["crash"] = number
        figures.overlap["steal"], figures.stops["faults"] = float(number), 2.0 * number
        figures.failovers.append(float(number))
    totals = _run([one, other, _result(3, summary="STOP")]).totals
    assert (totals.seeds, totals.broken, totals.records, totals.deliveries) == (3, 1, 60, 66)
    assert (totals.duplicates["crash"], totals.most_duplicates["crash"]) == (6, 5)
    assert (totals.overlap, totals.stops) == (
        {"expiry": 0.0, "steal": 5.0},
        {"faults": 10.0, "rest": 0.0},
    )
    found = as_json(_run([one, other]))
    assert found["failover_seconds"] == {"p50": 3.0, "max": 5.0}
    assert found["faults"]["F1"]["injected"] == 4
    assert found["virtual_hours"] == pytest.approx(1 / 3)
    shown = as_text(_run([one, other]))
    assert "p50 3.0 s, at most 5.0 s" in shown
    assert "2 of 2" in shown


def _lost_row(run):
    (row,) = [line for line in as_text(run).splitlines() if line.startswith("records lost")]
    return row.split("  ")[-1].strip()


def test_the_records_that_were_lost_are_counted_and_those_of_broken_simulations_are_not():
    one = _result(1)
    one.figures.lost = 3
    assert _run([one]).totals.lost == 3
    assert _lost_row(_run([one])) == "3"
    assert as_json(_run([one]))["lost"] == 3
    one.figures.lost = 0
    assert _lost_row(_run([one])) == "0"
    broken = _run([one, _result(2, summary="STOP")])
    assert _lost_row(broken) == "0, not counted: 1 simulations that ended early"


def test_every_figure_that_is_measured_follows_what_was_measured():
    def rows(number):
        result = _result(1, ["F1"])
        figures = result.figures
        for name in (
            "records",
            "deliveries",
            "taken_by_retention",
            "lost",
            "workers",
            "shards",
            "moves_at_rest",
        ):
            setattr(figures, name, number)
        for cause in ("clean stop", "crash", "steal", "pause", "other"):
            figures.duplicates[cause] = figures.most_duplicates[cause] = number
        figures.overlap = dict.fromkeys(("expiry", "steal"), float(number))
        figures.stops = dict.fromkeys(("faults", "rest"), float(number))
        figures.failovers, figures.to_balance = [float(number)], float(number)
        result = replace(result, virtual_seconds=3600.0 * number, cpu_seconds=float(number))
        native = replace(result, job=replace(result.job, modes=frozenset({Mode.NATIVE})))
        run = _run([result, native] * number)
        return figure_rows(replace(run, real_seconds=60.0 * number, jobs=number))

    same = [one[0] for one, other in zip(rows(1), rows(3), strict=True) if one[2] == other[2]]
    # That one is measured by the mutants.
    assert same == ["mutants caught, when their seeds were last learned"]


def test_the_section_takes_the_place_of_the_one_before(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    put_into(page, "new")
    assert page.read_text() == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    page.write_text("nothing\n")
    with pytest.raises(ValueError, match="no section"):
        put_into(page, "new")


def test_the_figures_in_the_documentation_are_what_the_command_writes_apart_from_what_was_measured():
    text = (ROOT / "docs/concepts/guarantees.md").read_text("utf-8")
    section = text.partition(BEGIN + "\n")[2].partition("\n" + END)[0]
    assert masked(section) == masked(as_markdown(_run([run_job(Job(3, NO_FAULTS))])))
    assert len(masked(section)) > len(KINDS) + 20


def test_each_kind_of_fault_in_the_documentation_was_injected():
    text = (ROOT / "docs/concepts/guarantees.md").read_text("utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    faults = {row[0]: int(row[2].replace(",", "")) for row in rows if row[0] in KINDS}
    assert faults.keys() == KINDS.keys()
    assert min(faults.values()) > 0, [name for name, times in faults.items() if not times]


def test_a_figure_that_is_missing_or_has_another_bound_is_noticed():
    section = as_markdown(_run())
    lines = section.splitlines()
    figure = next(number for number, line in enumerate(lines) if "failover" in line)
    assert masked(section) != masked("\n".join(lines[:figure] + lines[figure + 1 :]))
    assert masked(section) != masked(section.replace("| 20 s |", "| 21 s |"))
    assert masked(section) == masked(
        section.replace("0123abcd", "ffff0000").replace("seeds 3 to 5", "seeds 7 to 99")
    )
