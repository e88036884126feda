"""Quantize a model's weights, write them, check what was written, and read it back.

Usage: python examples/write_checkpoint.py [MODEL [FACTORY [OUTPUT]]]
MODEL is a Python file with build() and example_inputs().
"""

import sys
from pathlib import Path

import torch

import qrole

SAMPLE = Path(__file__).resolve().parents[1] / "sample_models" / "llama_tiny.py"


def main(model: str | Path = SAMPLE, factory: str = "mxfp8", output: str = "quantized") -> None:
    """Prints sizes, the worst layer, and how far the outputs of the loaded model are."""
    written = qrole.apply(model, factory, output, force=True)
    print(f"{written.output}: {written.source_bytes:,} bytes became {written.output_bytes:,}")
    for verdict in written.verdicts:
        print(f"  {verdict.engine} {verdict.level.value}")

    checked = qrole.verify(output, model)
    worst = min(checked.errors, key=lambda error: error.sqnr_db)
    print(f"{'sound' if checked.ok else checked.problems}; worst: {worst.module}", end=" ")
    print(f"{worst.scheme}, {worst.sqnr_db:.1f} dB")

    codes = qrole.load(output, dequantize=False)
    stored = codes[f"{worst.module}.weight"]
    print(f"its codes: {stored.rowwise_data.dtype} {tuple(stored.rowwise_data.shape)}", end=", ")
    print(f"scales {tuple(stored.rowwise_scale_inv.shape)}")

    source = qrole.load_model(str(model), weights=True)
    inputs = source.example_inputs()
    with torch.no_grad():
        wanted = source.module(*inputs)
        found = qrole.load(output, into=source.module)(*inputs)
    print(f"outputs differ by {(found - wanted).norm() / wanted.norm():.1%}")


if __name__ == "__main__":
    main(*sys.argv[1:])
