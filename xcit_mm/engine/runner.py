"""The runner of the tools, which names the file when data or a checkpoint is at fault."""

import contextlib
from collections.abc import Iterator
from typing import Any

from mmengine.runner import Runner
from torch import nn
from torch.utils.data import DataLoader

from ..datasets.check import DataError
from ..datasets.guard import guarded
from ..errors import UserError, is_out_of_memory
from ..weights import CheckpointError, WeightsError


class GuardedRunner(Runner):
    """mmengine's runner with guarded data sets."""

    batch: Any = None

    @staticmethod
    def build_dataloader(dataloader: DataLoader | dict, *args: Any, **kwargs: Any) -> DataLoader:
        """As in mmengine."""
        if isinstance(dataloader, dict) and isinstance(dataloader['dataset'], dict):
            dataloader = {**dataloader, 'dataset': guarded(dataloader['dataset'])}
        return Runner.build_dataloader(dataloader, *args, **kwargs)

    def resume(self, filename: str, *args: Any, **kwargs: Any) -> None:
        """As in mmengine; says so if a checkpoint holds no run that this one could go on with."""
        try:
            super().resume(filename, *args, **kwargs)
        except (CheckpointError, WeightsError):
            raise
        except Exception as error:
            raise UserError(
                f'{filename} holds no run that this one could go on with: {type(error).__name__}: '
                f'{error}. To start from its weights alone, leave out --resume and add '
                f'--cfg-options load_from={filename}'
            ) from error

    def call_hook(self, fn_name: str, **kwargs: Any) -> None:
        """As in mmengine; keeps the batch that is worked on."""
        if fn_name.endswith('_iter'):
            self.batch = kwargs.get('data_batch') if fn_name.startswith('before_') else None
        super().call_hook(fn_name, **kwargs)

    def train(self) -> nn.Module:
        """As in mmengine."""
        with self.naming_images():
            return super().train()

    def test(self) -> dict[str, float]:
        """As in mmengine."""
        with self.naming_images():
            return super().test()

    @contextlib.contextmanager
    def naming_images(self) -> Iterator[None]:
        """Raise a :class:`DataError` when memory does not suffice for the images of a batch."""
        try:
            yield
        except (MemoryError, RuntimeError) as error:
            names = images_of(self.batch)
            if not names or not is_out_of_memory(error):
                raise
            raise DataError(
                f'{", ".join(names)}: not enough memory for an image of this size or a batch of '
                f'this length: {" ".join(str(error).split())}. Smaller batches or scales of the '
                "pipeline help; a segmentor's results have the size of the file whatever the "
                'scale, so it may be the file that must be smaller.'
            ) from error


def images_of(batch: Any) -> list[str]:
    """Path and size of the images of a batch, as far as they are known."""
    samples = batch.get('data_samples') if isinstance(batch, dict) else None
    # With test-time augmentation, lists of the same images.
    flat = [s for item in samples or () for s in (item if isinstance(item, list) else [item])]
    known = [getattr(sample, 'metainfo', {}) for sample in flat]
    names = [
        '{} ({}x{} pixels)'.format(info['img_path'], *info['ori_shape'][1::-1])
        for info in known
        if 'img_path' in info and 'ori_shape' in info
    ]
    return list(dict.fromkeys(names))
