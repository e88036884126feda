"""What is wrong with a factory, found before a GPU is booked.

Usage: python examples/audit_factory.py [MODEL]
"""

import sys
from pathlib import Path

import qrole
from qrole.auditing import group_findings

SAMPLE = Path(__file__).resolve().parents[1] / "sample_models" / "llama_tiny.py"


def hasty(role: qrole.QuantizerRole | None) -> qrole.Quantizer:
    """Has three mistakes; the audit finds them."""
    if role is None or role.name.startswith("decoder."):  # hits nothing in this model
        return qrole.IdentityQuantizer()
    if role.tensor_type == "weight":  # takes the head too, which is tied to the embedding
        return qrole.NVFP4Quantizer(with_2d_quantization=True)
    return qrole.MXFP8Quantizer(qrole.DType.kFloat8E4M3)  # cannot meet an NVFP4 weight in a GEMM


def main(model: str | Path = SAMPLE) -> None:
    """Prints the findings, worst first, and how the audit ended."""
    report = qrole.audit(model, hasty, target="sm_100")
    for group in group_findings(report.findings):
        where = ", ".join(place.path for place in group.places[:2])
        print(f"{group.code.name} {group.code.severity} x{group.count}: {where}")
        print(f"    {group.hit.message}")
        print(f"    to do: {group.hit.to_do}")
    counts = ", ".join(f"{n} {severity}s" for severity, n in report.counts().items())
    print(f"\n{'FAILED' if report.failed() else 'PASSED'}: {counts}")


if __name__ == "__main__":
    main(*sys.argv[1:])
