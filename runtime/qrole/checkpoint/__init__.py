"""Checkpoints: read, quantize, write in layouts that engines load, and verify what was written."""
