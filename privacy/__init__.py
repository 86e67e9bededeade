"""Differential privacy: costs, plans, mechanisms, gradient estimators and audits.

Start with `privacy.plans`, which lists the releases of a job; `privacy.accounting` prices them.
Nothing here imports the web framework, the database, the queue or the service.
"""
