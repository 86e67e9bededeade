"""Any folder goes in: pictures are made to fit on the owner's machine, before anything is declared or sent.

package = prepare(Path("images"), read_choices(size="64", background="white"))
print(package.summary)
"""

from service.client.preparing.arrays import Arrays
from service.client.preparing.choices import Choices, read_choices
from service.client.preparing.errors import BrokenPictures, ChoiceNeeded, MoreThanStated, PackingError
from service.client.preparing.package import Package
from service.client.preparing.preparation import prepare

__all__ = [
    "Arrays",
    "BrokenPictures",
    "ChoiceNeeded",
    "Choices",
    "MoreThanStated",
    "Package",
    "PackingError",
    "prepare",
    "read_choices",
]
