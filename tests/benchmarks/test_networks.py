"""The networks of the bench: forms, seeds, and the accuracy of the trained one where its files are there."""

import pytest
import torch
from torch import nn

from benchmarks import data, networks
from lapwing import metrics

PICTURES = {
    "mlp": (lambda seed=0: networks.mlp([48, 9, 5], seed=seed), (3, 3, 4, 4)),
    "lenet": (lambda seed=0: networks.lenet(5, channels=2, size=16, seed=seed), (3, 2, 16, 16)),
    "batchnorm_cnn": (lambda seed=0: networks.batchnorm_cnn(5, channels=2, width=4, seed=seed), (3, 2, 7, 9)),
    "transformer": (lambda seed=0: networks.transformer(5, channels=2, size=12, patch=4, seed=seed), (3, 2, 12, 12)),
    "small batchnorm resnet": (lambda seed=0: networks.small_resnet("batchnorm", 5, width=4, seed=seed), (3, 1, 8, 10)),
    "small pre-activation resnet": (
        lambda seed=0: networks.small_resnet("pre-activation", 5, channels=2, width=4, seed=seed),
        (3, 2, 8, 10),
    ),
    "resnet20": (lambda seed=0: networks.resnet20(5, seed=seed), (3, 3, 16, 16)),
    "resnet18": (lambda seed=0: networks.resnet18(5, width=4, seed=seed), (3, 3, 16, 16)),
    "resnet50": (lambda seed=0: networks.resnet50(5, width=4, seed=seed), (3, 3, 16, 16)),
}


def flat(network: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in network.parameters()])


