"""The networks that DataLens' authors published beside their paper, as far as they matter to what is learned.

Three things set them apart from the small networks that `reproductions.papers.dense_networks` trains: the generator has
BatchNorm, both networks are told the class in every layer, and the discriminators are wide convolutional networks. All
weights begin normal with deviation 0.02, all biases at zero. Sizes are those for images of 28 x 28.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.portable.layers import initialise

LATENT, CLASSES, SIDE = 50, 10, 28
_DEVIATION, _KERNEL, _LEAK = 0.02, 5, 0.2
_BETAS, _RATE = (0.5, 0.999), 1e-3


class PublishedGenerator(nn.Module):
    """Latents in [-1, 1] and classes to images in [0, 1]: two dense layers, two transposed convolutions.

    BatchNorm takes the mean and deviation of the batch, in sampling too, so an image depends on those drawn with it.
    """

    def __init__(self, seed: int, features: int = 64, dense: int = 1024) -> None:
        """Build it with weights from a public seed."""
        super().__init__()
        wide, self._rows = 2 * features, SIDE // 4
        self.first = nn.Linear(LATENT + CLASSES, dense)
        self.second = nn.Linear(dense + CLASSES, wide * self._rows**2)
        half = (_KERNEL, 2, 2, 1)  # kernel, stride, padding, output padding: doubles the side
        self.third = nn.ConvTranspose2d(wide + CLASSES, wide, *half)
        self.last = nn.ConvTranspose2d(wide + CLASSES, 1, *half)
        sizes = (dense, wide * self._rows**2)
        self.norms = nn.ModuleList(nn.BatchNorm1d(size, track_running_stats=False) for size in sizes)
        self.norms.append(nn.BatchNorm2d(wide, track_running_stats=False))
        initialise(self, seed)
        stream = torch.Generator().manual_seed(seed)
        for layer in (self.first, self.second, self.third, self.last):
            nn.init.normal_(layer.weight, std=_DEVIATION, generator=stream)
            nn.init.zeros_(layer.bias)

    def forward(self, latents: Tensor, labels: Tensor) -> Tensor:
        """(m, LATENT) and (m,) -> (m, SIDE^2)."""
        known = functional.one_hot(labels, CLASSES).to(latents)
        x = functional.relu(self.norms[0](self.first(torch.cat([latents, known], dim=1))))
        x = functional.relu(self.norms[1](self.second(torch.cat([x, known], dim=1))))
        x = x.unflatten(1, (-1, self._rows, self._rows))
        x = functional.relu(self.norms[2](self.third(_with_class(x, known))))
        image: Tensor = self.last(_with_class(x, known)).sigmoid()
        return image.flatten(1)


def _with_class(x: Tensor, known: Tensor) -> Tensor:
    """(m, c, h, w) and (m, classes) -> (m, c + classes, h, w): a plane for each class."""
    return torch.cat([x, known[:, :, None, None].expand(-1, -1, *x.shape[2:])], dim=1)


class PublishedTeachers:
    """Discriminators on shards of equal size, side by side: two convolutions, two dense layers. PRIVATE.

    Each has 555,000 weights, so a few dozen train on a processor; 4,000 take 36 GB with their optimiser's state.
    BatchNorm is over one teacher's images, real and generated ones apart.

    Args:
        images: (N, r, SIDE^2) in [0, 1], r records of each teacher.
        labels: (N, r).
        seed: of the weights.
    """

    def __init__(self, images: Tensor, labels: Tensor, seed: int, features: int = 32, dense: int = 256) -> None:
        self.count = count = len(images)
        stream = torch.Generator().manual_seed(seed)
        self._first, self._second = 1 + CLASSES, features + CLASSES  # channels
        quarter = (SIDE // 4) ** 2

        def weights(*shape: int) -> Tensor:
            return (torch.randn(*shape, generator=stream) * _DEVIATION).requires_grad_()

        self._weights = (
            weights(count * self._first, 1 + CLASSES, _KERNEL, _KERNEL),
            weights(count * self._second, self._first + CLASSES, _KERNEL, _KERNEL),
            weights(count, self._second * quarter + CLASSES, dense),
            weights(count, dense + CLASSES, 1),
        )
        sizes = (self._first, self._second, dense, 1)
        self._biases = tuple(torch.zeros(count * size, requires_grad=True) for size in sizes)
        self._scales = tuple(torch.ones(count * size, requires_grad=True) for size in sizes[1:3])
        trained = [*self._weights, *self._biases, *self._scales]
        self._optimiser = torch.optim.Adam(trained, lr=_RATE, betas=_BETAS, fused=True)
        self._images, self._labels = images.transpose(0, 1), labels.T  # (r, N, ...)

    def logits(self, images: Tensor, labels: Tensor) -> Tensor:
        """(m, N, SIDE^2), (m, N) -> (m, N): what each teacher says of its own m images."""
        m, n = labels.shape
        known = functional.one_hot(labels, CLASSES).to(images)  # (m, N, classes)
        x = images.reshape(m, n, 1, SIDE, SIDE)
        for layer in range(2):
            planes = known[..., None, None].expand(-1, -1, -1, *x.shape[3:])
            stacked = torch.cat([x, planes], dim=2).flatten(1, 2)
            bias = self._biases[layer] if layer == 0 else None  # what a bias before BatchNorm adds, that takes away
            x = functional.conv2d(stacked, self._weights[layer], bias, stride=2, padding=2, groups=n)
            if layer:
                x = functional.batch_norm(x, None, None, self._scales[0], self._biases[1], training=True)
            x = functional.leaky_relu(x, _LEAK).unflatten(1, (n, -1))
        x = torch.cat([x.flatten(2), known], dim=2).transpose(0, 1)  # (N, m, numbers)
        x = torch.bmm(x, self._weights[2]).transpose(0, 1).flatten(1)  # (m, N dense)
        x = functional.batch_norm(x, None, None, self._scales[1], self._biases[2], training=True)
        x = torch.cat([functional.leaky_relu(x, _LEAK).unflatten(1, (n, -1)), known], dim=2).transpose(0, 1)
        return torch.bmm(x, self._weights[3])[..., 0].T + self._biases[3]

    def learn(self, images: Tensor, labels: Tensor, updates: int) -> None:
        """Tell own records from public images (m, SIDE^2) of classes (m,) so many times."""
        for _ in range(updates):
            real, fake = self.logits(self._images, self._labels), self._of_all(images, labels)
            loss = functional.softplus(-real).mean(dim=0).sum() + functional.softplus(fake).mean(dim=0).sum()
            self._optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimiser.step()

    def gradients(self, images: Tensor, labels: Tensor, asked: slice = slice(None)) -> Tensor:
        """Return how each that is asked would have images (m, SIDE^2) look more real, (N, m, SIDE^2). PRIVATE."""
        shown = images[:, None].repeat(1, self.count, 1).requires_grad_()
        said = self.logits(shown, labels[:, None].expand(-1, self.count))
        (slope,) = torch.autograd.grad(-functional.softplus(-said).mean(dim=0).sum(), shown)
        return slope.transpose(0, 1)[asked]

    def _of_all(self, images: Tensor, labels: Tensor) -> Tensor:
        n = self.count
        return self.logits(images[:, None].expand(-1, n, -1), labels[:, None].expand(-1, n))
