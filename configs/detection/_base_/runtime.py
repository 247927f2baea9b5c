_base_ = ['mmdet::_base_/default_runtime.py', '../../_base_/failsafe_hooks.py']

custom_imports = dict(imports=['xcit_mm'], allow_failed_imports=False)
default_hooks = _base_.failsafe_hooks
