"""Plans: what a training would do and cost, before anything is spent or touched."""

from __future__ import annotations

from fastapi import APIRouter

from service import jobs, ledger
from service.api import views
from service.api.deps import PROBLEMS, READ, Running
from service.api.schemas import PlanRecord, PlanRequest
from service.datasets.states import find
from service.db.session import transaction
from service.errors import InvalidInput
from service.extractors import require_extractor

router = APIRouter(prefix="/v1/plans", tags=["plans"], responses=PROBLEMS)


@router.post("", dependencies=[READ], response_model=PlanRecord, summary="Plan a training")
def make_plan(service: Running, body: PlanRequest) -> PlanRecord:
    """Say what a training would buy, its price, and what would be left. No data is touched and nothing is stored."""
    with transaction(service.factory, read_only=True) as session:
        plan = jobs.plan_job(
            session, dataset_id=body.dataset_id, recipe=body.recipe, epsilon=body.epsilon, options=body.options
        )
        require_extractor(service.settings.data_dir, plan.to_json())
        account_id = find(session, body.dataset_id).account_id
        if account_id is None:
            raise InvalidInput("Training needs a private dataset, which belongs to an account.")
        return views.plan(plan, ledger.get_account(session, account_id), body)
