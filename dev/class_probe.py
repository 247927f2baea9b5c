"""Trains class attention on a trunk that was trained without it, in order to draw it."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dev.margin import Sample, auc
from xcit_mm.models.classifier import XCiTClassifier
from xcit_mm.models.xcit import XCiT
from xcit_mm.visualization.images import Preprocess
from xcit_mm_runtime.progress import track

LEARNING_RATE, WEIGHT_DECAY = 1e-3, 0.05
BATCH, EPOCHS = 32, 20


def train_probe(
    backbone: XCiT, samples: Sequence[Sample], preprocess: Preprocess
) -> XCiTClassifier:
    """Train class attention and head to tell which classes an image has; the trunk is frozen.

    Args:
        backbone (XCiT): The trunk of a detector.
        samples (Sequence[Sample]): The images.
        preprocess (callable): RGB image to tensor.
    """
    torch.manual_seed(0)
    classifier = with_class_attention(backbone, len(samples[0].classes))
    tokens = [last_tokens(classifier, preprocess(s.image)) for s in track(samples, 'tokens')]
    targets = torch.tensor(np.array([sample.classes for sample in samples]), dtype=torch.float32)
    new = [p for n, p in classifier.named_parameters() if n.startswith(('cls_', 'norm.', 'head.'))]
    optimizer = torch.optim.AdamW(new, lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    steps = [batch for _ in range(EPOCHS) for batch in torch.randperm(len(tokens)).split(BATCH)]
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, len(steps))
    for batch in track(steps, 'class attention'):
        # One by one: images of different sizes have different numbers of tokens.
        logits = torch.cat([classifier.classify(tokens[i]) for i in batch])
        optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(logits, targets[batch]).backward()
        optimizer.step()
        schedule.step()
    return classifier


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


@torch.no_grad()
def last_tokens(classifier: XCiTClassifier, image: Tensor) -> Tensor:
    """Return the tokens after the last layer, (1, N, d)."""
    *_, (tokens, _) = classifier.trunk_outputs(image)
    return tokens.clone()


@torch.no_grad()
def mean_auc(
    classifier: XCiTClassifier, samples: Sequence[Sample], preprocess: Preprocess
) -> float:
    """Return the mean over the classes of how well a classifier tells images with and without."""
    logits = np.concatenate([classifier(preprocess(sample.image)).numpy() for sample in samples])
    truth = np.array([sample.classes for sample in samples])
    aucs = [auc(x[on], x[~on]) for x, on in zip(logits.T, truth.T, strict=True)]
    return sum(aucs) / len(aucs)
