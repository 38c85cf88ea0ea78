"""The cheapest set of columns that makes every value a region needs: an integer program.

    min  sum c_j x_j                              x_j in {0, 1}
    u needed outside      sum of x_j that store u  = 1,  else <= 1
    node u                sum of x_j with u       >= 1                      valid, closes the gap
    edge p -> c           sum of x_j that store p + sum of x_j with p and c >= 1        the same
    j reads p             sum of x_i that store p >= x_j                   added where it is broken
    circle j -> ... -> j  sum of its x           <= its length - 1         added where one is found

A column costs its lower bound until a solution wants it; only then is it priced. By their reduced
costs, columns that can be in no better solution than the one at hand are left out. Limits count
nodes, never seconds. Must not know graphs, nests or targets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import highspy
import numpy as np
from highspy._core import _Highs  # highspy.Highs prints a banner when it is made

from .enumerate import Column
from .pool import bits
from .regions import Region

TOLERANCE = 1e-6
"""Share of a cost that is no difference."""
MOST_NODES = 20000
MOST_ROUNDS = 2000
"""Solutions of one program, relaxed or whole."""

Price = Callable[[Column], "float | None"]
"""The cost of a column; None when it is no kernel."""
Row = tuple[float, float, dict[int, float]]


@dataclass(frozen=True)
class Cover:
    """What the search of a region found.

    Attributes:
        columns: the chosen groups; None when none is better than what was known.
        cost: of the columns, or what was known.
        bound: no choice among the columns given costs less.
    """

    columns: tuple[Column, ...] | None
    cost: float
    bound: float


@dataclass
class _Program:
    """Columns with what is known of their costs, and the rows so far."""

    region: Region
    columns: Sequence[Column]
    costs: list[float]
    price: Price
    known: float
    priced: list[bool] = field(default_factory=list)
    open: list[bool] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)
    linked: set[tuple[int, int]] = field(default_factory=set)
    rounds: int = 0

    @property
    def goal(self) -> float:
        """A solution must cost less than this to be of use."""
        return self.known * (1 - TOLERANCE)


def cheapest_cover(
    region: Region,
    columns: Sequence[Column],
    costs: Sequence[float],
    price: Price,
    known: float,
) -> Cover:
    """The cheapest cover of a region by columns.

    Args:
        costs: lower bounds of the columns' costs.
        known: cost of a cover that is known already; may be infinite.
    """
    program = _Program(region, columns, list(costs), price, known)
    program.priced = [False] * len(columns)
    program.open = [True] * len(columns)
    program.reads = [_reads(region, c) for c in columns]
    program.rows = _first_rows(region, columns)
    lower = 0.0
    for whole in (False, True):
        while program.rounds < MOST_ROUNDS:
            program.rounds += 1
            answer = _solve(program, whole)
            if answer is None or answer.objective >= program.goal:
                return Cover(None, known, known)  # none is better
            lower = max(lower, answer.bound)
            if _learns(program, answer.values):
                continue
            chosen = [j for j, x in enumerate(answer.values) if x > 0.5]
            if _is_whole(answer.values):
                circle = find_circle(region, [columns[j] for j in chosen])
                if circle is None:
                    picked = tuple(columns[j] for j in chosen)
                    cost = sum(program.costs[j] for j in chosen)
                    return Cover(picked, cost, min(cost, answer.bound))
                _cut(program, [chosen[k] for k in circle])
                continue
            if whole:
                return Cover(None, known, min(known, lower))
            _leave_out(program, answer)
            break
    return Cover(None, known, min(known, lower))


# ------------------------------------------------------------------ rows


def _reads(region: Region, column: Column) -> int:
    mask = 0
    for k in bits(column.units):
        mask |= region.producers[k]
    return mask & ~column.units


def _first_rows(region: Region, columns: Sequence[Column]) -> list[Row]:
    count = len(region.units)
    storing: list[dict[int, float]] = [{} for _ in range(count)]
    holding: list[dict[int, float]] = [{} for _ in range(count)]
    for j, column in enumerate(columns):
        for u in bits(column.stored):
            storing[u][j] = 1.0
        for u in bits(column.units):
            holding[u][j] = 1.0
    rows: list[Row] = []
    for u in range(count):
        rows.append((1.0 if region.escapes >> u & 1 else 0.0, 1.0, storing[u]))
        rows.append((1.0, highspy.kHighsInf, holding[u]))
        for c in bits(region.consumers[u]):
            both = dict.fromkeys(holding[u].keys() & holding[c].keys(), 1.0)
            rows.append((1.0, highspy.kHighsInf, {**both, **storing[u]}))
    return rows


def _link_rows(program: _Program, values: Sequence[float]) -> bool:
    """Adds the rows of columns that read what is not stored enough."""
    stored = [0.0] * len(program.region.units)
    for j, x in enumerate(values):
        if x > 1e-9:
            for u in bits(program.columns[j].stored):
                stored[u] += x
    added = False
    for j, x in enumerate(values):
        if x <= 1e-6:
            continue
        for p in bits(program.reads[j]):
            if stored[p] < x - 1e-6 and (j, p) not in program.linked:
                program.linked.add((j, p))
                program.rows.append((0.0, highspy.kHighsInf, _link(program, j, p)))
                added = True
    return added


def _link(program: _Program, j: int, p: int) -> dict[int, float]:
    row = {i: 1.0 for i, c in enumerate(program.columns) if c.stored >> p & 1}
    row[j] = row.get(j, 0.0) - 1.0
    return row


def _cut(program: _Program, circle: Sequence[int]) -> None:
    """The circle, and every circle of two between columns that may still be chosen."""
    if len(circle) > 2:
        program.rows.append((0.0, len(circle) - 1.0, dict.fromkeys(circle, 1.0)))
        return
    a, b = circle
    region, columns = program.region, program.columns
    rivals = [
        j
        for j, c in enumerate(columns)
        if j == b or (program.open[j] and find_circle(region, [columns[a], c]) is not None)
    ]
    for j in rivals:
        program.rows.append((0.0, 1.0, {a: 1.0, j: 1.0}))


def find_circle(region: Region, chosen: Sequence[Column]) -> list[int] | None:
    """Places of columns that wait for each other, as few as possible; None when none do.

    A column waits for the one that stores what it reads, directly or through what is outside; one
    that computes a unit again waits for the one that stores it.
    """
    stored_by = {u: j for j, c in enumerate(chosen) for u in bits(c.stored)}
    waits: list[set[int]] = []
    for j, c in enumerate(chosen):
        wanted = _reads(region, c) | (c.units & ~c.stored)
        for k in bits(c.units):
            wanted |= region.outside[k]
        waits.append({stored_by[u] for u in bits(wanted) if u in stored_by} - {j})
    best: list[int] | None = None
    for j in range(len(chosen)):
        found = _way_back(waits, j, len(chosen) if best is None else len(best) - 1)
        best = best if found is None else found
    return best


def _way_back(waits: Sequence[set[int]], start: int, most: int) -> list[int] | None:
    """The shortest circle through a column, of at most so many."""
    came: dict[int, int] = {}
    layer = [start]
    for _ in range(most):
        following: list[int] = []
        for j in layer:
            for k in sorted(waits[j]):
                if k == start:
                    return _path(came, j, start)
                if k not in came:
                    came[k] = j
                    following.append(k)
        layer = following
    return None


def _path(came: dict[int, int], last: int, start: int) -> list[int]:
    path = [last]
    while path[-1] != start:
        path.append(came[path[-1]])
    return path


# ------------------------------------------------------------------ what a solution teaches


def _learns(program: _Program, values: Sequence[float]) -> bool:
    """Prices what the solution wants and adds the rows that it breaks; whether anything was new."""
    new = False
    for j, x in enumerate(values):
        if x <= 1e-6 or program.priced[j]:
            continue
        cost = program.price(program.columns[j])
        program.priced[j] = True
        if cost is None:
            program.open[j] = False
            new = True
        elif cost > program.costs[j]:
            new = new or cost > program.costs[j] * (1 + 1e-9)
            program.costs[j] = cost
    return _link_rows(program, values) or new


def _is_whole(values: Sequence[float]) -> bool:
    return all(x < 1e-5 or x > 1 - 1e-5 for x in values)


def _leave_out(program: _Program, answer: _Answer) -> None:
    for j, reduced in enumerate(answer.reduced):
        if answer.objective + reduced >= program.goal:
            program.open[j] = False


# ------------------------------------------------------------------ HiGHS


@dataclass(frozen=True)
class _Answer:
    objective: float
    bound: float
    values: list[float]
    reduced: list[float]


def _solve(program: _Program, whole: bool) -> _Answer | None:
    """The best solution, relaxed or whole; None when there is none."""
    used = [j for j, is_open in enumerate(program.open) if is_open]
    solver = _Highs()
    for option, value in (
        ("output_flag", False),
        ("threads", 1),
        ("random_seed", 0),
        ("mip_max_nodes", MOST_NODES),
        ("mip_rel_gap", 0.0),
        ("mip_abs_gap", 1e-9),
    ):
        solver.setOptionValue(option, value)
    solver.passModel(_model(program, used, whole))
    solver.run()
    status = solver.getModelStatus()
    solution, info = solver.getSolution(), solver.getInfo()
    values, reduced = [0.0] * len(program.columns), [0.0] * len(program.columns)
    solved = status in (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kSolutionLimit)
    if not solved or not solution.value_valid:
        return None
    for k, j in enumerate(used):
        values[j] = solution.col_value[k]
        reduced[j] = 0.0 if whole else solution.col_dual[k]
    objective = info.objective_function_value
    return _Answer(objective, info.mip_dual_bound if whole else objective, values, reduced)


def _model(program: _Program, used: Sequence[int], whole: bool) -> highspy.HighsLp:
    place = {j: k for k, j in enumerate(used)}
    rows = [(low, high, _placed(row, place)) for low, high, row in program.rows]
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = len(used), len(rows)
    model.col_cost_ = np.array([program.costs[j] for j in used])
    model.col_lower_ = np.zeros(len(used))
    model.col_upper_ = np.ones(len(used))
    model.row_lower_ = np.array([low for low, _, _ in rows])
    model.row_upper_ = np.array([high for _, high, _ in rows])
    matrix = model.a_matrix_
    matrix.format_ = highspy.MatrixFormat.kRowwise
    matrix.start_ = np.cumsum([0, *(len(row) for _, _, row in rows)])
    matrix.index_ = np.array([k for _, _, row in rows for k, _ in row], dtype=np.int32)
    matrix.value_ = np.array([x for _, _, row in rows for _, x in row])
    if whole:
        model.integrality_ = [highspy.HighsVarType.kInteger] * len(used)
    return model


def _placed(row: dict[int, float], place: dict[int, int]) -> list[tuple[int, float]]:
    return [(place[j], x) for j, x in sorted(row.items()) if j in place]


def covers(region: Region, columns: Iterable[Column]) -> bool:
    """Whether columns make all that the region needs and read only what one of them stores."""
    chosen = list(columns)
    stored = wanted = 0
    for c in chosen:
        stored |= c.stored
        wanted |= _reads(region, c)
    return not (region.escapes | wanted) & ~stored
