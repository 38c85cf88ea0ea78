"""Where every value of the shown groups lies, and how much is alive at each step.

Must not know how memory is planned.
"""

from __future__ import annotations

from typing import Any

from ..cost.sizes import number
from ..plan.draft import name_of
from .session import Session


def memory(session: Session) -> dict[str, Any]:
    """Buffers with steps and offsets, and the groups in order of their steps.

    A buffer outside the arena (`output`, or `library`) has no offset. Bytes are those at the
    expected sizes.
    """
    board = session.board
    draft, hints = board.draft, board.draft.hints
    order = draft.order()
    planned, _ = draft.launched()
    maker = draft.index.maker
    return {
        "steps": [name_of(p) for p in order],
        "arena": number(planned.arena_bytes, hints),
        "peak": planned.peak_bytes,
        "buffers": [
            {
                "node": board.node_of.get(maker.get(b.range.name, -1), -1),
                "bytes": number(b.range.bytes, hints),
                "offset": None if b.offset is None else number(b.offset, hints),
                "first": b.range.first,
                "last": min(b.range.last, len(order) - 1),
                "where": b.range.where,
                "reuses": b.range.reuses is not None,
            }
            for b in planned.buffers
        ],
    }
