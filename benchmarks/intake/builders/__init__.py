"""The steps that build inputs, one file for each kind of file. Importing this package registers them."""

from benchmarks.intake.builders import archives, arrays, files, hubs, images, volumes

__all__ = ["archives", "arrays", "files", "hubs", "images", "volumes"]
