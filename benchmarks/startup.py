"""Time to the first result of BERT in a fresh process, cold and with a warm cache, side by side.

    python benchmarks/startup.py [--layers N] [--rounds N] [--out FOLDER]

Every process gets a cache folder of its own backend; the first round fills it (cold), later ones
find it (warm). Backends take turns. Times run from the call of torch.compile to the first result.
Python finds every module as bytecode, as installed packages have theirs: a run that is not counted
leaves what is missing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path

from onetrip.bench.engine import versions
from onetrip.runtime.clock import card_name

BACKENDS = ("onetrip", "inductor")
CHILD = """
import sys, time, torch
from transformers import BertConfig, BertModel
torch.manual_seed(0)
config = BertConfig(num_hidden_layers=int(sys.argv[2]), return_dict=False)
model, ids = BertModel(config).eval(), torch.randint(0, 30000, (4, 128))
started = time.perf_counter()
with torch.no_grad():
    torch.compile(model, backend=sys.argv[1])(ids)
print("seconds", time.perf_counter() - started)
"""


def first_result(backend: str, layers: int, cache: Path) -> float:
    """Seconds to the first result in a fresh process."""
    folder = str(cache / backend)
    environment = {
        **os.environ,
        "ONETRIP_CACHE_DIR": folder,
        "TORCHINDUCTOR_CACHE_DIR": folder,
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-c", CHILD, backend, str(layers)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(run.stdout.split("seconds")[1])


def main() -> None:
    """Measures, writes startup.json and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5, help="warm starts, and as many cold ones")
    parser.add_argument("--out", default=str(Path(__file__).parent / "results" / "checks"))
    chosen = parser.parse_args()
    times: dict[str, dict[str, list[float]]] = {b: {"cold": [], "warm": []} for b in BACKENDS}
    with tempfile.TemporaryDirectory() as cache:
        for backend in BACKENDS:
            first_result(backend, 1, Path(cache))
    for _ in range(chosen.rounds):
        with tempfile.TemporaryDirectory() as cache:
            for state in ("cold", "warm"):
                for backend in BACKENDS:
                    times[backend][state].append(first_result(backend, chosen.layers, Path(cache)))
    medians = {
        b: {state: round(statistics.median(found), 3) for state, found in rows.items()}
        for b, rows in times.items()
    }
    record = {
        "what": f"seconds to the first result of BERT, {chosen.layers} layers, fp32, 4x128",
        "card": card_name("cpu"),
        "versions": versions(),
        "date": date.today().isoformat(),
        "rounds": chosen.rounds,
        "median_s": medians,
        "all_s": times,
    }
    folder = Path(chosen.out)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "startup-bert.json").write_text(json.dumps(record, indent=1) + "\n")
    for backend, rows in medians.items():
        print(f"{backend:10} cold {rows['cold']:6.2f} s   warm {rows['warm']:6.2f} s")


if __name__ == "__main__":
    main()
