"""What a factory gives to each tensor of a model, before anything runs.

Usage: python examples/inspect_model.py [MODEL [FACTORY]]
"""

import sys
from collections import Counter
from pathlib import Path

import qrole

SAMPLE = Path(__file__).resolve().parents[1] / "sample_models" / "llama_tiny.py"


def main(model: str | Path = SAMPLE, factory: str = "nvfp4") -> None:
    """Prints the roles of the model and the formats of its weights."""
    inventory = qrole.inspect(model)
    roles = Counter(f"{s.role.module_type}/{s.role.tensor_type}" for s in inventory.slots if s.role)
    print(f"{inventory.numel:,} parameters, {len(inventory.slots)} slots:")
    for role, count in roles.items():
        print(f"  {count:4} {role}")
    for rest in inventory.uncovered:
        if rest.quantizable:
            print(f"  no role: {rest.module} ({rest.reason})")

    plan = qrole.plan(inventory, factory)
    print(f"\nwith {plan.factory.name}:")
    for label, count in plan.counts().most_common():
        print(f"  {count:4} {label}")

    weight = next(decision for decision in plan if decision.slot.operand == "weight")
    print(f"\n{weight.slot.id} is {weight.slot.role}: {weight.quantizer}")


if __name__ == "__main__":
    main(*sys.argv[1:])
