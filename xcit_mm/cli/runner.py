"""The runner of the tools, which names the file when data or a checkpoint is at fault."""

from typing import Any

from mmengine.runner import Runner
from torch.utils.data import DataLoader

from ..datasets.guard import guarded
from ..weights import CheckpointError, WeightsError
from .common import UserError


class GuardedRunner(Runner):
    """mmengine's runner with guarded data sets."""

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
