_base_ = './runtime.py'

default_hooks = dict(
    logger=dict(interval=25, log_metric_by_epoch=False),
    checkpoint=dict(by_epoch=False, interval=55, max_keep_ckpts=2),
)
log_processor = dict(by_epoch=False)
