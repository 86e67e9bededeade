"""A service that knows one recipe more than the package that is installed: `obscura` with the toy, and its runner.

Told to be the runner by its first argument, else the command line.
"""

import sys
from pathlib import Path

import privacy.plans
import workers.recipes
from privacy.plans.registry import RECIPES, recipe_of

RUNNER = "run-attempt"
ROOT = Path(__file__).parents[3]
TOYS = ROOT / "tests" / "workers" / "recipes" / "toys"
START = (
    f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.service.cli.toy_service import main; sys.exit(main())"
)


def main() -> int:
    privacy.plans.__path__.append(str(TOYS / "plans"))
    workers.recipes.__path__.append(str(TOYS / "recipes"))
    RECIPES["toy"] = recipe_of("toy")  # before anything asks for all of them
    if sys.argv[1:2] == [RUNNER]:
        from workers.train import runner

        return runner.main(sys.argv[2:])
    from workers.supervise import supervisor

    supervisor.RUNNER_COMMAND = (sys.executable, "-P", "-c", START, RUNNER)  # type: ignore[assignment]
    from obscura.cli import app

    app.main()
    return 0


if __name__ == "__main__":
    sys.exit(main())
