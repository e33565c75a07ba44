# %% [markdown]
# # Four solvers, one answer
# Does it matter how the equations are solved? The same posterior by a dense decomposition, a Krylov space, conjugate
# gradients and stochastic gradients, from the same random numbers; and the penalty of a classifier without any search.

# %%
import torch
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
for method in (lw.Krylov(), lw.CG(), lw.SGD(steps=1500)):
    found = lw.infer(model, prior=lw.Isotropic(20.0), method=method, draws=16)
    error = (found.functions(features) - functions).norm() / (functions - functions.mean(0)).norm()
    dimension: lw.Estimate = found.effective_dimension
    print(f"{type(method).__name__:6} differs from the exact draws by {error:.1%}, effective dimension {dimension}")
print(f"exact: effective dimension {exact.effective_dimension}")

# %%
cells, kind = load_breast_cancer(return_X_y=True)
cells = StandardScaler().fit_transform(cells)
classifier = BayesianLogisticRegression().fit(cells[:300], kind[:300])
accuracy = (torch.from_numpy(classifier.predict(cells[300:])) == torch.from_numpy(kind[300:])).double().mean()
print(f"precision by the evidence {classifier.lambda_:.2f}, accuracy on new cells {accuracy:.1%}")
