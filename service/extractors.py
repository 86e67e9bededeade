"""The folder of extractors: networks trained on public data that the operator provides for `pretrained_linear`.

An extractor NAME is `NAME.safetensors`, its weights, and `NAME.json`, which says what they are; both lie in
`extractors` below the data folder. Only workers read them, with torch. Here it is only seen whether they are there.
"""

from __future__ import annotations

from privacy.plans.plan import Plan
from service.errors import InvalidInput
from service.settings import Settings

_FILES_NAMED_MAX = 10


def require_extractor(settings: Settings, plan: Plan) -> None:
    """Let a plan pass whose extractor is there, or that needs none.

    Args:
        settings: of this process.
        plan: an extractor's name has the form of one there, and is no path.

    Raises:
        InvalidInput: one of its files is missing.
    """
    name = plan.config.needed_extractor
    if not name:
        return
    folder = settings.extractors_path
    if all((folder / f"{name}{suffix}").is_file() for suffix in (".json", ".safetensors")):
        return
    known = sorted(path.stem for path in folder.glob("*.safetensors") if path.with_suffix(".json").is_file())
    there = f"there are {', '.join(known[:_FILES_NAMED_MAX])}" if known else "so far there are no networks"
    raise InvalidInput(f"This service has no extractor {name}: {there}. Its operator can add one.", extractor=name)
