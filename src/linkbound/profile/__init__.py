"""Public names of this layer."""
