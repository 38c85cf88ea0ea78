"""Floor 4: rewrites of Graphs and Nests. Each pass is one function; none knows a machine."""
