_base_ = 'mmseg::_base_/default_runtime.py'

custom_imports = dict(imports=['xcit_mm'], allow_failed_imports=False)
