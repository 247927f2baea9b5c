"""The runner of the commands: its errors name the faulty image, annotation or checkpoint."""

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmengine.config import Config
from mmengine.device import get_device
from mmengine.dist import all_gather_object, master_only
from mmengine.evaluator import Evaluator
from mmengine.logging import MMLogger
from mmengine.optim import OptimWrapper
from mmengine.registry import RUNNERS
from mmengine.runner import EpochBasedTrainLoop, IterBasedTrainLoop, Runner
from mmengine.runner.base_loop import BaseLoop
from torch import nn
from torch.utils.data import DataLoader

from xcit_mm_runtime.files import write_atomically

from ..datasets.check.heads import check_heads
from ..datasets.guard import HINT, guarded
from ..datasets.images import warn_of_unused_bits
from ..datasets.problems import DataError
from ..errors import BUILD_ERRORS, TooSmallError, UserError, is_out_of_memory
from ..weights.hook import strict_loading
from .console import (
    StartFilter,
    console_handlers,
    describe_run,
    describe_work,
    find_start,
    hide_noise,
)
from .evaluated import find_low_limits, restrict_eval_to_dataset, use_own_metrics
from .images import images_of
from .parent import init_worker
from .sharding import FullySharded, shard_optimizer

# The last hook before the first iteration.
STARTED = ('before_train_epoch', 'before_val_epoch', 'before_test_epoch')
DATA = {'train': 'training', 'val': 'validation', 'test': 'test'}


@contextlib.contextmanager
def explain_build(failure: str, hint: str = '') -> Iterator[None]:
    """Raise a :class:`UserError` for what cannot be built with the arguments of a config.

    Args:
        failure (str): What cannot be built, as the beginning of the message.
        hint (str): What to do, as its end. Defaults to none.
    """
    try:
        yield
    except UserError:
        raise
    except BUILD_ERRORS as error:
        reason = ' '.join(str(error).split())
        raise UserError(f'{failure}: {type(error).__name__}: {reason}{hint}') from error


def choose_device(cfg: Config) -> str:
    """Return where training runs: as mmengine says, but on a Mac's GPU only if asked to."""
    device = get_device()
    return 'cpu' if device == 'mps' and cfg.get('device') != 'mps' else device


