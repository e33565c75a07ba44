"""The sweep over τ: the same in one process and in several, resumed after a kill, failures recorded."""

import json

import pytest
import torch

from lapwing.bayes.likelihoods import Gaussian
from lapwing.families.variational import Balanced, BayesByBackprop, fit, held_out, tune_temperature
from tests.families.variational.problems import mlp, regression

TAUS = (1e-3, 1e2)
MODELS = {"narrow": mlp(3, 4), "wide": mlp(3, 7)}


def sweep(**changes):
    x, y = regression(60)
    arguments = {
        "validation": (x[40:], y[40:]), "epochs": 6, "taus": TAUS, "batch_size": 8, "draws": 10,
        "method": BayesByBackprop(0.02), "progress": False, **changes,
    }  # fmt: skip
    models = arguments.pop("models", MODELS)
    return tune_temperature(models, (x[:40], y[:40]), Gaussian(0.3), **arguments)


@pytest.fixture(scope="module")
def whole():
    return sweep()


def numbers(found):
    return [{key: value for key, value in cell.items() if key != "seconds"} for cell in found.cells]


def test_cells_are_the_fits_and_the_best_has_the_lowest_held_out_nll(whole):
    found = whole
    assert [(cell["network"], cell["tau"]) for cell in found.cells] == [
        ("narrow", 1e-3), ("narrow", 1e2), ("wide", 1e-3), ("wide", 1e2),
    ]  # fmt: skip
    x, y = regression(60)
    by_hand = fit(
        MODELS["wide"], (x[:40], y[:40]), Gaussian(0.3), temperature=Balanced(1e-3), epochs=6, batch_size=8, draws=10,
        method=BayesByBackprop(0.02), progress=False,
    )  # fmt: skip
    cell = found.cells[2]
    assert cell["nll"] == held_out(by_hand, (x[40:], y[40:]))["nll"]
    assert cell["eta"] == by_hand.heat.eta == 1e-3 * 40 / 7
    assert cell["divergence_per_unit"] == by_hand.divergence / 7
    assert found.best("narrow") == found.best("wide") == 1e-3
    with pytest.raises(ValueError, match=r"several networks were tried: choose one of \['narrow', 'wide'\]"):
        found.best()


def falling(done):
    return 1 - done


def test_a_sweep_with_a_schedule_is_read_back_in_another_process(tmp_path):
    """The words for a function must not hold its address, and a cell whose score was no number is none to choose."""
    path = tmp_path / "sweep.jsonl"
    first = sweep(results=path, schedule=falling)
    cells = [json.loads(line) for line in path.read_text().splitlines()]
    assert cells[0]["settings"]["schedule"] == f"{__name__}.falling"
    cells[0]["nll"] = None
    path.write_text("".join(json.dumps(cell) + "\n" for cell in cells))
    found = sweep(results=path, schedule=falling)
    assert numbers(found)[1:] == numbers(first)[1:]
    assert found.best("narrow") == 1e2


def test_several_processes_give_the_same_cells(whole):
    torch_threads = torch.get_num_threads()
    assert numbers(sweep(processes=2)) == numbers(whole)
    assert torch.get_num_threads() == torch_threads


def test_a_killed_sweep_goes_on_where_it_stopped(tmp_path, whole):
    class Killed(Exception):
        pass

    def kill(phase):
        if phase.startswith("3 of 4"):
            raise Killed

    path = tmp_path / "deep" / "sweep.jsonl"
    with pytest.raises(Killed):
        sweep(results=path, progress=kill)
    lines = path.read_text().splitlines()
    assert len(lines) == 3
    marked = [json.loads(line) for line in lines]
    marked[0]["nll"] = -123.0  # a finished cell is kept as it is
    path.write_text("".join(json.dumps(cell) + "\n" for cell in marked[:2]) + lines[2][:30])
    shown = []
    found = sweep(results=path, progress=shown.append)
    assert shown[0].startswith("3 of 4 fits, wide τ = 0.001")
    assert found.cells[0]["nll"] == -123.0
    assert numbers(found)[1:] == numbers(whole)[1:]
    assert [json.loads(line)["tau"] for line in path.read_text().splitlines()] == [1e-3, 1e2, 1e-3, 1e2]
    with pytest.raises(ValueError, match="holds fits with other settings"):
        sweep(results=path, epochs=7)


def test_a_fit_that_diverges_is_recorded_and_the_rest_goes_on(tmp_path):
    broken = mlp(3, 6)
    broken[0].weight.data[:] = 1e200
    broken[2].weight.data[:] = 1e200
    path = tmp_path / "sweep.jsonl"
    found = sweep(models={"broken": broken, "narrow": MODELS["narrow"]}, results=path)
    assert all("at step 1, in epoch 1" in cell["failed"] for cell in found.cells[:2])
    assert found.best("narrow") == 1e-3
    with pytest.raises(ValueError, match="no fit of broken ended well"):
        found.best("broken")


@pytest.mark.parametrize(("change", "message"), [
    ({"taus": (0.1, 0.0)}, "tau is 0.0, expected a positive number"),
    ({"taus": ()}, "2 networks, 0 taus and 1 processes: expected some of each"),
    ({"processes": 0}, "0 processes: expected some of each"),
])  # fmt: skip
def test_bad_input_is_refused_before_any_work(change, message):
    with pytest.raises(ValueError, match=message):
        sweep(**change)
