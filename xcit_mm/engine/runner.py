"""The runner of the commands: its errors name the faulty image, annotation or checkpoint."""

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmengine.dist import all_gather_object, master_only
from mmengine.evaluator import Evaluator
from mmengine.logging import MMLogger
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.registry import RUNNERS
from mmengine.runner import EpochBasedTrainLoop, Runner, find_latest_checkpoint
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
from .console import StartFilter, console_handlers, hide_noise
from .evaluated import evaluate_own_images, find_low_limits, use_own_metrics
from .images import images_of
from .parent import init_worker
from .sharding import FullySharded, shard_optimizer
from .start import describe_run, describe_work

# The last hook before the first iteration.
STARTED = ('before_train_epoch', 'before_val_epoch', 'before_test_epoch')


def wrappers_in(optim_wrapper: Any) -> list[OptimWrapper]:
    """The wrappers of all optimizers of a run, of which most have one."""
    if isinstance(optim_wrapper, OptimWrapperDict):
        return list(optim_wrapper.values())
    return [optim_wrapper]


def check_moments(optim_wrapper: Any) -> None:
    """Raise if the state of an optimizer belongs to parameters in another order.

    Optimizers store their state by the number of a parameter and load it unchecked.

    Args:
        optim_wrapper (OptimWrapper or OptimWrapperDict): What was resumed.
    """
    for wrapper in wrappers_in(optim_wrapper):
        for parameter, state in wrapper.optimizer.state.items():
            for name in ('exp_avg', 'momentum_buffer'):
                moment = state.get(name)
                if moment is not None and moment.shape != parameter.shape:
                    raise ValueError(
                        'the optimizer was saved by a version with another order of parameters: '
                        f'{tuple(moment.shape)} for {tuple(parameter.shape)}'
                    )


@RUNNERS.register_module()
class GuardedRunner(Runner):
    """mmengine's runner with guarded datasets, and a start that fits on a screen.

    ``verbose = True`` in a config, or ``log_level = 'DEBUG'``, shows all of the start.
    """

    batch: Any = None

    def build_logger(self, log_level: int | str = 'INFO', *args: Any, **kwargs: Any) -> MMLogger:
        """As in mmengine; until the first iteration, the console only shows a summary."""
        logger = super().build_logger(log_level, *args, **kwargs)
        hide_noise(logger)
        self.start = StartFilter()
        if not self.cfg.get('verbose') and log_level != 'DEBUG':
            for handler in console_handlers(logger):
                handler.addFilter(self.start)
        logger.info(describe_run(self, logger.log_file), extra={'wanted': True})
        return logger

    @staticmethod
    def build_dataloader(dataloader: DataLoader | dict, *args: Any, **kwargs: Any) -> DataLoader:
        """As in mmengine."""
        if isinstance(dataloader, dict) and isinstance(dataloader['dataset'], dict):
            dataloader = {**dataloader, 'dataset': guarded(dataloader['dataset'])}
        try:
            loader = Runner.build_dataloader(dataloader, *args, **kwargs)
        except UserError:
            raise
        except BUILD_ERRORS as error:
            raise UserError(
                f'A data loader of the config cannot be built: {type(error).__name__}: '
                + ' '.join(str(error).split())
            ) from error
        loader.worker_init_fn = functools.partial(init_worker, loader.worker_init_fn)
        return loader

    def build_train_loop(self, loop: BaseLoop | dict) -> BaseLoop:
        """As in mmengine."""
        try:
            built = self.checked(super().build_train_loop(loop), 'training data')
        except TypeError as error:
            if 'Loop' not in str(error):
                raise
            raise UserError(
                f'train_cfg cannot be used: {error}. Loops by epoch have max_epochs, loops by '
                'iteration have max_iters.'
            ) from error
        warn_of_unused_bits(built.dataloader.dataset, self.cfg)
        if isinstance(built, EpochBasedTrainLoop) and not len(built.dataloader):
            loader = built.dataloader
            raise DataError(
                f'There are {len(loader.dataset)} images for training, which is less than one '
                f'batch of {loader.batch_sampler.batch_size} per process: add images, or set a '
                'smaller train_dataloader.batch_size.'
            )
        return built

    def build_val_loop(self, loop: BaseLoop | dict) -> BaseLoop:
        """As in mmengine."""
        built = self.checked(super().build_val_loop(loop), 'validation data')
        self.prepare_evaluation(built, 'val')
        return built

    def build_test_loop(self, loop: BaseLoop | dict) -> BaseLoop:
        """As in mmengine."""
        built = self.checked(super().build_test_loop(loop), 'test data')
        warn_of_unused_bits(built.dataloader.dataset, self.cfg)
        self.prepare_evaluation(built, 'test')
        return built

    def build_evaluator(self, evaluator: dict | list | Evaluator) -> Evaluator:
        """As in mmengine, with our metrics in place of mmdet's and mmseg's."""
        return super().build_evaluator(use_own_metrics(evaluator))

    def prepare_evaluation(self, loop: BaseLoop, what: str) -> None:
        """Evaluate the images of the dataset; warn if the model cannot find all their objects."""
        objects = evaluate_own_images(loop, what)
        if low := find_low_limits(self.cfg.get('model') or {}, objects):
            self.logger.warning(
                f'An image of the {what} data has {objects} objects, and the model returns fewer '
                f'detections. To let it find them all: --cfg-options {" ".join(low)}'
            )

    def checked(self, loop: BaseLoop, what: str) -> BaseLoop:
        """A loop; raises a :class:`UserError` if the model is for another number of classes."""
        metainfo = getattr(loop.dataloader.dataset, 'metainfo', {})
        if self.cfg.get('check_classes', True):
            check_heads(self.model, self.cfg.get('model'), metainfo, what)
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
        if not (auto_scale_lr or {}).get('enable'):
            return
        wrappers = wrappers_in(optim_wrapper)
        before = [max(group['lr'] for group in w.optimizer.param_groups) for w in wrappers]
        super().scale_lr(optim_wrapper, auto_scale_lr)
        for wrapper, rate in zip(wrappers, before, strict=True):
            base = wrapper.base_param_settings  # None if all parameters are in one group
            if base and rate:
                base['lr'] *= max(g['lr'] for g in wrapper.optimizer.param_groups) / rate

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
        path = self._load_from or (find_latest_checkpoint(self.work_dir) if self._resume else None)
        if len(set(all_gather_object((self._resume, path)))) > 1:
            raise UserError(
                f'The processes found different checkpoints in {self.work_dir}; process '
                f'{self.rank} found {path or "none"}. The work folder must be on a disk that all '
                'machines share.'
            )
        super().load_or_resume()

    def resume(self, filename: str, *args: Any, **kwargs: Any) -> None:
        """As in mmengine; raises a :class:`UserError` if the checkpoint does not fit this run."""
        try:
            super().resume(filename, *args, **kwargs)
            check_moments(self.optim_wrapper)
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f'{filename} cannot be resumed with this config: {type(error).__name__}: {error}. '
                'To start from its weights alone, leave out --resume and add '
                f'--cfg-options load_from={filename}'
            ) from error
        loop = self.train_loop
        if isinstance(loop, EpochBasedTrainLoop):
            # The next epoch is run from its start, and may have another number of iterations, as
            # with another batch size. Else the last iteration would be after the end.
            loop._iter = loop.epoch * len(loop.dataloader)

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
        with self.naming_images(), self.start:
            return super().train()

    def test(self) -> dict[str, float]:
        """As in mmengine."""
        with self.naming_images(), self.start:
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
