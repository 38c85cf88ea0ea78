"""Floor 2: the four levels of IR, their texts and invariants. Knows no operator, no backend."""
