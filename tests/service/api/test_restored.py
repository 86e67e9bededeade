"""A service that is started on an older database knows, before its first answer, what people have taken away since."""

import shutil

from service.settings import Settings
from tests.service.api.conftest import ACCOUNT, serving


def test_what_was_taken_away_since_is_known_before_the_first_answer(settings: Settings):
    admin_file, database = settings.data_dir / "admin.key", settings.data_dir / "obscura.db"
    with serving(settings) as served:
        served.tokens["admin"] = admin_file.read_text("ascii").strip()
        limited, closed = (served.account(name=name)["id"] for name in ("limited", "closed"))
        key = served.send("keys", {"name": "gone", "scopes": ["read"]}, status=201)
        with served.bearer(key["token"]) as reader:
            assert reader.get("/v1/accounts").status_code == 200
    shutil.copy(database, database.with_suffix(".backup"))
    with serving(settings) as served:
        served.tokens["admin"] = admin_file.read_text("ascii").strip()
        served.ask("POST", f"keys/{key['id']}/revoke")
        served.send(f"accounts/{closed}/close")
        served.send(f"accounts/{limited}/lower-limit", {"epsilon": ACCOUNT["epsilon"] / 2, "reason": "less"})
    shutil.move(database.with_suffix(".backup"), database)
    with serving(settings) as served:
        served.tokens["admin"] = admin_file.read_text("ascii").strip()
        with served.bearer(key["token"]) as reader:
            assert reader.get("/v1/accounts").status_code == 401
        assert served.ask("GET", f"accounts/{closed}").get("closed")
        assert served.ask("GET", f"accounts/{limited}")["balance"]["limit_epsilon"] == ACCOUNT["epsilon"]
        stops = {(stop["code"], stop["account_id"]) for stop in served.ask("GET", "ledger")["stops"]}
        assert ("restriction_forgotten", limited) in stops
        served.send(f"accounts/{closed}/reopen")
    with serving(settings) as served:
        served.tokens["admin"] = admin_file.read_text("ascii").strip()
        assert not served.ask("GET", f"accounts/{closed}").get("closed")
