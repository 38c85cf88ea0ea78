"""Floor 4: reference interpreters in numpy, the oracle of the tests. Know no torch, no backend."""
