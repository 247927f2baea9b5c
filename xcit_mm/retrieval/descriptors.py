"""What images are described by: the class token, VLAD, or the visual words of ASMK."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import cv2
import numpy as np
import torch
from torch import Tensor

from ..errors import UserError
from .network import Network

# How many patches are compared with the codebook at once: 256 MB with 65,536 words.
CHUNK = 1024
BIT_COUNTS = np.array([bin(number).count('1') for number in range(256)], np.uint8)


@dataclass(frozen=True)
class Settings:
    """How images are described, as ``xcit-mm retrieve --help`` explains; part of an index."""

    checkpoint: str | None = None
    config: str | None = None
    model: str | None = None
    descriptor: str = 'class_token'
    resolution: int = 768
    side: str = 'long'
    codebook: int = 1024
    patch_dims: int = 128
    dims: int | None = None
    whiten: bool = False
    power: float = 0.5
    alpha: float = 3.0
    threshold: float = 0.0
    real: bool = False
    assignments: int = 1
    learn_images: int = 2000
    seed: int = 0


class Words(NamedTuple):
    """The visual words of an image (n,), and the sum of the residuals of each, for ASMK.

    Of the sums, only the signs are kept, uint8 (n, d / 8), or their directions, float16 (n, d).
    """

    words: np.ndarray
    residuals: np.ndarray


def normalize(x: np.ndarray) -> np.ndarray:
    """Divide vectors, along the last axis, by their lengths; zeros stay zeros."""
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)


def nearest_words(patches: Tensor, centroids: Tensor, count: int = 1) -> np.ndarray:
    """Return the nearest centroids of patches (N, d), nearest first: (N, count)."""
    # |x - c|² without |x|², which is the same for all centroids.
    lengths = centroids.square().sum(dim=1)
    distances = (lengths - 2 * chunk @ centroids.T for chunk in patches.split(CHUNK))
    nearest = [chunk.topk(count, dim=1, largest=False).indices for chunk in distances]
    return torch.cat(nearest).cpu().numpy()


def vlad(patches: np.ndarray, words: np.ndarray, centroids: np.ndarray, power: float) -> np.ndarray:
    """Return the sums of the residuals of words (k · d,), for patches (N, d) with words (N,)."""
    sums = np.zeros_like(centroids)
    np.add.at(sums, words, patches - centroids[words])
    return normalize((np.sign(sums) * np.abs(sums) ** power).ravel())


def aggregate(patches: np.ndarray, words: np.ndarray, centroids: np.ndarray, real: bool) -> Words:
    """Return the words of an image for ASMK, of patches (N, d) with m words each, (N, m)."""
    found, places = np.unique(words.ravel(), return_inverse=True)
    sums = np.zeros((len(found), patches.shape[1]), np.float32)
    np.add.at(sums, places, (patches[:, None] - centroids[words]).reshape(places.size, -1))
    return Words(found, normalize(sums).astype(np.float16) if real else np.packbits(sums > 0, 1))


def similarity(a: np.ndarray, b: np.ndarray, settings: Settings) -> np.ndarray:
    """Return what pairs of residuals of :class:`Words` contribute to ASMK, (n,)."""
    if settings.real:
        cosines = np.einsum('nd,nd->n', a.astype(np.float32), b.astype(np.float32))
    else:
        cosines = 1 - BIT_COUNTS[a ^ b].sum(axis=1, dtype=np.float32) * (2 / settings.patch_dims)
    powers = np.sign(cosines) * np.abs(cosines) ** settings.alpha
    return np.where(cosines > settings.threshold, powers, 0)


class Describer:
    """Describes images by a network, settings, and what :mod:`.learning` learned for them."""

    def __init__(
        self, network: Network, settings: Settings, learned: dict[str, np.ndarray]
    ) -> None:
        self.network, self.settings, self.learned = network, settings, learned
        if settings.descriptor == 'class_token' and not network.has_vector:
            raise UserError(
                'These weights have no class token, which classifiers and DINO have. Use '
                '--descriptor vlad or asmk.'
            )

    def __call__(
        self, image: np.ndarray, is_query: bool = False, whole: np.ndarray | None = None
    ) -> np.ndarray | Words:
        """Describe an image, BGR of 8 bits; one cut out of a ``whole`` is scaled as that is."""
        settings = self.settings
        vector, patches = self.run(image, whole)
        if settings.descriptor == 'class_token':
            return self.project(normalize(vector))
        patches = self.project(patches, 'patch_')
        centroids = torch.from_numpy(self.learned['centroids']).to(self.network.device)
        count = settings.assignments if is_query and settings.descriptor == 'asmk' else 1
        count = min(count, len(centroids))
        words = nearest_words(torch.from_numpy(patches).to(centroids), centroids, count)
        if settings.descriptor == 'asmk':
            return aggregate(patches, words, self.learned['centroids'], settings.real)
        return self.project(vlad(patches, words[:, 0], self.learned['centroids'], settings.power))

    def run(self, image: np.ndarray, whole: np.ndarray | None = None) -> tuple[Any, np.ndarray]:
        """Return the vectors of a resized image, see :class:`Network`."""
        sides, resolution = image.shape[1::-1], self.settings.resolution
        scaled = (image if whole is None else whole).shape[:2]
        side = {'long': max(scaled), 'short': min(scaled)}.get(self.settings.side)
        size = [max(1, round(x * resolution / side)) if side else resolution for x in sides]
        is_smaller = size[0] * size[1] < sides[0] * sides[1]
        interpolation = cv2.INTER_AREA if is_smaller else cv2.INTER_LINEAR
        return self.network(cv2.resize(image, size, interpolation=interpolation))

    def project(self, x: np.ndarray, prefix: str = '') -> np.ndarray:
        """Apply PCA to vectors and normalize them, if it was learned."""
        if f'{prefix}rows' not in self.learned:
            return x
        return normalize((x - self.learned[f'{prefix}mean']) @ self.learned[f'{prefix}rows'].T)
