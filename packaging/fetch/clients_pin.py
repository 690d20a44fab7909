"""`clients_pin.py IN OUT`: the newest versions of what IN names and of all they need, each with the digests of its files.
`clients_pin.py --alone IN OUT`: without what they need, which another list pins.

pip resolves; the index tells the digests of every file of a version, so that the pins hold on any Python it is made for.
"""

from __future__ import annotations

import sys
from pathlib import Path

from package_index import OTHER_SYSTEMS, hashes_of, resolved

OTHERS = (*OTHER_SYSTEMS, "aarch64")
"""In the names of files for other systems than Linux on x86-64."""


def main() -> None:
    alone = sys.argv[1] == "--alone"
    wanted, out = (Path(name) for name in sys.argv[1 + alone : 3 + alone])
    lines = [
        f"# Made of {wanted.name} by packaging/fetch/clients-tool.sh --pin: every file's digest."
    ]
    words = ("--no-deps",) if alone else ()
    for name, version in sorted(resolved(*words, "-r", str(wanted)).items()):
        digests = hashes_of(name, version, without=OTHERS)
        files = "".join(f" \\\n    --hash=sha256:{digest}" for digest in digests)
        lines.append(f"{name}=={version}{files}")
    out.write_text("\n".join(lines) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
