"""Floor 9: measures onetrip beside eager and torch.compile, in one process.

Must not know the compiler: it names onetrip only as the string that it hands to `torch.compile`, so
that what is timed is what a user gets.
"""
