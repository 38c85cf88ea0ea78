"""Floor 9: the explorer, one page on which a user draws fusion boundaries.

Python holds the only cost model: the page shows what it is sent. Must not know torch, nor how a
model becomes a graph: it asks a `Workshop` for plans and source.
"""
