# These are default hooks, so a config that sets custom_hooks keeps them. See docs/resume.md.
failsafe_hooks = dict(
    checkpoint=dict(type='AtomicCheckpointHook'),
    exact_resume=dict(type='ExactResumeHook'),
    non_finite=dict(type='NonFiniteHook'),
)
