"""Data sets, each as tensors: bundled ones, those that `make data` fetches, and those a user has.

Files are looked for in the folders of $LAPWING_DATA (several are separated as in $PATH) or in the user's cache folder;
what is missing raises FileNotFoundError, which says where it was looked for and what brings it.
"""

from benchmarks.data.tables import UCI, breast_cancer, class_table, diabetes, number_table, uci, uci_splits
from lapwing.studies.datasets import Task, cifar10, cifar10_jpeg, digits, fashion_mnist, mnist, notmnist
from lapwing.studies.datasets.storage import find, folders, read_idx, read_npz

__all__ = [
    "UCI",
    "Task",
    "breast_cancer",
    "cifar10",
    "cifar10_jpeg",
    "class_table",
    "diabetes",
    "digits",
    "fashion_mnist",
    "find",
    "folders",
    "mnist",
    "notmnist",
    "number_table",
    "read_idx",
    "read_npz",
    "uci",
    "uci_splits",
]
