"""Other libraries, each through its own public interface for quantizing one weight.

A module has `operations(x)`: by format, a call that quantizes the bf16 matrix `x` into new tensors.
"""

MODULES = {
    "torchao": "benchmarks.quantize.peers.torchao",
    "compressed-tensors": "benchmarks.quantize.peers.compressed_tensors",
    "nvidia-modelopt": "benchmarks.quantize.peers.modelopt",
}
"""The module of each peer, by the name of its distribution."""

EXTRA = {"torchao": ("numpy",), "nvidia-modelopt": ("requests", "huggingface_hub")}
"""What a peer imports without declaring it."""
