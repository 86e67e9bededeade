"""The networks that a release can contain; each draws labelled images from public randomness.

Start with `drawing`, which turns one seed into any number of images. These files need no library but torch, because
`models.program` copies them into a program for users without this repository.
"""
