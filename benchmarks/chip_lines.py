"""How much a vendor writes: the lines of each chip's adapter and profile.

python benchmarks/chip_lines.py
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

CHIPS = Path(__file__).resolve().parent.parent / "chips"


def code_lines(text: str) -> int:
    """Count the lines of C or C++ that are neither empty nor only a comment."""
    text = re.sub(r"/\*.*?\*/", lambda match: "\n" * match[0].count("\n"), text, flags=re.DOTALL)
    return sum(bool(re.sub(r"//.*", "", line).strip()) for line in text.splitlines())


def main() -> int:
    print(f"{'chip':16}{'adapter lines':>15}{'without comments':>18}{'profile lines':>15}")
    for profile in sorted(CHIPS.glob("*/profile.json")):
        sources = [
            path
            for path in sorted((profile.parent / "adapter").rglob("*"))
            if path.suffix in (".c", ".cpp", ".h", ".hpp") and "tests" not in path.parts
        ]
        texts = [path.read_text(encoding="utf-8") for path in sources]
        print(
            f"{profile.parent.name:16}{sum(len(text.splitlines()) for text in texts):>15}"
            f"{sum(map(code_lines, texts)):>18}{len(profile.read_text(encoding='utf-8').splitlines()):>15}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
