"""Benchmarks as a machine: resuming, half-written files, failures, dead processes, tables, scores, the command."""

import json
import math
import os
import time
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from benchmarks import driver, harness, outcomes, scores, tables
from benchmarks.__main__ import app
from benchmarks.about import TASKS
from benchmarks.outcomes import Cell, Outcome
from benchmarks.running import finished, run_all
from benchmarks.tasks import STUDIES, bandit
from benchmarks.tasks.study import Study
from lapwing import metrics
from lapwing.bayes.likelihoods import Categorical, Gaussian
from lapwing.families import ensemble
from tests.families.problems import classes, mlp, regression


def quick(cell, folder):
    """A made-up method: its score is its seed plus the place of its name."""
    if cell.method == "diverges" and cell.seed == 1:
        raise ArithmeticError("the loss became nan\nat step 3")
    if cell.method == "dies":
        os._exit(9)
    if cell.method == "slow":
        time.sleep(0.01)
    return {"nll": cell.seed + len(cell.method) / 10, "coverage": 0.9}


STUDY = Study(
    "made-up", "a test", ("map", "linearised", "diverges", "dies", "slow"), ("one", "two"), quick, ("nll", "coverage"),
    lambda data: {"one": 4, "two": 2}[data], default_methods=("map", "linearised", "diverges"),
    left_out={"linearised": (("two",), "it is too large")}, default_seeds=3, published={"one": {"dropout nll": 1.5}},
)  # fmt: skip


@pytest.fixture
def study(monkeypatch):
    monkeypatch.setitem(STUDIES, "made-up", STUDY)
    monkeypatch.setitem(TASKS, "made-up", "a test")
    return STUDY


def lines(text):
    return [line for line in text.read_text().splitlines() if line]


class TestCells:
    def test_all_combinations_but_those_left_out(self):
        cells, notes = STUDY.cells()
        assert len(cells) == 3 * 3 + 2 * 2
        assert cells[0] == Cell("made-up", "one", "map", 0)
        assert [cell.seed for cell in cells] == sorted(cell.seed for cell in cells)
        assert notes == ["linearised is left out for two: it is too large"]

    def test_seeds_that_are_not_there_are_said(self):
        cells, notes = STUDY.cells(["map"], ["two"], [0, 5])
        assert cells == [Cell("made-up", "two", "map", 0)]
        assert notes == ["two has the seeds 0 to 1: 5 left out"]

    @pytest.mark.parametrize(
        ("methods", "data", "message"),
        [
            (["nuts"], None, "no method 'nuts'; there are map, linearised"),
            (None, ["iris"], "no data set 'iris'; there"),
        ],
    )
    def test_unknown_names_list_the_valid_ones(self, methods, data, message):
        with pytest.raises(ValueError, match=message):
            STUDY.cells(methods, data)

    def test_real_studies_are_whole(self):
        assert {"toy", "uci", "uci-gap"} <= set(STUDIES)
        for name, one in STUDIES.items():
            assert one.name == name
            assert set(one.left_out) <= set(one.methods)
            assert set(one.published) <= set(one.data)
            assert one.higher <= set(one.scores)


class TestLines:
    CELL = Cell("made-up", "one", "map", 0)

    def keep(self, folder, cell, **found):
        outcomes.add(folder, outcomes.line(cell, lambda: Outcome(cell, **found)))

    def test_outcomes_come_back(self, tmp_path):
        folder, other = tmp_path / "new" / "folder", replace(self.CELL, seed=1)
        self.keep(folder, self.CELL, scores={"nll": 1.25, "joint_nll": math.nan}, threads=3)
        self.keep(folder, other, reason="it diverged")
        found = outcomes.read(folder)
        assert found[self.CELL].scores["nll"] == 1.25
        assert math.isnan(found[self.CELL].scores["joint_nll"])
        assert found[self.CELL].threads == 3
        assert not found[self.CELL].failed
        assert found[other].failed

    def test_they_are_lines_of_the_harness(self, tmp_path):
        self.keep(tmp_path, self.CELL, scores={"nll": 1.25})
        script = harness.line("bench_made_up.py", "one", {"size": 3}, lambda size: {"squared": size**2})
        (line,) = harness.read(tmp_path / "results.jsonl").values()
        assert line.keys() == script.keys()
        assert line["arguments"] == {"task": "made-up", "data": "one", "method": "map", "seed": 0}
        assert line["command"] == "python -m benchmarks made-up --data one --methods map --seeds 0"
        assert script["result"] == {"squared": 9}

    def test_the_last_outcome_of_a_cell_counts(self, tmp_path):
        other = replace(self.CELL, seed=1)
        self.keep(tmp_path, self.CELL, reason="no")
        self.keep(tmp_path, other, scores={"nll": 2.0})
        self.keep(tmp_path, self.CELL, scores={"nll": 3.0})
        found = outcomes.read(tmp_path)
        assert list(found) == [self.CELL, other]  # in its old place
        assert found[self.CELL].scores == {"nll": 3.0}
        assert len(lines(tmp_path / "results.jsonl")) == 2

    @pytest.mark.parametrize(
        "junk", [b'{"cell": "made-up", "argu', b"not json\n", b'{"format": 1}\n', b"\n", b"[1]\n", b"\xff\n"]
    )
    def test_half_a_line_is_taken_away(self, tmp_path, junk):
        path = tmp_path / "results.jsonl"
        self.keep(tmp_path, self.CELL, scores={"nll": 3.0})
        good = path.read_bytes()
        path.write_bytes(good + junk)
        assert outcomes.read(tmp_path).keys() == {self.CELL}
        self.keep(tmp_path, replace(self.CELL, seed=1), scores={"nll": 4.0})
        assert path.read_bytes().startswith(good)
        assert len(lines(path)) == len(outcomes.read(tmp_path)) == 2

    def test_a_full_disk_keeps_what_is_there(self, tmp_path, monkeypatch):
        path = tmp_path / "results.jsonl"
        self.keep(tmp_path, self.CELL, scores={"nll": 3.0})
        before, real = path.read_bytes(), os.write
        monkeypatch.setattr(os, "write", lambda handle, data: real(handle, data[:10]))
        with pytest.raises(OSError, match="the 1 finished cells are kept; make room"):
            self.keep(tmp_path, replace(self.CELL, seed=1), scores={"nll": 4.0})
        assert path.read_bytes() == before


