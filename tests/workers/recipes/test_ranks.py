"""Two processes that train together release what one process releases, once, and pay once."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from privacy.errors import BudgetExceeded
from workers.recipes.ranks import from_first, join_on_first, pay_once, privatise_once, rank, ranks, share

Runs = list[dict[str, dict[str, Any]]]
Both = Callable[[str], tuple[Any, Any, Any]]


def start(python: str, kind: str, out: Path, together: int) -> list[subprocess.Popen[bytes]]:
    out.mkdir()
    command = [python, "-m", "tests.workers.recipes.training_ranks", kind]
    return [subprocess.Popen([*command, str(number), str(together), str(out)]) for number in range(together)]


def run_all(python: str, out: Path, together: int) -> Runs:
    processes = start(python, "all", out, together)
    assert [process.wait(timeout=280) for process in processes] == [0] * together
    return [torch.load(out / f"{number}.pt", weights_only=True) for number in range(together)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, warm: str) -> tuple[Runs, Runs]:
    """Every scenario on one process and on two, which start once for all tests."""
    folder = tmp_path_factory.mktemp("ranks")
    return run_all(warm, folder / "alone", 1), run_all(warm, folder / "together", 2)


@pytest.fixture
def both(runs: tuple[Runs, Runs]) -> Both:
    (alone,), (first, second) = runs
    return lambda scenario: (alone[scenario], first[scenario], second[scenario])


def assert_done_once(alone: Any, first: Any, second: Any) -> None:
    """Rank 0 pays, draws noise and writes as one process does, and rank 1 never."""
    assert (first["paid"], second["paid"]) == (alone["paid"], [])
    assert (first["draws"], second["draws"]) == (alone["draws"], 0)
    assert (first.get("writes", 0), second.get("writes", 0)) == (alone.get("writes", 0), 0)


# How far rounding may take the weights from those of one process: passes have another size with two.
TRAININGS = {
    **dict.fromkeys(("dpsgd", "topagg", "gep", "rgp"), 2e-4),
    "generator of convolutional teachers": 1e-4,
    "generator from pixels": 1e-4,
    "generator of kernel teachers": 1e-4,
    **dict.fromkeys(("central images alone", "histogram", "public pictures"), 0.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("scenario", TRAININGS)
def test_two_ranks_train_what_one_trains_and_pay_once(scenario, both):
    """Without one rank's records, or with noise drawn twice, all would be off. With gep and rgp, both take the
    directions that the first found, whatever the second would have found."""
    alone, first, second = both(scenario)
    assert torch.equal(first["weights"], second["weights"])
    torch.testing.assert_close(first["weights"], alone["weights"], atol=TRAININGS[scenario], rtol=0)
    assert_done_once(alone, first, second)
    assert alone["paid"]
    assert alone["draws"] > 0
    assert second["reads"] == 0


def test_votes_of_two_ranks_are_those_of_one_to_the_last_bit(both):
    alone, first, second = both("votes")
    assert len(alone["sums"]) == 4
    for name in ("sums", "inputs"):
        for one, here, there in zip(alone[name], first[name], second[name], strict=True):
            assert torch.equal(one, here)
            assert torch.equal(here, there)
    assert (first["own_teachers"], second["own_teachers"]) == (10, 11)
    assert_done_once(alone, first, second)
    for one, here in zip(alone["kept"], first["kept"], strict=True):  # rank 0's checkpoint holds every rank's teachers
        assert one["iteration"] == here["iteration"]
        assert one["survived"]
        assert here["survived"]
        for name, value in one["teachers"].items():
            torch.testing.assert_close(here["teachers"][name], value, atol=1e-6, rtol=1e-5)


def test_both_ranks_stop_where_the_budget_ends(both):
    _, first, second = both("votes of a poor purse")
    assert (sum(first["paid"]), second["paid"]) == (12, [])
    assert len(first["sums"]) == len(second["sums"]) == 2


def test_both_ranks_go_on_from_the_checkpoint_of_the_first(both):
    alone, first, second = both("two attempts")
    assert first["first_paid"] == alone["first_paid"] != []
    assert first["paid"] == alone["paid"]
    assert sum(first["first_paid"]) + sum(first["paid"]) == sum(both("dpsgd")[1]["paid"])
    assert torch.equal(first["first_weights"], second["first_weights"])
    assert torch.equal(first["weights"], second["weights"])
    torch.testing.assert_close(first["weights"], alone["weights"], atol=2e-4, rtol=0)
    assert not torch.allclose(first["weights"], first["first_weights"], atol=2e-2)


def test_the_noise_of_two_ranks_is_that_of_one_release(both):
    _, first, second = both("noise")  # every rank with a secret of its own
    assert torch.equal(first["released"], second["released"])
    deviation = float(first["released"].std()) * 10.0 / (1.5 * 2.0)  # 40,000 draws: 0.35% of standard error
    assert abs(deviation - 1) < 0.02
    assert (first["draws"], second["draws"]) == (1, 0)


def test_ranks_add_integers_exactly(both):
    alone, first, second = both("integers")
    assert alone["sum"].tolist() == [2**60 + 1, -(2**40) - 3, 0]
    for found in (first, second):
        assert found["sum"].tolist() == [2**61 + 3, -(2**41) - 6, 0]
        assert found["sum"].dtype == torch.int64


def test_a_fault_of_one_rank_makes_the_passes_of_all_smaller(both):
    alone, first, second = both("fault of rank 1")
    assert alone["sizes"][0] > 1
    assert (first["sizes"], second["sizes"]) == ([1], [1])
    torch.testing.assert_close(first["weights"], alone["weights"], atol=2e-4, rtol=0)


def test_a_denoiser_of_two_ranks_is_paid_once(both):
    alone, first, second = both("denoiser")  # its noise levels are drawn by pass, whose size is another
    assert torch.equal(first["weights"], second["weights"])
    assert not torch.equal(first["weights"], both("central images alone")[1]["weights"])
    assert_done_once(alone, first, second)


def test_every_rank_finds_a_checkpoint_on_its_own_device(both):
    _, first, second = both("device")
    assert (first["step"], first["device"], first["reads"]) == (7, "meta", 1)
    assert (second["step"], second["device"], second["reads"]) == (7, "meta", 0)


def test_a_rank_that_dies_ends_the_others(tmp_path, warm):
    processes = start(warm, "death", tmp_path / "together", 2)
    assert [process.wait(timeout=120) != 0 for process in processes] == [True, True]
    assert not list((tmp_path / "together").glob("*.pt"))


def test_alone_everything_passes_through():
    values = torch.arange(3.0)
    assert (rank(), ranks(), share(7)) == (0, 1, slice(0, 7))
    assert all(done(values) is values for done in (from_first, join_on_first))
    assert privatise_once(values, lambda total: total + 1).tolist() == [1, 2, 3]

    def refuse() -> None:
        raise BudgetExceeded(4, 2)

    with pytest.raises(BudgetExceeded) as refused:
        pay_once(refuse)
    assert (refused.value.requested_nano, refused.value.remaining_nano) == (4, 2)
