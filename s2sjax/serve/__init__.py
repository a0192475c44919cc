"""Live input."""
