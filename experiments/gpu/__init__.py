"""The parts of `experiments.gpu_check`."""
