_base_ = 'mmdet::_base_/default_runtime.py'

custom_imports = dict(imports=['xcit_mm'], allow_failed_imports=False)
# These are default hooks, so a config that sets custom_hooks keeps them. See docs/resume.md.
default_hooks = dict(
    checkpoint=dict(type='AtomicCheckpointHook'),
    exact_resume=dict(type='ExactResumeHook'),
    non_finite=dict(type='NonFiniteHook'),
)
