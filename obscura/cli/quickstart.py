"""`obscura quickstart FOLDER`: from one's own images to private synthetic ones.

Only stated values and fixed defaults become public. The images determine none of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from obscura.cli.connection import ClassShares, Target, Yes, connection
from obscura.cli.console import CliError, Exit, Output, reporting
from obscura.cli.datasets import in_flags, with_push_options
from obscura.cli.jobs import TRY_FIRST, confirm, is_interactive
from obscura.cli.onboarding import Onboarding, in_bounds, quoted
from obscura.client import Client, ConnectionFailed
from obscura.client.contents import require_room
from obscura.client.datasets import require_statements
from obscura.client.local_service import LocalService
from obscura.client.one_step import usual_delta
from obscura.client.progress import preparation_progress
from obscura.preparing import Choices, prepare
from obscura.preparing.choices import SIDE_USUAL


@with_push_options
def quickstart(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="Images: a folder of class folders, or what `datasets push` takes.")],
    epsilon: Annotated[
        float, typer.Option("--epsilon", "-e", help="Lifetime budget of these images; all is spent.")
    ] = 1.0,
    out: Annotated[Path, typer.Option("--out", help="A new folder for the synthetic images.")] = Path("synthetic"),
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Synthetic images to draw.")] = 1000,
    at_most: Annotated[
        int | None,
        typer.Option("--at-most", min=1, help="Public upper limit on the images; prompted for, unless --yes is given."),
    ] = None,
    subjects_at_most: Annotated[
        int | None,
        typer.Option(
            "--subjects-at-most",
            min=1,
            help="Protect all images of a subject together: public upper bound on the subjects.",
        ),
    ] = None,
    class_shares: ClassShares = None,
    preview: Annotated[
        bool, typer.Option(TRY_FIRST, help="Try the training on public images first, which takes minutes.")
    ] = False,
    yes: Yes = False,
    **push_options: Any,
) -> None:
    """Turn a folder of images into private synthetic ones: prepare, open an account, plan, train and download.

    Announces each step with the command that does only this step, and asks once before any image is uploaded. Only
    values you state, or fixed defaults, become public. Without --at-most it asks for that limit; with --yes, or without
    a terminal, --at-most is required. If no service runs on this machine, one runs for as long as this command does.
    """
    target: Target = context.obj
    with reporting(as_json=False) as output, ExitStack() as stack:
        by_subject = subjects_at_most is not None
        if at_most is None and not yes and is_interactive():
            at_most = _prompt_limit()
        require_statements(at_most, subjects_at_most, private=True, by_subject=by_subject)
        assert at_most is not None
        if not yes and not is_interactive():
            raise CliError("Nobody is here to answer: repeat the command with --yes.", Exit.USAGE)
        require_room(out)
        with preparation_progress(output.err) as watch:
            push_options = {"size": SIDE_USUAL, **push_options}
            package = prepare(folder, Choices(**push_options), subjects=by_subject, on_image=watch.on_image)
        package.require_within(at_most, subjects_at_most)
        elsewhere = target.url is not None or target.profile is not None
        client = stack.enter_context(_named(target, output) if elsewhere else _here(target, output))
        beside = "" if elsewhere else "obscura up, and beside it: "
        options = {} if class_shares is None else {"class_shares": class_shares}
        walk = Onboarding(client, output, folder, package, in_flags(push_options), beside=beside, options=options)
        account = walk.account(epsilon, usual_delta(at_most))

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


def _prompt_limit() -> int:
    limit: int = typer.prompt(
        "Upper limit on your images (it becomes public: choose a round number above what you will ever have)",
        type=int,
        err=True,
    )
    return limit


@contextmanager
def _named(target: Target, output: Output) -> Iterator[Client]:
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
    with LocalService(target.folder) as service, Client(service.url, service.token) as client:
        if service.process is not None:
            output.notice(f"\nRunning a service on {target.folder} for the time of this command:\n  $ obscura up")
        else:
            output.notice(f"Using the service on {target.folder}, {service.url}.")
        yield client
