"""VLAD and ASMK against direct sums, and what networks give for images and patches."""

import numpy as np
import pytest
import timm
import torch

from xcit_mm.retrieval.descriptors import (
    Describer,
    Settings,
    Words,
    aggregate,
    nearest_words,
    vlad,
)
from xcit_mm.retrieval.index import Index
from xcit_mm.retrieval.network import Network

from .. import tiny

RNG = np.random.default_rng(0)
DIMS, WORDS = 16, 12
CENTROIDS = RNG.normal(size=(WORDS, DIMS)).astype(np.float32)
# As many patches as in real images: words repeat, and not all of them occur.
IMAGES = [RNG.normal(size=(n, DIMS)).astype(np.float32) for n in (30, 7, 4, 1)]


def distances(x):
    return [sum((a - b) ** 2 for a, b in zip(x.tolist(), c.tolist(), strict=True))
            for c in CENTROIDS]  # fmt: skip


def words_of(patches, count=1):
    """The nearest words of each patch, one distance after the other."""
    return np.array([np.argsort(distances(x))[:count] for x in patches])


def residual_sums(patches, words):
    """For each word that occurs, the sum of its residuals, in float64."""
    sums = {}
    for x, own in zip(patches.astype(float), words, strict=True):
        for word in own:
            sums[word] = sums.get(word, 0) + x - CENTROIDS[word].astype(float)
    return sums


def test_nearest_words(monkeypatch):
    monkeypatch.setattr('xcit_mm.retrieval.descriptors.CHUNK', 8)  # several, and a rest
    found = nearest_words(torch.from_numpy(IMAGES[0]), torch.from_numpy(CENTROIDS), 3)
    assert np.array_equal(found, words_of(IMAGES[0], 3))


@pytest.mark.parametrize('power', [1.0, 0.5])
@pytest.mark.parametrize('patches', IMAGES, ids=len)
def test_vlad_is_the_direct_sum(patches, power):
    words = words_of(patches)
    expected = np.zeros((WORDS, DIMS))
    for word, total in residual_sums(patches, words).items():
        expected[word] = np.sign(total) * np.abs(total) ** power
    expected = expected.ravel() / np.sqrt((expected**2).sum())
    # A sum of 30 numbers in float32, whose root doubles relative errors near zero.
    assert np.abs(vlad(patches, words[:, 0], CENTROIDS, power) - expected).max() < 1e-4
    assert expected.shape == (WORDS * DIMS,)


def asmk(query, image, settings):
    """The kernel of two images by its definition, in float64."""
    sums = [residual_sums(query, words_of(query, settings.assignments)),
            residual_sums(image, words_of(image))]  # fmt: skip
    total = 0.0
    for word in sums[0].keys() & sums[1].keys():
        a, b = (s[word] if settings.real else np.where(s[word] > 0, 1, -1) for s in sums)
        cosine = a @ b / np.sqrt((a @ a) * (b @ b))
        total += np.sign(cosine) * abs(cosine) ** settings.alpha * (cosine > settings.threshold)
    return total / np.sqrt(len(sums[0]) * len(sums[1]))


class NoNetwork:
    def checksum(self):
        return 0


ASMK = dict(descriptor='asmk', codebook=WORDS, patch_dims=DIMS)
VARIANTS = {
    'signs': Settings(**ASMK),
    'selective': Settings(**ASMK, alpha=1.5, threshold=0.25),
    'negative': Settings(**ASMK, alpha=2, threshold=-1),
    'several words': Settings(**ASMK, assignments=3),
    'numbers': Settings(**ASMK, real=True),
}


@pytest.mark.parametrize('name', VARIANTS)
def test_asmk_is_the_direct_sum(name, tmp_path):
    settings = VARIANTS[name]
    index = Index.create(tmp_path, Describer(NoNetwork(), settings, {}))
    described = [aggregate(x, words_of(x), CENTROIDS, settings.real) for x in IMAGES]
    index.add(['a', 'b'], described[:2])  # two shards
    index.add(['c', 'd'], described[2:])
    count = settings.assignments
    queries = [aggregate(x, words_of(x, count), CENTROIDS, settings.real) for x in IMAGES]
    expected = np.array([[asmk(q, x, settings) for x in IMAGES] for q in IMAGES])
    assert np.count_nonzero(expected) > 4  # more than the diagonal
    # float16 rounds each number by 2^-11 at most: 2^-10 in a cosine, 3 times that in its cube.
    tolerance = 3 * 2**-10 if settings.real else 1e-6
    assert np.abs(index.scores(queries) - expected).max() < tolerance
    if count == 1 and name != 'negative':
        assert np.diag(expected) == pytest.approx(1)


def test_a_word_without_a_residual_contributes_nothing():
    words = aggregate(CENTROIDS[:1], np.array([[0]]), CENTROIDS, real=True)
    assert isinstance(words, Words) and not words.residuals.any()


@pytest.fixture(scope='module')
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp('weights') / 'n12.pth'
    model = tiny.classifier('n12', patch_size=16, num_classes=10)
    torch.save(model.state_dict(), path)
    return path, model


IMAGE = RNG.integers(0, 256, (80, 112, 3), dtype=np.uint8)


@torch.no_grad()
def test_the_class_token_and_the_patches_before_class_attention(weights):
    path, model = weights
    network = Network(str(path), None, None, 'cpu')
    vector, patches = network(IMAGE)
    images = network.preprocess(IMAGE[..., ::-1])
    *_, (tokens, _) = model.trunk_outputs(images)
    assert np.abs(patches - tokens[0].numpy()).max() < 1e-4 and patches.shape == (35, 128)
    expected = model(images)[0]  # the head is linear
    found = model.head(torch.from_numpy(vector))
    assert (found - expected).abs().max() < 1e-4 * expected.abs().max()


def test_the_pooled_output_and_the_last_map_of_a_convolutional_network(tmp_path):
    model = timm.create_model('resnet10t', num_classes=7).eval()
    torch.save(timm.create_model('resnet10t').state_dict(), tmp_path / 'r.pth')
    network = Network(str(tmp_path / 'r.pth'), None, 'resnet10t', 'cpu')
    vector, patches = network(IMAGE)
    assert patches.shape == (3 * 4, 512) == (12, model.num_features)
    # float32 means of 12 numbers
    assert np.abs(vector - patches.mean(axis=0)).max() < 1e-5 * np.abs(patches).max()


SIZES = {'long': (64, 46), 'short': (90, 64), 'both': (64, 64)}


@pytest.mark.parametrize('side', SIZES)
def test_resizing(side):
    """Of an image of 112x80: 64 / 112 * 80 is 45.7, and 64 / 80 * 112 is 89.6."""
    seen = []
    settings = Settings(descriptor='vlad', resolution=64, side=side)
    describer = Describer(lambda image: seen.append(image.shape[1::-1]), settings, {})
    describer.run(IMAGE)
    describer.run(IMAGE[:40, :28], whole=IMAGE)  # a part has the scale of the whole
    width, height = SIZES[side]
    part = (64, 64) if side == 'both' else (round(width / 4), round(height / 2))
    assert seen == [SIZES[side], part]
