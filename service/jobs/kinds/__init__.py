"""The kinds of jobs, each in a file of its own: what is ordered, when it is accepted, and how it ends."""

from service.jobs.kinds import evaluate, preview, sample, train

KINDS = {kind.name: kind for kind in (train.KIND, sample.KIND, evaluate.KIND, preview.KIND)}
