"""Supervised training as in DeiT, the recipe that the paper follows, with distillation."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from mmengine.logging import MessageHub, MMLogger
from mmengine.model import BaseModel, ImgDataPreprocessor
from mmengine.registry import MODELS
from mmengine.structures import BaseDataElement
from torch import Tensor, nn
from torch.nn import functional as F

from xcit_mm_runtime.text import join_some

from ..errors import UserError
from ..weights import CheckpointError, read_weights, unwrap
from ..weights.hook import register_load_hook
from .transforms import import_timm


class _Unregistered(tuple[nn.Module, ...]):
    """Modules that are neither saved, nor trained, nor sent to other processes, nor copied."""

    def __deepcopy__(self, memo: dict) -> '_Unregistered':
        return self


@MODELS.register_module()
class ImageClassifier(BaseModel):
    """Trains and tests a classifier on mmengine's runner, with timm's mixup and losses.

    Files of a classifier alone, such as the published ones, load as they are.

    Args:
        backbone (dict): Config of an :class:`XCiTClassifier`, or of any other module with
            ``num_classes`` that returns logits.
        mixup (dict, optional): Arguments of timm's ``Mixup``. Defaults to None, no mixup.
        label_smoothing (float): Part of the target that is spread over all classes. Defaults to 0.
        teacher (dict, optional): Arguments of :func:`build_teacher`, ``weight``, the share of its
            loss, and for soft distillation ``temperature``, see :func:`soft_distillation`. It is
            frozen, and not part of the checkpoints. Defaults to None, no distillation.
        data_preprocessor (dict, optional): Defaults to None, mmengine's ``ImgDataPreprocessor``.
        init_cfg (dict, optional): Initialization config. Defaults to None.
    """

    def __init__(
        self,
        backbone: dict,
        mixup: dict | None = None,
        label_smoothing: float = 0.0,
        teacher: dict | None = None,
        data_preprocessor: dict | None = None,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(data_preprocessor or dict(type='ImgDataPreprocessor'), init_cfg)
        self.backbone = MODELS.build(backbone)
        self.mixup: Any = None
        self.criterion: nn.Module
        if mixup is not None:
            self.mixup = import_timm('timm.data').Mixup(
                **mixup, label_smoothing=label_smoothing, num_classes=self.backbone.num_classes
            )
            self.criterion = import_timm('timm.loss').SoftTargetCrossEntropy()
        elif label_smoothing:
            self.criterion = import_timm('timm.loss').LabelSmoothingCrossEntropy(label_smoothing)
        else:
            self.criterion = nn.CrossEntropyLoss()
        self._teacher_cfg = dict(teacher or {})
        self.teacher_weight = self._teacher_cfg.pop('weight', 0.5)
        self.teacher_temperature: float | None = self._teacher_cfg.pop('temperature', None)
        self._teacher = _Unregistered()
        register_load_hook(self, accept_bare_weights)

    def forward(
        self,
        inputs: Tensor,
        data_samples: list[BaseDataElement] | None = None,
        mode: str = 'tensor',
    ) -> Any:
        """Return logits, losses or samples with ``pred_scores``, as mmengine's runner asks.

        Args:
            inputs (Tensor): Images (B, C, H, W).
            data_samples (list[BaseDataElement], optional): With ``gt_label`` for losses.
            mode (str): ``tensor``, ``loss`` or ``predict``. Defaults to ``tensor``.
        """
        if mode == 'tensor':
            return self.backbone(inputs)
        samples = data_samples or []
        if mode == 'loss':
            return self.loss(inputs, torch.stack([sample.gt_label for sample in samples]))
        for sample, scores in zip(samples, self.backbone(inputs).softmax(dim=-1), strict=True):
            sample.pred_scores = scores
        return samples

    def loss(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the cross-entropy with the labels and, if any, with the teacher's predictions."""
        targets = labels
        if self.mixup is not None:
            if len(images) % 2:
                raise UserError(
                    f'Mixup pairs the images of a batch, so batch_size must be even, and it is '
                    f'{len(images)}.'
                )
            images, targets = self.mixup(images, labels)
        logits = self.backbone(images)
        loss = self.criterion(logits, targets)
        if not self._teacher_cfg:
            return dict(loss=loss)
        with torch.no_grad():
            scores = self.teacher.to(images.device)(images)
        if self.teacher_temperature is None:
            distilled = F.cross_entropy(logits, scores.argmax(dim=1))
        else:
            distilled = soft_distillation(logits, scores, self.teacher_temperature)
        weight = self.teacher_weight
        return dict(loss_labels=(1 - weight) * loss, loss_teacher=weight * distilled)

    @property
    def teacher(self) -> nn.Module:
        """The teacher, built when it is first needed: testing does not need it."""
        if not self._teacher:
            self._teacher = _Unregistered([build_teacher(**self._teacher_cfg)])
        return self._teacher[0]

    def init_weights(self) -> None:
        """Initialize; a run that lacks its teacher's weights stops here, not after an hour."""
        super().init_weights()
        if self._teacher_cfg:
            _ = self.teacher


