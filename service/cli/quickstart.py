"""`obscura quickstart FOLDER`: from one's own pictures to private synthetic ones.

What becomes public is stated before the pictures are looked at, or fixed, or counted with noise that is paid for.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated

import typer

from obscura.cli.connection import Target, Yes, address
from obscura.cli.console import CliError, Exit, Output, reporting
from obscura.cli.jobs import LABELS, confirm, follow, show_preview, somebody_there
from obscura.client import Account, Client, Dataset, JobFailed
from obscura.client.client import RECIPE
from obscura.client.contents import require_room
from obscura.client.datasets import default_name
from obscura.client.local_service import LocalService
from obscura.client.one_step import account_for, open_account, usual_delta
from obscura.client.progress import preparation_progress
from obscura.preparing import Package, prepare, read_choices
from obscura.preparing.choices import SIDE_USUAL
from obscura.wire.budgets import UNIT_WORDS
from obscura.wire.wording import odds_sentence, show_epsilon
from service.cli.counting import DELTA, counted_bound

COUNT_SHARE_MAX = 0.1  # of the epsilon that was asked for, which counts of records may have taken before a training


def quickstart(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="Pictures: a folder of class folders, or what `datasets push` takes.")],
    epsilon: Annotated[
        float, typer.Option("--epsilon", "-e", help="Lifetime budget of these pictures; all is spent.")
    ] = 1.0,
    out: Annotated[Path, typer.Option("--out", help="A new folder for the synthetic images.")] = Path("synthetic"),
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Synthetic images to draw.")] = 1000,
    at_most: Annotated[
        int | None,
        typer.Option("--at-most", min=1, help="Public upper bound on the pictures; asked for, or with --yes counted."),
    ] = None,
    size: Annotated[str, typer.Option(help="Pixels, 64 or 64x48.")] = str(SIDE_USUAL),
    grey: Annotated[bool, typer.Option("--grey", help="Give colours up.")] = False,
    yes: Yes = False,
) -> None:
    """From a folder of pictures to private synthetic ones: prepare, open an account, plan, train and download.

    Says what it does, each step with the command that does it by itself, and asks before anything is sent. What becomes
    public is stated before the pictures are looked at. With --yes and no --at-most they are counted, with noise that
    their account pays for. Where no service runs on this machine, one runs for as long as this command does.
    """
    target: Target = context.obj
    with reporting(as_json=False) as output, ExitStack() as stack:
        if not yes and not somebody_there():
            raise CliError("Nobody is here to answer: repeat the command with --yes.", Exit.USAGE)
        require_room(out)
        if at_most is None and not yes:
            at_most = _asked()
        with preparation_progress(output.err) as (on_picture, _):
            choices = read_choices(size=size, grey=grey, skip_broken=True)
            package = prepare(folder, choices, on_picture=on_picture)
        if at_most is not None:
            package.require_within(at_most, None)
        client = stack.enter_context(_service(target, output))
        account, bound = _stated(client, output, folder, package, epsilon, at_most)
        if at_most is None:
            epsilon = _left_of(account, epsilon)
        flags = f" --at-most {bound} --size {size}{' --grey' if grey else ''} --skip-broken"
        dataset = _agreed(client, output, folder, package, (account, bound, flags), epsilon, yes)
        serve = "" if _elsewhere(target) else "obscura up, and beside it: "
        repeat = f"obscura quickstart {_quoted(folder)} --epsilon {epsilon:g}{flags.removesuffix(' --skip-broken')}"
        with _step(output, repeat), preparation_progress(output.err) as (_, on_bytes):
            dataset = client.datasets.send(dataset, package, on_bytes)
        train = f"obscura train {_quoted(dataset.name)} --recipe {RECIPE} --epsilon {epsilon:g} --wait"
        _say(output, "Training, which spends the budget", train)
        with _step(output, f"{serve}{train}"):
            job = client.start_training(dataset.id, recipe=RECIPE, epsilon=epsilon)
        with _step(output, f"{serve}obscura jobs watch {job.id}"):
            release = follow(output, job, "training").release()
        download = f"obscura download {release.id} --count {count} --unpack --out {_quoted(out)}"
        _say(output, "Drawing synthetic images, which costs nothing", download)
        with _step(output, f"{serve}{download}"):
            release.sample(count).to_imagefolder(out)
            grid = release.save_grid(out / "grid.png")
        left = client.account(release.account_id).balance.affordable_epsilon
        output.notice("")
        output.text(f"{count:,} synthetic images in {out}; a look at them: {grid}")
        output.text(f"Left for further trainings on these pictures: epsilon {show_epsilon(left, up=False)}.")
        output.notice(f"More images, at no cost: {serve}obscura download {release.id} --count 10000 --out more.zip")


def _asked() -> int:
    """Ask for the bound, before anything is known of the pictures."""
    stated: int = typer.prompt(
        "How many pictures can there be at most? The number becomes public: round it up",
        type=int,
        err=True,
    )
    if stated < 1:
        raise CliError("What is stated to be there at most is a number above 0.", Exit.USAGE)
    return stated


def _stated(
    client: Client, output: Output, folder: Path, package: Package, epsilon: float, at_most: int | None
) -> tuple[Account, int]:
    """Return the account that pays, opened where there is none, and the bound: as stated, else counted with noise.

    Raises:
        CliError: Too little is left of the account to count and train.
        MoreThanStated: The count came out too low, as one in millions does.
    """
    name = default_name(folder)
    account = account_for(client, name)
    if account is None:
        delta = DELTA if at_most is None else usual_delta(at_most)
        command = f"obscura accounts create {_quoted(name)} --epsilon {epsilon:g} --delta {delta:g} --unit record"
        _say(output, "Opening an account: the budget of these pictures, for life", command)
        account = open_account(client, name, epsilon=epsilon, delta=delta)
    if at_most is not None:
        return account, at_most
    if account.balance.affordable_epsilon < (1 - COUNT_SHARE_MAX) * epsilon:
        raise _spent(account)
    before = account.balance.spent_nano
    bound = counted_bound(client, account.id, package.private_records)
    account = client.account(account.id)
    output.notice("")
    output.notice(
        f"No --at-most was given, so the pictures were counted with noise, for {account.balance.spent_nano - before:,} "
        f"of the account's {account.balance.capacity_nano:,} nano-units. There are {bound} at most."
    )
    package.require_within(bound, None)
    return account, bound


def _left_of(account: Account, epsilon: float) -> float:
    """What a training may spend when the records were counted first: what was asked for, or all that is left of it."""
    left = account.balance.affordable_epsilon
    if left >= epsilon:
        return epsilon
    unit = 10.0 ** (math.floor(math.log10(left)) - 3)  # four digits, rounded down
    return float(f"{math.floor(left / unit) * unit:.6g}")


def _spent(account: Account) -> CliError:
    return CliError(
        f"What is left of account {account.name} does not pay for that: these pictures were trained on before. "
        "What was made then is free to use: obscura up, and beside it: obscura releases list",
        Exit.BUDGET,
    )


def _elsewhere(target: Target) -> bool:
    return target.url is not None or target.profile is not None


@contextmanager
def _service(target: Target, output: Output) -> Iterator[Client]:
    """The service that was named, else the one on this machine, which is started where none runs."""
    if _elsewhere(target):
        url, token = address(target)
        with Client(url, token) as client:
            if not client.ready():
                raise CliError(f"No service answers at {url}. To run one here, leave --url and --profile out.")
            yield client
            return
    with LocalService(target.data_dir) as service, Client(service.url, service.token) as client:
        if service.process is not None:
            _say(output, f"Running a service on {target.data_dir} for the time of this command", "obscura up")
        yield client


def _agreed(
    client: Client,
    output: Output,
    folder: Path,
    package: Package,
    stated: tuple[Account, int, str],
    epsilon: float,
    yes: bool,
) -> Dataset:
    """Declare what was stated, plan and ask; a declined declaration is taken back.

    Raises:
        CliError: The account cannot pay, or the person at the terminal said no.
    """
    account, bound, flags = stated
    free_name = client.datasets.free_name(account.id, None, folder)
    _say(output, "Preparing", f"obscura datasets push {_quoted(folder)} --account {_quoted(account.name)}{flags}")
    dataset = client.datasets.declare(package, name=free_name, account_id=account.id, at_most=bound, say=output.notice)
    try:
        _say(output, "Planning", f"obscura plan {_quoted(dataset.name)} --recipe {RECIPE} --epsilon {epsilon:g}")
        plan = client.plan(dataset.id, recipe=RECIPE, epsilon=epsilon)
        if not plan.budget.affordable:
            raise _spent(account)
        left = show_epsilon(plan.budget.left_epsilon, up=False)
        odds = odds_sentence(account.balance.sure_at_most, account.delta, account.unit)
        output.notice(
            f"It costs epsilon {show_epsilon(plan.price_epsilon, up=True)} of the {left} that is left. "
            f"It hides {UNIT_WORDS[account.unit]}. {odds}"
        )
        for note in plan.notes:
            output.notice(note)
        if not yes:
            _preview(client, output, dataset, epsilon)
            confirm("Send the pictures and train? What is spent stays spent.", "Nothing was sent, and nothing spent.")
    except BaseException:
        dataset.delete()
        raise
    return dataset


def _preview(client: Client, output: Output, dataset: Dataset, epsilon: float) -> None:
    """Show what the training would make of public images; where that fails, go on without."""
    command = f"obscura plan {_quoted(dataset.name)} --recipe {RECIPE} --epsilon {epsilon:g} --preview"
    _say(output, "Trying it on public images, which costs nothing", command)
    asked = client.preview(dataset.id, recipe=RECIPE, epsilon=epsilon)
    try:
        follow(output, asked.job(), LABELS["preview"])
    except JobFailed as error:
        output.notice(str(error))
    else:
        show_preview(output, asked.refresh(), Path("preview.png"))


def _say(output: Output, what: str, command: str) -> None:
    """Announce a step, with the command that does it by itself."""
    output.notice("")
    output.notice(f"{what}:")
    output.notice(f"  $ {command}")


@contextmanager
def _step(output: Output, to_go_on: str) -> Iterator[None]:
    """Say how to go on where the block fails or is interrupted."""
    try:
        yield
    except BaseException:
        output.notice(f"To go on: {to_go_on}")
        raise


def _quoted(word: object) -> str:
    return shlex.quote(str(word))
