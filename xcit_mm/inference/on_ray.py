"""Runs an exported model on the machines of a Ray cluster, with Ray Data."""

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray
from pyarrow.fs import FileSelector, FileSystem, FileType
from ray.data import ActorPoolStrategy
from ray.exceptions import RayError

from xcit_mm_runtime import Model
from xcit_mm_runtime.inputs import IMAGE_SUFFIXES, ResultNames, find_sources, is_video
from xcit_mm_runtime.model import first_line
from xcit_mm_runtime.ray_worker import (
    INPUTS,
    ImageWorker,
    JsonLines,
    find_column,
    open_parquet,
)

from ..errors import UserError
from .ids import AnnotationFile
from .loop import describe_job
from .shards import FOLDER, Records, start_job

PARQUET = '.parquet'
# The most images in a task, which is repeated if its process dies; it makes one file.
TASK_IMAGES = 256
# How many tasks each worker gets at least, so that all end at about the same time.
TASKS_PER_WORKER = 8


@dataclass
class RayImages:
    """Images for Ray: files, and rows of Parquet files.

    Args:
        sources (list[str]): A path, an address or a name of each.
        groups (list[tuple]): Groups of rows, which come after the files: the Parquet file, the
            number of the group in it, and how many rows it has.
    """

    sources: list[str] = field(default_factory=list)
    groups: list[tuple[str, int, int]] = field(default_factory=list)


@dataclass(frozen=True)
class RaySettings:
    """How a cluster is used.

    Args:
        address (str, optional): Where it is. Defaults to None: that of ``RAY_ADDRESS``, else a
            running or new one on this machine.
        workers (int, optional): The most processes with a model. Defaults to None: what the
            cluster has room for now.
        threads (int): Processors for each of them. Defaults to 1.
        device (str): ``cpu``, or ``cuda`` for one GPU each. Defaults to ``cpu``.
        batch_size (int): The most images of one size in one run of the model. Defaults to 1.
        rows (str): ``parquet`` or ``jsonl``. Defaults to ``parquet``.
    """

    address: str | None = None
    workers: int | None = None
    threads: int = 1
    device: str = 'cpu'
    batch_size: int = 1
    rows: str = 'parquet'


def find_ray_images(inputs: Iterable[str]) -> RayImages:
    """Return the images that a user names.

    Args:
        inputs (Iterable[str]): Files, folders, globs and lists, as for one process; addresses of
            files or folders that pyarrow can open, such as ``s3://bucket/photos``; and Parquet
            files with a column ``path``, or with a column ``bytes`` and perhaps ``path``.
    """
    inputs = list(inputs)
    files = find_sources(item for item in inputs if '://' not in item)
    files += [file for item in inputs if '://' in item for file in _list_address(item)]
    videos = [file for file in files if is_video(file)]
    if videos:
        raise UserError(f'--ray takes images, and {videos[0]} is a video or a camera.')
    found = RayImages([file for file in map(str, files) if not file.endswith(PARQUET)])
    named: list[str] = []
    for table in (file for file in map(str, files) if file.endswith(PARQUET)):
        with open_parquet(table) as file:
            bytes_column, path_column = (find_column(file, name) for name in ('bytes', 'path'))
            if not bytes_column and not path_column:
                raise UserError(
                    f'{table} must have a column "bytes" with images, or "path" with their paths; '
                    f'it has {", ".join(file.schema_arrow.names)}.'
                )
            for group in range(file.num_row_groups):
                count = file.metadata.row_group(group).num_rows
                paths: list[str | None] = [None] * count
                if path_column:
                    column = file.read_row_group(group, [path_column]).flatten()[path_column]
                    paths = column.to_pylist()
                if bytes_column:
                    found.groups.append((table, group, count))
                    named += [path or f'{table}/{group}_{i}' for i, path in enumerate(paths)]
                else:
                    found.sources += [path for path in paths if path]
    found.sources += named
    return found


def _list_address(address: str) -> list[str]:
    """Return an address, or those of the images and Parquet files in the folder that it names."""
    system, path = FileSystem.from_uri(address)
    if system.get_file_info(path).type != FileType.Directory:
        return [address]
    start = address[: len(address.rstrip('/')) - len(path.rstrip('/'))]
    infos = system.get_file_info(FileSelector(path, recursive=True))
    known = (*IMAGE_SUFFIXES, PARQUET)
    found = sorted(info.path for info in infos if info.path.lower().endswith(known))
    if not found:
        raise UserError(f'{address} has no images and no Parquet files.')
    return [start + path for path in found]


