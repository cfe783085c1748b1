"""Take the documentation's screenshots of the status page, from a real testnet with one cheating worker."""

import argparse
import asyncio
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from node.testnet.plan import free_ports
from tests.browser.chromium import Page, find_chromium, new_page, running_chromium

ROOT = Path(__file__).resolve().parents[1]
PICTURES = {"light": ("light", 1280, 1330, 1.0), "dark": ("dark", 1280, 1330, 1.0), "narrow": ("light", 390, 1080, 1.5)}
"""Theme, width, height, and device pixels per CSS pixel."""
MOST_BYTES = 300_000
PATIENCE = 420.0
CHEAT_WALLET = "0x00000000000000000000000000000000000bad01"


@contextlib.contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that is asked to end with the block."""
    process = subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(40)
        process.kill()
        process.wait()


async def until_there(path: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait for a file, as long as its process is alive."""
    while not path.exists():  # noqa: ASYNC240 - a stat, now and then
        if process.poll() is not None:
            raise SystemExit("the testnet did not start")
        await asyncio.sleep(0.02)


async def take(page: Page, out: Path, *, steps: int) -> None:
    """Wait until the network has trained for a while, then take one picture after the other."""
    await page.until(f"Number(document.querySelector('#lead-step').textContent) >= {steps}", PATIENCE)
    for name, (theme, width, height, scale) in PICTURES.items():
        await page.resize(width, height, scale=scale)
        await page.prefer(prefers_color_scheme=theme)
        await page.until("document.querySelectorAll('.dot.busy').length > 3", 30)
        await asyncio.sleep(0.4)  # let pending messages arrive and charts finish drawing
        path = out / f"page-{name}.png"
        path.write_bytes(await page.picture())
        size = path.stat().st_size
        print(f"{path} {size / 1000:.0f} kB")
        if size > MOST_BYTES:
            raise SystemExit(f"{path} is larger than {MOST_BYTES} bytes")
    if page.complaints:
        raise SystemExit(f"the browser complained: {page.complaints}")


async def show(base: str, folder: Path, options: argparse.Namespace) -> None:
    """Start a testnet, print how soon its page is painted, take the pictures, and stop it."""
    (port,) = free_ports(1)
    net = folder / "net"
    testnet = ("-m", "node", "testnet", "--plain", "--dir", str(net), "--steps", "60", "--page-port", str(port))
    async with new_page(base) as page:
        began = time.monotonic()
        with running(*testnet) as process, contextlib.ExitStack() as stack:
            await until_there(net / "status.json", process)
            await page.open(f"http://127.0.0.1:{port}/")
            await page.until("performance.getEntriesByName('first-contentful-paint').length")
            print(f"first paint {time.monotonic() - began:.1f} s after the start")
            await until_there(net / "join", process)
            if not options.honest:
                cheat = ("-m", "tests.testnet.cheating_worker", str(net / "join"), str(net / "cheat"), CHEAT_WALLET)
                stack.enter_context(running(*cheat))
            await page.until("document.querySelector('#submissions .tag[data-kind=accepted]')", PATIENCE)
            print(f"first accepted rollout on the page {time.monotonic() - began:.1f} s after the start")
            await take(page, options.out, steps=options.steps)


def main() -> None:
    """Read the options, start a browser, take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs", help="folder of the pictures")
    parser.add_argument("--steps", type=int, default=10, help="trained before the first picture")
    parser.add_argument("--honest", action="store_true", help="without the worker that cheats")
    options = parser.parse_args()
    program = find_chromium() or sys.exit("no Chromium here: apt-get install chromium, or name one by CHROMIUM")
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name, running_chromium(program, Path(name) / "chromium") as base:
        asyncio.run(show(base, Path(name), options))


if __name__ == "__main__":
    main()
