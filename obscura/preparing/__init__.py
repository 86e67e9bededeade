"""Any folder goes in: pictures are made to fit on the owner's machine, before anything is declared or sent.

package = prepare(Path("images"), read_choices(size="64"))
print(package.summary)
"""

from obscura.preparing.arrays import Arrays
from obscura.preparing.choices import Choices, Wishes, read_choices
from obscura.preparing.errors import BrokenPictures, ChoiceNeeded, MoreThanStated, PackingError
from obscura.preparing.package import Package
from obscura.preparing.preparation import prepare

__all__ = [
    "Arrays",
    "BrokenPictures",
    "ChoiceNeeded",
    "Choices",
    "MoreThanStated",
    "Package",
    "PackingError",
    "Wishes",
    "prepare",
    "read_choices",
]