def infer_on_ray(
    model: Model,
    images: RayImages,
    out_dir: Path,
    score_thr: float | None,
    key: str,
    annotations: AnnotationFile | None,
    settings: RaySettings,
    retry: bool = False,
) -> Records:
    """Write a row for each image, and the pictures and label PNGs that one process would write.

    Ray starts tasks again whose process or machine dies. If this process dies, the same call does
    what is missing. All machines must see the model, the images and ``out_dir`` at the same paths.

    Args:
        model (Model): The model.
        images (RayImages): The images.
        out_dir (Path): Folder for predictions and pictures.
        score_thr (float, optional): Lowest score of drawn boxes; None for no pictures.
        key (str): Identifies these images, this model and these settings.
        annotations (AnnotationFile, optional): Gives the ids in a detector's predictions; None for
            our own.
        settings (RaySettings): How the cluster is used.
        retry (bool): Whether to try again what was skipped. Defaults to False.

    Returns:
        Records: What was found, and what was skipped.
    """
    job, ids = describe_job(model, images.sources, key, annotations, shares=0)
    numbers = [*ids.images, *(each['id'] for each in job.categories)]
    if not all(isinstance(number, int) for number in numbers if number is not None):
        raise UserError('--ray needs an --ann-file whose ids are whole numbers.')
    start_job(out_dir, job, 'ray')
    records = Records(out_dir)
    if retry:
        records.skipped.clear()
    if not records.count_left():
        return records
    if not ray.is_initialized():
        ray.init(settings.address)
    kind = 'GPU' if settings.device == 'cuda' else 'CPU'
    per_worker = {'num_gpus': 1} if kind == 'GPU' else {'num_cpus': settings.threads}
    has = int(ray.cluster_resources().get(kind, 0) // next(iter(per_worker.values())))
    if not (settings.workers or has):
        raise UserError(f'The Ray cluster has no room for a worker with {per_worker}.')
    workers = settings.workers or has
    rows = list(_rows(images, ids.images, set(records.left())))
    results = ray.data.from_arrow(_split(rows, workers)).map_batches(
        ImageWorker,
        fn_constructor_args=(
            str(model.path.absolute()),
            settings.threads,
            settings.device,
            settings.batch_size,
            os.getcwd(),
        ),
        fn_constructor_kwargs={
            'notes': out_dir.absolute() / FOLDER,
            'out_dir': out_dir.absolute(),
            'score_thr': score_thr,
            'categories': job.categories,
        },
        batch_size=None,
        batch_format='pyarrow',
        compute=ActorPoolStrategy(min_size=1, max_size=workers, initial_size=min(workers, has)),
        **per_worker,
    )
    folder = str((out_dir / FOLDER).absolute())
    # Writing takes little, and must not wait for a processor that a model has.
    writers = {'ray_remote_args': {'num_cpus': 0}, 'concurrency': math.ceil(workers / 16)}
    try:
        if settings.rows == 'jsonl':
            results.write_datasink(JsonLines(folder, file_format='jsonl'), **writers)
        else:
            results.write_parquet(folder, **writers)
    except RayError as error:
        raise UserError(
            f'Ray gave up: {first_line(error)} What is done is kept: rerun the command to continue.'
        ) from error
    return Records(out_dir)


def _rows(
    images: RayImages, image_ids: Sequence[int | None], left: set[int]
) -> Iterator[dict[str, Any]]:
    """Yield what workers need for each image that is left."""
    names = ResultNames(images.sources)
    in_tables = sum(count for _, _, count in images.groups)
    places: Iterator[dict[str, Any]] = (
        {'table': table, 'group': group, 'row': row}
        for table, group, count in images.groups
        for row in range(count)
    )
    for number, file in enumerate(images.sources):
        place = next(places) if number >= len(images.sources) - in_tables else {}
        if number in left:
            image_id = image_ids[number]
            yield {
                'number': number, 'file': file, 'name': names[number], 'image_id': image_id, **place
            }  # fmt: skip


def _split(rows: list[dict[str, Any]], workers: int) -> list[pa.Table]:
    """Return tables of equal size, one for each task."""
    size = min(TASK_IMAGES, max(1, math.ceil(len(rows) / workers / TASKS_PER_WORKER)))
    parts = (rows[start : start + size] for start in range(0, len(rows), size))
    return [pa.Table.from_pylist(part, INPUTS) for part in parts]
