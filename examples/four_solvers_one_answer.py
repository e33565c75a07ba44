# %% [markdown]
# # Four solvers, one answer
# Does it matter how the equations are solved? The same posterior by a dense decomposition, a Krylov space, conjugate
# gradients and stochastic gradients, from the same random numbers; and the penalty of a classifier without any search.

# %%
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_breast_cancer, load_diabetes
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

import lapwing as lw
from lapwing.linear import BayesianLogisticRegression

x, y = load_diabetes(return_X_y=True)
features = StandardScaler().fit_transform(PolynomialFeatures(2, include_bias=False).fit_transform(x))
model = lw.LinearModel(features, (y - y.mean()) / y.std(), lw.Gaussian(0.7))

# %%
exact = lw.infer(model, prior=lw.Isotropic(20.0), method=lw.Exact(), draws=16)
functions = exact.functions(features)
figure = Figure(figsize=(8.4, 2.8), layout="constrained")
panels = figure.subplots(1, 3, sharex=True, sharey=True)
for panel, method in zip(panels, (lw.Krylov(), lw.CG(), lw.SGD(steps=1500)), strict=True):
    found = lw.infer(model, prior=lw.Isotropic(20.0), method=method, draws=16)
    error = (found.functions(features) - functions).norm() / (functions - functions.mean(0)).norm()
    dimension: lw.Estimate = found.effective_dimension
    print(f"{type(method).__name__:6} differs from the exact draws by {error:.1%}, effective dimension {dimension}")
    panel.plot(functions[0].reshape(-1), found.functions(features)[0].reshape(-1), ".", markersize=3)
    panel.axline((0, 0), slope=1, color="black", linewidth=0.8)
    panel.set(title=f"{type(method).__name__}: {error:.1%} apart", xlabel="a draw, exactly", ylabel="the same draw")
    panel.label_outer()
print(f"exact: effective dimension {exact.effective_dimension}")
figure.savefig("four_solvers_one_answer.png", dpi=110)
print("picture: four_solvers_one_answer.png")

# %%
cells, kind = load_breast_cancer(return_X_y=True)
cells = StandardScaler().fit_transform(cells)
classifier = BayesianLogisticRegression().fit(cells[:300], kind[:300])
accuracy = (torch.from_numpy(classifier.predict(cells[300:])) == torch.from_numpy(kind[300:])).double().mean()
print(f"precision by the evidence {classifier.lambda_:.2f}, accuracy on new cells {accuracy:.1%}")
