"""Hugging Face's models, Trainer and PEFT as they are, from configurations: nothing is downloaded."""

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed: `make integrations` does it")
pytest.importorskip("peft", reason="peft is not installed: `make integrations` does it")

from peft import LoraConfig, get_peft_model
from torch.func import functional_call, jacrev
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
)

import lapwing as lw

pytestmark = pytest.mark.filterwarnings("ignore")  # of these libraries about each other
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
SETTINGS = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "num_train_epochs": 1}


@pytest.fixture(autouse=True)
def _own_random_state():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def texts(count: int, length: int = 9) -> dict[str, torch.Tensor]:
    mask = (torch.arange(length) < torch.randint(3, length + 1, (count, 1))).long()
    return {"input_ids": torch.randint(5, 50, (count, length)) * mask, "attention_mask": mask}


def configuration(labels: int = 3) -> BertConfig:
    return BertConfig(vocab_size=50, max_position_embeddings=12, num_labels=labels, **SIZES)


def adapted(labels: int = 3, kind=BertForSequenceClassification, task: str = "SEQ_CLS"):
    model = get_peft_model(
        kind(configuration(labels)), LoraConfig(task_type=task, r=2, target_modules=["query", "value"])
    )
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:  # zero at first, where A has no effect
                weight.normal_(0, 0.3)
    return model.eval()


def jacobian(model, names, inputs):  # (rows, weights)
    """Of all logits, by reverse mode through the model as it is called."""
    weights = {name: weight.detach() for name, weight in model.named_parameters()}

    def logits(chosen):
        return functional_call(model, {**weights, **chosen}, (), inputs).logits.flatten()

    parts = jacrev(logits)({name: weights[name] for name in names})
    return torch.cat([parts[name].flatten(1) for name in names], dim=1).double()


@pytest.mark.parametrize("head", [True, False])
def test_lora_variances_are_those_of_the_dense_posterior(head):
    """J (α + JᵀBJ)⁻¹ Jᵀ at the network's own outputs, from the Jacobian by another way; in single precision."""
    model, x, new = adapted(), texts(13), texts(4)
    y = torch.randint(0, 3, (13,))
    select = lw.lora(model, head=head)
    options = {"prior": lw.Isotropic(3.0), "method": lw.Exact(), "curvature": "network"}
    found = lw.fit(model, (x, y), lw.Categorical(), select=select, **options).predict(new)
    names = [name for name, _ in model.named_parameters() if select(name)]
    assert all("lora_" in name or "modules_to_save.default" in name for name in names)
    J, at = jacobian(model, names, x), jacobian(model, names, new)
    p = model(**x).logits.detach().double().softmax(1)
    B = torch.block_diag(*(torch.diag_embed(p) - p[:, :, None] * p[:, None, :]))
    covariance = torch.linalg.inv(3.0 * torch.eye(J.shape[1]).double() + J.T @ B @ J)
    expected = (at @ covariance @ at.T).diagonal().reshape(4, 3)
    torch.testing.assert_close(found.epistemic_variance.double(), expected, rtol=2e-3, atol=1e-6)


def test_padding_changes_nothing():
    """The same texts with more padding, which attention leaves out; to the round-off of single precision."""
    model, x, y = adapted(), texts(20), torch.randint(0, 3, (20,))
    longer = {name: torch.nn.functional.pad(values, (0, 2)) for name, values in x.items()}
    posterior = lw.fit(model, (x, y), lw.Categorical(), select=lw.lora(model), method=lw.KFAC())
    torch.testing.assert_close(posterior.predict(longer).probs, posterior.predict(x).probs, rtol=0, atol=1e-4)


def test_batches_of_several_lengths_are_read():
    model = adapted()
    batches = [{**texts(5, length), "labels": torch.randint(0, 3, (5,))} for length in (6, 9, 7)]
    posterior = lw.fit(model, batches, lw.Categorical(), select=lw.lora(model))
    assert posterior.predict(texts(4, 8)).probs.shape == (4, 3)


@pytest.mark.parametrize("peft", [False, True], ids=["head", "LoRA"])
def test_tokens_that_do_not_count_have_no_part(peft):
    """Labels of −100 may as well be given the weight zero by a mask, whatever they hold."""
    kind = BertForTokenClassification
    model = adapted(kind=kind, task="TOKEN_CLS") if peft else kind(configuration()).eval()
    select = lw.lora(model) if peft else lw.last_layer(model)
    x = texts(11)
    labels = torch.randint(0, 3, (11, 9))
    ignored = torch.where(x["attention_mask"] == 1, labels, -100)
    masked = lw.DataSpec([{"x": x, "y": labels, "mask": x["attention_mask"]}], inputs="x", targets="y", mask="mask")
    options = {"select": select, "prior": lw.Isotropic(2.0), "method": lw.KFAC()}
    one, other = (lw.fit(model, data, lw.Categorical(), **options) for data in ((x, ignored), masked))
    new = texts(3)
    assert one.predict(new).probs.shape == (3, 9, 3)
    torch.testing.assert_close(one.predict(new).probs, other.predict(new).probs, rtol=0, atol=1e-5)


def test_rewards_of_pairs():
    model = lw.Pairs(adapted(labels=1))
    first, second = texts(15), texts(15)
    posterior = lw.fit(model, ((first, second), torch.zeros(15).long()), lw.BradleyTerry(), select=lw.lora(model))
    probs = posterior.predict((first, second)).probs
    swapped = posterior.predict((second, first)).probs
    torch.testing.assert_close(probs, swapped.flip(1), rtol=0, atol=0.02)  # by draws, where the link needs some


