"""The paper's claim in slots of 15 minutes of one GPU: data packed small, three networks a slot, rows that come back.

python -m studies.slots names --imagenette DIR [--mib 36]                 (once: the list of training photographs)
python -m studies.slots pack --imagenette DIR --voc VOCDEVKIT --coco COCO [--out runs/slot.zip] [--mib 48]
python -m studies.slots run N --data runs/slot.zip --work DIR --out DIR [--seconds 540]
python -m studies.slots add ARCHIVE.tar.gz ...                            (rows that came back; writes the page)
python -m studies.slots join SHARD ... --out WEIGHTS.safetensors          (a teacher that came back)
python -m studies.slots page

Slot 1 measures the seconds of an epoch, tries three rates of each arm and two of B as the paper prints it, and chooses
(``docs/results/slots/plan.json``); slots 2 to 6 train one seed of every arm. ``run`` keeps to its seconds: what does
not fit is cut and said, and the same command goes on with it. ``--toy`` takes seconds a network on a CPU.
"""

from __future__ import annotations

import argparse
import glob
import json
import shutil
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dinoskip.errors import DinoskipError
from dinoskip.io.files import save_tensors, write_json
from dinoskip.runtime.console import configure, log
from dinoskip.runtime.environment import describe
from eval.tokencut import TokenCutConfig
from studies import slots_arms, slots_data, slots_first, slots_look, slots_steps
from studies.slots_arms import (
    ARMS,
    PLAN,
    PRINTED,
    PRINTED_RATES,
    RATE_EPOCHS,
    RATES,
    RESULTS,
    SLOTS,
    TEACHER,
    Plan,
    read_plan,
)
from studies.slots_page import write_page
from studies.slots_rows import CARD, ROWS_MIB, gather, join_shards, mib_of, opened, read_slot, write_shards
from studies.slots_run import Deadline, Piece, Progress, run_pieces

RESERVE = 20.0
"""Seconds at the end in which rows are gathered and packed, whatever was cut."""
RATE_LIMIT = 320.0  # three networks of 20 epochs, about 32 s of steps each
PRINTED_LIMIT = 220.0  # two of them
TRAIN_LIMIT, TRAIN_LEAST = 260.0, 45.0  # steps of 150 s, start and compiling; a training that is cut goes on later
EVALUATE_LIMIT, EVALUATE_LEAST = 400.0, 25.0  # of slot 1's nine networks; three are planned in 90 s
TOY_PATIENCE = 5  # times the limits at toy size
NO_OTHERS = ("evaluate.probe.datasets=[]", "evaluate.knn.datasets=[]")


@dataclass(frozen=True)
class Place:
    """A slot's folders of data, of work and of results, its device, and whether its sizes are a CPU's (``toy``)."""

    data: Path
    work: Path
    out: Path
    device: str = "auto"
    toy: bool = False


@dataclass(frozen=True)
class Networks:
    """Networks of one invocation: their names, optimizers of the study (as settings), epochs."""

    names: Sequence[str]
    optimizers: Sequence[dict[str, object]]
    epochs: int


