"""The formats of published XCiT weights: how to recognize them and translate their names to ours.

=============  =========================================================================
own            this project's names
released       the authors' ImageNet, DINO, COCO and ADE20k files
timm           ``pos_embed.token_projection``; class attention with ``q``, ``k``, ``v``
mmpretrain     ``xca_layers``, ``ca_layers`` and the names of mmcv's ``ConvModule``
=============  =========================================================================

The authors' files are wrapped in ``model`` (ImageNet), ``teacher`` or nothing (DINO), or
``state_dict`` with the prefix ``backbone.`` (COCO, ADE20k). Of our own DINO checkpoints, the
teacher is taken.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from xcit_mm_runtime.text import join_some

# Entries that may wrap a state dict, in search order.
WRAPPERS = ('state_dict', 'model', 'teacher')
# Prefixes that training tools add to the names of a backbone.
PREFIXES = ('module.', 'backbone.', 'module.backbone.', 'teacher.backbone.')

# What identifies a format: the start of a name that no other format uses.
SIGNS = {
    'mmpretrain': re.compile(r'^xca_layers\.'),
    'released': re.compile(r'^pos_embeder\.'),
    'timm': re.compile(r'^pos_embed\.token_projection\.'),
    'own': re.compile(r'^pos_embed\.projection\.'),
}

_TRUNK_RULES = (
    (r'^blocks\.', 'layers.'),
    (r'^cls_attn_blocks\.', 'cls_layers.'),
    (r'^(layers\.\d+)\.attn\.', r'\1.xca.'),
    (r'\.mlp\.', '.ffn.'),
    (r'\.local_mp\.bn\.', '.lpi.norm.'),
    (r'\.local_mp\.', '.lpi.'),
    # A Sequential of (convolution, norm) pairs with activations between them.
    (r'^patch_embed\.proj\.0\.', 'patch_embed.layers.0.'),
    (r'^patch_embed\.proj\.2\.', 'patch_embed.layers.1.'),
    (r'^patch_embed\.proj\.4\.', 'patch_embed.layers.2.'),
    (r'^patch_embed\.proj\.6\.', 'patch_embed.layers.3.'),
    (r'^(patch_embed\.layers\.\d)\.0\.', r'\1.conv.'),
    (r'^(patch_embed\.layers\.\d)\.1\.', r'\1.norm.'),
)
RULES: dict[str, tuple[tuple[str, str], ...]] = {
    'own': (),
    'released': (
        (r'^pos_embeder\.token_projection\.', 'pos_embed.projection.'),
        (r'^fpn1\.', 'pyramid.levels.0.'),
        (r'^fpn2\.', 'pyramid.levels.1.'),
        *_TRUNK_RULES,
    ),
    'timm': ((r'^pos_embed\.token_projection\.', 'pos_embed.projection.'), *_TRUNK_RULES),
    'mmpretrain': (
        (r'^pos_embed\.token_projection\.conv\.', 'pos_embed.projection.'),
        (r'^patch_embed\.proj\.(\d)\.conv\.', r'patch_embed.layers.\1.conv.'),
        (r'^patch_embed\.proj\.(\d)\.bn\.', r'patch_embed.layers.\1.norm.'),
        (r'^xca_layers\.(\d+)\.attn\.', r'layers.\1.xca.'),
        (r'^xca_layers\.', 'layers.'),
        (r'^ca_layers\.', 'cls_layers.'),
        (r'\.ffn\.layers\.0\.0\.', '.ffn.fc1.'),
        (r'\.ffn\.layers\.1\.', '.ffn.fc2.'),
        (r'\.local_mp\.conv1\.bn\.', '.lpi.norm.'),
        (r'\.local_mp\.(conv\d)\.conv\.', r'.lpi.\1.'),
        (r'^head\.fc\.', 'head.'),
        # The classifiers of mmpretrain put their head next to the backbone.
        (r'^layers\.head\.', 'head.'),
    ),
}

# The parts of the network, by the first word of our names.
TRUNK = ('patch_embed', 'pos_embed', 'layers')
CLASSIFIER = ('cls_token', 'cls_layers', 'norm', 'head')


@dataclass
class Recognized:
    """A state dict in our names, and where it came from.

    Args:
        format (str): One of :data:`RULES`.
        state (dict): The weights in our names.
        others (dict): Entries of the file that do not belong to an XCiT: necks and heads.
    """

    format: str
    state: dict[str, Tensor]
    others: dict[str, Any]


def unwrap(checkpoint: Mapping[str, Any]) -> Mapping[str, Any]:
    """Find the state dict in the content of a file."""
    for name in WRAPPERS:
        inner = checkpoint.get(name)
        if isinstance(inner, Mapping) and any(isinstance(v, Tensor) for v in inner.values()):
            return inner
    return checkpoint


def recognize(state: Mapping[str, Any]) -> Recognized | None:
    """Recognize the format of a state dict by its names, and translate them.

    Args:
        state (Mapping): Names and tensors of a backbone, classifier, detector or segmentor.

    Returns:
        Recognized, optional: None if it contains no XCiT.
    """
    tensors = {n: t for n, t in state.items() if isinstance(n, str) and isinstance(t, Tensor)}
    prefix = _find_prefix(tensors)
    if prefix is None:
        return None
    inside = {name[len(prefix) :]: t for name, t in tensors.items() if name.startswith(prefix)}
    others = {str(n): v for n, v in state.items() if n not in tensors or not n.startswith(prefix)}
    file_format = next(
        name for name, sign in SIGNS.items() if any(sign.match(word) for word in inside)
    )
    if file_format == 'mmpretrain':
        inside |= {name: others.pop(name) for name in list(others) if name.startswith('head.fc.')}
    translated = {_rename(name, RULES[file_format]): tensor for name, tensor in inside.items()}
    return Recognized(file_format, _join_qkv(translated), others)


def _find_prefix(names: Iterable[str]) -> str | None:
    """Return the prefix of an XCiT's names: nothing, ``backbone.``, ``module.backbone.``, ..."""
    names = list(names)
    for prefix in ('', *PREFIXES):
        inside = [name[len(prefix) :] for name in names if name.startswith(prefix)]
        if any(sign.match(name) for name in inside for sign in SIGNS.values()):
            return prefix
    return None