@pytest.mark.parametrize("name", PICTURES)
class TestEveryNetwork:
    def test_gives_finite_outputs_that_do_not_depend_on_batch_mates(self, name):
        make, shape = PICTURES[name]
        network = make().double().eval()
        x = torch.rand(*shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        outputs = network(x)
        assert outputs.shape == (3, 5)
        torch.testing.assert_close(network(x[1:2]), outputs[1:2])
        assert bool((outputs[0] != outputs[1]).all())

    def test_weights_follow_the_seed(self, name):
        make, _ = PICTURES[name]
        assert torch.equal(flat(make(seed=4)), flat(make(seed=4)))
        assert not torch.equal(flat(make(seed=4)), flat(make(seed=5)))

    def test_forward_and_reverse_mode_agree(self, name):
        make, shape = PICTURES[name]
        network = make().double().eval()
        generator = torch.Generator().manual_seed(2)
        x = torch.rand(*shape, generator=generator, dtype=torch.float64)
        weights = {k: v.detach() for k, v in network.named_parameters()}
        tangents = {k: torch.randn(v.shape, generator=generator, dtype=v.dtype) for k, v in weights.items()}

        def outputs(values):
            return torch.func.functional_call(network, values, (x,))

        _, forward = torch.func.jvp(outputs, (weights,), (tangents,))
        out, pull = torch.func.vjp(outputs, weights)
        cotangent = torch.randn(out.shape, generator=generator, dtype=out.dtype)
        (reverse,) = pull(cotangent)
        expected = sum((reverse[k] * tangents[k]).sum() for k in weights)
        torch.testing.assert_close((forward * cotangent).sum(), expected)


class TestFixup:
    def test_starts_as_nothing_and_every_weight_counts_once_it_has_moved(self):
        network, generator = networks.small_resnet("fixup", 5, width=4).double(), torch.Generator().manual_seed(0)
        x = torch.rand(3, 1, 8, 10, generator=generator, dtype=torch.float64)
        assert not bool(network(x).any())  # the head is zero
        with torch.no_grad():
            for weight in network.parameters():
                weight.add_(0.3 * torch.randn(weight.shape, generator=generator, dtype=weight.dtype))
        network(x).square().sum().backward()
        assert all(bool(weight.grad.any()) for weight in network.parameters())

    def test_an_unknown_kind_lists_those_there_are(self):
        with pytest.raises(ValueError, match="there are batchnorm, pre-activation, fixup"):
            networks.small_resnet("layernorm")


def test_sizes():
    # counted by hand, layer by layer: weights and biases
    lenet = (25 * 6 + 6) + (6 * 25 * 16 + 16) + (16 * 25 * 120 + 120) + (120 * 84 + 84) + (84 * 10 + 10)
    assert len(flat(networks.lenet())) == lenet
    attention = (2 * 2 * 64) + (64 * 192 + 192) + (64 * 64 + 64) + (64 * 128 + 128) + (128 * 64 + 64)
    transformer = (49 * 64 + 64) + 16 * 64 + 2 * attention + 2 * 64 + (64 * 10 + 10)
    assert len(flat(networks.transformer())) == transformer
    assert len(flat(networks.resnet20())) == 269_722


def convolutions(*shapes: tuple[int, int, int]) -> int:
    """Weights of convolutions (inputs, outputs, side) without biases, each with a BatchNorm."""
    return sum(inputs * outputs * side**2 + 2 * outputs for inputs, outputs, side in shapes)


def test_sizes_of_large_networks():
    """By hand: 11.2 and 23.5 million for CIFAR-10."""
    small = convolutions((3, 64, 3), *[(64, 64, 3)] * 4)
    for width in (128, 256, 512):
        small += convolutions((width // 2, width, 3), *[(width, width, 3)] * 3, (width // 2, width, 1))
    assert len(flat(networks.resnet18())) == small + 512 * 10 + 10 == 11_173_962
    large, inputs = convolutions((3, 64, 3)), 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        large += convolutions((inputs, 4 * width, 1))
        for _ in range(blocks):
            large += convolutions((inputs, width, 1), (width, width, 3), (width, 4 * width, 1))
            inputs = 4 * width
    assert len(flat(networks.resnet50())) == large + 2048 * 10 + 10 == 23_520_842


def test_attention_is_torchs():
    width, heads = 12, 3
    block = networks.seeded(lambda: networks.Attention(width, heads), 3).double()
    reference = nn.MultiheadAttention(width, heads, batch_first=True, dtype=torch.float64, bias=True, device="meta")
    reference = reference.to_empty(device="cpu")
    with torch.no_grad():
        reference.in_proj_weight.copy_(block.qkv.weight)
        reference.in_proj_bias.copy_(block.qkv.bias)
        reference.out_proj.weight.copy_(block.out.weight)
        reference.out_proj.bias.copy_(block.out.bias)
    x = torch.rand(2, 5, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected, _ = reference(x, x, x)
    torch.testing.assert_close(block.out(block.mix(block.qkv(x))), expected)


def test_shortcuts_take_every_second_pixel_and_add_empty_channels():
    block = networks.resnet20().layer2[0].double().eval()
    with torch.no_grad():
        block.bn2.weight.zero_()  # the inner branch gives 0
    x = torch.rand(2, 16, 6, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    out = block(x).detach()
    assert out.shape == (2, 32, 3, 5)
    torch.testing.assert_close(out[:, 8:24], x[:, :, ::2, ::2])
    assert float(out[:, :8].abs().max() + out[:, 24:].abs().max()) == 0.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: networks.mlp([3]), r"not \[3\]"),
        (lambda: networks.lenet(size=8), "12 × 12 at least"),
        (lambda: networks.transformer(size=28, patch=5), "patches of 5 × 5"),
        (lambda: networks.Attention(10, 4), "4 heads"),
    ],
)
def test_bad_sizes_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


class TestCheckpoint:
    @pytest.fixture
    def folder(self, tmp_path, monkeypatch):
        monkeypatch.setenv("LAPWING_DATA", str(tmp_path))
        (tmp_path / "checkpoints").mkdir()
        return tmp_path

    def test_round_trip(self, folder):
        network = networks.resnet20(seed=8)
        state = {k: v for k, v in network.state_dict().items() if "num_batches" not in k}  # as the published one has it
        assert len(state) == 97
        torch.save(state, folder / networks.CHECKPOINT)
        loaded = networks.trained_resnet20()
        assert torch.equal(flat(loaded), flat(network))
        assert not loaded.training

    def test_missing(self, folder):
        with pytest.raises(FileNotFoundError, match="trained ResNet-20 is not there.*akamaster"):
            networks.trained_resnet20()

    def test_more_than_tensors(self, folder):
        torch.save(nn.Flatten(), folder / networks.CHECKPOINT)
        with pytest.raises(ValueError, match="damaged or holds more than tensors"):
            networks.trained_resnet20()
        (folder / networks.CHECKPOINT).write_bytes(b"nonsense")
        with pytest.raises(ValueError, match="damaged"):
            networks.trained_resnet20()


@pytest.mark.slow
def test_the_trained_network_on_exact_pictures():
    """91.5 % on the first 1,000 test pictures, as confident as networks trained to interpolate are."""
    try:
        network, (x, y) = networks.trained_resnet20(), data.cifar10(train=0, test=1000).test
    except FileNotFoundError as error:
        pytest.skip(str(error))
    with torch.no_grad():
        logits = torch.cat([network(part) for part in x.split(250)])
    probs = logits.softmax(-1)
    assert metrics.accuracy(probs, y) == pytest.approx(0.915, abs=1e-9)
    assert metrics.nll(logits, y, logits=True) == pytest.approx(0.384, abs=5e-4)
    assert metrics.confidence(probs) == pytest.approx(0.971, abs=5e-4)
