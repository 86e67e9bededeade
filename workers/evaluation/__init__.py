"""Measurements of releases: classifiers, distances between sets of images, and the report.

Start with `report` for a release's own page, and with `utility` for accuracies. No module here reads private images.
"""
