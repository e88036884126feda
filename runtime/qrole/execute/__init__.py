"""Running foreign models under a plan."""

from qrole.execute.layers import Layer, layers_of
from qrole.execute.observer import Observer
from qrole.execute.run import Execution, executing
from qrole.execute.state import PlanState
from qrole.execute.weights import WeightCache

__all__ = ["Execution", "Layer", "Observer", "PlanState", "WeightCache", "executing", "layers_of"]
