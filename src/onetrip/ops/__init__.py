"""The operator table: one entry for each operator, from which everything else is derived."""