class Commands:
    """Pieces of one slot, as commands of the project."""

    def __init__(self, slot: int, place: Place) -> None:
        self.slot, self.place = slot, place
        self.study = place.work / f"slot{slot}"

    def dinoskip(self, networks: Networks, until: str, *more: str) -> tuple[str, ...]:
        """``dinoskip run`` of some networks up to a stage."""
        place = self.place
        settings = slots_arms.overrides(place.data, place.work, self.slot, networks.epochs, toy=place.toy)
        listed = f"variants.optimizer={json.dumps(list(networks.optimizers))}"
        names = [word for name in networks.names for word in ("--variant", name)]
        config = str(slots_arms.ROOT / slots_arms.CONFIG)
        return (
            "-m",
            "dinoskip",
            "run",
            config,
            *settings,
            listed,
            *more,
            *names,
            "--until",
            until,
            "--device",
            place.device,
        )

    def train(self, name: str, networks: Networks, limit: float = TRAIN_LIMIT) -> Piece:
        """Train networks; the weights of their teachers."""
        lost = f"{', '.join(networks.names)}: the same command goes on with the training"
        return Piece(f"train {name}", self.dinoskip(networks, "weights"), limit, TRAIN_LEAST, lost)

    def evaluate(self, name: str, networks: Networks, *more: str, lost: str) -> Piece:
        """Probes, TokenCut and k-NN of networks."""
        return Piece(name, self.dinoskip(networks, "knn", *more), EVALUATE_LIMIT, EVALUATE_LEAST, lost)

    def starts(self, networks: Networks) -> Piece:
        """The networks before training."""
        return self.evaluate("starts", networks, "evaluate.epochs=[0]", lost="scores of the networks before training")

    def baselines(self, networks: Networks) -> Piece:
        """Colours and a random patch, beside the first network before training."""
        more = ("evaluate.epochs=[0]", "evaluate.tokencut.pixels=true", "evaluate.probe.pixels=true")
        only = Networks(networks.names[:1], networks.optimizers, networks.epochs)
        return self.evaluate("baselines", only, *more, lost="colours and random patch")

    def without_positions(self, networks: Networks) -> list[Piece]:
        """TokenCut with the mean of every position taken out, where TokenCut has the setting."""
        if "positions" not in TokenCutConfig.model_fields:
            log.warning("slot: this version's TokenCut cannot take positions out: that is not measured")
            return []
        arguments = self.dinoskip(networks, "tokencut", "evaluate.tokencut.positions=mean", *NO_OTHERS)
        return [Piece("positions removed", arguments, 120.0, EVALUATE_LEAST, "CorLoc with positions removed")]

    def look(self, networks: Networks) -> Piece:
        """Share of position, likeness of tokens, a strip of PCA; before training and after."""
        weights = [
            f"{name} ep{epoch}={self.study}/stages/weights/{name}/ep{epoch}/*/weights.safetensors"
            for name in networks.names
            for epoch in (0, networks.epochs)
        ]
        place = self.place
        where = ("--data", str(place.data / "boxed"), "--out", str(self.study / "look"), "--device", place.device)
        small = ("--size", "64", "--images", "4") if place.toy else ()
        arguments = ("-m", "studies.slots_look", *weights, *where, *small)
        return Piece("look", arguments, 60.0, EVALUATE_LEAST, "position share, token cosine, strip")


# --- slots -------------------------------------------------------------------------------------------


def first(commands: Commands) -> tuple[list[Piece], Networks]:
    """Pieces of slot 1: seconds an epoch, three rates of each arm (the middle one first), two of B0, and a look."""
    epochs = 1 if commands.place.toy else RATE_EPOCHS
    rates = sorted(RATES, key=lambda rate: rate != slots_first.MIDDLE)
    optimizers = [slots_arms.optimizer("adamw", rate) for rate in RATES]
    place, steps = commands.place, commands.study / "steps"
    more = ("--toy",) if place.toy else ("--seconds", "105")
    arguments = ("-m", "studies.slots_steps", "--out", str(steps), "--device", place.device, *more)
    pieces = [Piece("steps", arguments, 120.0, TRAIN_LEAST, "seconds of an epoch: no plan can be made")]
    for rate in rates:
        own = Networks([slots_first.network(arm, rate) for arm in ARMS], optimizers, epochs)
        pieces.append(commands.train(f"rate {rate:g}", own, RATE_LIMIT))
    every = Networks([slots_first.network(arm, rate) for rate in rates for arm in ARMS], optimizers, epochs)
    middle = Networks([slots_first.network(arm, slots_first.MIDDLE) for arm in ARMS], optimizers, epochs)
    pieces.append(commands.evaluate("evaluate", every, lost="what rates are chosen by: no plan can be made"))
    printed = Networks([slots_first.network(PRINTED, rate) for rate in PRINTED_RATES], optimizers, epochs)
    pieces.append(commands.train(PRINTED, printed, PRINTED_LIMIT))
    pieces.append(commands.evaluate(f"evaluate {PRINTED}", printed, lost=f"whether {PRINTED} can take B's place"))
    pieces += [commands.starts(middle), commands.baselines(middle), commands.look(middle)]
    return [*pieces, *commands.without_positions(middle)], middle


