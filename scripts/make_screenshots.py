"""Take the pictures of the page that the documentation shows: from a real testnet, with one worker that cheats."""

import argparse
import asyncio
import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from node.testnet.plan import free_ports
from tests.browser.chromium import Page, find_chromium, new_page, running_chromium

ROOT = Path(__file__).resolve().parents[1]
PICTURES = {"light": ("light", 1280, 1210, 1.0), "dark": ("dark", 1280, 1210, 1.0), "narrow": ("light", 390, 1080, 1.5)}
"""Theme, width, height and pixels for each CSS pixel."""
MOST_BYTES = 300_000
PATIENCE = 420.0
CHEAT_WALLET = "0x00000000000000000000000000000000000bad01"


@contextlib.contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that is asked to end with the block."""
    process = subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(40)
        process.kill()
        process.wait()


async def take(page: Page, url: str, out: Path, *, steps: int) -> None:
    """Wait until the network has trained for a while, then one picture after the other."""
    await page.open(url)
    await page.until(f"Number(document.querySelector('#lead-step').textContent) >= {steps}", PATIENCE)
    for name, (theme, width, height, scale) in PICTURES.items():
        await page.resize(width, height, scale=scale)
        await page.prefer(prefers_color_scheme=theme)
        await page.until("document.querySelectorAll('.dot.busy').length > 3", 30)
        await asyncio.sleep(0.4)  # messages on their way, and no chart half drawn
        path = out / f"page-{name}.png"
        path.write_bytes(await page.picture())
        size = path.stat().st_size
        print(f"{path} {size / 1000:.0f} kB")
        if size > MOST_BYTES:
            raise SystemExit(f"{path} is larger than {MOST_BYTES} bytes")
    if page.complaints:
        raise SystemExit(f"the browser complained: {page.complaints}")


async def main() -> None:
    """Start a testnet and a browser, take the pictures, end both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="folder of the pictures")
    parser.add_argument("--steps", type=int, default=10, help="trained before the first picture")
    parser.add_argument("--honest", action="store_true", help="without the worker that cheats")
    options = parser.parse_args()
    program = find_chromium() or sys.exit("no Chromium here: apt-get install chromium, or name one by CHROMIUM")
    (port,) = free_ports(1)
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        net = Path(folder) / "net"
        testnet = stack.enter_context(
            running("-m", "node", "testnet", "--plain", "--dir", str(net), "--steps", "60", "--page-port", str(port))
        )
        while not (net / "join").exists() and testnet.poll() is None:  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(0.2)
        if not options.honest:
            join, home = str(net / "join"), str(net / "cheat")
            stack.enter_context(running("-m", "tests.testnet.cheating_worker", join, home, CHEAT_WALLET))
        base = stack.enter_context(running_chromium(program, Path(folder) / "chromium"))
        async with new_page(base) as page:
            await take(page, f"http://127.0.0.1:{port}/", options.out, steps=options.steps)


if __name__ == "__main__":
    asyncio.run(main())
