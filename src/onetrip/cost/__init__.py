"""Floor 5: what a nest or a library call costs on a target. Knows nothing of groups or searches."""
