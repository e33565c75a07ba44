"""Several networks as one posterior: of different architectures, from files, within a budget, with folders of their own."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import lapwing as lw
from lapwing.bayes.posterior.alternatives import ScaledNetwork


def normals(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()


def networks() -> list[nn.Module]:
    """Three architectures from three inputs to two outputs."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = [
            nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)),
            nn.Sequential(nn.Linear(3, 5), nn.SiLU(), nn.BatchNorm1d(5), nn.Linear(5, 2)),
            nn.Linear(3, 2),
        ]
    return [model.double().eval() for model in made]


def data() -> tuple[torch.Tensor, torch.Tensor]:
    x = normals(17, 3, seed=1)
    return x, torch.stack([x[:, 0] - x[:, 2], x[:, 1].sin()], 1) + 0.1 * normals(17, 2, seed=2)


OPTIONS = {"draws": 5, "progress": False, "seed": 3}


def test_the_mixture_is_that_of_the_single_fits():
    models, at = networks(), normals(6, 3, seed=4)
    found = lw.fit(models, data(), lw.Gaussian(), **OPTIONS)
    alone = [lw.fit(model, data(), lw.Gaussian(), **{**OPTIONS, "seed": 3 + k}) for k, model in enumerate(models)]
    assert isinstance(found, lw.Mixture)
    assert torch.equal(found.functions(at), torch.cat([one.functions(at) for one in alone]))
    y = normals(6, 2, seed=5)
    expected = torch.stack([one.predict(at).log_prob(y).exp() for one in alone]).mean(0).log()
    torch.testing.assert_close(found.predict(at).log_prob(y), expected)
    assert isinstance(found.predict(at), lw.Prediction)
    assert "Mixture of 3 posteriors over 8 to 42 weights each" in repr(found)
    assert found.diagnostics.seconds > 0


def test_an_empty_list_is_refused():
    with pytest.raises(ValueError, match="an empty list of networks"):
        lw.fit([], data(), lw.Gaussian())


def test_phases_say_which_network_and_memory_is_shared(monkeypatch, tmp_path):
    told, given = [], []
    import lapwing.facade as facade

    real = facade.infer
    monkeypatch.setattr(
        facade, "infer", lambda *a, **k: given.append((k["max_memory"], k["checkpoint"])) or real(*a, **k)
    )
    lw.fit(networks(), data(), lw.Gaussian(0.1), max_memory="3GB", checkpoint=tmp_path, draws=2, progress=told.append)
    assert [memory for memory, _ in given] == [1e9] * 3
    assert [folder.name for _, folder in given] == ["network-0", "network-1", "network-2"]
    assert all(phase == "" or phase.startswith("network ") for phase in told)


class TestFiles:
    @pytest.fixture
    def saved(self, tmp_path):
        models, found = networks(), lw.fit(networks(), data(), lw.Gaussian(), **OPTIONS)
        return models, found, found.save(tmp_path / "mixture.safetensors")

    def test_what_is_loaded_predicts_the_same(self, saved):
        models, found, path = saved
        again, at = lw.load(path, models), normals(6, 3, seed=4)
        torch.testing.assert_close(again.functions(at), found.functions(at), rtol=1e-12, atol=1e-13)
        for name in ("mean", "variance", "between_variance", "novelty"):
            torch.testing.assert_close(getattr(again.predict(at), name), getattr(found.predict(at), name))
        more = normals(4, 3, seed=8), normals(4, 2, seed=9)
        torch.testing.assert_close(
            again.update(more).functions(at), found.update(more).functions(at), rtol=1e-8, atol=1e-8
        )

    def test_a_choice_on_held_out_data_is_kept(self, saved, tmp_path):
        models, found, _ = saved
        told = replace(found.diagnostics, candidate="networks averaged", candidates={"networks averaged": -0.5})
        members = tuple(replace(member, alternative=ScaledNetwork(1.5)) for member in found.members)
        chosen = replace(found, members=members, diagnostics=told)
        again = lw.load(chosen.save(tmp_path / "chosen.safetensors"), models)
        assert [member.alternative for member in again.members] == 3 * [ScaledNetwork(1.5)]
        assert again.diagnostics.candidates == {"networks averaged": -0.5}

    def test_each_network_is_checked(self, saved, tmp_path):
        models, _, path = saved
        with pytest.raises(ValueError, match="a mixture of 3, and one network given"):
            lw.load(path, models[0])
        with pytest.raises(ValueError, match="a mixture of 3, and 2 networks given"):
            lw.load(path, models[:2])
        with pytest.raises(ValueError, match="network 0 of the list: saved from another network"):
            lw.load(path, models[::-1])
        with pytest.raises(ValueError, match=r"network 0 of the list: saved from a network: pass that network too"):
            lw.load(path)
        alone = lw.fit(models[0], data(), lw.Gaussian(), **OPTIONS).save(tmp_path / "one.safetensors")
        with pytest.raises(ValueError, match="saved from one posterior, and a list of 1 given"):
            lw.load(alone, models[:1])

    def test_damage_is_noticed(self, saved):
        models, _, path = saved
        content = bytearray(path.read_bytes())
        content[-20] ^= 0x40
        path.write_bytes(content)
        with pytest.raises(ValueError, match="damaged"):
            lw.load(path, models)
