"""Self-supervised training with DINO (arXiv 2104.14294): a student learns from its own average."""

from functools import partial
from typing import Any

import torch
from mmengine.dist import all_reduce, get_world_size
from mmengine.model import BaseModel, BaseModule
from mmengine.model.weight_init import trunc_normal_
from mmengine.registry import MODELS
from mmengine.structures import BaseDataElement
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm
from torch.optim.swa_utils import get_ema_multi_avg_fn

from ..weights.hook import register_load_hook
from .classifier import accept_bare_weights


class DINOHead(BaseModule):
    """Three linear layers, a normalization to length 1, and a linear layer with normalized rows.

    Args:
        in_dims (int): Width of the class token.
        out_dims (int): Number of prototypes. Defaults to 65536.
        hidden_dims (int): Width of the hidden layers. Defaults to 2048.
        bottleneck_dims (int): Width before the last layer. Defaults to 256.
        norm_last_layer (bool): Whether the rows of the last layer keep length 1. Defaults to True.
    """

    def __init__(
        self,
        in_dims: int,
        out_dims: int = 65536,
        hidden_dims: int = 2048,
        bottleneck_dims: int = 256,
        norm_last_layer: bool = True,
    ) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(in_dims, hidden_dims),
            nn.GELU(),
            nn.Linear(hidden_dims, hidden_dims),
            nn.GELU(),
            nn.Linear(hidden_dims, bottleneck_dims),
        )
        self.last_layer = weight_norm(nn.Linear(bottleneck_dims, out_dims, bias=False))
        lengths = self.last_layer.parametrizations.weight.original0
        nn.init.ones_(lengths)
        lengths.requires_grad = not norm_last_layer

    def forward(self, x: Tensor) -> Tensor:
        """Return scores of the prototypes, (B, out_dims), from class tokens (B, in_dims)."""
        return self.last_layer(F.normalize(self.mlp(x), dim=-1))

    def init_weights(self) -> None:
        """Truncated normals; the last layer was initialized at construction."""
        for module in () if self.is_init else self.mlp:
            if isinstance(module, nn.Linear):
                trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
        super().init_weights()


class Branch(BaseModule):
    """A backbone with a projection head: the student or the teacher.

    Args:
        backbone (dict): Config of an :class:`XCiTClassifier`.
        head (dict): Arguments of :class:`DINOHead`.
    """

    def __init__(self, backbone: dict, head: dict) -> None:
        super().__init__()
        self.backbone = MODELS.build(backbone)
        self.head = DINOHead(self.backbone.embed_dims, **head)

    def forward(self, crops: list[Tensor]) -> Tensor:
        """Return scores of crops, given as one batch per size, in their order."""
        return self.head(torch.cat([self.backbone(images) for images in crops]))


