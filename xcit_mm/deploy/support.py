"""Refuses what cannot be exported, with the reason, before any work.

What is not refused here and still comes out wrong is refused by :mod:`.check`.
"""

import importlib.util
from typing import Any

from ..configs import SLIDING
from ..errors import UserError
from ..models import XCiT
from .detector import stage_of
from .metadata import Options

PACKAGES = ('onnx', 'onnxscript', 'onnxruntime')
DETECTORS = ('FasterRCNN', 'MaskRCNN', 'CascadeRCNN')
# The same with windows, which the runtime cuts.
SLIDING_DETECTORS = tuple(SLIDING + name for name in DETECTORS)
BOX_HEADS = ('BBoxHead', 'ConvFCBBoxHead', 'Shared2FCBBoxHead', 'Shared4Conv1FCBBoxHead')
MASK_HEADS = ('FCNMaskHead', 'NormalInitMaskHead')
# What mmcv's batched_nms takes; another key would change the result.
NMS_KEYS = {'type', 'iou_threshold', 'split_thr'}


def check_packages(fmt: str) -> None:
    """Raise if a package for this format is missing."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if fmt == 'onnx' and missing:
        raise UserError(
            f'Exporting to ONNX needs {" and ".join(missing)}: pip install {" ".join(missing)}.'
        )


def check_supported(model: Any, options: Options) -> None:
    """Raise if a model cannot be exported.

    Args:
        model (nn.Module): A detector or segmentor; its weights do not matter.
        options (Options): What the user asks for.

    Raises:
        UserError: With the reason.
    """
    if not isinstance(model.backbone, XCiT):
        raise UserError(
            f'This model cannot be exported: its backbone is a {type(model.backbone).__name__}, '
            'expected XCiT.'
        )
    if (getattr(model.data_preprocessor, 'test_cfg', None) or {}).get('size'):
        raise UserError(
            "The config's data_preprocessor pads test images to a fixed size (test_cfg.size), "
            'which a graph for images of any size cannot do. Use test_cfg.size_divisor.'
        )
    if options.backbone:
        return
    if getattr(model, 'neck', None) is not None:
        _check_type(model.neck, 'the neck', 'FPN')
    if hasattr(model, 'decode_head'):
        _check_segmentor(model)
    elif options.format == 'torch':
        raise UserError(
            'A detector cannot be exported with --format torch: non-maximum suppression and '
            'RoIAlign are no operators of PyTorch itself, so the file would need mmcv or '
            'torchvision. Use --format onnx, or --backbone for the features alone.'
        )
    else:
        _check_detector(model)


def _check_segmentor(model: Any) -> None:
    _check_type(model, 'the model', 'EncoderDecoder')
    _check_type(model.decode_head, 'the decode head', 'FPNHead', 'UPerHead')
    mode = model.test_cfg.get('mode', 'whole')
    if mode != 'whole':
        raise UserError(
            f'The config tests in mode {mode!r}: mmseg then cuts an image into windows, as many as '
            'its size asks for, and averages where they overlap. A graph takes whole images. If '
            'that is what you want: --cfg-options model.test_cfg.mode=whole'
        )


def _check_detector(model: Any) -> None:
    if type(model).__name__ not in SLIDING_DETECTORS:
        _check_type(model, 'the model', *DETECTORS, why='only two-stage detectors can be exported')
    rpn, roi = model.rpn_head, model.roi_head
    _check_type(rpn, 'the RPN head', 'RPNHead')
    _check_type(rpn.prior_generator, 'the anchor generator', 'AnchorGenerator')
    _check_type(rpn.bbox_coder, 'the box coder', 'DeltaXYWHBBoxCoder')
    _check_type(roi, 'the RoI head', 'StandardRoIHead', 'CascadeRoIHead')
    for stage in range(getattr(roi, 'num_stages', 1)):
        head, extractors = stage_of(roi.bbox_head, stage), [roi.bbox_roi_extractor]
        _check_type(head, 'the box head', *BOX_HEADS)
        _check_type(head.bbox_coder, 'the box coder', 'DeltaXYWHBBoxCoder')
        if roi.with_mask:
            _check_type(stage_of(roi.mask_head, stage), 'the mask head', *MASK_HEADS)
            extractors.append(roi.mask_roi_extractor)
        for extractor in (stage_of(each, stage) for each in extractors):
            _check_type(extractor, 'the RoI extractor', 'SingleRoIExtractor')
            _check_type(extractor.roi_layers[0], 'the RoI layer', 'RoIAlign')
    _check_suppression(rpn.test_cfg, 'model.test_cfg.rpn')
    _check_suppression(roi.test_cfg, 'model.test_cfg.rcnn')


def _check_suppression(cfg: Any, where: str) -> None:
    kind = cfg.nms.get('type', 'nms')
    if kind != 'nms':
        raise UserError(
            f'{where}.nms has the type {kind!r}. ONNX has an operator for plain non-maximum '
            'suppression only, and none that changes scores. To export the model with that: '
            f'--cfg-options {where}.nms.type=nms'
        )
    others = sorted(set(cfg.nms) - NMS_KEYS)
    if others:
        raise UserError(f'A model with {", ".join(others)} of {where}.nms cannot be exported.')
    if cfg.max_per_img <= 0:
        raise UserError(f'A model with {where}.max_per_img={cfg.max_per_img} cannot be exported.')


def _check_type(part: Any, name: str, *known: str, why: str = '') -> None:
    if type(part).__name__ not in known:
        reason = f': {why}' if why else ''
        raise UserError(
            f'This model cannot be exported: {name} is a {type(part).__name__}, expected '
            f'{" or ".join(known)}{reason}. Its backbone alone can be, with --backbone.'
        )
