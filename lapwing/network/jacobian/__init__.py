"""A network as a function of its weights, and the Jacobian of its outputs as an operator known by its products."""

from lapwing.network.jacobian.jacobian import Jacobian
from lapwing.network.jacobian.network import Network
from lapwing.network.jacobian.planning import CHUNK, prepared
from lapwing.network.jacobian.products import ProductPlan

__all__ = ["CHUNK", "Jacobian", "Network", "ProductPlan", "prepared"]
