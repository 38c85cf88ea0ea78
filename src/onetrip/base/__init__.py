"""Floor 0: words every other floor uses. Knows nothing of tensors, graphs or torch."""
