"""The networks that describe images: XCiT, and convolutional networks of timm next to it."""

import zlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..engine.config import load_config
from ..errors import UserError
from ..models import XCiTClassifier
from ..models.fast import choose_execution
from ..pretraining.transforms import import_timm
from ..visualization.images import Normalize
from ..visualization.load import load_subject
from ..weights import read_weights, unwrap


class Network:
    """Gives one vector for an image, and one for each of its patches.

    With XCiT, these are the class token and the patch tokens before class attention. With a
    convolutional network, they are the pooled output and the last feature map.

    Args:
        checkpoint (str, optional): Weights, from anywhere. None is for those of timm.
        config (str, optional): For an XCiT of a size that is not one of the paper's.
        model (str, optional): A convolutional network of timm. None is for XCiT.
        device (str): Where it runs.
    """

    def __init__(
        self, checkpoint: str | None, config: str | None, model: str | None, device: str
    ) -> None:
        self.device, self.model = device, model
        self.module: Any
        try:
            if model is None:
                subject = load_subject(str(checkpoint), load_config(config) if config else None)
                self.module, self.preprocess = subject.backbone, subject.preprocess
            else:
                self.module, self.preprocess = import_timm('timm').create_model(model), Normalize()
                self.module.load_state_dict(unwrap(read_weights(checkpoint or f'timm://{model}')))
        except (OSError, RuntimeError, TypeError, ValueError) as error:
            raise UserError(str(error)) from None
        self.module.to(device).eval()
        self.has_vector = model is not None or isinstance(self.module, XCiTClassifier)

    def checksum(self) -> int:
        """Return a number that tells these weights from others."""
        total = 0
        for tensor in self.module.state_dict().values():
            total = zlib.crc32(tensor.cpu().contiguous().numpy().tobytes(), total)
        return total

    @torch.no_grad()
    def __call__(self, image: np.ndarray) -> tuple[np.ndarray | None, np.ndarray]:
        """Return the vectors of an image (d,), None if it has none, and of its patches (N, d).

        Args:
            image (np.ndarray): BGR of 8 bits, at least one patch in size.
        """
        images = self.preprocess(image[..., ::-1]).to(self.device)
        vector, patches = (self._run_timm if self.model else self._run_xcit)(images)
        return vector if vector is None else vector[0].cpu().numpy(), patches[0].cpu().numpy()

    def _run_xcit(self, images: Tensor) -> tuple[Tensor | None, Tensor]:
        for tokens, _ in self.module.trunk_outputs(images):  # noqa: B007  only the last are used
            pass
        if not self.has_vector:
            return None, tokens
        return self.module.norm(choose_execution(self.module, tokens).class_token(tokens)), tokens

    def _run_timm(self, images: Tensor) -> tuple[Tensor, Tensor]:
        features = self.module.forward_features(images)
        if features.ndim != 4:
            raise UserError(f'{self.model} is not a convolutional network, such as resnet50.')
        return self.module.forward_head(features, pre_logits=True), features.flatten(2).mT
