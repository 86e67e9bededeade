"""One list of formats: what may be asked for, what columns hold, and what is known of each."""

from typing import get_args

from service.db.words import SampleFormat
from service.sample_formats import PACKINGS
from service.sample_formats import SampleFormat as Asked


def test_every_list_of_formats_is_the_same():
    assert [*PACKINGS] == [*get_args(Asked)] == [word.value for word in SampleFormat]
