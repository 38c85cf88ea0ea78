"""The cheapest set of columns that makes every value a region needs: an integer program.

    min  sum c_j x_j                              x_j in {0, 1}
    u needed outside      sum of x_j that store u  = 1,  else <= 1
    node u                sum of x_j with u       >= 1                      valid, closes the gap
    edge p -> c           sum of x_j that store p + sum of x_j with p and c >= 1        the same
    j reads p             sum of x_i that store p >= x_j                   added where it is broken
    circle u0, ..., un    sum of x_j that store u_k and wait for u_k-1 <= n  where one is found

A column costs its lower bound until a solution wants it; only then is it priced. By their reduced
costs, columns that can be in no better solution than the one at hand are left out. Limits count
nodes, never seconds. Must not know graphs, nests or targets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, product

import highspy
import numpy as np
from highspy._core import _Highs  # highspy.Highs prints a banner when it is made

from ..base.lazy import cached_property
from .enumerate import Column
from .pool import bits
from .regions import Region

TOLERANCE = 1e-6
"""Share of a cost that is no difference."""
MOST_NODES = 20000
MOST_ROUNDS = 4000
"""Solutions of one program, relaxed or whole."""
MOST_WORK = 2_000_000
"""Columns of one program, counted again with each solution: a large one takes longer for each."""

MOST_WHOLE = 10_000_000
"""Squares of the columns of one program, counted again with each solution without halves."""

MORE_A_ROUND = 0.5
"""Columns that are priced beyond those that a relaxed solution wants, times the solutions before
it: where the lower bounds are far off, each solution would teach the prices of a few."""
MOST_AHEAD = 512
"""Columns that are priced before a whole solution wants them."""
MOST_LINKS = 2000
"""Rows of columns and what they read that are added before a whole solution breaks them."""
MOST_CUTS = 64
"""Rows that are added for one circle of two."""

OPTIONS = {
    "output_flag": False,
    "threads": 1,
    "random_seed": 0,
    "mip_max_nodes": MOST_NODES,
    "mip_rel_gap": 0.0,
    "mip_abs_gap": 1e-9,
}
SOLVED = (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kSolutionLimit)

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
        finished: whether nothing is left to try; else a limit was reached.
    """

    columns: tuple[Column, ...] | None
    cost: float
    bound: float
    finished: bool = True


