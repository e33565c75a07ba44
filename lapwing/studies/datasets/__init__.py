"""Pictures to learn from: the digits that scikit-learn bundles, MNIST and its kin, and CIFAR-10 where their files are.

Files are looked for in the folders of $LAPWING_DATA (several are separated as in $PATH) or in the user's cache folder;
what is missing raises FileNotFoundError, which says where it was looked for and what brings it.
"""

from lapwing.studies.datasets.bundled import digits
from lapwing.studies.datasets.images import cifar10, cifar10_jpeg, fashion_mnist, mnist, notmnist
from lapwing.studies.datasets.rotation import rotate
from lapwing.studies.datasets.task import Task

__all__ = ["Task", "cifar10", "cifar10_jpeg", "digits", "fashion_mnist", "mnist", "notmnist", "rotate"]
