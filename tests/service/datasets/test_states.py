"""What may be declared, above all: subjects exactly where the account protects them; and which state may follow."""

import pytest

from obscura.wire.words import DatasetState
from service.datasets import states
from service.db.dataset_tables import Dataset
from service.db.session import transaction
from service.errors import InvalidInput, NotFound
from service.identity.access import find


def test_a_dataset_of_a_subject_account_declares_its_subjects(factory, open_account, declare, now):
    account_id = open_account(factory, unit="subject")
    for subjects in (1, 60, 500):
        dataset_id = declare(account_id, subjects_declared=subjects)
        with transaction(factory) as session:
            assert find(session, Dataset, dataset_id).subjects_declared == subjects
            assert states.begin_upload(session, dataset_id, now=now, lease_seconds=60).subjects_declared == subjects
    with pytest.raises(InvalidInput, match="a public upper bound on the number of subjects"):
        declare(account_id)


def test_subjects_are_at_most_as_many_as_records(factory, open_account, declare):
    with pytest.raises(InvalidInput, match="between 1 and records_declared") as refused:
        declare(open_account(factory, unit="subject"), subjects_declared=501)
    assert refused.value.numbers == {"subjects_declared": 501, "records_declared": 500}


def test_subjects_are_not_declared_where_nobody_would_protect_them(factory, open_account, declare):
    """A record account may hold data about subjects; saying so would promise what it does not keep."""
    account_id = open_account(factory, unit="record")
    with pytest.raises(InvalidInput, match=r"protects single records.*use an account whose unit is the subject"):
        declare(account_id, subjects_declared=60)
    with pytest.raises(InvalidInput, match="public"):
        declare(None, subjects_declared=60)
    with pytest.raises(NotFound):
        declare("acc_none", subjects_declared=60)
    with pytest.raises(InvalidInput, match="declares subjects"):
        declare(account_id, subjects_recognised=True)
    declare(account_id)
    declare(None)


# The table of docs/contribute/architecture.md.
FOLLOWING = {
    "declared": "receiving deleting",
    "receiving": "ready declared receiving",
    "failed": "ready deleting",
    "ready": "withdrawing deleting failed",
    "withdrawing": "ready withdrawing deleting failed",
    "deleting": "deleted",
    "deleted": "",
}


@pytest.mark.parametrize("before", DatasetState)
def test_a_dataset_goes_from_one_state_to_those_that_may_follow_and_to_no_other(factory, declare, before, now):
    dataset_id, following = declare(None), FOLLOWING[before.value].split()
    for after in DatasetState:
        with transaction(factory) as session:
            dataset = find(session, Dataset, dataset_id)
            dataset.state, dataset.content_sha256, dataset.ready_at = before, "0" * 64, now
            session.flush()
            assert states.move(session, dataset_id, after) is (after in following)
            assert not states.move(session, dataset_id, after, Dataset.name == "another")
            session.refresh(dataset)
            assert dataset.state is (after if after in following else before)
