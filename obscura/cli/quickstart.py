"""`obscura quickstart FOLDER`: turn your images into private synthetic ones, in steps that `obscura demo` shares.

Each step announces the command that runs that step alone. Only stated values and fixed defaults become public. Nothing
is derived from the images.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from obscura.cli.connection import Target, Yes, connection
from obscura.cli.console import CliError, Exit, Output, confirm, reporting
from obscura.cli.datasets import AtMost, Images, SubjectsAtMost, in_flags, with_push_options
from obscura.cli.jobs import IMAGE, TRY_FIRST, ClassShares, follow, try_first
from obscura.client import Account, Client, ConnectionFailed, Dataset, JobFailed, Release, Sample
from obscura.client.contents import require_room
from obscura.client.datasets import default_name, require_statements
from obscura.client.local_service import LocalService, running_at
from obscura.client.progress import preparation_progress
from obscura.errors import some
from obscura.preparing import Choices, Package, prepare
from obscura.preparing.choices import SIDE_USUAL
from obscura.wire.budgets import PART_CONFIRMED, UNIT_WORDS, Unit, usual_delta
from obscura.wire.job_schemas import RECIPE_USUAL, PlanRecord
from obscura.wire.wording import odds_sentence, proposed_epsilon, show_epsilon, show_percent

LIMIT = 3.0  # epsilon, of a new account


@dataclass(frozen=True)
class Onboarding:
    client: Client
    output: Output
    folder: Path  # the images, as named by their owner
    package: Package
    flags: str  # push options, as flags of `obscura datasets push`
    program: str = "obscura"  # prefix of every command
    later: str = "obscura"  # prefix of a command to run once this one has ended
    options: Mapping[str, Any] = field(default_factory=dict)
    recipe: str = RECIPE_USUAL

    @property
    def stated(self) -> str:
        return in_flags({"class_fractions": self.options.get("class_fractions")})

    def say(self, what: str, command: str) -> None:
        self.output.notice(f"\n{what}:\n  $ {self.program} {command}")

    @contextmanager
    def step(self, to_go_on: str) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.output.notice(f"To continue: {to_go_on}")
            raise

    def account(self, epsilon: float, delta: float) -> Account:
        """Return the account that is named like the folder; open it if missing. Raise CliError if its unit is wrong."""
        name = default_name(self.folder)
        unit: Unit = "record" if self.package.private_subjects is None else "subject"
        found = next((account for account in self.client.accounts.list() if account.name == name), None)
        if found is not None and found.unit != unit:
            flag = "State --subjects-at-most" if unit == "record" else "Leave --subjects-at-most out"
            raise CliError(f"Account {name} protects {UNIT_WORDS[found.unit]}. {flag}.", Exit.USAGE)
        if found is not None:
            return found
        command = f"accounts create {quoted(name)} --epsilon {epsilon:g} --delta {delta:g} --unit {unit}"
        self.say("Opening an account with the lifetime budget of these images", command)
        return self.client.accounts.create(name=name, owner="owner", epsilon=epsilon, delta=delta, unit=unit)

    def declare(
        self,
        account: Account,
        at_most: int,
        subjects_at_most: int | None = None,
        agree: Callable[[], None] = lambda: None,
    ) -> Dataset:
        """Declare the dataset, unless `agree` raises. The declaration becomes public; no image is sent."""
        name = self.client.datasets.free_name(account.id, None, self.folder)
        limits = {"at_most": at_most, "subjects_at_most": subjects_at_most}
        to = in_flags({"account": account.name} | limits)
        self.say("Preparing", f"datasets push {quoted(self.folder)}{to}{self.flags}")
        return self.client.datasets.declare(
            self.package, name=name, account_id=account.id, **limits, say=self.output.notice, agree=agree
        )

    def plan(self, dataset: Dataset, account: Account, epsilon: float) -> PlanRecord:
        """Show what to expect, the cost and the guarantee of a training; raise CliError if the account cannot pay."""
        self.say("Planning", f"plan {quoted(dataset.name)} --recipe {self.recipe} --epsilon {epsilon:g}{self.stated}")
        plan = self.client.plan(dataset.id, recipe=self.recipe, epsilon=epsilon, options=dict(self.options))
        if not plan.budget.affordable:
            needed, left = show_epsilon(plan.cost_epsilon, up=True), show_epsilon(plan.budget.left_epsilon, up=False)
            raise CliError(
                f"Account {account.name} cannot pay for this: the training needs epsilon {needed}, and {left} is left. "
                "Releases of earlier trainings are free to use: obscura up, and in a second terminal: obscura releases "
                "list",
                Exit.BUDGET,
            )
        left = show_epsilon(plan.budget.left_epsilon, up=False)
        odds = odds_sentence(account.balance.attacker_certainty_max, account.delta, account.unit)
        self.output.notice(
            f"This training costs epsilon {show_epsilon(plan.cost_epsilon, up=True)} of the remaining {left}. It hides "
            f"{UNIT_WORDS[account.unit]}. {odds}"
        )
        summary, example = plan.expectation.summary, plan.expectation.example
        ends = "" if self.later == self.program else ", until this command ends"
        images = [f"An example of this detail{ends}: {self.client.transport.base_url}{example}"] if example else []
        for note in dict.fromkeys((*summary, *images, *plan.notes, *fewer_here(self.package, dataset, plan))):
            self.output.notice(note)
        if account.unit == "record":
            for note in drowned_here(self.package.private_counts, plan.facts.get("smallest_visible_class")):
                self.output.notice(note)
        return plan

    def try_on_public(self, dataset: Dataset, epsilon: float) -> None:
        """Show a preview on public images; continue without one if it fails."""
        command = f"plan {quoted(dataset.name)} --recipe {self.recipe} --epsilon {epsilon:g}{self.stated} {TRY_FIRST}"
        self.say("Trying the plan on public images, which costs no budget and takes minutes", command)
        order = {"recipe": self.recipe, "epsilon": epsilon, "options": dict(self.options)}
        try:
            try_first(self.output, self.client, IMAGE, dataset.id, **order)
        except JobFailed as error:
            self.output.notice(str(error))

    def send(self, dataset: Dataset) -> Dataset:
        with preparation_progress(self.output.err) as watch:
            return self.client.datasets.send(dataset, self.package, watch.on_bytes)

    def train(self, dataset: Dataset, epsilon: float) -> Release:
        command = f"train {quoted(dataset.name)} --recipe {self.recipe} --epsilon {epsilon:g}{self.stated} --wait"
        self.say("Training, which spends the budget", command)
        with self.step(f"{self.later} {command}"):
            job = self.client.jobs.create(dataset.id, recipe=self.recipe, epsilon=epsilon, options=dict(self.options))
        with self.step(f"{self.later} jobs watch {job.id}"):
            return follow(self.output, job).release()

    def draw(self, release: Release, count: int, out: Path) -> Sample:
        """Generate images into a new folder, with a grid of some of them, and report the remaining budget."""
        command = f"download {release.id} --count {count} --unpack --out {quoted(out)}"
        self.say("Generating synthetic images, which costs nothing", command)
        with self.step(f"{self.later} {command}"):
            sample = release.sample(count)
            sample.to_imagefolder(out)
            grid = release.save_grid(out / "grid.png")
        left = self.client.accounts.get(release.account_id).balance.affordable_epsilon
        self.output.notice("")
        self.output.text(f"Wrote {count:,} images to {out}. Overview: {grid}")
        self.output.text(f"Left for further trainings on these images: epsilon {show_epsilon(left, up=False)}.")
        more = f"{self.later} download {release.id} --count 10000 --out more.zip"
        self.output.notice(f"To generate more images, for free: {more}")
        return sample


def fewer_here(package: Package, dataset: Dataset, plan: PlanRecord) -> Iterator[str]:
    """Yield a warning, for the owner alone, if fewer units than the limit give less detail than the forecast.

    The detail follows from the number of units times mu, so a share of the units is worth its square of the cost.
    """
    units, limit, unit = package.private_records, dataset.records_declared, "images"
    if package.private_subjects is not None and dataset.subjects_declared is not None:
        units, limit, unit = package.private_subjects, dataset.subjects_declared, "subjects"
    worth_nano = plan.cost_nano * (units / limit) ** 2
    reached = [point.band for point in plan.expectation.curve if point.cost_nano <= worth_nano]
    if reached and reached[-1] not in (None, plan.expectation.band):
        yield (
            f"Stays here: you have {units:,} {unit}, and the forecast assumes {limit:,}. Expect less detail: at best "
            f"{reached[-1]}. A lower limit gives better images."
        )


def drowned_here(private_counts: Mapping[str, int], shown_from: int | None) -> Iterator[str]:
    """Yield warnings about classes with fewer than `shown_from` images, for the owner alone. None: no warnings."""
    rare = sorted((count, name) for name, count in private_counts.items() if count < (shown_from or 0))
    if rare:
        named = some([f"{name} ({count:,})" for count, name in rare])
        yield (
            f"Stays here: expect static, or images like other classes, for {named}, despite the overall forecast. A "
            f"class needs about {shown_from:,} images."
        )


def quoted(word: object) -> str:
    return shlex.quote(str(word))


@with_push_options
def quickstart(
    context: typer.Context,
    folder: Images,
    epsilon: Annotated[
        float | None,
        typer.Option("--epsilon", "-e", help="Budget for this training. Default: a third of what is left."),
    ] = None,
    limit: Annotated[float, typer.Option("--limit", help="Lifetime budget of these images, in a new account.")] = LIMIT,
    out: Annotated[Path, typer.Option("--out", help="A new folder for the synthetic images.")] = Path("synthetic"),
    count: Annotated[int, typer.Option("--count", "-n", min=1, help="Synthetic images to generate.")] = 1000,
    at_most: AtMost = None,
    subjects_at_most: SubjectsAtMost = None,
    class_fractions: ClassShares = None,
    preview: Annotated[bool, typer.Option(TRY_FIRST, help="Preview on public images first. Takes minutes.")] = False,
    accept_rough: Annotated[
        bool, typer.Option("--accept-rough", help="Train even if no recognisable images are expected.")
    ] = False,
    yes: Yes = False,
    **push_options: Any,
) -> None:
    """Turn a folder of images into private synthetic images: prepare, open an account, plan, train and download.

    Announces each step with the command that runs that step alone, and asks before any image is uploaded. Stops if no
    recognisable images can be expected. Only values you state, or fixed defaults, become public. Without --at-most, the
    command asks for that limit; with --yes, or without a terminal, --at-most is required. If no service runs on this
    machine, the command runs one meanwhile.
    """
    target: Target = context.obj
    with reporting(as_json=False) as output, ExitStack() as stack:
        by_subject = subjects_at_most is not None
        if at_most is None and not yes and sys.stdin.isatty():
            at_most = typer.prompt(
                "Upper limit on your images (it becomes public: choose a round number above what you will ever have)",
                type=int,
                err=True,
            )
        require_statements(at_most, subjects_at_most, private=True, by_subject=by_subject)
        assert at_most is not None
        if not yes and not sys.stdin.isatty():
            raise CliError("There is no terminal to answer in: repeat the command with --yes.", Exit.USAGE)
        if epsilon is not None and epsilon > limit:
            raise CliError(
                f"--epsilon {epsilon:g} exceeds the lifetime budget, which is {limit:g}. To accept a larger one, which "
                f"protects less, add --limit {3 * epsilon:g}.",
                Exit.USAGE,
            )
        require_room(out)
        with preparation_progress(output.err) as watch:
            push_options = {"size": SIDE_USUAL, **push_options}
            package = prepare(folder, Choices(**push_options), subjects=by_subject, on_image=watch.on_image)
        package.require_within(at_most, subjects_at_most)
        elsewhere = target.url is not None or target.profile is not None
        lasting = elsewhere or running_at(target.folder) is not None  # the service outlives this command
        client = stack.enter_context(_service(target, output, elsewhere=elsewhere))
        later = "obscura" if lasting else "obscura up, and in a second terminal: obscura"
        options = {} if class_fractions is None else {"class_fractions": class_fractions}
        walk = Onboarding(client, output, folder, package, in_flags(push_options), later=later, options=options)
        account = walk.account(limit, usual_delta(at_most))
        epsilon = epsilon or proposed_epsilon(account.balance.affordable_epsilon or limit)

        def agree() -> None:
            if elsewhere and not yes:  # the declaration leaves this machine
                question = f"Declare this forever, upload the images and train? Training spends epsilon {epsilon:g}."
                confirm(question, "Nothing was declared or uploaded.")

        dataset = walk.declare(account, at_most, subjects_at_most, agree)
        try:
            plan = walk.plan(dataset, account, epsilon)
            if preview:
                walk.try_on_public(dataset, epsilon)
            part, declined = plan.cost_nano / plan.budget.left_nano, "Nothing was uploaded or spent."
            if plan.expectation.recognisable is False and not accept_rough:
                rough = "No recognisable images can be expected. Train anyway?"
                confirm(rough, f"{declined} {plan.expectation.summary[-1]}", "--accept-rough")
            if not yes and (preview or not elsewhere or part > PART_CONFIRMED):
                cost = f"This spends {show_percent(part, up=True)} of the remaining budget, which never comes back."
                confirm(f"{cost} Upload the images and train?", declined)
        except BaseException:
            dataset.delete()
            raise
        limits = in_flags({"at_most": at_most, "subjects_at_most": subjects_at_most})
        limits += " --accept-rough" if accept_rough else ""
        with walk.step(f"obscura quickstart {quoted(folder)} --epsilon {epsilon:g}{limits}{walk.stated}{walk.flags}"):
            dataset = walk.send(dataset)
        walk.draw(walk.train(dataset, epsilon), count, out)


@contextmanager
def _service(target: Target, output: Output, *, elsewhere: bool) -> Iterator[Client]:
    if elsewhere:
        with connection(target, output) as client:
            try:
                client.wait_ready(on_wait=lambda why: output.notice(f"The service is slow. Waiting for it. ({why})"))
            except ConnectionFailed as error:
                raise CliError(
                    f"No service answers at {client.transport.base_url} ({error}). To run one here, leave --url and "
                    "--profile out."
                ) from error
            yield client
        return
    with LocalService(target.folder) as service, Client(service.url, service.token) as client:
        if service.process is not None:
            output.notice(f"\nRunning a service on {target.folder} while this command runs:\n  $ obscura up")
        else:
            output.notice(f"Using the service on {target.folder}, {service.url}.")
        yield client
