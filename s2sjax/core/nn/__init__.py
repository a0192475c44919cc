"""Convolution, normalization, dropout, pooling and character networks, as functions."""

__all__ = ["character_cnn", "convolution", "dropout", "normalization", "pooling"]
