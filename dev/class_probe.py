"""Trains class attention on a trunk that was trained without it, in order to draw it."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from xcit_mm.models.classifier import XCiTClassifier
from xcit_mm.models.xcit import XCiT
from xcit_mm.visualization.images import Preprocess
from xcit_mm.visualization.observe import observe
from xcit_mm_runtime.progress import track

LEARNING_RATE, WEIGHT_DECAY = 1e-3, 0.05
BATCH = 32


class LastTokens:
    """Keeps the tokens after the last layer."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.tokens: list[Tensor] = []

    def observe(self, depth: int, tokens: Tensor, grid: tuple[int, int]) -> None:
        if depth == self.depth:
            self.tokens.append(tokens[0].clone())


def with_class_attention(backbone: XCiT, num_classes: int) -> XCiTClassifier:
    """Return a classifier on the trunk of a dense backbone; class attention and head are new."""
    classifier = XCiTClassifier(
        dict(vars(backbone.variant)),
        backbone.patch_size,
        num_classes,
        in_channels=backbone.in_channels,
        mlp_ratio=backbone.mlp_ratio,
        qkv_bias=backbone.qkv_bias,
        drop_path_rate=0.0,
    )
    trunk = {n: t for n, t in backbone.state_dict().items() if not n.startswith('pyramid.')}
    classifier.load_state_dict({**classifier.state_dict(), **trunk})
    return classifier.eval()


def train_class_attention(
    classifier: XCiTClassifier,
    samples: Iterable[tuple[np.ndarray, Sequence[float]]],
    preprocess: Preprocess,
    epochs: int,
) -> None:
    """Train class attention and head to tell which classes an image has; the trunk is frozen.

    Args:
        classifier (XCiTClassifier): Changed in place.
        samples (Iterable): Images, RGB uint8 (H, W, 3), and 0 or 1 for each class.
        preprocess (callable): RGB image to tensor.
        epochs (int): Number of passes over the images.
    """
    kept = LastTokens(len(classifier.layers))
    targets = []
    for image, target in samples:
        observe(classifier, preprocess(image), [kept])
        targets.append(torch.tensor(target))
    new = [p for n, p in classifier.named_parameters() if n.startswith(('cls_', 'norm.', 'head.'))]
    optimizer = torch.optim.AdamW(new, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    steps = [batch for _ in range(epochs) for batch in _batches(kept.tokens)]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, len(steps))
    for batch in track(steps, 'class attention'):
        logits = classifier.classify(torch.stack([kept.tokens[i] for i in batch]))
        loss = F.binary_cross_entropy_with_logits(logits, torch.stack([targets[i] for i in batch]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def _batches(tokens: list[Tensor]) -> list[list[int]]:
    """Return batches of images with the same number of tokens, in random order."""
    groups: dict[int, list[int]] = {}
    for i in torch.randperm(len(tokens)).tolist():
        groups.setdefault(len(tokens[i]), []).append(i)
    batches = [g[s : s + BATCH] for g in groups.values() for s in range(0, len(g), BATCH)]
    return [batches[i] for i in torch.randperm(len(batches)).tolist()]
