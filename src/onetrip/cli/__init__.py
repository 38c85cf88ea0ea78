"""Floor 10: the command line. Must not know how anything is computed.

Exit status: 0 fine, 1 over budget or different, 2 no answer (wrong use, or a model, plan or target
that cannot be read or planned; standard error says why).
"""

from onetrip.cli.main import main

__all__ = ["main"]
