"""A mixed-precision factory twice: as a Python function, and as a rules file.

Usage: python examples/write_rules.py [MODEL]
"""

import sys
import tempfile
from pathlib import Path

import qrole

SAMPLE = Path(__file__).resolve().parents[1] / "sample_models" / "llama_tiny.py"

RULES = """\
version = 1
default = "mxfp8"

[[rule]]
module = "lm_head"
factory = "high_precision"
reason = "tied to the embedding"

[[rule]]
module = "layers.*.mlp.*"
factory = "nvfp4"
expect = 36
"""


def mixed(role: qrole.QuantizerRole | None) -> qrole.Quantizer:
    """NVFP4 for the MLPs, MXFP8 for the rest, the head as it is."""
    if role is None or role.name == "lm_head":
        return qrole.IdentityQuantizer()
    named = "nvfp4" if ".mlp." in role.name else "mxfp8"
    return qrole.load_factory(named).function(role)


def main(model: str | Path = SAMPLE) -> None:
    """Prints what both give, layer by layer of the first block, and that they agree."""
    inventory = qrole.inspect(model)
    with tempfile.TemporaryDirectory() as folder:
        rules = Path(folder) / "rules.toml"
        rules.write_text(RULES)
        by_rules = qrole.plan(inventory, rules)
    by_function = qrole.plan(inventory, mixed)
    for (module, _), layer in by_rules.layers.items():
        if module.startswith("layers.0.") or module == "lm_head":
            print(f"{module:28}", {operand: d.label for operand, d in layer.items()})
    same = all(a.answers == b.answers for a, b in zip(by_rules, by_function, strict=True))
    print(f"\n{by_rules.counts().total()} slots; the rules and the function agree: {same}")


if __name__ == "__main__":
    main(*sys.argv[1:])
