"""Number formats of quantized tensors and their kernels."""