def later(commands: Commands, plan: Plan) -> tuple[list[Piece], Networks]:
    """Pieces of slots 2 to 6: a seed of every arm in random order, then all measures, the primary ones first."""
    every = {str(settings["label"]): settings for settings in map(plan.optimizer, ARMS)}
    optimizers, slot = list(every.values()), commands.slot
    pieces = []
    for arm in slots_arms.order(slot):
        own = Networks([plan.variant(arm, slot)], optimizers, plan.epochs)
        pieces.append(commands.train(ARMS[arm], own))
    networks = Networks([plan.variant(arm, slot) for arm in ARMS], optimizers, plan.epochs)
    pieces.append(commands.evaluate("evaluate", networks, lost="both primary measures: the slot counts in no test"))
    pieces += [*commands.without_positions(networks), commands.starts(networks), commands.look(networks)]
    if not (RESULTS / "slot1.tar.gz").is_file():
        pieces.append(commands.baselines(networks))
    return pieces, networks


def run(slot: int, place: Place, seconds: float, plan: Plan | None) -> list[str]:
    """Run a slot within its seconds; return a line for all that is missing. The same call goes on."""
    deadline = Deadline(seconds - (0 if place.toy else RESERVE))
    place.work.mkdir(parents=True, exist_ok=True)
    place = Place(
        slots_data.unpacked(place.data, place.work).resolve(), place.work.resolve(), place.out, place.device, place.toy
    )
    commands, progress = Commands(slot, place), Progress(place.work / f"slot{slot}.json")
    pieces, networks = first(commands) if plan is None else later(commands, plan)
    if place.toy:  # a CPU that others use, too
        pieces = [replace(piece, limit=TOY_PATIENCE * piece.limit) for piece in pieces]
    missing = run_pieces(pieces, deadline, progress, place.work / f"slot{slot}.log")
    place.out.mkdir(parents=True, exist_ok=True)
    found = {arm: str(name) for arm, name in zip(ARMS, networks.names, strict=True)}
    if plan is None:
        found[PRINTED] = slots_first.network(PRINTED, slots_first.MIDDLE)
    card: dict[str, Any] = {
        "slot": slot, "seed": slots_arms.seed_of(slot), "epochs": networks.epochs, "networks": found, "toy": place.toy,
        "pieces": {piece.name: progress.states[piece.name] for piece in pieces},
        "order": [piece.name for piece in pieces], "machine": describe(), "day": str(datetime.now(UTC).date()),
        "unresolved": [],
    }  # fmt: skip
    if plan is not None:
        card |= plan.plain()
    missing += finish(commands, card)
    missing += teacher(commands, networks)
    return missing


def finish(commands: Commands, card: dict[str, Any]) -> list[str]:
    """Gather rows, card, looks and journals into one archive; of slot 1, choose the plan."""
    place, missing = commands.place, list[str]()
    folder = place.work / f"slot{commands.slot}-rows"
    shutil.rmtree(folder, ignore_errors=True)
    gather(commands.study, folder)
    for path in (commands.study / "look" / slots_look.LOOK, commands.study / "look" / slots_look.STRIP):
        if path.is_file():
            shutil.copyfile(path, folder / path.name)
    for path in sorted((commands.study / "stages" / "pretrain").glob("*/*/metrics.jsonl")):
        shutil.copyfile(path, folder / f"{path.parts[-3]}.jsonl")
    write_json(folder / CARD, card)
    if commands.slot == 1:
        missing += choose(commands, folder, card)
    if (size := mib_of(folder)) > ROWS_MIB:
        missing.append(f"rows and records have {size:.1f} MiB, more than {ROWS_MIB:g}")
    archive = place.out / f"slot{commands.slot}.tar.gz"
    with tarfile.open(archive, "w:gz") as stream:
        stream.add(folder, f"slot{commands.slot}")
    shutil.copyfile(place.work / f"slot{commands.slot}.log", place.out / f"slot{commands.slot}.log")
    return missing


def choose(commands: Commands, folder: Path, card: dict[str, Any]) -> list[str]:
    """Write slot 1's plan into its folder and card; return what it lacks."""
    seconds, slot = slots_steps.slowest(commands.study / "steps"), read_slot(folder)
    merits = slots_first.tried(slot.recorded, slot.epochs)
    write_json(folder / CARD, card | {"tried": merits})
    if seconds is None:
        return ["no plan: the seconds of an epoch were not measured for every arm"]
    length = 2 if commands.place.toy else slots_arms.epochs_in(seconds)
    try:
        plan = slots_first.chosen(slot.recorded, merits, slot.epochs, length)
    except DinoskipError as error:
        return [f"no plan: {error.message}"]
    plan.write(folder / PLAN.name)
    write_json(
        folder / CARD, card | plan.plain() | {"tried": merits, "epochs_chosen": length, "seconds_an_epoch": seconds}
    )
    return []


