"""The weights of LoRA adapters by PEFT's names, what is refused, and the free scale between A and B."""

import pytest
import torch
from torch import nn

import lapwing as lw


class Adapted(nn.Module):
    """A linear layer with adapters, named and used as PEFT does it."""

    def __init__(self, inputs: int, outputs: int, adapters: tuple[str, ...] = ("default",)) -> None:
        super().__init__()
        self.base_layer = nn.Linear(inputs, outputs).requires_grad_(False)
        self.lora_A = nn.ModuleDict({name: nn.Linear(inputs, 2, bias=False) for name in adapters})
        self.lora_B = nn.ModuleDict({name: nn.Linear(2, outputs, bias=False) for name in adapters})
        self.active_adapters, self.merged_adapters, self.disable_adapters = [adapters[0]], [], False

    def forward(self, x):
        (name,) = self.active_adapters
        return self.base_layer(x) + self.lora_B[name](self.lora_A[name](x))


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.modules_to_save = nn.ModuleDict({"default": nn.Linear(3, 2)})

    def forward(self, x):
        return self.modules_to_save["default"](x)


def adapted(*adapters: str) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(Adapted(4, 3, adapters or ("default",)), nn.Tanh(), Head()).double().eval()


def chosen(model, select):
    return [name for name, _ in model.named_parameters() if select(name)]


def test_matrices_and_head_are_chosen():
    model = adapted()
    low = ["0.lora_A.default.weight", "0.lora_B.default.weight"]
    assert chosen(model, lw.lora(model)) == [*low, "2.modules_to_save.default.weight", "2.modules_to_save.default.bias"]
    assert chosen(model, lw.lora(model, head=False)) == low


def test_one_of_several_adapters_is_chosen_by_name():
    model = adapted("default", "other")
    assert chosen(model, lw.lora(model, "default", head=False))[0] == "0.lora_A.default.weight"
    with pytest.raises(ValueError, match=r"has the adapters \['default', 'other'\]: say which"):
        lw.lora(model)
    with pytest.raises(ValueError, match=r"no adapter 'third', only \['default', 'other'\]"):
        lw.lora(model, "third")
    with pytest.raises(ValueError, match=r"'other' is not active in 0: call set_adapter\('other'\)"):
        lw.lora(model, "other")


def test_what_the_outputs_do_not_depend_on_is_refused():
    model = adapted()
    model[0].merged_adapters = ["default"]
    with pytest.raises(ValueError, match=r"merged into 0, whose outputs then ignore it: call unmerge_adapter"):
        lw.lora(model)
    model[0].merged_adapters, model[0].disable_adapters = [], True
    with pytest.raises(ValueError, match=r"not active in 0"):
        lw.lora(model)


def test_networks_without_adapters_and_frozen_ones_are_refused():
    with torch.random.fork_rng():
        plain = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"Linear has no LoRA adapter: .*before merge_and_unload"):
        lw.lora(plain)
    with pytest.raises(ValueError, match=r"4 of 4 weights of the adapter take no gradients.*is_trainable=True"):
        lw.lora(adapted().requires_grad_(False))
    with pytest.raises(ValueError, match=r"expected the network, as in select=lora\(model\)"):
        lw.lora("default")


def test_quantised_weights_are_refused():
    model = adapted()
    values = torch.zeros(3, 4, dtype=torch.int8)
    model[0].base_layer.weight = nn.Parameter(values, requires_grad=False)
    with pytest.raises(ValueError, match=r"0.base_layer \(Linear\) holds torch.int8 are quantised"):
        lw.lora(model)


def test_models_that_generate_are_refused():
    class Generates(nn.Linear):
        def can_generate(self):
            return True

    with torch.random.fork_rng():
        model = Generates(3, 2).eval()
    with pytest.raises(ValueError, match=r"Generates generates text"):
        lw.fit(model, (torch.zeros(4, 3), torch.zeros(4).long()), lw.Categorical())


def at_scales(**options):
    """Predictions of the same network with (A, B) and with (8 A, B / 8)."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(31, 4, generator=generator, dtype=torch.float64)
    y = (x[:, 0] + 0.3 * torch.randn(31, generator=generator, dtype=torch.float64) > 0).long()
    for scale in (1.0, 8.0):
        model = adapted()
        with torch.no_grad():
            model[0].lora_A["default"].weight.mul_(scale)
            model[0].lora_B["default"].weight.div_(scale)
        yield lw.fit(model, (x, y), lw.Categorical(), select=lw.lora(model), **options).predict(x)


@pytest.mark.parametrize("method", [lw.Exact(), lw.KFAC()], ids=["exact", "KFAC"])
def test_the_scale_between_the_two_matrices_changes_nothing(method):
    """Under the g-prior, to the end of two searches."""
    one, other = at_scales(method=method)
    torch.testing.assert_close(one.probs, other.probs, rtol=0, atol=1e-4)
    torch.testing.assert_close(one.epistemic_variance, other.epistemic_variance, rtol=1e-3, atol=1e-8)


def test_one_precision_for_all_weights_sees_that_scale():
    one, other = at_scales(prior=lw.Isotropic(1.0), method=lw.Exact())
    assert float((one.epistemic_variance / other.epistemic_variance).log().abs().max()) > 0.1
