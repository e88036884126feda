"""A gate for CI: fails when a plan costs more accuracy than its budgets allow.

Usage: python examples/ci_gate.py [MODEL [FACTORY]]
"""

import sys
from pathlib import Path

import qrole

SAMPLE = Path(__file__).resolve().parents[1] / "sample_models" / "llama_tiny.py"
BUDGETS = Path(__file__).with_name("budgets.toml")


def main(model: str | Path = SAMPLE, factory: str = "mxfp8") -> int:
    """Prints a summary in Markdown, and returns what the process should exit with."""
    report = qrole.compare(model, factory, samples=4, seed=0)
    gate = qrole.judge(report, budgets=BUDGETS)
    print(gate.summary(most=5))
    for limit in gate.judged:
        print(f"judged: {limit}")
    print("PASSED" if gate.passed else "FAILED")
    return 0 if gate.passed else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
