"""What `diff` compares: a plan file, a model, or a model as it stood in a revision of git.

    source ::= file.json | model | revision ":" model

A revision is unpacked into a folder of its own and planned by another process, so that its modules
are not taken for those of the working copy. Must not know what a plan says.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

from onetrip.base.errors import UsageError
from onetrip.cli.wanted import Wanted
from onetrip.report import schema

FORMS = "a plan file, file.py:factory, a .pt2, or revision:file.py:factory"
_REVISION = re.compile(r"^(?P<revision>[^:]+):(?P<model>[^:]+(?:\.py:\w+|\.pt2))$")


def document(name: str, wanted: Wanted) -> schema.Document:
    """The plan behind a name.

    Raises:
        UsageError: the name has none of the forms, or the revision has no such file.
        OnetripError: the model cannot be planned.
    """
    if name.endswith(".json"):
        return schema.read(name)
    found = _REVISION.match(name)
    if found and not Path(name.rpartition(":")[0]).exists():
        return _of_revision(found["revision"], found["model"], wanted)
    return planned(name, wanted)


def planned(name: str, wanted: Wanted) -> schema.Document:
    """The plan of a model of the working copy."""
    from onetrip import api

    model = api.load_model(name)
    made = api.plan(
        model.model,
        model.args,
        model.kwargs,
        **wanted.keywords(),
    )
    return made.document


def _of_revision(revision: str, model: str, wanted: Wanted) -> schema.Document:
    prefix = _git(revision, "rev-parse", "--show-prefix").decode().strip()
    top = _git(revision, "rev-parse", "--show-toplevel").decode().strip()
    commit = _git(revision, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    archive = _git(revision, "-C", top, "archive", "--format=tar", commit.decode().strip())
    with tempfile.TemporaryDirectory(prefix="onetrip-diff-") as folder:
        with tarfile.open(fileobj=BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        here = Path(folder) / prefix
        if not here.is_dir():
            raise UsageError(
                f"the revision {revision} has no folder {prefix}",
                expected="a revision that holds the model",
                found=revision,
                next_step="name a later revision, or one model file for each side",
            )
        return _planned_there(here, f"{revision}:{model}", model, wanted)


def _planned_there(folder: Path, name: str, model: str, wanted: Wanted) -> schema.Document:
    command = [sys.executable, "-m", "onetrip", "plan", model, *wanted.flags(), "--json"]
    paths = [str(folder), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=False)
    if run.returncode:
        raise UsageError(
            f"{name} cannot be planned",
            expected=FORMS,
            found=run.stderr.decode(errors="replace").strip() or f"status {run.returncode}",
            where=name,
        )
    return schema.decode(run.stdout, name)


def _git(revision: str, *arguments: str) -> bytes:
    try:
        run = subprocess.run(["git", *arguments], capture_output=True, check=False)
    except FileNotFoundError as error:
        raise UsageError(
            "git is not installed", expected=FORMS, found=revision, next_step="name a plan file"
        ) from error
    if run.returncode:
        raise UsageError(
            f"git knows no revision {revision!r} here",
            expected=FORMS,
            found=run.stderr.decode(errors="replace").strip(),
            next_step="git log --oneline lists the revisions",
        )
    return run.stdout