def _rename(name: str, rules: Iterable[tuple[str, str]]) -> str:
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


def _join_qkv(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Join the separate queries, keys and values of class attention."""
    joined: dict[str, Tensor] = {}
    for name, tensor in state.items():
        match = re.fullmatch(r'(cls_layers\.\d+\.attn\.)([qkv])(\.\w+)', name)
        if match is None:
            joined[name] = tensor
        elif match[2] == 'q':
            names = [f'{match[1]}{part}{match[3]}' for part in 'qkv']
            parts = [state[name] for name in names if name in state]
            if len(parts) == 3 and all(part.shape == tensor.shape != () for part in parts):
                joined[f'{match[1]}qkv{match[3]}'] = torch.cat(parts)
    return joined


def structure(state: Mapping[str, Tensor]) -> dict[str, int]:
    """Return the sizes of the network that weights in our names belong to, as far as known."""
    found: dict[str, int] = {}
    stem = {int(m[1]) for n in state if (m := re.match(r'patch_embed\.layers\.(\d)\.', n))}
    layers = {number for name in state if (number := layer_number(name)) is not None}
    sizes = (
        ('in_channels', 'patch_embed.layers.0.conv.weight', 1),
        ('embed_dims', 'pos_embed.projection.weight', 0),
        ('num_heads', 'layers.0.xca.temperature', 0),
    )
    for what, name, axis in sizes:
        if name in state and state[name].ndim > axis:
            found[what] = state[name].shape[axis]
    if stem:
        found['patch_size'] = 2 ** (max(stem) + 1)
    if layers:
        found['depth'] = max(layers) + 1
    return found


def layer_number(name: str) -> int | None:
    """Return the 3 of ``layers.3.norm1.weight``."""
    match = re.match(r'layers\.(\d{1,4})\.', name)
    return int(match[1]) if match else None


def level_name(name: str) -> str | None:
    """Return the ``pyramid.levels.1`` of ``pyramid.levels.1.0.weight``: one of five strides."""
    match = re.match(r'pyramid\.levels\.[0-4](?=\.)', name)
    return match[0] if match else None


def group_names(names: Iterable[str], limit: int = 8) -> str:
    """Shorten a list of names: ``layers.0-11.xca.qkv.weight (12)``."""
    groups: dict[str, list[int]] = {}
    for name in names:
        match = re.search(r'(?<=\.)\d{1,4}(?=\.)', name)
        pattern = f'{name[: match.start()]}\0{name[match.end() :]}' if match else name
        groups.setdefault(pattern, []).extend([int(match[0])] if match else [])
    lines = []
    for pattern, numbers in groups.items():
        if len(numbers) < 2:
            lines.append(pattern.replace('\0', str(*numbers)))
        else:
            span = f'{min(numbers)}-{max(numbers)}'
            lines.append(f'{pattern.replace(chr(0), span)} ({len(numbers)})')
    return join_some(lines, limit)
