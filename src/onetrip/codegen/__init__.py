"""Floor 7: kernels become text, in Triton and in C++. Imports no compiler and no torch."""
