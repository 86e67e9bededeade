"""The kinds of jobs, each in its own file: its order, its acceptance and its end."""

from service.jobs.kinds import evaluate, preview, sample, train

KINDS = {kind.name: kind for kind in (train.KIND, sample.KIND, evaluate.KIND, preview.KIND)}
