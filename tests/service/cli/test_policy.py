"""Limits, freezing and sweeps from the command line."""

import stat
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta

import pytest

from obscura.cli.admins import read_end
from obscura.cli.console import CliError


def test_a_limit_is_raised_by_two_admins_and_an_account_frozen_by_one(shell, client, target, account, tmp_path):
    alice = target[3]
    introduction = shell("admins", "introduce", "--out", str(tmp_path / "bob.key"), "--json").json["introduction"]
    bob = (tmp_path / "bob.key").read_text("ascii").strip()
    assert stat.S_IMODE((tmp_path / "bob.key").stat().st_mode) == 0o600
    shell("admins", "admit", "bob", "--introduction", introduction, "--reason", "the second", "--json")
    assert {"first admin", "bob"} <= {admin.name for admin in client.admins()}
    asked = shell("limits", "request", account, "-e", "3", "--reason", "a second study", "--json", OBSCURA_TOKEN=alice)
    request_id = asked.json["id"]
    assert f"obscura decisions approve {request_id}" in asked.err
    refused = shell("decisions", "approve", request_id, OBSCURA_TOKEN=alice, code=4)
    assert "two people" in refused.err
    assert shell("decisions", "approve", request_id, "--json", OBSCURA_TOKEN=bob).json["state"] == "approved"
    assert request_id in shell("decisions", "list").out
    lowered = shell("limits", "lower", account, "-e", "1", "--reason", "less", "--json", OBSCURA_TOKEN=bob)
    assert lowered.json["epsilon"] == 1.0
    assert shell("accounts", "freeze", account, "--reason", "an audit", "--json").json["frozen"] is True
    assert shell("accounts", "unfreeze", account, "--reason", "it is over", "--json").json["frozen"] is False
    assert shell("accounts", "close", account, "--json").json["closed"] is True
    refused = shell("datasets", "push", str(tmp_path), "--account", account, "--at-most", "9", code=2)
    assert "closed to new data" in refused.err
    assert "closed" not in shell("accounts", "reopen", account, "--json").json


def test_revoking_a_key_says_what_it_has_made_and_takes_that_along(shell):
    made = shell("keys", "create", "stolen", "-s", "admin", "--expires", "90d", "--json").json
    ends_in = datetime.fromisoformat(made["expires_at"]) - datetime.now(UTC)
    assert timedelta(days=89) < ends_in <= timedelta(days=90)
    reader = shell("keys", "create", "reader", "-s", "read", "--json", OBSCURA_TOKEN=made["token"]).json
    assert reader["expires_at"] == made["expires_at"], "it ends with the key that made it"
    shown = shell("keys", "list").out
    assert all(each in shown for each in ("first admin", reader["id"], "last_used", "expires"))
    revoked = shell("keys", "revoke", made["id"], "--json")
    assert f"Created with it: reader ({reader['id']}), read." in revoked.err
    assert revoked.json["others_revoked"] == 1
    shell("datasets", "list", OBSCURA_TOKEN=reader["token"], code=4)


def test_a_key_of_another_admin_is_asked_for(shell, tmp_path):
    shell("admins", "restore", "dan", "--out", str(tmp_path / "dan.key"))
    dan = (tmp_path / "dan.key").read_text("ascii").strip()
    key_id = f"key_{dan.split('_')[1]}"
    assert "obscura admins revoke" in shell("keys", "revoke", key_id, code=4).err
    asked = shell("admins", "revoke", key_id, "--reason", "lost", "--json")
    assert f"obscura decisions approve {asked.json['id']}" in asked.err
    done = shell("decisions", "approve", asked.json["id"], "--json", OBSCURA_TOKEN=dan)  # its owner may be the second
    assert done.json["keys_revoked"] == 1
    shell("admins", "list", OBSCURA_TOKEN=dan, code=4)


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("12h", datetime(2030, 1, 1, 12, tzinfo=UTC)),
        ("90d", datetime(2030, 4, 1, tzinfo=UTC)),
        ("8w", datetime(2030, 2, 26, tzinfo=UTC)),
        ("2031-02-03", datetime(2031, 2, 3, tzinfo=UTC)),
        ("2031-02-03T04:05:00+02:00", datetime(2031, 2, 3, 2, 5, tzinfo=UTC)),
        *((text, None) for text in ("", "90", "0d", "d", "-1d", "soon", "99999w99", "2031-13-01")),
    ],
)
def test_the_end_of_a_key_is_a_span_or_a_date(text, end):
    with nullcontext() if end else pytest.raises(CliError, match="--expires takes"):
        assert read_end(text, datetime(2030, 1, 1, tzinfo=UTC)) == end


@pytest.mark.slow
def test_a_sweep_is_paid_for_as_a_whole(shell, dataset):
    arguments = ["sweep", dataset, "-r", "moments", "-o", "components=4", "-g", "centre=0.2,0.1"]
    done = shell(*arguments, "-e", "0.4", "--wait", "--json").json
    assert [trial["options"]["centre"] for trial in done["trials"]] == [0.2, 0.1]
    assert [trial["state"] for trial in done["trials"]] == ["succeeded", "succeeded"]
    assert done["totals"]["reserved_nano"] == 0 < done["totals"]["spent_nano"] <= done["totals"]["cost_nano"]
    assert "Every trial is paid for" in shell("sweeps", "show", done["id"]).out
    refused = shell(*arguments, "-e", "1.5", "-g", "class_components=1,2,3,4,5,6", "--json", code=3).json["error"]
    assert (refused["trials"], refused["code"]) == (12, "insufficient_budget")
    assert refused["trials_affordable"] == 1
    assert shell("sweeps", "cancel", done["id"], "--json").json == shell("sweeps", "show", done["id"], "--json").json
