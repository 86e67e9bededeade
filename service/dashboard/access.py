"""Identify the viewer of a page, and check forms that are sent to pages: origin and session token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import Depends, Request

from service.api.deps import Running, Service, require_open_to, require_same_origin, require_token, signed_in_by_cookie
from service.dashboard.pages import SignInNeeded
from service.db.session import transaction
from service.errors import Forbidden, InvalidInput
from service.identity.access import Principal, Scope, covers
from service.identity.auth import SignedIn
from service.views import admins as views

FORM_FIELDS_MAX = 32


@dataclass(frozen=True)
class Viewer:
    """The person who views a page."""

    principal: Principal | None  # the caller; None for a reader without a key
    form_token: str  # token of the session's forms; empty without a session
    name: str = ""  # of the signed-in person or key
    # For an admin of the installation: names of all projects, if there are several. Their content is hidden.
    projects: Mapping[str, str] = field(default_factory=dict)
    viewed_project: str = ""  # name of the project that an admin of the installation views as its owner
    other_projects: Mapping[str, str] = field(default_factory=dict)  # names of all others, while they view one
    keeps_audit_log: bool = False
    count_waiting: Callable[[], int] = lambda: 0  # decisions that wait for the viewer; asks the database

    @property
    def settings(self) -> list[tuple[str, str]]:
        """Return the paths and names of the settings pages that the viewer may use."""
        pages = [("members", "Members"), ("keys", "Keys"), ("projects", "Projects"), ("webhooks", "Webhooks")]
        pages = pages if self.may(Scope.ADMIN) else []
        pages += [("audit", "Audit log")] if self.may(Scope.AUDIT) and self.keeps_audit_log else []
        return [(f"/settings/{path}", name) for path, name in pages]

    @property
    def runs_installation(self) -> bool:
        return self.may(Scope.ADMIN) and self.principal is not None and self.principal.project_id is None

    def may(self, scope: str) -> bool:
        return self.principal is not None and covers(self.principal.scopes, Scope(scope))

    def offers(self, scope: str) -> bool:
        """Return whether pages offer an action: to callers with the scope, and to readers who can still sign in.

        An admin of the installation cannot use data of several projects without viewing one of them.
        """
        return self.principal is None or (self.may(scope) and not self.projects)

    def signed_in(self, scope: Scope | None = None) -> Principal:
        """Return the signed-in caller; raise SignInNeeded if there is none, and Forbidden if the scope is missing."""
        if self.principal is None:
            raise SignInNeeded("Sign in to see this page.")
        if scope is not None:
            self.principal.require(scope)
        return self.principal


BySession = Annotated[SignedIn | None, Depends(signed_in_by_cookie)]


def find_member(request: Request, service: Running, signed_in: BySession) -> Viewer:
    """Return the signed-in viewer, with any role. Raise SignInNeeded without a session."""
    if signed_in is None:
        raise SignInNeeded("Sign in to see this page.")
    principal = request.state.caller = signed_in.principal
    service.rates.pass_key(request, principal.id, principal.project_id)
    viewing = signed_in.return_key_id is not None  # an admin of the installation, who may know all projects
    with transaction(request.app.state.service.factory if viewing else service.factory, read_only=True) as session:
        found = views.project_names(session) if viewing or principal.project_id is None else {}
    viewed = found.pop(str(principal.project_id)) if viewing else ""
    viewer = request.state.viewer = Viewer(
        principal,
        signed_in.form_token,
        signed_in.name,
        projects=found if not viewing and len(found) > 1 else {},
        viewed_project=viewed,
        other_projects=found if viewing else {},
        keeps_audit_log=service.settings.audit_log != "off",
        count_waiting=partial(_count_waiting, service, principal),
    )
    require_open_to(service, request, principal)
    return viewer


def _count_waiting(service: Service, caller: Principal) -> int:
    if not covers(caller.scopes, Scope.ADMIN):
        return 0
    with transaction(service.factory, read_only=True) as session:
        return views.count_waiting(session, caller, service.clock())


def find_viewer(request: Request, service: Running, signed_in: BySession) -> Viewer:
    """Return the viewer. Raise SignInNeeded without a session, unless the dashboard is public."""
    if signed_in is None and service.settings.dashboard_public:
        service.rates.pass_address(request)
        viewer = request.state.viewer = Viewer(principal=None, form_token="")
        request.state.caller = None
        return viewer
    viewer = find_member(request, service, signed_in)
    if not viewer.may(Scope.READ):
        raise Forbidden("Your role can only open the page *You* (/you), where you create keys for programs.")
    return viewer


Member = Annotated[Viewer, Depends(find_member)]
Reader = Annotated[Viewer, Depends(find_viewer)]


async def read_form(request: Request) -> dict[str, str]:
    """Parse a small form that was sent from this site."""
    require_same_origin(request)
    if request.headers.get("content-type", "").split(";")[0].strip() != "application/x-www-form-urlencoded":
        raise InvalidInput("This page accepts only forms. Send application/x-www-form-urlencoded.")
    body = await request.body()
    try:
        fields = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, max_num_fields=FORM_FIELDS_MAX, errors="strict"
        )
    except ValueError:
        raise InvalidInput("This form is malformed or has too many fields.") from None
    if any("\0" in text for field in fields for text in field):
        raise InvalidInput("A form must not contain NUL characters.")
    return dict(fields)


Form = Annotated[dict[str, str], Depends(read_form)]


def find_acting(viewer: Member, form: Form) -> Principal:
    """Return the signed-in sender of a form, with any role."""
    require_token(form.get("token", ""), viewer.form_token)
    return viewer.signed_in()


Acting = Annotated[Principal, Depends(find_acting)]
