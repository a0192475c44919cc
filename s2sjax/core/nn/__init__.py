"""Convolution, normalization, dropout, pooling and character networks, as functions."""
