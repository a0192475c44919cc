"""s2sjax: sequence-to-sequence research in JAX, from the plain recurrent cell to the Transformer."""

__version__ = "0.1.0"