class _Program:
    """Columns with what is known of their costs, and what solutions have taught so far."""

    def __init__(
        self,
        region: Region,
        columns: Sequence[Column],
        costs: Sequence[float],
        price: Price,
        known: float,
    ) -> None:
        self.region = region
        self.columns = columns
        self.costs = list(costs)
        self.price = price
        self.goal = known * (1 - TOLERANCE)
        self.open = [True] * len(columns)
        self.priced = [False] * len(columns)
        self.reads = [reads_of(region, c) for c in columns]
        self.ahead = False
        self.linked: set[tuple[int, int]] = set()
        self.solver = _Solver(costs, _first_rows(region, columns))

    @cached_property
    def waits(self) -> list[int]:
        """Of each column, the units that it waits for."""
        return [_waits(self.region, c) for c in self.columns]

    def close(self, j: int) -> None:
        """Leaves a column out."""
        self.open[j] = False
        self.solver.close(j)


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
        known: cost of a cover that is known already.
    """
    program = _Program(region, columns, costs, price, known)
    lower, whole, left = 0.0, False, MOST_WHOLE
    for k in range(min(MOST_ROUNDS, MOST_WORK // max(1, len(columns)))):
        answer = program.solver.solve()
        if answer is None or answer.objective >= program.goal:
            return Cover(None, known, known)  # none is better
        lower = max(lower, answer.bound)
        left -= len(columns) ** 2 if whole else 0
        if _learns(program, answer.values):
            if left < 0:
                break
            if not whole:
                _price_cheapest(program, answer, int(k * MORE_A_ROUND))
            continue
        if not _is_whole(answer.values):
            if whole:
                break
            _leave_out(program, answer)
            if _prices_ahead(program, answer) or _links_ahead(program):
                continue
            program.solver.make_whole()
            whole = True
            continue
        chosen = [j for j, x in enumerate(answer.values) if x > 0.5]
        circle = find_circle(region, [columns[j] for j in chosen])
        if circle is None:
            cost = sum(program.costs[j] for j in chosen)
            return Cover(tuple(columns[j] for j in chosen), cost, min(cost, answer.bound))
        _cut(program, [chosen[k] for k in circle])
    return Cover(None, known, min(known, lower), finished=False)


# ------------------------------------------------------------------ rows


def reads_of(region: Region, column: Column) -> int:
    """Units whose values a column reads from memory."""
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
                program.solver.add_row((0.0, highspy.kHighsInf, _link(program, j, p)))
                added = True
    return added


def _link(program: _Program, j: int, p: int) -> dict[int, float]:
    row = {i: 1.0 for i, c in enumerate(program.columns) if c.stored >> p & 1}
    row[j] = row.get(j, 0.0) - 1.0
    return row


def _cut(program: _Program, circle: Sequence[int]) -> None:
    """The circle, and every other one in which the same units are waited for.

    Columns of a circle store u_0, ..., u_n-1, and each waits for the unit before its own. A unit is
    stored once, so of the columns that store u_k and wait for u_k-1 one is chosen at most, for each
    k; and when one is for every k, they are a circle.
    """
    count = len(circle)
    found = [
        list(bits(program.columns[circle[k]].stored & program.waits[circle[(k + 1) % count]]))
        for k in range(count)
    ]
    choices = product(*(some if count == 2 else some[:1] for some in found))
    for units in islice(choices, MOST_CUTS):
        row: dict[int, float] = {}
        for k, unit in enumerate(units):
            for j, column in enumerate(program.columns):
                if column.stored >> unit & 1 and program.waits[j] >> units[k - 1] & 1:
                    row[j] = row.get(j, 0.0) + 1.0
        program.solver.add_row((0.0, count - 1.0, row))


def _waits(region: Region, column: Column) -> int:
    """Units whose values a column waits for: read, made from outside, or computed here again."""
    wanted = reads_of(region, column) | (column.units & ~column.stored)
    for k in bits(column.units):
        wanted |= region.outside[k]
    return wanted


def waits_of(region: Region, chosen: Sequence[Column]) -> list[set[int]]:
    """Of each column, the places of those that it waits for.

    A column waits for the one that stores what it reads, directly or through what is outside; one
    that computes a unit again waits for the one that stores it.
    """
    stored_by = {u: j for j, c in enumerate(chosen) for u in bits(c.stored)}
    return [
        {stored_by[u] for u in bits(_waits(region, c)) if u in stored_by} - {j}
        for j, c in enumerate(chosen)
    ]


def find_circle(region: Region, chosen: Sequence[Column]) -> list[int] | None:
    """Places of columns that wait for each other, as few as possible; None when none do."""
    waits = waits_of(region, chosen)
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
    wanted = [j for j, x in enumerate(values) if x > 1e-6 and not program.priced[j]]
    new = _learn_prices(program, wanted)
    return _link_rows(program, values) or new


def _learn_prices(program: _Program, wanted: Sequence[int]) -> bool:
    new = False
    for j in wanted:
        cost = program.price(program.columns[j])
        program.priced[j] = True
        if cost is None:
            program.close(j)
            new = True
        elif cost > program.costs[j]:
            new = new or cost > program.costs[j] * (1 + 1e-9)
            program.costs[j] = cost
            program.solver.set_cost(j, cost)
    return new


def _is_whole(values: Sequence[float]) -> bool:
    return all(x < 1e-5 or x > 1 - 1e-5 for x in values)


def _leave_out(program: _Program, answer: _Answer) -> None:
    for j, reduced in enumerate(answer.reduced):
        if program.open[j] and answer.objective + reduced >= program.goal:
            program.close(j)


def _prices_ahead(program: _Program, answer: _Answer) -> bool:
    """Prices columns before whole solutions ask for them one by one, each at the cost of a search;
    whether any is dearer than it was thought to be."""
    if program.ahead:
        return False
    program.ahead = True
    return _price_cheapest(program, answer, MOST_AHEAD)


def _price_cheapest(program: _Program, answer: _Answer, most: int) -> bool:
    """Prices columns that better solutions would want first; whether any is dearer than it was
    thought to be."""
    if not most:
        return False
    unknown = [j for j, known in enumerate(program.priced) if program.open[j] and not known]
    return _learn_prices(program, sorted(unknown, key=lambda j: answer.reduced[j])[:most])


def _links_ahead(program: _Program) -> bool:
    """Adds the rows of all columns that are left, where they are few: whether there were any."""
    left = [(j, p) for j, is_open in enumerate(program.open) if is_open
            for p in bits(program.reads[j]) if (j, p) not in program.linked]  # fmt: skip
    if len(left) > MOST_LINKS:
        return False
    for j, p in left:
        program.linked.add((j, p))
        program.solver.add_row((0.0, highspy.kHighsInf, _link(program, j, p)))
    return bool(left)


# ------------------------------------------------------------------ HiGHS


@dataclass(frozen=True)
class _Answer:
    objective: float
    bound: float
    values: list[float]
    reduced: list[float]


class _Solver:
    """The program as HiGHS holds it: each solution begins at the one before."""

    def __init__(self, costs: Sequence[float], rows: Sequence[Row]) -> None:
        self._highs = _Highs()
        for option, value in OPTIONS.items():
            self._highs.setOptionValue(option, value)
        self._count = len(costs)
        self._highs.passModel(_model(costs, rows))

    def set_cost(self, column: int, cost: float) -> None:
        """Another cost."""
        self._highs.changeColCost(column, cost)

    def close(self, column: int) -> None:
        """The column can be in no solution any more."""
        self._highs.changeColBounds(column, 0.0, 0.0)

    def add_row(self, row: Row) -> None:
        """One more row."""
        low, high, terms = row
        places = np.array(sorted(terms), dtype=np.int32)
        values = np.array([terms[j] for j in sorted(terms)])
        self._highs.addRow(low, high, len(terms), places, values)

    def make_whole(self) -> None:
        """No halves of columns from here on."""
        places = np.arange(self._count, dtype=np.int32)
        kinds = np.array([highspy.HighsVarType.kInteger] * self._count)
        self._highs.changeColsIntegrality(self._count, places, kinds)
        self._whole = True

    _whole = False

    def solve(self) -> _Answer | None:
        """The best solution; None when there is none."""
        self._highs.run()
        solution, info = self._highs.getSolution(), self._highs.getInfo()
        if self._highs.getModelStatus() not in SOLVED or not solution.value_valid:
            return None
        objective = info.objective_function_value
        bound = info.mip_dual_bound if self._whole else objective
        reduced = [0.0] * self._count if self._whole else list(solution.col_dual)
        return _Answer(objective, bound, list(solution.col_value), reduced)


def _model(costs: Sequence[float], rows: Sequence[Row]) -> highspy.HighsLp:
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = len(costs), len(rows)
    model.col_cost_ = np.array(costs)
    model.col_lower_ = np.zeros(len(costs))
    model.col_upper_ = np.ones(len(costs))
    model.row_lower_ = np.array([low for low, _, _ in rows])
    model.row_upper_ = np.array([high for _, high, _ in rows])
    terms = [sorted(row.items()) for _, _, row in rows]
    matrix = model.a_matrix_
    matrix.format_ = highspy.MatrixFormat.kRowwise
    matrix.start_ = np.cumsum([0, *map(len, terms)])
    matrix.index_ = np.array([j for row in terms for j, _ in row], dtype=np.int32)
    matrix.value_ = np.array([x for row in terms for _, x in row])
    return model


def covers(region: Region, columns: Iterable[Column]) -> bool:
    """Whether columns make all that the region needs and read only what one of them stores."""
    chosen = list(columns)
    stored = wanted = 0
    for c in chosen:
        stored |= c.stored
        wanted |= reads_of(region, c)
    return not (region.escapes | wanted) & ~stored
