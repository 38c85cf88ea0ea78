"""Small plan documents for tests of files and texts."""

from __future__ import annotations

from onetrip.report import schema
from onetrip.report.record import totals


def group(name: str, bytes_each: int = 1000, **changed: object) -> schema.Group:
    fields: dict[str, object] = {
        "name": name, "kind": "pointwise", "generated": True, "anchor": False,
        "nodes": (f":{name}#0@00",), "ops": ("add", "gelu"), "modules": (), "lines": ("m.py:3",),
        "reads": bytes_each, "writes": bytes_each, "registers": 36, "spill_bytes": 0,
        "shared_bytes": 0, "occupancy": 1.0, "source": "estimated", "flops": 10,
        "intensity": 0.005, "estimated_us": 2.5, "bound_by": "memory",
    }  # fmt: skip
    return schema.Group(**{**fields, **changed})  # type: ignore[arg-type]


def boundary(producer: str, consumer: str, size: int) -> schema.Boundary:
    return schema.Boundary(
        producer, consumer, (":x#0@00",), size, "stored", "illegal", "convexity", "a path is there",
        (schema.Evidence("operators on the path", 2, "operators", 0),),
        schema.IfFused(1, 4000, 40, 16, 3.0), "fuse it as well",
    )  # fmt: skip


def graph(name: str = "inference", peak: int = 500, kept: int = 100) -> schema.Graph:
    return schema.Graph(
        name=name, role=name, key="k", kernels=2, traffic_bytes=4000, peak_bytes=peak,
        output_bytes=kept, estimated_us=5.0, bound_us=4.0, bound_kind="exact",
        eligible_bytes=4000, generated_bytes=3000, arena_bytes="64*n",
        groups=(group("g0_add"), group("g1_add")),
        boundaries=(boundary("g0_add", "g1_add", 10), boundary("g0_add", "g1_add", 2000)),
        memory=(schema.Buffer(":x#0@00", 1000, "64*n", 0, 1, "arena"),),
        lines=(schema.Line("cut", (":a#0@00", ":b#0@00")),),
    )  # fmt: skip


def document(*graphs: schema.Graph) -> schema.Document:
    found = graphs or (graph(),)
    return schema.Document(
        schema.KIND, schema.FORMAT, "h200", "best", "eager", False, totals(found), found
    )