@RUNNERS.register_module()
class GuardedRunner(Runner):
    """mmengine's runner with guarded datasets, and a start that fits on a screen.

    ``verbose = True`` in a config, or ``log_level = 'DEBUG'``, shows all of the start.

    Args:
        *args: As for mmengine's runner.
        **kwargs: Likewise.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.start = StartFilter()
        self.loops: dict[str, BaseLoop] = {}  # those that are built, by split
        self.batch: Any = None
        super().__init__(*args, **kwargs)

    def build_logger(self, log_level: int | str = 'INFO', *args: Any, **kwargs: Any) -> MMLogger:
        """As in mmengine; until the first iteration, the console only shows a summary."""
        logger = super().build_logger(log_level, *args, **kwargs)
        hide_noise(logger)
        if not self.cfg.get('verbose') and log_level != 'DEBUG':
            for handler in console_handlers(logger):
                handler.addFilter(self.start)
        logger.info(describe_run(self, logger.log_file), extra={'wanted': True})
        return logger

    def wrap_model(self, model_wrapper_cfg: dict | None, model: nn.Module) -> nn.Module:
        """As in mmengine; a Mac's GPU is used only if the config says ``device = 'mps'``."""
        wrapped = super().wrap_model(model_wrapper_cfg, model)
        return wrapped if get_device() == choose_device(self.cfg) else wrapped.to('cpu')

    @staticmethod
    def build_dataloader(dataloader: DataLoader | dict, *args: Any, **kwargs: Any) -> DataLoader:
        """As in mmengine."""
        if isinstance(dataloader, dict) and isinstance(dataloader['dataset'], dict):
            dataloader = {**dataloader, 'dataset': guarded(dataloader['dataset'])}
        with explain_build('A data loader of the config cannot be built'):
            loader = Runner.build_dataloader(dataloader, *args, **kwargs)
        loader.worker_init_fn = functools.partial(init_worker, loader.worker_init_fn)
        return loader

    def build_train_loop(self, loop: BaseLoop | dict) -> BaseLoop:
        """As in mmengine."""
        hint = '. Loops by epoch have max_epochs, loops by iteration have max_iters.'
        with explain_build('train_cfg cannot be used', hint):
            built = super().build_train_loop(loop)
        self.check_data(built, 'train')
        loader = built.dataloader
        if isinstance(built, EpochBasedTrainLoop) and not len(loader):
            raise DataError(
                f'There are {len(loader.dataset)} images for training, which is less than one '
                f'batch of {loader.batch_sampler.batch_size} per process: add images, or set a '
                'smaller train_dataloader.batch_size.'
            )
        return built

    def build_val_loop(self, loop: BaseLoop | dict) -> BaseLoop:
        """As in mmengine."""
        return self.prepare_evaluation(super().build_val_loop(loop), 'val')

    def build_test_loop(self, loop: BaseLoop | dict) -> BaseLoop:
        """As in mmengine."""
        return self.prepare_evaluation(super().build_test_loop(loop), 'test')

    def build_evaluator(self, evaluator: dict | list | Evaluator) -> Evaluator:
        """As in mmengine, with our metrics in place of mmdet's and mmseg's."""
        use_own_metrics(evaluator)
        return super().build_evaluator(evaluator)

    def check_data(self, loop: BaseLoop, split: str) -> None:
        """Raise a :class:`UserError` if the model is for another number of classes."""
        dataset = loop.dataloader.dataset
        if self.cfg.get('check_classes', True):
            metainfo = getattr(dataset, 'metainfo', {})
            check_heads(self.model, self.cfg.get('model'), metainfo, f'{DATA[split]} data')
        if not self.loops:  # once per run
            warn_of_unused_bits(dataset, self.cfg)
        self.loops[split] = loop

    def prepare_evaluation(self, loop: BaseLoop, split: str) -> BaseLoop:
        """Evaluate the images of the dataset; warn if the model cannot find all their objects."""
        self.check_data(loop, split)
        objects = restrict_eval_to_dataset(loop, split)
        if low := find_low_limits(self.cfg.get('model') or {}, objects):
            self.logger.warning(
                f'An image of the {split} data has {objects} objects, and the model returns fewer '
                f'detections. To let it find them all: --cfg-options {" ".join(low)}'
            )
        return loop

    def build_optim_wrapper(self, optim_wrapper: OptimWrapper | dict) -> OptimWrapper:
        """As in mmengine, for the shards of a model that is to be sharded."""
        to_shard = isinstance(self.model, FullySharded) and isinstance(optim_wrapper, dict)
        if to_shard:
            self.model.shard(self)
        try:
            built = super().build_optim_wrapper(optim_wrapper)
        except NotImplementedError as error:
            if str(error):
                raise
            raise UserError(
                f'{optim_wrapper.get("constructor")} does not know this backbone. For XCiT, use '
                "optim_wrapper = dict(constructor='XCiTLayerDecayOptimWrapperConstructor', "
                'paramwise_cfg=dict(_delete_=True, layer_decay_rate=0.75)).'
            ) from error
        if to_shard:
            shard_optimizer(built.optimizer)
        return built

    def scale_lr(self, optim_wrapper: OptimWrapper, auto_scale_lr: dict | None = None) -> None:
        """As in mmengine, and for ``base_lr`` of the log, which mmengine leaves as it was."""
        # None if all parameters are in one group, or if there are several optimizers.
        base = getattr(optim_wrapper, 'base_param_settings', None)
        groups = optim_wrapper.optimizer.param_groups if base else []
        before = max((group['lr'] for group in groups), default=0)
        super().scale_lr(optim_wrapper, auto_scale_lr)
        if base and before:
            base['lr'] *= max(group['lr'] for group in groups) / before

    def _init_model_weights(self) -> None:
        if not isinstance(self.model, FullySharded):  # else they were, before they were sharded
            with strict_loading():
                super()._init_model_weights()

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """As in mmengine; all processes of a sharded model give their part."""
        if isinstance(self.model, FullySharded) and self.rank > 0:
            self.model.module.state_dict()
            if kwargs.get('save_optimizer', True):
                self.optim_wrapper.state_dict()
        super().save_checkpoint(*args, **kwargs)

    @master_only
    def dump_config(self) -> None:
        """As in mmengine, but never half a file; the config may be one of the work folder."""
        name = self.cfg.filename or f'{self.timestamp}.py'
        write_atomically(Path(self.work_dir) / Path(name).name, self.cfg.dump())

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> dict:
        """As in mmengine; raises a :class:`WeightsError` if the backbone's weights do not fit."""
        with strict_loading():
            return super().load_checkpoint(*args, **kwargs)

    def load_or_resume(self) -> None:
        """As in mmengine; raises a :class:`UserError` if processes found different checkpoints."""
        path = find_start(self)
        if len(set(all_gather_object((self.cfg.get('resume'), path)))) > 1:
            raise UserError(
                f'The processes found different checkpoints in {self.work_dir}; process '
                f'{self.rank} found {path or "none"}. The work folder must be on a disk that all '
                'machines share.'
            )
        super().load_or_resume()

    def resume(self, filename: str, *args: Any, **kwargs: Any) -> None:
        """As in mmengine; raises a :class:`UserError` if the checkpoint does not fit this run."""
        seed = self.seed
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
        self._reseed_samplers(seed)
        loop = self.train_loop
        if isinstance(loop, EpochBasedTrainLoop):
            # The next epoch is run from its start, and may have another number of iterations, as
            # with another batch size. Else the last iteration would be after the end.
            loop._iter = loop.epoch * len(loop.dataloader)

    def _reseed_samplers(self, old: int) -> None:
        """Give samplers the resumed seed: mmengine builds them before it reads the checkpoint."""
        for loop in self.loops.values():
            sampler: Any = getattr(loop.dataloader.batch_sampler, 'sampler', None)
            if self.seed != old and getattr(sampler, 'seed', None) == old:
                sampler.seed = self.seed
                if isinstance(loop, IterBasedTrainLoop):  # it has begun to load data
                    loop.dataloader_iterator = type(loop.dataloader_iterator)(loop.dataloader)

    def call_hook(self, fn_name: str, **kwargs: Any) -> None:
        """As in mmengine; remembers the current batch, and ends the start of the run."""
        if fn_name in STARTED and self.start.starting:
            self.logger.info(describe_work(self), extra={'wanted': True})
            self.start.starting = False
        if fn_name.endswith('_iter'):
            self.batch = kwargs.get('data_batch') if fn_name.startswith('before_') else None
        super().call_hook(fn_name, **kwargs)

    def train(self) -> nn.Module:
        """As in mmengine."""
        with self.explain_images():
            return super().train()

    def test(self) -> dict[str, float]:
        """As in mmengine."""
        with self.explain_images():
            return super().test()

    @contextlib.contextmanager
    def explain_images(self) -> Iterator[None]:
        """Raise a :class:`DataError` if images are too large or too small for the model."""
        try:
            yield
        except (TooSmallError, MemoryError, RuntimeError) as error:
            names = ', '.join(images_of(self.batch))
            is_small = isinstance(error, TooSmallError)
            if not names or not (is_small or is_out_of_memory(error)):
                raise
            if is_small:
                raise DataError(f'{names}: {error}. {HINT}') from error
            raise DataError(
                f'{names}: not enough memory for images or a batch of this size: '
                f'{" ".join(str(error).split())}. Use a smaller batch or a smaller scale in the '
                "pipeline. A segmentor's result has the size of the image file at any scale, so "
                'the file itself may have to be smaller.'
            ) from error
        finally:
            self.start.starting = False
