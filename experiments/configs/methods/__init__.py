"""One configuration per method."""
