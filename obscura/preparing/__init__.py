"""Read a folder and convert its images on the owner's machine, before anything is declared or sent.

Start at `prepare`, which takes `Choices` and returns a `Package`. This package never opens a connection, never writes
to the disk, and never derives a public value from the pixels of an image.

package = prepare(Path("images"), Choices(size="64"))
print(package.summary)
"""

from obscura.errors import BrokenImages, ChoiceNeeded, MoreThanStated, PackingError
from obscura.preparing.choices import Choices
from obscura.preparing.layouts.arrays import Arrays
from obscura.preparing.package import Package
from obscura.preparing.preparation import prepare

__all__ = ["Arrays", "BrokenImages", "ChoiceNeeded", "Choices", "MoreThanStated", "Package", "PackingError", "prepare"]
