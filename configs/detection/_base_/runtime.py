_base_ = 'mmdet::_base_/default_runtime.py'

custom_imports = dict(imports=['xcit_mm'], allow_failed_imports=False)
