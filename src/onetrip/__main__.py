"""`python -m onetrip` is the command line."""

from onetrip.cli import main

main()
