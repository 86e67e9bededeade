"""Similarity of synthetic and real images, by a named public extractor: Frechet distance, precision, recall.

Heusel et al. 2017 (arXiv:1706.08500) compare the Gaussians of two sets of features; Kynkaanniemi et al. 2019
(arXiv:1904.06991) measure the share of one set that lies in the region of the other. All three depend on the extractor
and on the number of images. Compare values only if both are equal, and never with published FIDs. The real images are
public: nothing private is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from models.extractor import ExtractorUnusable, read_extractor
from models.portable.textured import texture
from obscura.wire.release_schemas import SimilarityFacts

IMAGES_MAX, IMAGES_MIN = 5000, 20  # per set; with fewer, nothing is reported
NEIGHBOURS = 3
BUILT_IN = "texture and colour (built in)"
INCEPTION = "inception-2015-12-05.pt"  # the usual Inception network, as StyleGAN's authors publish it
IN_REPORTS = "reports"  # fallback: an extractor of `models.extractor` with this name
_QUADRANTS, _PATCHES = 2, 4  # cells per side: of texture, and of colour
_SIDE_MIN = 8
_BLOCK, _BLOCK_PIXELS = 250, 2**22  # images or rows, and pixels, at once: bounds memory


@dataclass(frozen=True)
class NamedExtractor:
    """A named public extractor: maps images (n, 1 or 3, h, w) uint8 to (n, d) float64, each image by itself."""

    name: str
    features: Callable[[Tensor], Tensor]


def find_extractor(folder: Path) -> NamedExtractor:
    """Return the first extractor that is installed: Inception, then the operator's choice, then the built-in one.

    Raise ExtractorUnusable if the operator's file is damaged or contains another network.
    """
    if (folder / INCEPTION).is_file():  # a TorchScript network
        try:
            network = torch.jit.load(str(folder / INCEPTION), map_location="cpu").eval()  # type: ignore[no-untyped-call]
        except RuntimeError:
            raise ExtractorUnusable(f"{INCEPTION} is not a TorchScript file; replace or remove it") from None
        return NamedExtractor(
            f"Inception ({INCEPTION})",
            lambda images: network(images.expand(-1, 3, -1, -1), return_features=True).double(),
        )
    if not (folder / f"{IN_REPORTS}.safetensors").is_file():
        return NamedExtractor(BUILT_IN, texture_and_colour)
    found = read_extractor(folder, IN_REPORTS)
    name = f"{found.config.network} (sha256 {found.sha256[:12]}; {found.config.trained_on})"
    return NamedExtractor(name, lambda images: found(images.float() / 255).double())


def texture_and_colour(images: Tensor) -> Tensor:
    """Describe images (n, c, h, w) uint8 by mean colours of 16 patches and the texture of four quadrants.

    A grey image gives 80 numbers, a colour image 112, all of similar magnitude. Nothing is learned. Recipes that
    release moments (noisy means and covariances) measure such numbers, so this extractor favours them.
    """
    pixels = images.float() / 255
    if min(pixels.shape[2:]) < _SIDE_MIN:
        pixels = functional.interpolate(pixels, [max(_SIDE_MIN, side) for side in pixels.shape[2:]])
    waves = functional.adaptive_avg_pool2d(texture(pixels.mean(1, keepdim=True)), _QUADRANTS)
    patches = functional.adaptive_avg_pool2d(pixels, _PATCHES)
    return torch.cat([waves.flatten(1), patches.flatten(1)], dim=1).double()


@torch.no_grad()
def measure_similarity(
    synthetic: Tensor,
    real: Tensor,
    extractor: NamedExtractor,
    *,
    seed: int,
    look: Callable[[int, int], None] = lambda _done, _steps: None,
) -> SimilarityFacts | None:
    """Compare equally many synthetic and real (public) images, (n, c, h, w) uint8, at most IMAGES_MAX of each.

    A public seed selects the images. `look` receives the number of finished blocks and the total; its exceptions
    propagate. Return None if either set has fewer than IMAGES_MIN images.
    """
    count = min(len(synthetic), len(real), IMAGES_MAX)
    if count < IMAGES_MIN:
        return None
    stream, described = torch.Generator().manual_seed(seed), list[Tensor]()
    block = max(1, min(_BLOCK, _BLOCK_PIXELS // (real.shape[2] * real.shape[3])))
    blocks = -(-count // block)
    for side, images in enumerate((synthetic, real)):
        parts = list[Tensor]()
        for at, chosen in enumerate(torch.split(torch.randperm(len(images), generator=stream)[:count], block)):
            look(side * blocks + at, 2 * blocks)
            parts.append(extractor.features(images[chosen]))
        described.append(torch.cat(parts))
    fake, real = described
    return SimilarityFacts(
        extractor=extractor.name,
        frechet_distance=frechet_distance(fake, real),
        precision=covered(fake, real),
        recall=covered(real, fake),
        images=count,
    )


def frechet_distance(left: Tensor, right: Tensor) -> float:
    """Return the squared Frechet distance between the Gaussians fitted to two sets of features (n, d)."""
    values, vectors = torch.linalg.eigh(left.T.cov())
    root = vectors * values.clamp(min=0).sqrt() @ vectors.T
    cross = torch.linalg.eigvalsh(root @ right.T.cov() @ root).clamp(min=0).sqrt().sum()
    means = (left.mean(dim=0) - right.mean(dim=0)).square().sum()
    return max(0.0, float(means + left.var(dim=0).sum() + right.var(dim=0).sum() - 2 * cross))


def covered(points: Tensor, by: Tensor, block: int = _BLOCK) -> float:
    """Return the share of `points` (n, d) that lie in the region of the set `by` (m, d).

    This is the precision for synthetic points and a real set, and the recall in the opposite case. A point of the set
    covers all points within its distance to its third neighbour in the set. Process `block` rows at a time.
    """
    own = (torch.cdist(part, by) for part in torch.split(by, block))
    radius = torch.cat([part.kthvalue(NEIGHBOURS + 1, dim=1).values for part in own])  # a point is its own nearest
    inside = [(torch.cdist(part, by) <= radius).any(dim=1) for part in torch.split(points, block)]
    return float(torch.cat(inside).double().mean())
