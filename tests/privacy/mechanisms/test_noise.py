"""Key stream and key derivation."""

import copy
import pickle

import numpy as np
import pytest
from scipy import stats

from privacy.errors import InvalidParameter
from privacy.mechanisms.noise import SecureNoise, derive_key

SECRET = bytes(range(32))


def test_key_stream_is_aes_256_in_counter_mode() -> None:
    """Known answer: AES-256 of the zero block under the zero key."""
    assert SecureNoise(bytes(32)).integers64(2).tobytes().hex() == "dc95c078a2408989ad48a21492842087"


def test_the_stream_does_not_depend_on_how_it_is_read() -> None:
    whole, parts = SecureNoise(SECRET), SecureNoise(SECRET)
    read = [parts.integers64(n) for n in (1, 0, 15, 17, 500, 467)]
    assert np.array_equal(whole.integers64(1000), np.concatenate(read))


def test_draws_repeat_for_a_key_and_go_on_within_it() -> None:
    first, second = SecureNoise(SECRET), SecureNoise(SECRET)
    drawn = first.discrete_gaussian((3, 5), 4.0)
    assert np.array_equal(drawn, second.discrete_gaussian((3, 5), 4.0))
    assert not np.array_equal(drawn, second.discrete_gaussian((3, 5), 4.0))


def test_every_label_separates_keys() -> None:
    labels: list[tuple[str | int, ...]] = [
        *(("noise", *more) for more in ((), (1,), ("1",), (1, 0), (10,), (-1,), (1, "votes"), (2, "votes"))),
        *(("noise1",), ("n", "oise"), ("s5:noise",)),
    ]
    keys = {derive_key(SECRET, *sequence) for sequence in labels} | {derive_key(bytes(32), "noise")}
    assert len(keys) == len(labels) + 1
    assert all(len(key) == 32 for key in keys)
    derived, made = SecureNoise.derive(SECRET, "a", 1), SecureNoise(derive_key(SECRET, "a", 1))
    assert np.array_equal(derived.integers64(8), made.integers64(8))


@pytest.mark.parametrize("labels", [(), (True,), (1.5,), (None,)])
def test_labels_are_texts_and_integers(labels: tuple[object, ...]) -> None:
    with pytest.raises(InvalidParameter):
        derive_key(SECRET, *labels)  # type: ignore[arg-type]


def test_short_secrets_and_keys_are_refused_without_showing_them() -> None:
    with pytest.raises(InvalidParameter, match="hidden"):
        derive_key(b"short", "a")
    with pytest.raises(InvalidParameter, match="hidden"):
        SecureNoise(b"short")


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_noise_cannot_be_duplicated(duplicate: object) -> None:
    with pytest.raises(TypeError, match="repeat"):
        duplicate(SecureNoise(SECRET))  # type: ignore[operator]


def test_uniform_is_uniform_and_below_one() -> None:
    drawn = SecureNoise(SECRET).uniform((1000, 100))
    assert drawn.shape == (1000, 100)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert stats.kstest(drawn.ravel(), "uniform").pvalue > 1e-3


@pytest.mark.parametrize("shape", [0, (0, 5), 7, (2, 3), ()])
def test_shapes(shape: int | tuple[int, ...]) -> None:
    drawn = SecureNoise(SECRET).discrete_gaussian(shape, 3.0)
    assert drawn.shape == ((shape,) if isinstance(shape, int) else shape)
    assert drawn.dtype == np.int64
