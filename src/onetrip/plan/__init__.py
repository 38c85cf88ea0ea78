"""Floor 6: which operators share a kernel, why others do not, and where their memory lies."""
