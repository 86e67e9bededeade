"""`obscura quickstart FOLDER`: from one's own pictures to private synthetic ones.

What becomes public is stated before the pictures are looked at, or fixed, or counted with noise that is paid for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Unpack

import typer

from obscura.cli.connection import ClassShares, Target, Yes, connection
from obscura.cli.console import CliError, Exit, Output, reporting
from obscura.cli.jobs import TRY_FIRST, confirm, somebody_there
from obscura.cli.onboarding import COUNTED_DELTA, Onboarding, in_bounds, quoted
from obscura.cli.push_options import in_flags, with_push_options
from obscura.cli.server_side import needed_to_count
from obscura.client import Account, Client, ConnectionFailed
from obscura.client.contents import require_room
from obscura.client.datasets import require_statements
from obscura.client.local_service import LocalService
from obscura.client.one_step import usual_delta
from obscura.client.progress import preparation_progress
from obscura.preparing import Choices, PushOptions, prepare
from obscura.preparing.choices import SIDE_USUAL


@with_push_options
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
    subjects_at_most: Annotated[
        int | None,
        typer.Option(
            "--subjects-at-most",
            min=1,
            help="Protect all pictures of a subject together: public upper bound on the subjects.",
        ),
    ] = None,
    class_shares: ClassShares = None,
    preview: Annotated[
        bool, typer.Option(TRY_FIRST, help="Try the training on public images first, which takes minutes.")
    ] = False,
    yes: Yes = False,
    **push_options: Unpack[PushOptions],
) -> None:
    """From a folder of pictures to private synthetic ones: prepare, open an account, plan, train and download.

    Says what it does, each step with the command that does it by itself, and asks once before any image is uploaded.
    What becomes public is stated before the pictures are looked at. With --yes and no --at-most they are counted, with
    noise that their account pays for. Where no service runs on this machine, one runs for as long as this command does.
    """
    target: Target = context.obj
    with reporting(as_json=False) as output, ExitStack() as stack:
        if not yes and not somebody_there():
            raise CliError("Nobody is here to answer: repeat the command with --yes.", Exit.USAGE)
        require_room(out)
        if at_most is None:
            if yes and subjects_at_most is not None:
                require_statements(at_most, subjects_at_most, private=True, by_subject=True)
            elif yes:
                needed_to_count()
            else:
                at_most = _asked()
        with preparation_progress(output.err) as watch:
            push_options = {"size": SIDE_USUAL, **push_options}
            by_subject = subjects_at_most is not None
            package = prepare(folder, Choices(**push_options), subjects=by_subject, on_picture=watch.on_picture)
        if at_most is not None:
            package.require_within(at_most, subjects_at_most)
        elsewhere = target.url is not None or target.profile is not None
        client = stack.enter_context(_named(target, output) if elsewhere else _here(target, output))
        beside = "" if elsewhere else "obscura up, and beside it: "
        options = {} if class_shares is None else {"class_shares": class_shares}
        walk = Onboarding(client, output, folder, package, in_flags(push_options), beside=beside, options=options)
        account = walk.account(epsilon, COUNTED_DELTA if at_most is None else usual_delta(at_most))
        if at_most is None:
            account, at_most = walk.counted(account, epsilon)
            epsilon = _left_of(account, epsilon)

        def agree() -> None:
            if elsewhere and not yes:  # what is declared leaves this machine
                question = f"Declare this forever, upload the images and train? Training spends epsilon {epsilon:g}."
                confirm(question, "Nothing was declared or uploaded.")

        dataset = walk.declare(account, at_most, subjects_at_most, agree)
        try:
            walk.plan(dataset, account, epsilon)
            if preview:
                walk.try_on_public(dataset, epsilon)
            if not yes and (preview or not elsewhere):
                declined = "Nothing was uploaded or spent."
                confirm("Upload the images and train? What is spent stays spent.", declined)
        except BaseException:
            dataset.delete()
            raise
        bounds = f"{in_bounds(at_most, subjects_at_most)}{walk.stated}{in_flags(push_options)}"
        repeat = f"obscura quickstart {quoted(folder)} --epsilon {epsilon:g}{bounds}"
        with walk.step(repeat):
            dataset = walk.send(dataset)
        walk.draw(walk.train(dataset, epsilon), count, out)


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


def _left_of(account: Account, epsilon: float) -> float:
    """What a training may spend when the records were counted first: what was asked for, or all that is left of it."""
    left = account.balance.affordable_epsilon
    if left >= epsilon:
        return epsilon
    unit = 10.0 ** (math.floor(math.log10(left)) - 3)  # four digits, rounded down
    return float(f"{math.floor(left / unit) * unit:.6g}")


@contextmanager
def _named(target: Target, output: Output) -> Iterator[Client]:
    """Connect to the service that was named, and wait for it if it is slow."""
    with connection(target, output) as client:
        try:
            client.wait_ready(on_wait=lambda why: output.notice(f"The service is slow. Waiting for it. ({why})"))
        except ConnectionFailed as error:
            raise CliError(
                f"No service answers at {client.transport.base_url} ({error}). To run one here, leave --url and "
                "--profile out."
            ) from error
        yield client


@contextmanager
def _here(target: Target, output: Output) -> Iterator[Client]:
    """The service on this machine, which is started where none runs."""
    with LocalService(target.folder) as service, Client(service.url, service.token) as client:
        if service.process is not None:
            output.notice(f"\nRunning a service on {target.folder} for the time of this command:\n  $ obscura up")
        else:
            output.notice(f"Using the service on {target.folder}, {service.url}.")
        yield client
