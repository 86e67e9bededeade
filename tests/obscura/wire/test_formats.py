"""One list of formats: what may be asked for, what columns hold, and what is known of each."""

from typing import get_args

from obscura.wire.formats import PACKINGS
from obscura.wire.formats import SampleFormat as Asked
from obscura.wire.words import SampleFormat


def test_every_list_of_formats_is_the_same():
    assert [*PACKINGS] == [*get_args(Asked)] == [word.value for word in SampleFormat]
