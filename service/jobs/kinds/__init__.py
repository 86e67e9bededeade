"""The kinds of jobs, one per file: the order, its validation and the end of the job."""

from service.jobs.kinds import evaluate, preview, sample, train

KINDS = {kind.name: kind for kind in (train.KIND, sample.KIND, evaluate.KIND, preview.KIND)}
