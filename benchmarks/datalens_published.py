"""What DataLens' authors published of it, accuracies by data set (Wang et al. 2021, arXiv:2103.11109)."""

from __future__ import annotations

from collections.abc import Mapping

# Tables 1 and 2, by epsilon.
BY_EPSILON: Mapping[str, Mapping[float, float]] = {
    "mnist": {0.2: 0.2344, 0.4: 0.2919, 0.6: 0.4201, 0.8: 0.6485, 1.0: 0.7123, 10.0: 0.8066},
    "fashion-mnist": {0.2: 0.2226, 0.4: 0.3863, 0.6: 0.4314, 0.8: 0.5534, 1.0: 0.6478, 10.0: 0.7061},
}
# Table 4 at epsilon 1, by what is varied.
VARIED: Mapping[str, Mapping[str, Mapping[float, float]]] = {
    "mnist": {
        "k": {100: 0.5889, 200: 0.7123, 300: 0.6753},
        "teachers": {2000: 0.5841, 3000: 0.7061, 4000: 0.7123},
        "beta": {0.0: 0.6361, 0.1: 0.6450, 0.3: 0.6890, 0.5: 0.6921, 0.7: 0.7123, 0.9: 0.6956},
    },
    "fashion-mnist": {
        "k": {100: 0.5738, 200: 0.6478, 300: 0.6088},
        "teachers": {2000: 0.5608, 3000: 0.5952, 4000: 0.6478},
        "beta": {0.0: 0.5859, 0.1: 0.6103, 0.3: 0.6060, 0.5: 0.6122, 0.7: 0.6213, 0.9: 0.6478},
    },
}
# Table 7 at epsilon 1: whether there are top-k, stochastic quantisation and the threshold.
ABLATED: Mapping[str, Mapping[tuple[int, int, int], float]] = {
    "mnist": {(1, 1, 1): 0.7123, (0, 1, 1): 0.5170, (1, 0, 1): 0.6741, (1, 1, 0): 0.6361},
    "fashion-mnist": {(1, 1, 1): 0.6478, (0, 1, 1): 0.4775, (1, 0, 1): 0.6159, (1, 1, 0): 0.5859},
}
