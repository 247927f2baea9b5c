_base_ = 'mmdet::_base_/default_runtime.py'

custom_imports = dict(imports=['xcit_mm'], allow_failed_imports=False)
# Named like mmengine's own, so that configs with custom_hooks keep them; docs/resume.md says more.
default_hooks = dict(
    checkpoint=dict(type='AtomicCheckpointHook'),
    exact_resume=dict(type='ExactResumeHook'),
    non_finite=dict(type='NonFiniteHook'),
)
