"""What `tests/interop/run` is made of."""
