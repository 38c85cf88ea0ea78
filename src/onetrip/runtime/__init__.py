"""Floor 7: builds, caches, launches and runs. Knows no planning and no code generation."""