class TestRunning:
    def test_a_method_that_diverges_is_recorded(self, tmp_path):
        line = finished(quick, Cell("made-up", "one", "diverges", 1), tmp_path)
        assert line["result"]["reason"] == "ArithmeticError: the loss became nan at step 3"
        assert line["result"]["threads"] == torch.get_num_threads()
        assert line["seconds"] >= 0

    def test_missing_data_stop_everything(self, tmp_path):
        def missing(cell, folder):
            raise FileNotFoundError("put the file there")

        with pytest.raises(FileNotFoundError, match="put the file there"):
            list(run_all(missing, [Cell("made-up", "one", "map", 0)], tmp_path))

    def test_several_processes_and_one_that_dies(self, tmp_path):
        """A process that dies takes its own cell with it and no other."""
        cells = [Cell("made-up", "one", method, 0) for method in ("dies", "map", "slow")]
        found = {one.cell: one for one in map(Outcome.of, run_all(quick, cells, tmp_path, processes=2))}
        assert found.keys() == set(cells)
        for cell, one in found.items():
            assert one.failed == (cell.method == "dies")
            assert ("exit code 9" in one.reason) == (cell.method == "dies")

    def test_processes_must_be_some(self, tmp_path):
        with pytest.raises(ValueError, match="expected at least one"):
            list(run_all(quick, [], tmp_path, processes=0))


