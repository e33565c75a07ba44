# %% [markdown]
# # What priors believe
# Before a scan has been looked at, a prior already says what images are like. Total variation makes patches with edges,
# and is not Gaussian: flat images are its mode, not its samples. TV-PredCP stands in for it, a Gaussian process whose
# lengthscale makes the expected total variation small. Independent pixels are noise. A linearised network makes images
# like its own.

# %%
import matplotlib as mpl

mpl.use("Agg")
import torch
from matplotlib import pyplot as plt

from lapwing.studies import tomography as ct

SIZE, DRAWS = 20, 4
truth = ct.read_image("shepp-logan", size=SIZE)
scan = ct.simulate(truth, ct.projector(ct.ParallelBeam.spread(angles=8, size=SIZE), SIZE), noise=0.05)
found = ct.deep_image_prior(scan, ct.Settings((8, 8, 8), steps=300, learning_rate=3e-3), progress=False)
linear = ct.linearise(found)

# %% [markdown]
# The filters of the network have the variances under which its own are typical. The first three have no scan in them.

# %%
typical = ct.FilterPrior.typical(linear.blocks, linear.weights)
rows = {
    "total variation": ct.tv_samples(SIZE, 20.0, draws=DRAWS),
    "TV-PredCP": ct.predcp_samples(SIZE, 0.02, draws=DRAWS),
    "independent": torch.randn(DRAWS, SIZE, SIZE, generator=torch.Generator().manual_seed(0)),
    "network": ct.filter_samples(linear, typical, draws=DRAWS),
}
for name, images in rows.items():
    roughness = [float(ct.total_variation(image) / image.std()) / SIZE**2 for image in images]
    print(f"{name}: total variation per pixel and standard deviation {sum(roughness) / DRAWS:.2f}")

# %%
figure, panels = plt.subplots(len(rows), DRAWS, figsize=(1.7 * DRAWS, 1.75 * len(rows)), layout="constrained")
for axes, (name, images) in zip(panels, rows.items(), strict=True):
    for panel, image in zip(axes, images, strict=True):
        panel.imshow(image.numpy(), cmap="gray")
        panel.set(xticks=[], yticks=[])
    axes[0].set_ylabel(name)
figure.savefig("what_priors_believe.png", dpi=100)
print("picture: what_priors_believe.png")
