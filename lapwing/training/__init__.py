"""The one training loop: seeded batches, time left, atomic checkpoints, resume, divergence, best weights.

`loop` drives anything that learns from batches; `Descent` is gradient descent on a function of a dict of tensors;
`train` is maximum likelihood or a posteriori for a network, `members` the same for several from different starts.
"""

from lapwing.training.descent import Descent, Loss, Optimiser, Schedule, adam, log_prob, objective, train
from lapwing.training.epochs import Diverged, Epoch, Learner, Trained, Weights, loop
from lapwing.training.side_by_side import members

__all__ = [
    "Descent",
    "Diverged",
    "Epoch",
    "Learner",
    "Loss",
    "Optimiser",
    "Schedule",
    "Trained",
    "Weights",
    "adam",
    "log_prob",
    "loop",
    "members",
    "objective",
    "train",
]