def teacher(commands: Commands, networks: Networks) -> list[str]:
    """Write the teacher of the slot's arm in float16; return what is missing."""
    arm = TEACHER[commands.slot]
    name = networks.names[list(ARMS).index(arm)]
    pattern = f"{commands.study}/stages/weights/{name}/ep{networks.epochs}/*/weights.safetensors"
    found = sorted(glob.glob(pattern))
    if not found:
        return [f"teacher of {arm}: there are no weights of {name}"]
    write_shards(Path(found[-1]), commands.place.out, f"slot{commands.slot}-{name}")
    return []


def add(archives: Sequence[Path]) -> None:
    """Keep the archives of slots that came back, slot 1's plan as the plan of all; write the page."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    for archive in archives:
        with opened(archive) as folder:  # one that cannot be read is not kept
            slot = read_slot(folder)
            if (folder / PLAN.name).is_file():
                shutil.copyfile(folder / PLAN.name, PLAN)
        shutil.copyfile(archive, RESULTS / f"slot{slot.number}.tar.gz")
    write_page()


# --- the command -------------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command's arguments."""
    made = argparse.ArgumentParser(
        prog="python -m studies.slots", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = made.add_subparsers(dest="what", required=True)
    names, pack = (commands.add_parser(name) for name in ("names", "pack"))
    for one, mib in ((names, 36.0), (pack, 48.0)):
        one.add_argument("--imagenette", type=Path, required=True, help="class folders below train and val")
        one.add_argument("--mib", type=float, default=mib, help="most MiB (default: %(default)g)")
    pack.add_argument("--voc", type=Path, required=True, help="a VOCdevkit")
    pack.add_argument("--coco", type=Path, required=True, help="with annotations, val2017 and train2014")
    pack.add_argument("--each", type=int, help="no more images of any labelled set (default: all)")
    pack.add_argument("--names", type=Path, default=slots_data.NAMES, help="another list of training photographs")
    pack.add_argument("--out", type=Path, default=Path("runs/slot.zip"), help="(default: %(default)s)")
    slot = commands.add_parser("run")
    slot.add_argument("slot", type=int, choices=[1, *SLOTS])
    slot.add_argument("--data", type=Path, required=True, help="the ZIP file that pack wrote, or its folder")
    slot.add_argument("--work", type=Path, default=Path("runs/slots"), help="working folder, on a fast disk")
    slot.add_argument("--out", type=Path, default=Path("runs/slots-out"), help="what comes back: few, small files")
    slot.add_argument("--seconds", type=float, default=540.0, help="for all of this call (default: %(default)g)")
    slot.add_argument("--plan", type=Path, default=PLAN, help="slot 1's plan, for slots 2 to 6")
    slot.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    slot.add_argument("--toy", action="store_true", help="seconds a network on a CPU")
    commands.add_parser("add").add_argument("archives", nargs="+", type=Path)
    join = commands.add_parser("join")
    join.add_argument("shards", nargs="+", type=Path)
    join.add_argument("--out", type=Path, required=True)
    commands.add_parser("page")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Do what is asked for; errors of users are one line each."""
    args = parser().parse_args(argv)
    configure(0)
    try:
        return _done(args)
    except DinoskipError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


def _done(args: argparse.Namespace) -> int:
    if args.what == "names":
        names = slots_data.choose(slots_data.sizes_below(args.imagenette / "train"), int(args.mib * 2**20))
        slots_data.write_names(names)
        print(f"{slots_data.NAMES}: {len(names)} names")
    elif args.what == "pack":
        sources = slots_data.Sources(args.imagenette, args.voc, args.coco)
        print(json.dumps(slots_data.pack(sources, slots_data.read_names(args.names), args.out, args.mib, args.each)))
    elif args.what == "run":
        place = Place(args.data, args.work, args.out, args.device, args.toy)
        plan = None if args.slot == 1 else read_plan(args.plan)
        missing = run(args.slot, place, args.seconds, plan)
        print("\n".join(missing) or "nothing is missing")
    elif args.what == "add":
        add(args.archives)
    elif args.what == "join":
        save_tensors(args.out, join_shards(args.shards))
    else:
        write_page()
    return 0


if __name__ == "__main__":
    sys.exit(main())
