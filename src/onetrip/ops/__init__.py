"""Floor 3: the operator table. Knows what operators mean and cost; knows no torch and no machine."""
