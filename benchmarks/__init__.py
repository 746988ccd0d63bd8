"""Measurements of foxqueue. Machines are noisy: what counts are the ratios of one run."""
