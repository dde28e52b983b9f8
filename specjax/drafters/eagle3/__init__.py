"""EAGLE-3: the drafter, its network, and the layouts of its checkpoints."""