def trained(folder, callback, **settings):
    model = get_peft_model(
        BertForSequenceClassification(configuration()), LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query"])
    )
    x = texts(30)
    rows = [{**{name: values[row] for name, values in x.items()}, "labels": row % 3} for row in range(30)]
    arguments = TrainingArguments(str(folder), **SETTINGS, **settings)
    trainer = Trainer(model, arguments, train_dataset=rows[:22], eval_dataset=rows[22:], callbacks=[callback])
    trainer.train()
    return model, x


class TestCallback:
    def test_fits_at_the_end_and_saves_beside_the_checkpoint(self, tmp_path):
        callback = lw.huggingface.PosteriorCallback(select=lw.lora)
        settings = {"save_strategy": "epoch", "per_device_train_batch_size": 8, "dataloader_drop_last": True}
        model, x = trained(tmp_path, callback, **settings)
        assert callback.path == tmp_path / "checkpoint-2" / "posterior.safetensors"
        assert (callback.path.parent / "adapter_model.safetensors").exists()
        assert model.training  # as Trainer left it
        assert callback.posterior.model.features.shape[0] == 22 * 3  # none dropped
        again = lw.load(callback.path, model.eval())
        torch.testing.assert_close(again.predict(x).probs, callback.posterior.predict(x).probs, rtol=0, atol=1e-6)

    def test_saves_beside_the_output_where_there_is_no_checkpoint(self, tmp_path):
        callback = lw.huggingface.PosteriorCallback(select=lw.lora, validation=False)
        trained(tmp_path, callback, save_strategy="no")
        assert callback.path == tmp_path / "posterior.safetensors"

    def test_wants_a_trainer(self):
        with pytest.raises(ValueError, match="give it to Trainer"):
            lw.huggingface.PosteriorCallback().on_train_end(None, None, None)


class TestRefused:
    def test_merged_unknown_and_inactive_adapters(self):
        model = adapted()
        model.merge_adapter()
        with pytest.raises(ValueError, match="unmerge_adapter"):
            lw.lora(model)
        model.unmerge_adapter()
        model.add_adapter("other", LoraConfig(task_type="SEQ_CLS", r=2, target_modules=["query"]))
        with pytest.raises(ValueError, match="say which is meant"):
            lw.lora(model)
        with pytest.raises(ValueError, match="no adapter 'third'"):
            lw.lora(model, "third")
        with pytest.raises(ValueError, match=r"set_adapter\('other'\)"):
            lw.lora(model, "other")
        with model.disable_adapter(), pytest.raises(ValueError, match="enable_adapter_layers"):
            lw.lora(model, "default")
        with pytest.raises(ValueError, match="before merge_and_unload"):
            lw.lora(adapted().merge_and_unload())

    def test_quantised_weights(self):
        model = torch.ao.quantization.quantize_dynamic(adapted(), {torch.nn.Linear})
        with pytest.raises(ValueError, match="are quantised"):
            lw.lora(model)

    def test_inputs_and_labels_of_other_shapes_and_dtypes(self):
        model, x, y = adapted(), texts(13), torch.randint(0, 3, (13,))
        select = lw.lora(model)
        wrong = {
            "13 inputs and 5 targets": (x, y[:5]),
            r"targets of shape \(13, 4\) do not fit outputs": (x, y[:, None].expand(13, 4)),
            "do not agree in their number of data": ({**x, "attention_mask": x["attention_mask"][:7]}, y),
            r"does not take inputs of shape \{input_ids: Tensor \(13, 30\)": (texts(13, 30), y),
            "does not take inputs.*scalar types": ({**x, "input_ids": x["input_ids"].float()}, y),
            "does not take inputs.*out of range": ({**x, "input_ids": x["input_ids"] + 900}, y),
        }
        for message, data in wrong.items():
            with pytest.raises(ValueError, match=message):
                lw.fit(model, data, lw.Categorical(), select=select)
        posterior = lw.fit(model, (x, y), lw.Categorical(), select=select, method=lw.KFAC())
        with pytest.raises(ValueError, match="expected {input_ids.*as in the data that it was fitted with"):
            posterior.predict({"attention_mask": x["attention_mask"]})

    def test_models_that_generate(self):
        small = GPT2Config(vocab_size=50, n_positions=12, n_embd=16, n_layer=1, n_head=2, pad_token_id=0, num_labels=3)
        x, y = texts(6), torch.randint(0, 50, (6, 9))
        model = get_peft_model(
            GPT2LMHeadModel(small), LoraConfig(task_type="CAUSAL_LM", target_modules=["c_attn"])
        ).eval()
        with pytest.raises(ValueError, match="generates text"):
            lw.fit(model, (x, y), lw.Categorical(), select=lw.lora(model))
        classifier = GPT2ForSequenceClassification(small).eval()  # of the same family, and taken
        lw.fit(classifier, (x, y[:, 0] % 3), lw.Categorical(), select=lw.last_layer(classifier))

    def test_a_missing_library_is_named(self, monkeypatch):
        import sys

        monkeypatch.setitem(sys.modules, "transformers", None)
        monkeypatch.delitem(sys.modules, "lapwing.integrations.huggingface", raising=False)
        with pytest.raises(ImportError, match=r"lapwing\[hf\]"):
            _ = lw.huggingface
