"""qrole's own lossless layout: all that a quantizer made of a weight, and how to build it again."""
