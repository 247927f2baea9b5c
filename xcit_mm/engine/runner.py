"""The runner of the commands: its errors name the faulty image, annotation or checkpoint."""

import contextlib
from collections.abc import Iterator
from typing import Any

from mmengine.runner import Runner
from torch import nn
from torch.utils.data import DataLoader

from ..datasets.check import DataError
from ..datasets.guard import HINT, guarded
from ..errors import TooSmallError, UserError, is_out_of_memory
from .images import images_of


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
        """As in mmengine; raises a :class:`UserError` if the checkpoint does not fit this run."""
        try:
            super().resume(filename, *args, **kwargs)
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f'{filename} cannot be resumed with this config: {type(error).__name__}: {error}. '
                'To start from its weights alone, leave out --resume and add '
                f'--cfg-options load_from={filename}'
            ) from error

    def call_hook(self, fn_name: str, **kwargs: Any) -> None:
        """As in mmengine; remembers the current batch."""
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
        """Raise a :class:`DataError` if images are too large or too small for the model."""
        try:
            yield
        except TooSmallError as error:
            names = images_of(self.batch)
            if not names:
                raise
            raise DataError(f'{", ".join(names)}: {error}. {HINT}') from error
        except (MemoryError, RuntimeError) as error:
            names = images_of(self.batch)
            if not names or not is_out_of_memory(error):
                raise
            raise DataError(
                f'{", ".join(names)}: not enough memory for images or a batch of this size: '
                f'{" ".join(str(error).split())}. Use a smaller batch or a smaller scale in the '
                "pipeline. A segmentor's result has the size of the image file at any scale, so "
                'the file itself may have to be smaller.'
            ) from error
