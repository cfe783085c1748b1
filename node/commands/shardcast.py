"""`intellect-node shardcast serve|relay|get`: publish, relay and fetch a folder, without a run or a ledger."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.commands.reading import add_json_flag
from node.defaults import LEAST_MBIT
from node.parsing import Parser, print_line
from node.terminal import count, plain

if TYPE_CHECKING:
    from dht.identity import NodeKey
    from roles.shardcast.pace import Line

EXAMPLES = """\
  intellect-node shardcast serve ./checkpoint --key publisher.key              publish, and serve it from here
  intellect-node shardcast relay --publisher 12D3.. --relay http://ORIGIN:8080 pass it on
  intellect-node shardcast serve ./checkpoint --key publisher.key --relay http://A:8080 --relay http://B:8080
  intellect-node shardcast get ./weights --publisher 12D3.. --relay http://A:8080 --relay http://B:8080
  intellect-node shardcast get ./weights --publisher 12D3.. --relay http://A:8080 --follow

The publisher's key signs each manifest; its id is printed by serve, and readers believe no other. Each checkpoint lands
in a folder named by its digest, whole and verified, or not at all; a fetch that was killed continues where it was.
"""
ACTIONS = ("serve", "relay", "get")
DEFAULT_DISK = 100 * 10**9


def main(words: Sequence[str]) -> int:
    """Run the command."""
    options = _parse(words)
    run = {"serve": _serve, "relay": _relay, "get": _get}[options.action]
    _quiet_log()
    return asyncio.run(_until_signal(run(options)))


def _parse(words: Sequence[str]) -> argparse.Namespace:
    parser = _parser()
    options = parser.parse_args(words)
    if options.action in ("serve", "get") and options.folder is None:
        parser.error(f"shardcast {options.action} needs a folder: intellect-node shardcast {options.action} FOLDER")
    if options.action in ("relay", "get") and not options.publisher:
        parser.error(f"shardcast {options.action} needs --publisher ID: serve prints it")
    if options.base is not None and not options.base.is_dir():
        parser.error(f"there is no folder {options.base} to send the changes from")
    if options.manifest is not None and not re.fullmatch(r"[0-9a-f]{64}", options.manifest):
        parser.error(f"--manifest {options.manifest[:80]}: the digest that serve prints is meant, 64 hex digits")
    if options.action == "get" and not options.relay:
        parser.error("shardcast get needs --relay URL")
    return options


def _parser() -> Parser:
    parser = Parser(
        "intellect-node shardcast",
        "Publish, relay or fetch checkpoints over HTTP, in signed shards; without a run.",
        examples=EXAMPLES,
    )
    parser.add_argument("action", choices=ACTIONS)
    parser.add_argument("folder", nargs="?", type=Path, help="serve: what to publish; get: where checkpoints go")
    parser.add_argument("--publisher", metavar="ID", help="relay, get: the id that serve prints")
    parser.add_argument("--key", type=Path, help="serve: the publisher's key file, made if there is none")
    parser.add_argument(
        "--relay", action="append", default=[], metavar="URL", help="base URL of a relay, may be repeated"
    )
    parser.add_argument("--step", type=int, help="serve: the checkpoint's number (default: one more than the newest)")
    parser.add_argument(
        "--base",
        type=Path,
        help="serve: folder of the checkpoint before, which the relays hold: only what changed since is sent",
    )
    parser.add_argument("--manifest", metavar="DIGEST", help="get: digest of the checkpoint (default: the newest)")
    parser.add_argument("--follow", action="store_true", help="get: fetch each one published from now on, too")
    parser.add_argument("--host", default="127.0.0.1", help="serve, relay: address to listen on")
    parser.add_argument("--port", type=int, default=0, help="serve, relay: port to listen on; 0 takes a free one")
    parser.add_argument("--data", type=Path, default=Path("shardcast-data"), help="serve, relay: where shards are kept")
    parser.add_argument("--max-disk", type=int, default=DEFAULT_DISK, help="serve, relay: bytes of disk to use")
    parser.add_argument("--tls-certificate", type=Path, help="serve, relay: certificate (PEM) to serve https with")
    parser.add_argument("--tls-key", type=Path, help="serve, relay: its key (PEM), if it is not in the same file")
    parser.add_argument("--ca", type=Path, help="certificate authorities (PEM) to trust besides the system's")
    parser.add_argument(
        "--upload-limit", type=_mbit, default=0, metavar="N", help="Mbit/s to send at most; 0: no limit"
    )
    parser.add_argument("--download-limit", type=_mbit, default=0, metavar="N", help="Mbit/s to receive at most")
    add_json_flag(parser)
    return parser


def _mbit(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 8) or 0 < int(text) < LEAST_MBIT:
        raise argparse.ArgumentTypeError(
            f"{text[:16]!r} is no limit: a whole number of Mbit/s, at least {LEAST_MBIT}, or 0"
        )
    return int(text)


async def _serve(options: argparse.Namespace) -> None:
    """Publish to the given relays; with none, act as a relay until a signal."""
    from roles.shardcast import open_channel
    from roles.shardcast.direct import check_folder

    try:
        check_folder(options.folder)
    except ValueError as error:  # fail before any relay is contacted or a key is made
        raise _usage(str(error)) from error
    key = _load_key(options.key)
    _say(options, f"publisher {key.node}", publisher=key.node)
    if options.relay:
        async with open_channel(key.node, options.relay, key=key, ca=options.ca, line=_line(options)) as channel:
            await _publish(options, channel)
        return
    async with (
        _serving(options, publisher=key.node) as url,
        open_channel(key.node, [url], key=key, ca=options.ca or options.tls_certificate) as channel,
    ):
        await _publish(options, channel)
        await asyncio.Event().wait()


async def _publish(options: argparse.Namespace, channel: Any) -> None:
    from roles.shardcast.direct import Published

    began = time.monotonic()
    try:
        published: Published = await channel.publish(options.folder, step=options.step, base=options.base)
    except ValueError as error:
        raise _usage(str(error)) from error
    _say(
        options,
        f"step {published.step}: {published.size} bytes on {count(len(published.relays), 'relay')} "
        f"in {time.monotonic() - began:.1f} s, manifest {published.manifest}",
        manifest=published.manifest,
        step=published.step,
        bytes=published.size,
        relays=list(published.relays),
    )


async def _relay(options: argparse.Namespace) -> None:
    """Until a signal, serve what the publisher signed, pulled from the given relays."""
    async with _serving(options, publisher=options.publisher):
        await asyncio.Event().wait()


@asynccontextmanager
async def _serving(options: argparse.Namespace, *, publisher: str) -> AsyncIterator[str]:
    """Run a relay for the duration of the block; yields its URL."""
    from node.channel_relay import serving_channel
    from roles.relay import Certificate

    certificate = Certificate(options.tls_certificate, options.tls_key) if options.tls_certificate else None
    async with serving_channel(
        options.data,
        publisher=publisher,
        neighbours=options.relay,
        host=options.host,
        port=options.port,
        max_disk=options.max_disk,
        certificate=certificate,
        ca=options.ca,
        line=_line(options),
    ) as served:
        _say(options, f"relay at {served.url}", relay=served.node, url=served.url)
        yield served.url


def _line(options: argparse.Namespace) -> Line:
    from roles.shardcast.pace import line_of

    return line_of(options.upload_limit, options.download_limit)


async def _get(options: argparse.Namespace) -> None:
    from node.terminal import Terminal, progress_bar
    from roles.shardcast import open_channel

    screen = Terminal(sys.stderr)
    progress = progress_bar(screen)

    def fetched(path: Path) -> None:
        screen.line(f"verified: {path}")
        _say(options, str(path), path=str(path), manifest=path.name)

    async with open_channel(options.publisher, options.relay, ca=options.ca, line=_line(options)) as channel:
        if options.follow:
            await channel.follow(options.folder, fetched, progress=progress)
        else:
            fetched(await channel.fetch(options.folder, manifest=options.manifest, progress=progress))


def _load_key(path: Path | None) -> NodeKey:
    """The publisher's key; a temporary new one when no file is named."""
    from roles.shardcast import NodeKey

    if path is None:
        return NodeKey.generate()
    if not path.exists():
        NodeKey.generate().save(path)
    return NodeKey.load(path)


def _say(options: argparse.Namespace, line: str, **fields: object) -> None:
    print_line(json.dumps(fields) if options.json else line)
    sys.stdout.flush()


def _usage(text: str) -> Exception:
    from node.errors import UsageError

    return UsageError(text)


def _quiet_log() -> None:
    """Log only problems, as sentences on stderr: stdout is for the result."""
    import logging

    import structlog

    from node.log import format_line

    def show(_: Any, method: str, event: Any) -> Any:
        sys.stderr.write(plain(format_line({"ts": time.time(), "level": method, "role": "shardcast", **event})) + "\n")
        raise structlog.DropEvent

    structlog.configure(processors=[show], wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))


async def _until_signal(work: Coroutine[Any, Any, None]) -> int:
    """Run until done or a signal. Returns 130 after an interrupt, 0 after another signal or at the end of the work."""
    from node.running import stop_on_signals, until_stopped

    async with stop_on_signals() as stop:
        await until_stopped(work, stop, seconds=3.0)
    return 130 if stop.was_interrupt else 0
