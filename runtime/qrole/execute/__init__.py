"""Running foreign models under a plan."""

from qrole.execute.layers import Layer, layers_of
from qrole.execute.observer import Observer
from qrole.execute.run import Execution, executing
from qrole.execute.weights import WeightCache

__all__ = ["Execution", "Layer", "Observer", "WeightCache", "executing", "layers_of"]
