"""Slots from names and shapes: their order, and experts told apart by number."""

from __future__ import annotations

from pathlib import Path

from qrole.checkpoint.headers import TensorInfo
from qrole.emitters import walk_tensors
from qrole.plans import Inventory

EXPERTS = "layers.{}.mlp.experts.{}.{}.weight"


def walked(*names: str, shape: tuple[int, ...] = (64, 32)) -> Inventory:
    """The inventory of tensors of one shape, in the order given."""
    file = Path("model.safetensors")
    return walk_tensors({n: TensorInfo(n, "BF16", shape, file, 0, 0) for n in names}, "m")


def weights(inventory: Inventory) -> dict[str, tuple[str, ...]]:
    """Parameters of every weight slot, by module and group."""
    found = (slot for slot in inventory.slots if slot.operand == "weight")
    return {f"{slot.module}/{slot.group}": slot.parameters for slot in found}


def test_numbers_count_whatever_the_order_of_the_files() -> None:
    inventory = walked("layers.10.fc.weight", "layers.9.fc.weight", "2.weight", "layers.9b.weight")
    assert list(weights(inventory)) == ["2/", "layers.9.fc/", "layers.9b/", "layers.10.fc/"]


def test_experts_come_by_number_then_projection_after_all_other_layers() -> None:
    names = [
        EXPERTS.format(layer, e, p) for layer in (10, 2) for e in (10, 9) for p in ("w3", "w1")
    ]
    inventory = walked(*names, "layers.11.fc.weight")
    found = weights(inventory)
    assert list(found) == [
        "layers.11.fc/",
        "layers.2.mlp.experts/gate_up_proj",
        "layers.10.mlp.experts/gate_up_proj",
    ]
    assert found["layers.2.mlp.experts/gate_up_proj"] == tuple(
        EXPERTS.format(2, e, p) for e in (9, 10) for p in ("w1", "w3")
    )
    slot = next(s for s in inventory.slots if s.module == "layers.2.mlp.experts")
    assert slot.copies == 2


def test_experts_in_one_tensor_have_as_many_copies() -> None:
    inventory = walked("mlp.experts.down_proj", "mlp.experts.gate_up_proj", shape=(4, 64, 32))
    assert {(s.group, s.copies) for s in inventory.slots} == {("down_proj", 4), ("gate_up_proj", 4)}
    assert [s.shape for s in inventory.slots if s.operand == "weight"] == [(64, 32)] * 2
