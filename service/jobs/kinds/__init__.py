"""The kinds of jobs, one per file. A file validates and accepts requests for a job, and records the job's result.

Start with `train`, the only kind that costs budget. Kinds never commit, and use the ledger only through its functions.
"""

from service.jobs.kinds import evaluate, preview, sample, train

KINDS = {kind.name: kind for kind in (train.KIND, sample.KIND, evaluate.KIND, preview.KIND)}