@MODELS.register_module()
class MultiScalePreprocessor(ImgDataPreprocessor):
    """Resizes each training batch to one of several sizes: multi-scale training.

    The size follows from the iteration, so all processes use the same one, and a resumed run uses
    those that it would have used.

    Args:
        sizes (Sequence[int]): Heights and widths of the images, all equally likely. The training
            pipeline should make images of the largest: ``input_size=max(sizes)``.
        **kwargs: As for mmengine's ``ImgDataPreprocessor``.
    """

    def __init__(self, sizes: Sequence[int], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not sizes or min(sizes) < 1:
            raise ValueError(f'sizes must be at least one positive int, not {sizes!r}')
        self.sizes = tuple(sizes)

    def forward(self, data: dict, training: bool = False) -> dict:
        """Preprocess as mmengine does, then resize a batch for training."""
        data = super().forward(data, training)
        if training:
            iteration = MessageHub.get_current_instance().get_info('iter', 0)
            size = int(np.random.default_rng(iteration).choice(self.sizes))
            data['inputs'] = F.interpolate(
                data['inputs'], (size, size), mode='bicubic', align_corners=False, antialias=True
            )
        return data


@MODELS.register_module()
class LinearClassifier(ImageClassifier):
    """Trains the head of a frozen classifier alone: DINO's linear protocol.

    Args:
        *args: As for :class:`ImageClassifier`.
        linear_weights (str, optional): Weights of the head alone, such as DINO's authors publish
            them, to test a file of a network that has no head. Training does not use them. Defaults
            to None.
        **kwargs: As for :class:`ImageClassifier`.
    """

    def __init__(self, *args: Any, linear_weights: str | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.backbone.requires_grad_(False)
        self.backbone.head.requires_grad_()
        if linear_weights is not None:
            # After accept_bare_weights, so that all names start with those of the model.
            register_load_hook(self, partial(add_linear_weights, source=linear_weights))

    def train(self, mode: bool = True) -> 'LinearClassifier':
        """Keep the network in evaluation mode: it has no stochastic depth, its BatchNorms stay."""
        super().train(mode)
        self.backbone.eval()
        return self

    def init_weights(self) -> None:
        """Initialize; the head as in DINO's code."""
        if not self.is_init:
            super().init_weights()
            nn.init.normal_(self.backbone.head.weight, std=0.01)
            nn.init.zeros_(self.backbone.head.bias)


def add_linear_weights(
    module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any, source: str
) -> None:
    """Add the weights of a linear classifier to a file that has none; torch's pre-hook.

    Args:
        module (nn.Module): The model that takes the weights.
        state_dict (dict): Changed in place.
        prefix (str): Prefix of the module's entries.
        source (str): As for :func:`read_weights`. Its names end in ``weight`` and ``bias``: DINO's
            are ``module.linear.weight`` and ``module.linear.bias``.
    """
    if f'{prefix}backbone.head.weight' in state_dict:
        return
    entries = unwrap(read_weights(source))
    for kind in ('weight', 'bias'):
        found = [tensor for name, tensor in entries.items() if name.rpartition('.')[2] == kind]
        if len(entries) != 2 or len(found) != 1:
            raise CheckpointError(
                f'{source} must have the weight and the bias of a linear classifier, and has '
                + join_some(list(entries))
            )
        state_dict[f'{prefix}backbone.head.{kind}'] = found[0]


def soft_distillation(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """Return the divergence of the softened predictions from the teacher's, as in DeiT's code.

    That is a mean over images and classes, not a sum over classes, times the squared temperature.

    Args:
        logits (Tensor): (B, classes).
        teacher (Tensor): The logits of the teacher, likewise.
        temperature (float): What both are divided by.
    """
    ours, theirs = ((x / temperature).log_softmax(dim=1) for x in (logits, teacher))
    total = F.kl_div(ours, theirs, reduction='sum', log_target=True)
    return temperature**2 * total / logits.numel()


def accept_bare_weights(
    module: nn.Module,
    state_dict: dict[str, Any],
    prefix: str,
    *_: Any,
    parts: tuple[str, ...] = ('backbone',),
) -> None:
    """Let files of a backbone alone load into the model around it; torch's pre-hook.

    Args:
        module (nn.Module): The model that takes the weights.
        state_dict (dict): Changed in place.
        prefix (str): Prefix of the module's entries.
        parts (tuple[str]): The backbones of the model. Defaults to ``('backbone',)``.
    """
    own = tuple(f'{prefix}{part.split(".")[0]}.' for part in parts)
    names = [name for name in state_dict if name.startswith(prefix)]
    if not names or any(name.startswith(own) for name in names):
        return
    for name in names:
        weights = state_dict.pop(name)
        state_dict.update({f'{prefix}{part}.{name[len(prefix) :]}': weights for part in parts})
    MMLogger.get_current_instance().info(
        f'The file contains the network alone. It is loaded into {" and ".join(parts)}.',
        extra=dict(wanted=True),
    )


def build_teacher(name: str, checkpoint: str | None = None) -> nn.Module:
    """Build a frozen model of timm, in evaluation mode.

    Args:
        name (str): Its name in timm, such as ``regnety_160.deit_in1k``.
        checkpoint (str, optional): A file with its weights. Defaults to None: timm's, which are
            downloaded once.

    Raises:
        UserError: If its weights are not on this machine and cannot be downloaded.
    """
    timm = import_timm('timm')
    try:
        weights = unwrap(read_weights(checkpoint or f'timm://{name}'))
    except (CheckpointError, FileNotFoundError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f'The weights of the teacher {name} are not available ({reason}): give a file with '
            '--cfg-options model.teacher.checkpoint=FILE, or train without distillation.'
        ) from error
    teacher = timm.create_model(name, pretrained=False)
    try:
        teacher.load_state_dict(weights)
    except RuntimeError as error:
        raise UserError(f'{checkpoint} does not fit the teacher {name}: {error}') from None
    return teacher.eval().requires_grad_(False)
