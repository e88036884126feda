"""Number formats of quantized tensors and their kernels. Knows tensors, never roles or modules.

formats      the number formats as tables (needs no torch)
reference    every function in plain torch, readable: the oracle of the kernels
ops          the same functions as torch ops, on any device
gemm         products of quantized operands
layout       scale layouts that hardware GEMMs read
philox       random bits for stochastic rounding
cpu          kernels on raw memory (needs no torch)
cuda         kernels in Triton
"""
