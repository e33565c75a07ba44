"""Lightning's callback: the posterior is that of `fit`, and it is saved beside the checkpoints."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

lightning = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed: `make integrations` does it")
pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's own advice on workers and loggers

import lapwing as lw  # noqa: E402

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(90, 4, generator=GENERATOR)
Y = (X[:, 0] + 0.5 * torch.randn(90, generator=GENERATOR) > 0).long() + (X[:, 1] > 0.7).long()


@pytest.fixture(autouse=True)
def same_start():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(0.1), nn.Linear(6, 3))

    def forward(self, x):
        return self.network(x)

    def training_step(self, batch, _):
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch, _):
        self.log("loss", nn.functional.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def loader(places, **options):
    return DataLoader(TensorDataset(X[places], Y[places]), batch_size=16, **options)


def trained(folder, callback, train=None, validation=None, module=None):
    module = module or Module()
    trainer = lightning.Trainer(
        max_epochs=3, callbacks=[callback], default_root_dir=folder, logger=False, accelerator="cpu",
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, loader(slice(60), shuffle=True, drop_last=True) if train is None else train, validation)
    return module, trainer


def test_the_posterior_is_that_of_fit(tmp_path):
    callback = lw.lightning.PosteriorCallback(lw.Categorical(), network=lambda module: module.network)
    module, _ = trained(tmp_path, callback)
    assert module.training
    wanted = lw.fit(module.network.eval(), (X[:60], Y[:60]), lw.Categorical())  # all of them: drop_last does not count
    torch.testing.assert_close(callback.posterior.predict(X[60:]).probs, wanted.predict(X[60:]).probs)


def test_validation_data_are_used_and_the_file_is_where_checkpoints_are(tmp_path):
    callback = lw.lightning.PosteriorCallback(lw.Categorical())
    module, trainer = trained(tmp_path, callback, validation=loader(slice(60, 90)))
    assert callback.posterior.diagnostics.tuned_by == "held-out density"
    assert callback.posterior.diagnostics.validation_size == 30
    path = f"{trainer.checkpoint_callback.dirpath}/posterior.safetensors"
    assert callback.saved == path
    again = lw.load(path, module.eval())
    assert torch.equal(again.predict(X[60:]).probs, callback.posterior.predict(X[60:]).probs)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    state = torch.load(tmp_path / "last.ckpt", weights_only=True)["callbacks"][callback.state_key]
    fresh = lw.lightning.PosteriorCallback(lw.Categorical())
    fresh.load_state_dict(state)
    assert fresh.saved == path


def test_options_and_path_are_those_given(tmp_path):
    callback = lw.lightning.PosteriorCallback(
        lw.Categorical(), path=tmp_path / "here.safetensors", options={"method": lw.KFAC(), "draws": 5}
    )
    trained(tmp_path, callback)
    assert callback.posterior.diagnostics.method.startswith("KFAC")
    assert len(callback.posterior.draws) == 5
    assert (tmp_path / "here.safetensors").is_file()


class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(X[:32], Y[:32], strict=True))


def test_bad_input_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"expected a value, such as lw.Categorical\(\)"):
        lw.lightning.PosteriorCallback("categorical")
    with pytest.raises(ValueError, match="network= returned a str"):
        trained(tmp_path, lw.lightning.PosteriorCallback(lw.Categorical(), network=lambda _: "network"))
    with pytest.raises(ValueError, match="training data are an IterableDataset"):
        trained(tmp_path, lw.lightning.PosteriorCallback(lw.Categorical()), train=DataLoader(Stream(), batch_size=16))
    both = {"a": loader(slice(60)), "b": loader(slice(60))}
    callback = lw.lightning.PosteriorCallback(lw.Categorical())
    with pytest.raises(ValueError, match="training data are a .*, expected one DataLoader"):
        trained(tmp_path, callback, train=both, module=Both())


class Both(Module):
    def training_step(self, batch, number):
        return super().training_step(batch["a"], number)
