"""Floor 10: the command line. Must not know how anything is computed.

Exit status: 0 fine, 1 over budget or different, 2 wrong use.
"""

from onetrip.cli.main import main

__all__ = ["main"]