class TestBench:
    def run(self, folder, **options):
        said = []
        found = driver.bench(
            driver.Request("made-up", **options), folder, lambda phase, share: None, said.append
        )  # fmt: skip
        return found, said

    def test_it_goes_on_where_it_stopped(self, tmp_path, study, monkeypatch):
        real = outcomes.add

        def interrupted(folder, line):
            if len(outcomes.read(folder)) == 5:
                raise KeyboardInterrupt
            real(folder, line)

        monkeypatch.setattr(outcomes, "add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            self.run(tmp_path)
        assert len(lines(tmp_path / "results.jsonl")) == 5
        monkeypatch.setattr(outcomes, "add", real)
        found, said = self.run(tmp_path)
        assert (found.done, found.before, found.failed) == (8, 5, 2)
        assert said[0].startswith("8 cells to run, first ")  # before the first is done, which may take long
        assert len(said) == 1 + 8
        assert "min" in said[1]
        again, silent = self.run(tmp_path)
        assert silent == []
        assert (again.done, again.before) == (0, 13)
        assert again.table == found.table

    def test_failures_are_run_again_only_when_asked(self, tmp_path, study):
        options = {"methods": ("diverges",), "data": ("one",)}
        assert self.run(tmp_path, **options)[0].failed == 1
        assert self.run(tmp_path, **options)[0].done == 0
        assert self.run(tmp_path, retry=True, **options)[0].done == 1

    def test_the_table(self, tmp_path, study):
        table = self.run(tmp_path)[0].table
        assert "## one (3 seeds)" in table
        assert "| map | **1.3 ± 0.58** | 0.9 ± 0 | -0.7 ± " in table
        assert "1.8 ± 1 (1 failed)" in table  # seeds 0 and 2 of the one that diverged
        assert "Published: dropout nll 1.5." in table
        assert "- one, diverges, seed 1: ArithmeticError: the loss became nan at step 3" in table
        assert (tmp_path / "made-up.md").read_text() == table
        assert (tmp_path / "made-up-nll.svg").stat().st_size > 1000

    def test_unknown_tasks_list_the_valid_ones(self, study):
        with pytest.raises(ValueError, match="no task is called 'imagenet'; there are toy, .*uci-gap, .*made-up"):
            driver.study("imagenet")

    @pytest.mark.parametrize("text", ["a", "1-", "-3", "1,,2", "1..3"])
    def test_bad_seeds(self, text):
        with pytest.raises(ValueError, match="numbers and ranges such as"):
            driver.numbers(text)

    def test_help_lists_every_task(self):
        assert list(STUDIES) == list(TASKS)
        shown = " ".join(CliRunner().invoke(app, ["--help"]).stdout.split())
        assert all(f"{name} {about}" in shown for name, about in TASKS.items())
        assert f"{bandit.ROUNDS} rounds" in TASKS["bandit"]

    def test_a_task_lists_what_it_can_be_run_with(self, study):
        words = CliRunner().invoke(app, ["made-up", "--list"]).stdout.splitlines()
        assert words == [
            "made-up: a test", "  methods: map, linearised, diverges, dies, slow", "  data: one, two",
            "  scores: nll, coverage",
        ]  # fmt: skip
        found = json.loads(CliRunner().invoke(app, ["made-up", "--list", "--json"]).stdout)
        assert found["data"] == ["one", "two"]

    def test_a_task_lists_what_is_not_on_this_machine(self, study, monkeypatch):
        def there(name):
            if name == "two":
                raise FileNotFoundError("two is not there: fetch it")
            return 3

        monkeypatch.setitem(STUDIES, "made-up", replace(STUDIES["made-up"], seeds=there))
        words, found = driver.contents("made-up")
        assert words[-1] == "  two cannot be run yet: two is not there: fetch it"
        assert found["lacking"] == {"two is not there: fetch it": ["two"]}

    def test_the_command(self, tmp_path, study):
        runner = CliRunner()
        arguments = ["made-up", "--methods", "map,linearised", "--seeds", "0-1", "--out", str(tmp_path / "o")]
        shown = runner.invoke(app, arguments)
        assert shown.exit_code == 0, shown.output
        assert "| linearised | 1.5 ± 0.5 |" in shown.output
        found = json.loads(runner.invoke(app, [*arguments, "--json"]).stdout)
        assert (found["run"], found["already_done"], found["failed"]) == (0, 6, 0)
        wrong = runner.invoke(app, ["made-up", "--methods", "nuts", "--out", str(tmp_path / "o")])
        assert wrong.exit_code == 1
        assert "there are map, linearised" in wrong.output


class TestTables:
    def entry(self, method, values, failures=()):
        return tables.Entry("one", method, "nll", dict(enumerate(values)), failures)

    def test_ties_are_by_paired_differences(self):
        """Far apart over seeds but always better by little: not tied. Noisy but near: tied."""
        first = self.entry("map", [1.0, 5.0, 9.0])
        worse = self.entry("linearised", [1.1, 5.2, 9.1])
        noisy = self.entry("diverges", [0.5, 6.5, 8.5])
        winner, tied = tables.best(STUDY, [first, worse, noisy], "one", "nll")
        assert winner == "map"
        assert tied == {"map", "diverges"}

    def test_a_failure_is_no_advantage(self):
        whole, lucky = self.entry("map", [1.0, 2.0, 3.0]), self.entry("diverges", [0.1, 0.2], ("it diverged",))
        assert tables.best(STUDY, [whole, lucky], "one", "nll") == ("map", {"map"})

    def test_higher_may_be_better(self):
        study = replace(STUDY, higher=frozenset({"nll"}))
        rows = [self.entry("map", [1.0, 2.0]), self.entry("linearised", [3.0, 4.1])]
        assert tables.best(study, rows, "one", "nll")[0] == "linearised"

    def test_standard_errors(self):
        row = self.entry("map", [1.0, 2.0, 6.0])
        assert row.mean == 3.0
        assert row.standard_error == pytest.approx(torch.tensor([1.0, 2.0, 6.0]).std().item() / 3**0.5)


class TestScores:
    def test_of_numbers_in_the_targets_own_units(self):
        """Against the scores of the same prediction with everything multiplied by the unit."""
        x, y = regression()
        found = ensemble.of([mlp(seed=seed) for seed in range(4)], (x, y), Gaussian(0.3)).predict(x)
        unit = 7.0
        scored = scores.of_numbers(found, y, unit)
        mean, std = unit * found.mean, unit * found.std
        assert scored["nll"] == pytest.approx(metrics.gaussian_nll(mean, std, unit * y))
        assert scored["rmse"] == pytest.approx(metrics.rmse(mean, unit * y))
        assert scored["crps"] == pytest.approx(metrics.crps(mean, std, unit * y))
        each = torch.distributions.Normal(unit * found.draws, unit * 0.3).log_prob(unit * y).sum(2)
        expected = -(each.logsumexp(0) - math.log(4)).mean()
        assert scored["mixture_nll"] == pytest.approx(expected.item())

    def test_of_classes_and_foreign(self):
        x, y = classes()
        found = ensemble.of([mlp(outputs=4, seed=seed) for seed in range(4)], (x, y), Categorical())
        inside, outside = found.predict(x), found.predict(5 * x + 3)
        assert scores.of_classes(inside, y)["nll"] == pytest.approx(-inside.log_prob(y).mean().item())
        foreign = scores.of_foreign(inside, outside)
        assert foreign["auroc_entropy"] == pytest.approx(metrics.auroc(inside.entropy, outside.entropy))
        assert not any("novelty" in name for name in foreign)  # an ensemble has no prior
