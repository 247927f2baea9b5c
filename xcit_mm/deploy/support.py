"""What can be exported. Everything else is refused with the reason, before any work."""

import importlib.util
from collections.abc import Iterable
from typing import Any

from ..errors import UserError
from ..models import XCiT
from .detector import stage_of

PACKAGES = ('onnx', 'onnxscript', 'onnxruntime')
SEGMENTORS = ('EncoderDecoder',)
DECODE_HEADS = ('FPNHead', 'UPerHead')
DETECTORS = ('FasterRCNN', 'MaskRCNN', 'CascadeRCNN')
ROI_HEADS = ('StandardRoIHead', 'CascadeRoIHead')
BOX_HEADS = ('BBoxHead', 'ConvFCBBoxHead', 'Shared2FCBBoxHead', 'Shared4Conv1FCBBoxHead')
NECKS = ('FPN', 'NoneType')
# What mmcv's batched_nms takes; another key would change the result.
NMS_KEYS = {'type', 'iou_threshold', 'split_thr'}


def check_packages(fmt: str) -> None:
    """Raise if a package for this format is missing."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if fmt == 'onnx' and missing:
        raise UserError(
            f'Exporting to ONNX needs {" and ".join(missing)}: pip install {" ".join(missing)}.'
        )


def check_supported(model: Any, fmt: str, backbone_only: bool) -> None:
    """Raise if a model cannot be exported.

    Args:
        model (nn.Module): A detector or segmentor; its weights do not matter.
        fmt (str): ``onnx`` or ``torch``.
        backbone_only (bool): Whether only the backbone is wanted.

    Raises:
        UserError: With the reason.
    """
    if not isinstance(model.backbone, XCiT):
        raise _refusal(model.backbone, 'the backbone', ['XCiT'])
    _check_preprocessor(model.data_preprocessor)
    if backbone_only:
        return
    if hasattr(model, 'decode_head'):
        _check_segmentor(model)
    elif fmt == 'torch':
        raise UserError(
            'A detector cannot be exported with --format torch: non-maximum suppression and '
            'RoIAlign are no operators of PyTorch itself, so the file would need mmcv or '
            'torchvision. Use --format onnx, or --backbone for the features alone.'
        )
    else:
        _check_detector(model)


def _check_preprocessor(preprocessor: Any) -> None:
    if (getattr(preprocessor, 'test_cfg', None) or {}).get('size'):
        raise UserError(
            "The config's data_preprocessor pads test images to a fixed size (test_cfg.size), "
            'which a graph for images of any size cannot do. Use test_cfg.size_divisor.'
        )


def _check_segmentor(model: Any) -> None:
    _check_type(model, 'the model', SEGMENTORS)
    _check_type(model.decode_head, 'the decode head', DECODE_HEADS)
    _check_type(getattr(model, 'neck', None), 'the neck', NECKS)
    mode = model.test_cfg.get('mode', 'whole')
    if mode != 'whole':
        raise UserError(
            f'The config tests in mode {mode!r}: mmseg then cuts an image into windows, as many as '
            'its size asks for, and averages where they overlap. A graph takes whole images. If '
            'that is what you want: --cfg-options model.test_cfg.mode=whole'
        )


def _check_detector(model: Any) -> None:
    _check_type(model, 'the model', DETECTORS, 'only two-stage detectors can be exported so far')
    _check_type(getattr(model, 'neck', None), 'the neck', NECKS)
    rpn, roi = model.rpn_head, model.roi_head
    _check_type(rpn, 'the RPN head', ['RPNHead'])
    _check_type(rpn.prior_generator, 'the anchor generator', ['AnchorGenerator'])
    _check_type(roi, 'the RoI head', ROI_HEADS)
    coders, extractors = [rpn.bbox_coder], []
    for stage in range(getattr(roi, 'num_stages', 1)):
        head = stage_of(roi.bbox_head, stage)
        _check_type(head, 'the box head', BOX_HEADS)
        if head.custom_cls_channels or not (head.with_cls and head.with_reg):
            raise UserError('A box head without classes, boxes or softmax cannot be exported.')
        coders.append(head.bbox_coder)
        extractors.append(stage_of(roi.bbox_roi_extractor, stage))
        if roi.with_mask:
            _check_type(stage_of(roi.mask_head, stage), 'the mask head', ['FCNMaskHead'])
            extractors.append(stage_of(roi.mask_roi_extractor, stage))
    for coder in coders:
        _check_type(coder, 'the box coder', ['DeltaXYWHBBoxCoder'])
        _check(not coder.add_ctr_clamp, 'add_ctr_clamp of the box coder')
    for extractor in extractors:
        _check_extractor(extractor)
    for cfg, where in ((rpn.test_cfg, 'rpn'), (roi.test_cfg, 'rcnn')):
        _check_nms(cfg, where)


def _check_extractor(extractor: Any) -> None:
    _check_type(extractor, 'the RoI extractor', ['SingleRoIExtractor'])
    for layer in extractor.roi_layers:
        _check_type(layer, 'the RoI layer', ['RoIAlign'])
        _check(layer.pool_mode == 'avg', f'pool_mode={layer.pool_mode!r} of RoIAlign')


def _check_nms(cfg: Any, where: str) -> None:
    kind = cfg.nms.get('type', 'nms')
    if kind != 'nms':
        raise UserError(
            f'model.test_cfg.{where}.nms has the type {kind!r}. ONNX has an operator for plain '
            'non-maximum suppression only, and none that changes scores. To export the model with '
            f'that: --cfg-options model.test_cfg.{where}.nms.type=nms'
        )
    others = sorted(set(cfg.nms) - NMS_KEYS)
    _check(not others, f'{", ".join(others)} of model.test_cfg.{where}.nms')
    _check(cfg.max_per_img > 0, f'model.test_cfg.{where}.max_per_img={cfg.max_per_img}')
    _check(cfg.get('score_thr', 0) >= 0, f'a negative model.test_cfg.{where}.score_thr')


def _check(condition: bool, what: str) -> None:
    if not condition:
        raise UserError(f'A model with {what} cannot be exported.')


def _check_type(part: Any, name: str, known: Iterable[str], why: str = '') -> None:
    if type(part).__name__ not in known:
        raise _refusal(part, name, known, why)


def _refusal(part: Any, name: str, known: Iterable[str], why: str = '') -> UserError:
    kinds = [kind for kind in known if kind != 'NoneType']
    expected = f'expected {" or ".join(kinds)}' + (f': {why}' if why else '')
    return UserError(
        f'This model cannot be exported: {name} is a {type(part).__name__}, {expected}. Its '
        'backbone alone can be, with --backbone.'
        if name != 'the backbone'
        else f'This model cannot be exported: {name} is a {type(part).__name__}, {expected}.'
    )
