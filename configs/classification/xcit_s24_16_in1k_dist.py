_base_ = ['./xcit_s24_16_in1k.py', '_base_/teacher.py']

model = dict(teacher=_base_.teacher)