@MODELS.register_module()
class DINO(BaseModel):
    """Trains a student to predict, from any crop, what its average over time sees in large crops.

    :class:`DINOHook` moves the teacher and sets the schedules. The teacher is what a checkpoint is
    used for: detectors and segmentors take it from there. Files of a backbone alone, such as the
    published ones, load into the backbones of student and teacher.

    Args:
        backbone (dict): Config of an :class:`XCiTClassifier`; it gets ``num_classes=0``. The
            teacher has no stochastic depth.
        head (dict, optional): Arguments of :class:`DINOHead`. Defaults to None, DINO's own.
        student_temp (float): Temperature of the student. Defaults to 0.1.
        center_momentum (float): How much of the center a step keeps. Defaults to 0.9.
        data_preprocessor (dict, optional): Defaults to None, mmengine's ``BaseDataPreprocessor``.
        init_cfg (dict, optional): Initialization config. Defaults to None.
    """

    # All that predictions depend on.
    predictor = 'teacher.backbone'

    def __init__(
        self,
        backbone: dict,
        head: dict | None = None,
        student_temp: float = 0.1,
        center_momentum: float = 0.9,
        data_preprocessor: dict | None = None,
        init_cfg: dict | None = None,
    ) -> None:
        super().__init__(data_preprocessor, init_cfg)
        backbone, head = {**backbone, 'num_classes': 0}, head or {}
        self.student = Branch(backbone, head)
        self.teacher = Branch({**backbone, 'drop_path_rate': 0.0, 'init_cfg': None}, head)
        self.teacher.requires_grad_(False)
        self.student_temp = student_temp
        self.teacher_temp = 0.04  # DINOHook sets it
        self.center_momentum = center_momentum
        self.center: Tensor
        prototypes = self.student.head.last_layer.out_features
        self.register_buffer('center', torch.zeros(prototypes))
        backbones = ('student.backbone', 'teacher.backbone')
        register_load_hook(self, partial(accept_bare_weights, parts=backbones))
        self.copy_student()

    def copy_student(self) -> None:
        """Start the teacher as a copy of the student."""
        self.teacher.load_state_dict(self.student.state_dict())

    def init_weights(self) -> None:
        """Initialize the student, and copy it to the teacher."""
        is_new = not self.is_init
        super().init_weights()
        if is_new:
            self.copy_student()

    @torch.no_grad()
    def update_teacher(self, momentum: float) -> None:
        """Move the teacher's parameters towards the student's; its BatchNorms have their own."""
        parameters = [list(branch.parameters()) for branch in (self.teacher, self.student)]
        get_ema_multi_avg_fn(momentum)(*parameters, None)

    def forward(
        self,
        inputs: Any,
        data_samples: list[BaseDataElement] | None = None,
        mode: str = 'tensor',
    ) -> Any:
        """Return the loss of crops, or the teacher's features of images.

        Args:
            inputs: For the loss, ``global_crops`` and ``local_crops``: per image, tensors
                (crops, C, H, W). Otherwise a list of images (C, H, W) of one size.
            data_samples (list[BaseDataElement], optional): In the mode ``predict``, they get
                ``features``.
            mode (str): ``tensor``, ``loss`` or ``predict``. Defaults to ``tensor``.
        """
        if mode == 'loss':
            return self.loss(**{name: stack_views(crops) for name, crops in inputs.items()})
        features = self.teacher.backbone(torch.stack(list(inputs)))
        if mode == 'tensor':
            return features
        for sample, feature in zip(data_samples or [], features, strict=True):
            sample.features = feature
        return data_samples

    def loss(self, global_crops: Tensor, local_crops: Tensor | None = None) -> dict[str, Tensor]:
        """Return the loss of crops (views, B, C, H, W), and the information; move the center."""
        views = [crops for crops in (global_crops, local_crops) if crops is not None]
        batch = global_crops.shape[1]
        with torch.no_grad():
            scores = self.teacher([global_crops.flatten(0, 1)])
            targets = ((scores - self.center) / self.teacher_temp).softmax(dim=-1)
        student = self.student([crops.flatten(0, 1) for crops in views])
        loss = dino_loss(
            student.unflatten(0, (-1, batch)), targets.unflatten(0, (-1, batch)), self.student_temp
        )
        self.update_center(scores)
        return dict(loss=loss, information=information(targets))

    @torch.no_grad()
    def update_center(self, scores: Tensor) -> None:
        """Move the center towards the mean of the teacher's scores in all processes."""
        total = scores.float().sum(dim=0)
        all_reduce(total)
        mean = total / (len(scores) * get_world_size())
        self.center.mul_(self.center_momentum).add_(mean, alpha=1 - self.center_momentum)


def stack_views(crops: Any) -> Tensor:
    """Stack crops (views, B, C, H, W) from a list with the crops of each image."""
    return torch.stack(list(crops), dim=1)


def dino_loss(student: Tensor, targets: Tensor, student_temp: float) -> Tensor:
    """Return the mean cross-entropy of the teacher's large crops and the student's other crops.

    Args:
        student (Tensor): Scores (V, B, K) of all crops, the large ones first.
        targets (Tensor): What the teacher sees in the large crops: probabilities (T, B, K).
        student_temp (float): Temperature of the student.
    """
    # In full precision: these are sums over many thousand prototypes.
    with torch.autocast(student.device.type, enabled=False):
        if student.dtype in (torch.float16, torch.bfloat16):
            student = student.float()
        log_probabilities = (student / student_temp).log_softmax(dim=-1)
        targets = targets.to(student.dtype)
        pairs = -torch.einsum('tbk,vbk->tv', targets, log_probabilities) / student.shape[1]
        others = 1 - torch.eye(*pairs.shape, dtype=pairs.dtype, device=pairs.device)
        return (pairs * others).sum() / others.sum()


def information(targets: Tensor) -> Tensor:
    """Return what the prototypes tell about a crop, in nats; 0 if training has collapsed.

    This is the entropy of the mean minus the mean entropy. It is 0 if all crops get the same
    prototypes, be they all of them or one.

    Args:
        targets (Tensor): Probabilities (B, K).
    """
    mean = targets.mean(dim=0)
    return torch.special.entr(mean).sum() - torch.special.entr(targets).sum(dim=-1).mean()
