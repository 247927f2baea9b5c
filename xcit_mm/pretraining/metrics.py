"""Accuracy of a classifier, and of features: by their neighbors, and by a linear classifier.

Features are measured on labeled images. Those of the dataset with ``role='bank'`` are the
examples to compare with and to learn from; all others are classified.
"""

from collections.abc import Sequence
from typing import Any

import torch
from mmengine.evaluator import BaseMetric
from mmengine.registry import METRICS
from torch import Tensor
from torch.nn import functional as F

from ..errors import UserError

BANK = 'bank'
CHUNK = 256


@METRICS.register_module()
class TopKAccuracy(BaseMetric):
    """Percentage of images whose class is among the first k.

    Args:
        names (Sequence[str]): ``top1``, ``top5``, or ``top`` and any other number. Defaults to
            both.
        **kwargs: As for mmengine's ``BaseMetric``.
    """

    default_prefix = 'accuracy'

    def __init__(self, names: Sequence[str] = ('top1', 'top5'), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        wrong = [name for name in names if name[:3] != 'top' or not name[3:].isdecimal()]
        if wrong:
            raise ValueError(f'names must be top1, top5, ..., not {", ".join(wrong)}')
        self.counts = {name: int(name[3:]) for name in names}

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """Record how many other classes are not below the right one; a NaN is not below it."""
        for sample in data_samples:
            scores = sample['pred_scores']
            lower = int((scores < scores[sample['gt_label']]).sum())
            self.results.append(len(scores) - 1 - lower)

    def compute_metrics(self, results: list[int]) -> dict[str, float]:
        """Return the accuracies."""
        return {
            name: 100 * sum(rank < count for rank in results) / len(results)
            for name, count in self.counts.items()
        }


class FeatureAccuracy(BaseMetric):
    """Base of the accuracies of features: collects those of the bank and of the rest."""

    default_prefix = 'accuracy'
    name = ''

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """Record features, labels and roles."""
        for sample in data_samples:
            feature = sample['features'].float().cpu()
            self.results.append((feature, int(sample['gt_label']), sample.get('role') == BANK))

    def compute_metrics(self, results: list[tuple]) -> dict[str, float]:
        """Return the accuracy in percent."""
        features = torch.stack([feature for feature, _, _ in results])
        labels = torch.tensor([label for _, label, _ in results])
        is_bank = torch.tensor([is_bank for _, _, is_bank in results])
        if is_bank.all() or not is_bank.any():
            raise UserError(
                f'{type(self).__name__} needs labeled images with role={BANK!r} and others '
                'without it in the validation data.'
            )
        predicted = self.predict(features[is_bank], labels[is_bank], features[~is_bank])
        return {self.name: 100 * float((predicted == labels[~is_bank]).float().mean())}

    def predict(self, bank: Tensor, labels: Tensor, queries: Tensor) -> Tensor:
        """Return the classes of queries (Q, d), from examples (N, d) with labels (N,)."""
        raise NotImplementedError


@METRICS.register_module()
class KNNAccuracy(FeatureAccuracy):
    """Accuracy of a vote of the nearest neighbors, weighted by their cosine, as in DINO.

    Args:
        k (int): Number of neighbors. Defaults to 20.
        temperature (float): A neighbor with the cosine c counts exp(c / temperature). Defaults
            to 0.07.
        **kwargs: As for mmengine's ``BaseMetric``.
    """

    name = 'knn'

    def __init__(self, k: int = 20, temperature: float = 0.07, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.k, self.temperature = k, temperature

    def predict(self, bank: Tensor, labels: Tensor, queries: Tensor) -> Tensor:
        """See :class:`FeatureAccuracy`."""
        bank = F.normalize(bank, dim=1)
        classes = int(labels.max()) + 1
        predicted = []
        for chunk in F.normalize(queries, dim=1).split(CHUNK):
            cosines, nearest = (chunk @ bank.T).topk(min(self.k, len(bank)), dim=1)
            votes = chunk.new_zeros(len(chunk), classes)
            votes.scatter_add_(1, labels[nearest], (cosines / self.temperature).exp())
            predicted.append(votes.argmax(dim=1))
        return torch.cat(predicted)


@METRICS.register_module()
class LinearProbe(FeatureAccuracy):
    """Accuracy of a linear classifier on fixed features, without augmentation.

    This is a quick measure while training, not the protocol of the paper, which trains the
    classifier on augmented images for 100 epochs.

    Args:
        epochs (int): Epochs of training. Defaults to 50.
        lr (float): Learning rate at the start; it falls to 0 along a cosine. Defaults to 0.1.
        batch_size (int): Features per step. Defaults to 256.
        **kwargs: As for mmengine's ``BaseMetric``.
    """

    name = 'linear'

    def __init__(
        self, epochs: int = 50, lr: float = 0.1, batch_size: int = 256, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.epochs, self.lr, self.batch_size = epochs, lr, batch_size

    @torch.enable_grad()
    def predict(self, bank: Tensor, labels: Tensor, queries: Tensor) -> Tensor:
        """See :class:`FeatureAccuracy`."""
        mean, std = bank.mean(dim=0), bank.std(dim=0, correction=0) + 1e-6
        bank, queries = (bank - mean) / std, (queries - mean) / std
        # Its own random numbers: a run must not depend on whether it is evaluated.
        order = torch.Generator().manual_seed(0)
        layer = torch.nn.utils.skip_init(torch.nn.Linear, bank.shape[1], int(labels.max()) + 1)
        torch.nn.init.zeros_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
        optimizer = torch.optim.SGD(layer.parameters(), self.lr, momentum=0.9)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.epochs)
        for _ in range(self.epochs):
            for batch in torch.randperm(len(bank), generator=order).split(self.batch_size):
                optimizer.zero_grad()
                F.cross_entropy(layer(bank[batch]), labels[batch]).backward()
                optimizer.step()
            schedule.step()
        return layer(queries).argmax(dim=1)
