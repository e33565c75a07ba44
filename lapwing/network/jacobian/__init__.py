"""A network as a function of its weights, and the Jacobian of its outputs as an operator known by its products."""

from lapwing.network.jacobian.jacobian import CHUNK, Jacobian, prepared
from lapwing.network.jacobian.kept import keeping_factors
from lapwing.network.jacobian.network import Network
from lapwing.network.jacobian.products import ProductPlan

__all__ = ["CHUNK", "Jacobian", "Network", "ProductPlan", "keeping_factors", "prepared"]
