"""The paper's seven sizes (table 1) and their training settings (table B.1)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .pyramid import STRIDES


@dataclass(frozen=True)
class Variant:
    """One size of XCiT.

    Args:
        embed_dims (int): Width d of the tokens.
        depth (int): Number of XCiT layers.
        num_heads (int): Heads h of cross-covariance attention.
        layer_scale_init (float): Initial value of LayerScale.
        drop_path_rate (float): Stochastic depth, the same in every layer.
        tokens_norm (bool): Whether the class-attention layers normalize all tokens, not the
            class token alone.
    """

    embed_dims: int
    depth: int
    num_heads: int
    layer_scale_init: float = 1.0
    drop_path_rate: float = 0.0
    tokens_norm: bool = True


VARIANTS = {
    'n12': Variant(128, 12, 4, 1.0, 0.0, tokens_norm=False),
    't12': Variant(192, 12, 4, 1.0, 0.0),
    't24': Variant(192, 24, 4, 1e-5, 0.05),
    's12': Variant(384, 12, 8, 1.0, 0.05),
    's24': Variant(384, 24, 8, 1e-5, 0.1),
    'm24': Variant(512, 24, 8, 1e-5, 0.15),
    'l24': Variant(768, 24, 16, 1e-5, 0.25),
}
# The one setting that also depends on the patch size.
L24_PATCH8_DROP_PATH = 0.3

PATCH_SIZES = (8, 16)

# Layers 4, 6, 8, 12 and 8, 12, 16, 24 of the paper, counted from zero.
FEATURE_LAYERS = {12: (3, 5, 7, 11), 24: (7, 11, 15, 23)}


def resolve_variant(arch: str | dict[str, Any], patch_size: int) -> Variant:
    """Turn the ``arch`` of a config into a :class:`Variant`.

    Args:
        arch (str or dict): A name of :data:`VARIANTS`, in any case, or a dict with ``embed_dims``,
            ``depth`` and ``num_heads`` and, optionally, the other fields of :class:`Variant`.
        patch_size (int): 8 or 16.
    """
    if patch_size not in PATCH_SIZES:
        raise ValueError(f'patch_size must be 8 or 16, not {patch_size!r}')
    if isinstance(arch, str):
        name = arch.lower()
        if name not in VARIANTS:
            raise ValueError(f'arch must be one of {", ".join(VARIANTS)} or a dict, not {arch!r}')
        if name == 'l24' and patch_size == 8:
            fields = {**VARIANTS[name].__dict__, 'drop_path_rate': L24_PATCH8_DROP_PATH}
            return Variant(**fields)
        return VARIANTS[name]
    if not isinstance(arch, dict):
        raise TypeError(f'arch must be a str or a dict, not {type(arch).__name__}')
    known = Variant.__dataclass_fields__
    missing = {'embed_dims', 'depth', 'num_heads'} - set(arch)
    unknown = set(arch) - set(known)
    if missing or unknown:
        raise ValueError(
            f'an arch dict needs embed_dims, depth and num_heads and may have '
            f'{", ".join(list(known)[3:])}; missing: {sorted(missing)}, unknown: {sorted(unknown)}'
        )
    variant = Variant(**arch)
    for field in ('embed_dims', 'depth', 'num_heads'):
        value = getattr(variant, field)
        if not isinstance(value, int) or value < 1:
            raise ValueError(f'{field} must be a positive int, not {value!r}')
    if variant.embed_dims % variant.num_heads:
        raise ValueError(
            f'embed_dims must be a multiple of num_heads, not {variant.embed_dims} with '
            f'{variant.num_heads} heads'
        )
    if variant.embed_dims % 8:
        raise ValueError(f'embed_dims must be a multiple of 8, not {variant.embed_dims}')
    return variant


def resolve_levels(
    out_indices: Sequence[int] | None, strides: Sequence[int] | None, depth: int, pyramid: bool
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Check ``out_indices`` and ``strides``, or choose the paper's.

    Args:
        out_indices (Sequence[int], optional): Zero-based layers that give the features.
        strides (Sequence[int], optional): Strides to which the features are rescaled.
        depth (int): Number of layers.
        pyramid (bool): Whether the features are rescaled.

    Returns:
        tuple: ``out_indices`` and ``strides``, equally long; without a pyramid, no strides.
    """
    if strides is not None:
        if not pyramid:
            raise ValueError(
                f'strides={strides!r} needs pyramid=True; without a pyramid every feature has the '
                'stride patch_size'
            )
        strides = _ascending('strides', strides)
        if not strides or not set(strides) <= set(STRIDES):
            raise ValueError(f'strides must be some of {STRIDES}, not {strides}')
    if out_indices is None:
        out_indices = _paper_layers(strides or STRIDES[:4], depth)
    indices = _ascending('out_indices', out_indices)
    if not indices or any(not 0 <= i < depth for i in indices):
        raise ValueError(f'out_indices must be in 0...{depth - 1}, not {indices}')
    if not pyramid:
        return indices, ()
    if strides is None and len(indices) != 4:
        raise ValueError(
            f'strides must be given for {len(indices)} out_indices, {indices}, one for each, such '
            'as strides=(8, 16, 32) for three: only four have a default, (4, 8, 16, 32); or set '
            'pyramid=False'
        )
    strides = strides or STRIDES[:4]
    if len(strides) != len(indices):
        raise ValueError(
            f'out_indices and strides must have the same length, not {len(indices)} and '
            f'{len(strides)}: {indices} and {strides}'
        )
    return indices, strides


