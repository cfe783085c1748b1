"""Record a testnet's view as one animated SVG, with a frame for each step, drawn by the testnet itself (`--picture`).

`python scripts/make_recording.py` rewrites docs/testnet.svg. Nothing is drawn by hand: the
animation shows what really ran.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from pathlib import Path

LOOK_SECONDS = 0.05
FRAME_SECONDS = 0.9
LAST_SECONDS = 4.0
"""How long the last frame is shown. A viewer without animations shows this frame."""
_SIZE = re.compile(r'viewBox="0 0 ([0-9.]+) ([0-9.]+)"')
_INSIDE = re.compile(r"<svg[^>]*>(.*)</svg>", re.DOTALL)


def record(command: Sequence[str], picture: Path) -> Iterator[str]:
    """Run a command and yield each complete picture that it writes, in order. Raises
    CalledProcessError when it fails."""
    seen = ""
    with subprocess.Popen([*command, "--picture", str(picture)]) as process:
        while process.poll() is None:
            time.sleep(LOOK_SECONDS)
            text = read_whole(picture)
            if text and text != seen:
                seen = text
                yield text
    text = read_whole(picture)
    if text and text != seen:
        yield text
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)


def read_whole(picture: Path) -> str:
    """The picture; empty while it is missing or incomplete."""
    try:
        text = picture.read_text()
        ET.fromstring(text)  # noqa: S314 - our own file
    except (OSError, ET.ParseError):
        return ""
    return text


def combine(frames: Sequence[str]) -> str:
    """One SVG that shows the frames in sequence, in an endless loop."""
    sizes = [_SIZE.search(frame) for frame in frames]
    width = max(float(size[1]) for size in sizes if size)
    height = max(float(size[2]) for size in sizes if size)
    total = FRAME_SECONDS * (len(frames) - 1) + LAST_SECONDS
    groups = []
    for number, frame in enumerate(frames):
        inside = _INSIDE.search(frame)
        begin, end = number * FRAME_SECONDS / total, (number + 1) * FRAME_SECONDS / total
        end = min(1.0, end) if number < len(frames) - 1 else 1.0
        shown = "visible" if number == len(frames) - 1 else "hidden"
        times = f"0;{begin:.4f};{end:.4f}" if number else f"0;0;{end:.4f}"
        groups.append(
            f'<g visibility="{shown}"><animate attributeName="visibility" calcMode="discrete" dur="{total:g}s" '
            f'repeatCount="indefinite" values="hidden;visible;hidden" keyTimes="{times}"/>'
            f"{inside[1] if inside else ''}</g>"
        )
    head = f'<svg class="rich-terminal" viewBox="0 0 {width:g} {height:g}" xmlns="http://www.w3.org/2000/svg">'
    return f"{head}\n<!-- made by scripts/make_recording.py -->\n{''.join(groups)}\n</svg>\n"


def main() -> None:
    """Record a testnet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/testnet.svg"))
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    command = [sys.executable, "-m", "node", "testnet", "--plain", "--steps", str(options.steps)]
    with tempfile.TemporaryDirectory(prefix="intellect-recording-") as folder:
        frames = list(record(command, Path(folder) / "frame.svg"))
    options.out.write_text(combine(frames))
    print(f"{len(frames)} frames, {options.out.stat().st_size // 1000} kB in {options.out}")


if __name__ == "__main__":
    main()
