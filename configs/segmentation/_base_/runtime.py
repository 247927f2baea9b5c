_base_ = 'mmseg::_base_/default_runtime.py'

custom_imports = dict(
    imports=['xcit_mm', 'xcit_mm.datasets.label_folder'], allow_failed_imports=False
)
