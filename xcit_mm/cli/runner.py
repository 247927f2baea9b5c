"""The runner of the tools, which names the file when data is at fault."""

from typing import Any

from mmengine.runner import Runner
from torch.utils.data import DataLoader

from ..datasets.guard import guarded


class GuardedRunner(Runner):
    """mmengine's runner with guarded data sets."""

    @staticmethod
    def build_dataloader(dataloader: DataLoader | dict, *args: Any, **kwargs: Any) -> DataLoader:
        """As in mmengine."""
        if isinstance(dataloader, dict) and isinstance(dataloader['dataset'], dict):
            dataloader = {**dataloader, 'dataset': guarded(dataloader['dataset'])}
        return Runner.build_dataloader(dataloader, *args, **kwargs)
