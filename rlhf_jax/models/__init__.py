"""Decoder-only transformers; only this folder imports flax.nnx, transformers, safetensors."""
