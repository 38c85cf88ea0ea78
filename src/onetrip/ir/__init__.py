"""Floor 2: the four levels of IR (Graph, Nest, Kernel, Program). Knows no operator and no backend."""
