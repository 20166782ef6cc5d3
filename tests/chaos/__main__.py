"""Puts faults to our server, and to the released peer where it is installed, and prints one table.

    python -m tests.chaos [--only cut,hung] [--no-peer] [--soak-s 120] [--turns 10] [--seed 1] [--list]

It exits with 1 if anything that must hold does not hold here. What the peer does changes nothing about that. A fault
in which all held and something was late is put once more, since machines have other users; the table says so.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from pathlib import Path

from .faults import FAULTS
from .served import PEER_PYTHON
from .table import as_markdown, show
from .trial import Fault, Finding


def main() -> int:
    """Runs all faults; returns the exit code."""
    options = _options()
    # Whoever ends the suite ends what it has started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    chosen = [fault for fault in FAULTS if not options.only or any(part in fault.name for part in options.only)]
    if options.list:
        for fault in chosen:
            print(f"{fault.name}: {fault.must}")
        return 0
    missing = None if options.peer and PEER_PYTHON.exists() else "not run" if not options.peer else "not installed"
    rows = []
    for fault in chosen:
        _say(f"{fault.name} ...")
        ours = fault.under("ours", options.seed, options.soak_s, options.turns)
        _say(f"  ours: {_verdict(ours)}")
        if ours.only_late:
            ours = _again(fault, ours, options)
            _say(f"  ours, once more: {_verdict(ours)}")
        peer: Finding | str
        if fault.peer is not True:
            peer = fault.peer or "cannot be put through it"
        elif missing:
            peer = missing
        else:
            peer = fault.under("peer", options.seed, options.soak_s, options.turns)
            _say(f"  peer: {_verdict(peer)}")
        rows.append((fault, ours, peer))
    show(rows)
    if options.markdown:
        options.markdown.write_text(as_markdown(rows))
    print(
        json.dumps({fault.name: {"ours": vars(ours), "peer": _plain(peer)} for fault, ours, peer in rows}), flush=True
    )
    reasons = [f"FAILED {fault.name}: {reason}" for fault, ours, _ in rows for reason in ours.failed]
    print(*reasons or [f"all {len(rows)} faults survived"], sep="\n", file=sys.stderr)  # as pytest names what failed
    return 1 if reasons else 0


def _again(fault: Fault, late: Finding, options: argparse.Namespace) -> Finding:
    """A second trial of what was only too late; the table tells of both."""
    again = fault.under("ours", options.seed, options.soak_s, options.turns)
    again.survived.insert(0, f"in the second trial; in the first: {'; '.join(late.late)}")
    return again


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--only", type=lambda text: text.split(","), help="parts of names of faults, with commas")
    parser.add_argument("--no-peer", dest="peer", action="store_false", help="leave the released peer out")
    parser.add_argument("--soak-s", type=float, default=120.0, help="how long the soak lasts; default 120")
    parser.add_argument("--turns", type=int, default=10, help="of each agent behind the capture proxy; default 10")
    parser.add_argument("--seed", type=int, default=1, help="of what is done by chance; default 1")
    parser.add_argument("--markdown", type=Path, help="a file to write the table to, too")
    parser.add_argument("--list", action="store_true", help="say which faults there are")
    return parser.parse_args()


def _verdict(finding: Finding) -> str:
    said = "; ".join(finding.survived)
    failed = "; ".join(finding.failed)
    return f"{finding.seconds:.1f} s | {said}" + (f" | FAILED: {failed}" if failed else "")


def _plain(peer: Finding | str) -> object:
    return peer if isinstance(peer, str) else vars(peer)


def _say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
