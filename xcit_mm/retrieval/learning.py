"""Learns PCA and codebooks from images, with scikit-learn."""

import importlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from xcit_mm_runtime import read_image
from xcit_mm_runtime.progress import track

from ..errors import UserError
from .descriptors import Describer, Settings

# Memory for the patches that a codebook is learned from; 700,000 of 384 channels. PCA takes a part.
PATCH_BYTES, PCA_PATCHES = 1 << 30, 100_000
# How often k-means sees each patch, and at least how many at a time.
PASSES, BATCH = 10, 10_240


def learn(describer: Describer, paths: Sequence[Path]) -> None:
    """Learn what the settings ask for: PCA and codebook of patches, then PCA of descriptors.

    Args:
        describer (Describer): Its ``learned`` gets ``patch_mean``, ``patch_rows``, ``centroids``,
            ``mean`` and ``rows``, as far as they are needed.
        paths (Sequence[Path]): Images. Those that cannot be read are left out.
    """
    settings, learned = describer.settings, describer.learned
    rng = np.random.default_rng(settings.seed)
    paths = [paths[i] for i in rng.permutation(len(paths))[: settings.learn_images]]
    if settings.descriptor != 'class_token':
        most = PATCH_BYTES // len(paths)

        def sample(image: np.ndarray) -> np.ndarray:
            patches = describer.run(image)[1]
            return patches[rng.permutation(len(patches))[: most // patches[0].nbytes]]

        patches = np.concatenate(_results(sample, paths, 'patches for the codebook'))
        patches = patches[rng.permutation(len(patches))]
        mean, rows = _learn_pca(patches[:PCA_PATCHES], settings.patch_dims, settings)
        learned.update(patch_mean=mean, patch_rows=rows)
        learned['centroids'] = _learn_codebook(describer.project(patches, 'patch_'), settings, rng)
    if settings.dims and settings.descriptor != 'asmk':
        vectors = np.stack(_results(describer, paths, 'descriptors for PCA'))
        learned['mean'], learned['rows'] = _learn_pca(vectors, settings.dims, settings)


def _results(describe: Callable, paths: Sequence[Path], what: str) -> list[Any]:
    results = []
    for path in track(paths, what):
        with suppress(ValueError):  # reported when it is indexed
            results.append(describe(read_image(path)))
    if not results:
        raise UserError('None of the images to learn from can be read.')
    return results


def _learn_pca(x: np.ndarray, dims: int, settings: Settings) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean (d,) and the directions (dims, d) of vectors (N, d)."""
    if dims > min(x.shape):
        raise UserError(
            f'PCA to {dims} dimensions needs at least as many vectors, each with at least as many '
            f'numbers, not {x.shape[0]} with {x.shape[1]}. --learn-from takes other images.'
        )
    pca = _sklearn('decomposition').PCA(dims, random_state=settings.seed).fit(x)
    # With as many directions as vectors, the last has no variance.
    deviations = np.sqrt(np.maximum(pca.explained_variance_, 1e-12))
    rows = pca.components_ / (deviations[:, None] if settings.whiten else 1)
    return pca.mean_.astype(np.float32), rows.astype(np.float32)


def _learn_codebook(x: np.ndarray, settings: Settings, rng: np.random.Generator) -> np.ndarray:
    """Return the centroids of k-means (k, d)."""
    if len(x) < settings.codebook:
        raise UserError(
            f'A codebook of {settings.codebook} words needs at least as many patches, and these '
            f'images have {len(x)}: make it smaller, or --learn-from more images.'
        )
    kmeans = _sklearn('cluster').MiniBatchKMeans(
        settings.codebook, init='random', n_init=1, random_state=settings.seed
    )
    # Each batch has at least as many patches as there are words.
    batches = max(1, len(x) // max(settings.codebook, BATCH))
    for step in track(range(PASSES * batches), 'k-means'):
        if step % batches == 0:
            parts = np.array_split(rng.permutation(len(x)), batches)
        kmeans.partial_fit(x[parts[step % batches]])
    return kmeans.cluster_centers_.astype(np.float32)


def _sklearn(module: str) -> Any:
    try:
        return importlib.import_module(f'sklearn.{module}')
    except ModuleNotFoundError as error:
        message = f'learning PCA and codebooks needs {error.name}: pip install scikit-learn'
        raise ModuleNotFoundError(message, name=error.name) from error
