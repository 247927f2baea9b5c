"""Translates published weights while they are loaded.

:func:`translate_state_dict` runs before a backbone or classifier takes its weights from a state
dict, whatever loads it: ``load_state_dict``, ``load_from``, ``init_cfg``, ``resume``, or an
inferencer of mmdet or mmseg. So files in the published formats load as they are.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from mmengine.logging import print_log
from torch import nn

from ..errors import UserError
from .formats import (
    CLASSIFIER,
    RULES,
    TRUNK,
    Recognized,
    group_names,
    layer_number,
    level_name,
    recognize,
    structure,
    unwrap,
)
from .inputs import warn_about_inputs

if TYPE_CHECKING:
    from ..models.trunk import XCiTTrunk


class WeightsError(UserError, RuntimeError):
    """Weights that do not fit the network."""


_is_strict: ContextVar[bool] = ContextVar('is_strict', default=False)


@contextmanager
def strict_loading(strict: bool = True) -> Iterator[None]:
    """Refuse weights that do not fit, with an error that says why, whatever loads them.

    torch does not tell a module whether ``strict`` was asked for, and mmengine only logs what does
    not match.

    Args:
        strict (bool): Whether to refuse them. Defaults to True.
    """
    token = _is_strict.set(strict)
    try:
        yield
    finally:
        _is_strict.reset(token)


def register_load_hook(module: nn.Module, hook: Callable[..., None]) -> None:
    """Register a hook that changes a state dict before a module loads it.

    Args:
        module (nn.Module): The module.
        hook (callable): As for torch's ``register_load_state_dict_pre_hook``.
    """
    if hasattr(module, 'register_load_state_dict_pre_hook'):
        module.register_load_state_dict_pre_hook(hook)
    else:  # before torch 2.5
        module._register_load_state_dict_pre_hook(hook, with_module=True)


def translate_state_dict(
    module: 'XCiTTrunk', state_dict: dict[str, Any], prefix: str, *_: Any
) -> None:
    """Rename the entries of a state dict to our names; torch's load-state-dict pre-hook.

    What does not fit is left for the caller to report, as by ``strict=False`` of torch, unless
    under :func:`strict_loading`.

    Args:
        module (XCiTTrunk): The backbone or classifier that takes the weights.
        state_dict (dict): Changed in place.
        prefix (str): Prefix of the module's entries; ``backbone.`` in a detector.

    Raises:
        WeightsError: If they do not fit, under :func:`strict_loading`.
    """
    entries: Mapping[str, Any] = {
        name[len(prefix) :]: value for name, value in state_dict.items() if name.startswith(prefix)
    }
    if not entries:
        return  # nothing for us; torch itself reports that
    expected = {name: value.shape for name, value in module.state_dict().items()}
    if {name: getattr(value, 'shape', None) for name, value in entries.items()} == expected:
        return
    recognized = recognize(unwrap(entries))
    if recognized is None:
        if _is_strict.get():
            first_words = sorted({name.split('.')[0] for name in entries})
            raise WeightsError(
                f'These weights are in none of the formats known for XCiT ({", ".join(RULES)}). '
                f'Their names start with: {", ".join(first_words[:12])}'
            )
        return
    translated = recognized.state | recognized.others
    unused = _drop_unused_parts(module, recognized)
    misfits = _find_misfits(module, recognized, expected)
    if misfits and _is_strict.get():
        raise WeightsError(
            f'These weights (format "{recognized.format}") do not fit this '
            f'{type(module).__name__}:\n  ' + '\n  '.join(misfits)
        )
    for name in entries:
        del state_dict[prefix + name]
    state = translated if misfits else recognized.state
    state_dict.update({prefix + name: value for name, value in state.items()})
    if misfits:
        return
    if recognized.format != 'own':
        warn_about_inputs(module.in_channels)
    absent = {name.split('.')[0] for name in expected if name not in recognized.state}
    print_log(
        f'XCiT weights in the format "{recognized.format}": {len(recognized.state)} tensors'
        + (f'; not used: {", ".join(sorted(unused))}' if unused else '')
        + (f'; not in the file: {", ".join(sorted(absent))}' if absent else ''),
        'current',
    )


def allow_missing_pyramid(module: 'XCiTTrunk', incompatible: Any) -> None:
    """Let classifiers' weights, which lack only a pyramid, load strictly; torch's post-hook.

    Args:
        module (XCiTTrunk): The backbone or classifier that took the weights.
        incompatible: Has the missing names of the whole model, changed in place.
    """
    missing = incompatible.missing_keys
    ours = {n for n in module.state_dict() if not n.endswith('num_batches_tracked')}
    pyramid = {name for name in ours if name.startswith('pyramid.')}
    # Names of the whole model, such as backbone.pyramid.levels.0.0.weight, and ours.
    absent = {name: own for name in missing for own in ours if f'.{name}'.endswith(f'.{own}')}
    if set(absent.values()) == pyramid:
        missing[:] = [name for name in missing if name not in absent]


def _drop_unused_parts(module: 'XCiTTrunk', recognized: Recognized) -> set[str]:
    """Remove the parts that this network lacks, such as a classifier's head; return their names."""
    unused = {name.split('.')[0] for name in recognized.others}
    parts = {name for name, _ in module.named_children()} | {'cls_token'}
    has_head = hasattr(module, 'cls_token')
    modules = {None, *(name for name, _ in module.named_modules())}
    for name in list(recognized.state):
        part = name.split('.')[0]
        is_optional = part in CLASSIFIER or part == 'pyramid'
        is_absent = part not in parts or (part == 'cls_token' and not has_head)
        number = layer_number(name)
        behind_last = number is not None and number >= len(module.layers)
        no_classes = part == 'head' and not getattr(module, 'num_classes', 0)
        if (is_optional and is_absent) or no_classes:
            unused.add(part)
            del recognized.state[name]
        elif behind_last and number in range(module.variant.depth):
            unused.add('layers after the last feature')
            del recognized.state[name]
        elif level_name(name) not in modules:
            unused.add('levels of other strides')
            del recognized.state[name]
    return unused


def _find_misfits(
    module: 'XCiTTrunk', recognized: Recognized, expected: dict[str, Any]
) -> list[str]:
    """Return what shows that the weights are incomplete or belong to another network."""
    state = recognized.state
    found = structure(state)
    wanted = {
        'in_channels': module.in_channels,
        'patch_size': module.patch_size,
        'embed_dims': module.embed_dims,
        'depth': len(module.layers),
        'num_heads': module.variant.num_heads,
    }
    problems = [
        f'{name} {wanted[name]} in the config, {value} in the file'
        for name, value in found.items()
        if value != wanted[name]
    ]
    if not problems:
        problems = [
            f'{name}: {tuple(shape)} in the config, {tuple(state[name].shape)} in the file'
            for name, shape in expected.items()
            if name in state and state[name].shape != shape
        ]
    # Backbones of classifiers have no pyramid. If there is one, it must be complete.
    needed = (*TRUNK, 'pyramid') if any(n.startswith('pyramid.') for n in state) else TRUNK
    missing = [name for name in expected if name not in state and name.split('.')[0] in needed]
    missing = [name for name in missing if not name.endswith('num_batches_tracked')]
    unexpected = [name for name in state if name not in expected]
    if missing:
        problems.append(f'missing from the file: {group_names(missing)}')
    if unexpected:
        problems.append(f'unknown to the network: {group_names(unexpected)}')
    return problems
