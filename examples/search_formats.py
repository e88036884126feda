"""Find a format per layer within a budget of bits, and use the rules that come out.

Usage: python examples/search_formats.py [MODEL [BITS [RULES]]]
"""

import sys
from pathlib import Path

import qrole

SAMPLE = Path(__file__).resolve().parents[1] / "sample_models" / "llama_tiny.py"


def main(model: str | Path = SAMPLE, bits: float = 6.0, output: str = "rules.toml") -> None:
    """Prints the choice beside uniform ones, writes its rules, and plans with them."""
    candidates = ["nvfp4", "mxfp8"]
    found = qrole.search(model, candidates, bits=float(bits), samples=1, engines=["vllm"])
    print(f"{'choice':50} {'bits':>6} {found.metric:>10}")
    for point in (found.found, *found.baselines):
        print(f"{point.name:50} {point.bits:6.3f} {point.measured.error:10.4g}")

    Path(output).write_text(found.rules)
    plan = qrole.plan(model, output)
    print(f"\n{output}:")
    for label, count in plan.counts().most_common():
        print(f"  {count:4} {label}")


if __name__ == "__main__":
    main(*sys.argv[1:])
