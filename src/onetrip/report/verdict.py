"""Verdicts of a budget as text, JSON, annotations of GitHub, and JUnit.

One table of formats; each is a function of the verdicts. Must not know how a budget is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from xml.etree import ElementTree

import msgspec

from .budget import Cause, Verdict, Violation

Locate = Callable[[str], str]
"""The path of a source file, given the name that stands in a plan: `net.py` -> `src/net.py`."""


def text(verdicts: Sequence[Verdict], locate: Locate) -> str:
    """For a terminal."""
    return "\n".join(line for v in verdicts for line in _text(v, locate))


def _text(verdict: Verdict, locate: Locate) -> Iterator[str]:
    over = {v.rule for v in verdict.violations}
    yield f"{verdict.target}: {'over budget' if over else 'within budget'}"
    for rule, words in verdict.checked:
        if rule not in over and not rule.startswith("group "):
            yield f"  ok    {rule}: {words}"
    groups = sum(rule.startswith("group ") for rule, _ in verdict.checked)
    broken = sum(v.rule == "group" for v in verdict.violations)
    if groups:
        yield f"  {'ok   ' if not broken else 'OVER '} groups: {groups - broken} of {groups} whole"
    for violation in verdict.violations:
        yield f"  OVER  {violation.rule}: {violation.message}"
        for cause in violation.causes:
            yield from (f"        {line}" for line in _cause(cause, locate))


def _cause(cause: Cause, locate: Locate) -> Iterator[str]:
    if cause.line:
        yield f"at {_placed(cause.line, locate)}"
    yield cause.text
    if cause.remedy:
        yield f"to change it: {cause.remedy}"


def _placed(line: str, locate: Locate) -> str:
    file, _, number = line.rpartition(":")
    return f"{locate(file)}:{number}"


def as_json(verdicts: Sequence[Verdict], locate: Locate) -> str:
    """Every verdict; lines stand as in plans."""
    return msgspec.json.format(msgspec.json.encode(verdicts), indent=2).decode()


def github(verdicts: Sequence[Verdict], locate: Locate) -> str:
    """Workflow commands that GitHub shows beside the lines of a change."""
    lines = [_annotation(x, locate) for v in verdicts for x in v.violations]
    return "\n".join(lines) or "::notice title=onetrip::within budget"


def _annotation(violation: Violation, locate: Locate) -> str:
    place = {"title": f"onetrip {violation.target} {violation.rule}"}
    if violation.line:
        file, _, number = violation.line.rpartition(":")
        place = {"file": locate(file), "line": number, **place}
    words = ",".join(f"{k}={_escaped(v, ':,')}" for k, v in place.items())
    causes = [line for c in violation.causes for line in _cause(c, locate)]
    return f"::error {words}::{_escaped(chr(10).join([violation.message, *causes]), '')}"


def _escaped(value: str, more: str) -> str:
    """As workflow commands want it: `%`, ends of lines, and in properties `:` and `,`."""
    for sign in ("%", "\r", "\n", *more):
        value = value.replace(sign, f"%{ord(sign):02X}")
    return value


def junit(verdicts: Sequence[Verdict], locate: Locate) -> str:
    """A suite for each target, a case for each line of the budget."""
    root = ElementTree.Element("testsuites", name="onetrip check")
    for verdict in verdicts:
        failed = {_case(x): x for x in verdict.violations}
        names = dict.fromkeys((*(rule for rule, _ in verdict.checked), *failed))
        counts = {"tests": str(len(names)), "failures": str(len(failed))}
        suite = ElementTree.SubElement(root, "testsuite", {"name": verdict.target, **counts})
        for name in names:
            case = ElementTree.SubElement(suite, "testcase", classname=verdict.target, name=name)
            violation = failed.get(name)
            if violation is not None:
                fault = ElementTree.SubElement(case, "failure", message=violation.message)
                lines = (line for c in violation.causes for line in _cause(c, locate))
                fault.text = "\n".join(lines)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True)


def _case(violation: Violation) -> str:
    """The line of the budget, as `Verdict.checked` has it."""
    return f"group {violation.subject}" if violation.rule == "group" else violation.rule


FORMATS: Mapping[str, Callable[[Sequence[Verdict], Locate], str]] = {
    "text": text,
    "json": as_json,
    "github": github,
    "junit": junit,
}
