"""Where weights come from: a path, a web address, ``xcit://NAME`` or ``timm://NAME``.

Importing the package adds ``xcit://``, ``timm://`` and safetensors files to what mmengine can read,
so a config can use them wherever it names a checkpoint. Everything in this module reads strictly.
How mmengine reads other files stays as it is until :func:`use_strict_reader` is called. Registering
a loader is mmengine's public way to read a scheme; nothing else in it changes.

Files are downloaded here, because nothing else does all that is needed: torch.hub and mmengine
start over after an interruption and mix up files of the same name from two places, and
huggingface_hub downloads only from its own hub.
"""

import functools
import hashlib
import json
import re
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import torch
from mmengine.runner import CheckpointLoader
from mmengine.runner import checkpoint as zoo

from xcit_mm_runtime.progress import progress_bar

from .read import CheckpointError, read_checkpoint
from .sanitize import sanitize_checkpoint

CHUNK = 1 << 20
TIMEOUT = 60
# Files of the model zoos are named after the start of their hash: resnet50-0676ba61.pth. Some end
# in a date instead: -20210623.pth
HASH_IN_NAME = re.compile(r'-(?!20\d{6}\.)([0-9a-f]{8,64})\.\w+$')

WEB = ('http://', 'https://')
# mmengine itself cannot read these files. Its schemes are regular expressions.
SAFETENSORS = r'(?!\S+://).+\.safetensors$'
# mmengine's model zoos -> its function that lists their addresses by name
ZOOS = {
    'torchvision': 'get_torchvision_models',
    'modelzoo': 'get_torchvision_models',
    'openmmlab': 'get_external_models',
    'open-mmlab': 'get_external_models',
    'mmcls': 'get_mmcls_models',
}

# What the paper fine-tunes on COCO and ADE20k: distilled on ImageNet, at 384 pixels.
DENSE_INITIALIZATION = '384_dist'


class UnknownWeightsError(CheckpointError, ValueError):
    """A name or an address that leads to no weights."""


class DownloadError(CheckpointError):
    """A file that could not be downloaded, or that is not the file it should be."""


@functools.cache
def published() -> dict[str, str]:
    """Return the addresses of the authors' 70 files, by short name.

    ``s12/8/384_dist`` (ImageNet), ``dino/s12/8``, ``coco/s12/8``, ``ade20k/upernet/s12/8``.
    """
    table = json.loads(Path(__file__).with_name('published.json').read_text(encoding='utf-8'))
    return {name: table['base'] + file for name, file in table['files'].items()}


def resolve_short_name(name: str) -> str:
    """Return the address of ``xcit://NAME``.

    Args:
        name (str): A name of :func:`published`, with or without ``xcit://``. A size alone, such as
            ``s12/8``, stands for the weights from which the paper starts its detectors and
            segmentors: ``s12/8/384_dist``.
    """
    short = name.removeprefix('xcit://')
    for known in (short, f'{short}/{DENSE_INITIALIZATION}'):
        if known in published():
            return published()[known]
    size = next((part for part in short.split('/') if part[1:] in ('12', '24')), '')
    close = [known for known in published() if size and f'{size}/' in known]
    raise UnknownWeightsError(
        f'there are no published weights named {name!r}; choose from '
        + ', '.join(f'xcit://{known}' for known in (close or published()))
    )


def cache_folder() -> Path:
    """Return the folder of downloaded files: torch's own for checkpoints (``TORCH_HOME``)."""
    return Path(torch.hub.get_dir()) / 'checkpoints'


def cached_path(url: str) -> Path:
    """Return where the file of an address is kept: by host, so that no file replaces another."""
    address = urllib.parse.urlparse(url)
    host = address.netloc.rpartition('@')[2]
    parts = [part for part in address.path.split('/') if part]
    if not host or not parts or address.path.endswith('/') or {'.', '..'} & {host, *parts}:
        raise UnknownWeightsError(f'{url} names no file')
    if address.query:
        parts[-1] = f'{hashlib.sha256(address.query.encode()).hexdigest()[:8]}_{parts[-1]}'
    return cache_folder().joinpath(host, *parts)


def download(url: str) -> Path:
    """Download a file once. An interrupted download resumes where it stopped.

    Args:
        url (str): Its address.

    Returns:
        Path: The file, at :func:`cached_path`. It gets this name only when it is complete. If the
        name contains a hash, it matches.
    """
    from filelock import FileLock

    target = cached_path(url)
    target.parent.mkdir(parents=True, exist_ok=True)
    # All processes of a run ask for the same file: the first downloads it, the others wait.
    with FileLock(f'{target}.lock'):
        if target.is_file():
            _check_hash(url, target, target.name)
            return target
        part = Path(f'{target}.part')
        try:
            _fetch(url, part)
        except OSError as error:
            raise DownloadError(
                f'{url} could not be downloaded: {error}. Download it by other means and save it '
                f'as {target}, or give its path instead.'
            ) from error
        _check_hash(url, part, target.name)
        part.replace(target)
    return target


