# Default hooks, so that a config with custom_hooks keeps them. See docs/troubleshooting.md.
failsafe_hooks = dict(
    checkpoint=dict(type='AtomicCheckpointHook'),
    exact_resume=dict(type='ExactResumeHook'),
    non_finite=dict(type='NonFiniteHook'),
)