def _paper_layers(strides: Sequence[int], depth: int) -> tuple[int, ...]:
    """Return the layers from which the paper makes levels of these strides."""
    layers = dict(zip(STRIDES, FEATURE_LAYERS.get(depth, ()), strict=False))
    if not set(strides) <= set(layers):
        raise ValueError(
            f'out_indices must be given for a depth of {depth} and strides {tuple(strides)}: the '
            'paper defines them only for 12 and 24 layers and strides 4, 8, 16, 32'
        )
    return tuple(layers[stride] for stride in strides)


def _ascending(name: str, values: Any) -> tuple[int, ...]:
    """Return an argument that must be a sequence of ints in ascending order."""
    is_sequence = hasattr(values, '__len__') and not isinstance(values, (str, bytes))
    if not is_sequence or not all(type(value) is int for value in values):
        raise TypeError(f'{name} must be a sequence of ints, not {values!r}')
    if list(values) != sorted(set(values)):
        raise ValueError(f'{name} must be ascending without repetition, not {tuple(values)}')
    return tuple(values)


# Arguments of the released backbone that have no effect here, or only one allowed value.
RELEASED_NEUTRAL = {
    'img_size': None,
    'num_classes': None,
    'cls_attn_layers': None,
    'norm_layer': None,
    'qk_scale': (None,),
    'drop_rate': (0, 0.0),
    'attn_drop_rate': (0, 0.0),
    'use_pos': (True,),
}


def translate_released(
    arch: str | dict[str, Any], in_channels: int, released: dict[str, Any]
) -> tuple[str | dict[str, Any], int]:
    """Translate the backbone arguments of the authors' released configs.

    Args:
        arch (str or dict): The argument of :class:`XCiT`.
        in_channels (int): The argument of :class:`XCiT`.
        released (dict): Arguments that are not ours: ``embed_dim``, ``depth``, ``num_heads``,
            ``eta``, ``tokens_norm``, ``in_chans``, and those of :data:`RELEASED_NEUTRAL`.

    Returns:
        tuple: ``arch`` and ``in_channels``, with the released arguments translated.
    """
    rest = dict(released)
    for name, allowed in RELEASED_NEUTRAL.items():
        value = rest.pop(name, allowed and allowed[0])
        if allowed is not None and value not in allowed:
            raise ValueError(f'{name}={value!r} is not supported; it must be {allowed[0]!r}')
    in_channels = rest.pop('in_chans', in_channels)
    sizes = {'embed_dims': 'embed_dim', 'depth': 'depth', 'num_heads': 'num_heads'}
    given = [name for name in sizes.values() if name in rest]
    if given and len(given) < 3:
        raise ValueError(f'embed_dim, depth and num_heads go together; only {given} were given')
    if given:
        arch = {ours: rest.pop(theirs) for ours, theirs in sizes.items()}
        eta = rest.pop('eta', None)
        if eta is not None:
            arch['layer_scale_init'] = eta
        if 'tokens_norm' in rest:
            arch['tokens_norm'] = rest.pop('tokens_norm')
    if rest:
        raise TypeError(f'unknown arguments: {", ".join(sorted(rest))}')
    return arch, in_channels