def _fetch(url: str, part: Path) -> None:
    """Download a file, or the rest of it if a part is there."""
    from rich.progress import BarColumn, DownloadColumn, TransferSpeedColumn

    have = part.stat().st_size if part.is_file() else 0
    request = urllib.request.Request(url, headers={'Range': f'bytes={have}-'} if have else {})
    try:
        response = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        # The part is at least as long as the file, so it cannot belong to it. Start over.
        part.unlink()
        return _fetch(url, part)
    with response:
        resumed = response.status == 206
        start = have if resumed else 0
        length = response.headers.get('Content-Length')
        total = start + int(length) if length else None
        columns = ('{task.description}', BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with part.open('ab' if resumed else 'wb') as file, progress_bar(*columns) as progress:
            task = progress.add_task(part.stem, total=total, completed=start)
            while block := response.read(CHUNK):
                file.write(block)
                progress.update(task, advance=len(block))
    if total is not None and part.stat().st_size != total:
        raise OSError(
            f'the connection was cut after {part.stat().st_size} of {total} bytes; the next '
            'attempt resumes there'
        )


def _check_hash(url: str, path: Path, name: str) -> None:
    """Delete a file and raise if its hash is not the one in its name."""
    match = HASH_IN_NAME.search(name)
    if match is None:
        return
    digest = hashlib.sha256()
    with path.open('rb') as file:
        while block := file.read(CHUNK):
            digest.update(block)
    if not digest.hexdigest().startswith(match[1]):
        path.unlink()
        raise DownloadError(
            f'{url} is not the file it should be: its hash starts with '
            f'{digest.hexdigest()[: len(match[1])]}, but its name says {match[1]}. It was deleted.'
        )


def _download_from_timm(source: str) -> Path:
    """Download ``timm://NAME``, weights that timm publishes as safetensors."""
    name = source.removeprefix('timm://')
    try:
        import timm
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        raise ImportError(f'{source} needs timm: pip install timm') from error
    found = timm.get_pretrained_cfg(name) if timm.is_model(name.partition('.')[0]) else None
    if found is None or not found.hf_hub_id:
        known = ', '.join(timm.list_pretrained('xcit*'))
        raise UnknownWeightsError(
            f'timm has no weights named {name!r}; its XCiT models are {known}'
        )
    try:
        return Path(hf_hub_download(found.hf_hub_id, 'model.safetensors'))
    except (OSError, RuntimeError) as error:
        raise DownloadError(f'{source} could not be downloaded: {error}') from error


def _find_in_zoo(source: str) -> Path:
    """Find a name of one of mmengine's model zoos, such as ``torchvision://NAME``."""
    scheme, _, name = source.partition('://')
    known = getattr(zoo, ZOOS[scheme])()
    if name not in known:
        name = zoo.get_deprecated_model_names().get(name, name)
    if name not in known:
        raise UnknownWeightsError(f'mmengine has no weights named {source!r}')
    if known[name].startswith(WEB):
        return download(known[name])
    return Path(zoo._get_mmengine_home(), known[name])


def locate(source: str) -> Path:
    """Return the file of weights; download it if it is elsewhere.

    Args:
        source (str): As for :func:`read_weights`.
    """
    if source.startswith('xcit://'):
        return download(resolve_short_name(source))
    if source.startswith('timm://'):
        return _download_from_timm(source)
    if source.startswith(WEB):
        return download(source)
    return _find_in_zoo(source) if source.partition('://')[0] in ZOOS else Path(source)


def read_weights(source: str, map_location: Any = 'cpu') -> dict:
    """Read weights strictly, whatever mmengine's own reader is.

    Args:
        source (str): A path, a web address, ``xcit://NAME``, ``timm://NAME``, or a name of one of
            mmengine's model zoos.
        map_location: As for :func:`read_checkpoint`. Defaults to ``cpu``.
    """
    path = locate(source)
    content = sanitize_checkpoint(read_checkpoint(path, map_location), path)
    if not source.startswith('mmcls://'):
        return content
    # Files of classifiers, of which models take the backbone.
    prefix = 'backbone.'
    state = content.get('state_dict', content)
    return {'state_dict': {n[len(prefix) :]: t for n, t in state.items() if n.startswith(prefix)}}


def load_from_strict_reader(filename: str, map_location: Any = None) -> dict:
    """Read weights for mmengine, which logs this name."""
    return read_weights(filename, map_location)


def register() -> None:
    """Add ``xcit://``, ``timm://`` and safetensors files to what mmengine can read."""
    schemes = ['xcit://', 'timm://', SAFETENSORS]
    CheckpointLoader.register_scheme(schemes, load_from_strict_reader, force=True)


def use_strict_reader() -> None:
    """Let mmengine read every checkpoint of this process with :func:`read_weights`.

    This covers ``load_from``, ``resume``, ``init_cfg`` and the inferencers of mmdet and mmseg. All
    commands of this package call it; ``import xcit_mm`` does not. Calling it again changes nothing.
    ``s3://``, ``petrel://`` and ``pavi://`` are not covered.
    """
    schemes = ['', *WEB, *(f'{scheme}://' for scheme in ZOOS)]
    CheckpointLoader.register_scheme(schemes, load_from_strict_reader, force=True)
