"""Training of drafters: one step and one loop, an objective per method."""
