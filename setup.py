"""Packaging of xcit_mm: everything that pip needs to know."""

import os
import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
# What MIM and mmengine look for in `<package>/.mim/`.
MIM_FILES = ('configs', 'tools', 'model-index.yml')


class BuildWithMim(build_py):
    """Ships `configs/`, `tools/` and `model-index.yml` inside the package as `xcit_mm/.mim/`.

    An editable install links to them, so that edits to a config take effect. Where links are not
    allowed, as on Windows without developer mode, it copies them: install it again after edits.
    """

    def run(self) -> None:
        super().run()
        base = ROOT if self.editable_mode else Path(self.build_lib)
        mim = base / 'xcit_mm' / '.mim'
        shutil.rmtree(mim, ignore_errors=True)
        mim.mkdir(parents=True)
        for name in MIM_FILES:
            source = ROOT / name
            if self.editable_mode:
                try:
                    (mim / name).symlink_to(os.path.relpath(source, mim))
                    continue
                except OSError:
                    pass  # no right to make links
            if source.is_dir():
                skip = shutil.ignore_patterns('__pycache__')
                shutil.copytree(source, mim / name, ignore=skip)
            else:
                shutil.copy(source, mim / name)


def version() -> str:
    text = (ROOT / 'xcit_mm' / 'version.py').read_text(encoding='utf-8')
    match = re.search(r"__version__ = '(.+)'", text)
    if match is None:
        raise ValueError("xcit_mm/version.py must contain the line __version__ = '...'")
    return match[1]


EXTRAS = {
    # Without mmcv: on today's torch pip would compile it for minutes, unasked, or fail.
    # mmdet imports six, mmseg imports ftfy and regex, and neither declares them.
    'det': ['mmdet>=3.3,<3.4', 'six'],
    'seg': ['mmsegmentation>=1.2,<1.3', 'ftfy', 'regex'],
    'timm': ['timm>=1.0'],
    # onnxruntime, numpy and OpenCV run an exported file, and Pillow writes text in pictures; onnx
    # and onnxscript write the file.
    'deploy': [
        'onnxruntime>=1.20',
        'opencv-python',
        'pillow>=10.1',
        'onnx>=1.17',
        'onnxscript>=0.5',
    ],
    # What learns PCA and codebooks for retrieval.
    'retrieval': ['scikit-learn>=1.2'],
    # For images that are read and written by windows.
    'large': ['tifffile'],
    # What serves an exported file over HTTP, on top of what runs it.
    'serve': [
        'onnxruntime>=1.20',
        'opencv-python',
        'pillow>=10.1',
        'fastapi>=0.110',
        'uvicorn>=0.30',
        'python-multipart',
        'prometheus-client',
    ],
    # What runs exported files on the machines of a cluster.
    'ray': ['onnxruntime>=1.20', 'opencv-python', 'pillow>=10.1', 'ray[data]>=2.40', 'pyarrow'],
    'dev': ['pytest', 'pytest-xdist', 'hypothesis', 'ruff', 'mypy', 'types-PyYAML', 'openmim'],
}

ALL = sorted({name for extra in EXTRAS.values() for name in extra})
# What det and seg run on, for empty machines. Not in "all": it must not be installed over a
# compiled mmcv. docs/install.md has the newest torch that was tried. mmengine imports
# pkg_resources, which setuptools 81 removed.
LITE = [
    'torch>=2.6,<2.16',
    'torchvision',
    'numpy',
    'mmengine>=0.10.4,<1.0',
    'mmcv-lite==2.1.0',
    'setuptools<81',
]

setup(
    name='xcit_mm',
    version=version(),
    description='The Cross-Covariance Image Transformer (XCiT) as a backbone for OpenMMLab',
    long_description=(ROOT / 'README.md').read_text(encoding='utf-8'),
    long_description_content_type='text/markdown',
    license='Apache-2.0',
    license_files=['LICENSE'],
    python_requires='>=3.10',
    # xcit_mm_deploy is the old name of xcit_mm_runtime.
    packages=find_packages(
        include=['xcit_mm', 'xcit_mm.*', 'xcit_mm_cli', 'xcit_mm_deploy', 'xcit_mm_runtime']
    ),
    entry_points={'console_scripts': ['xcit-mm = xcit_mm_cli:main']},
    package_data={
        'xcit_mm': ['py.typed', '*.json', 'weights/*.json'],
        'xcit_mm_runtime': ['page.html'],
    },
    # Neither torch, numpy nor anything of OpenMMLab: a plugin leaves the environment that it comes
    # into as it is, whether these come from open-mmlab or from a fork. `import xcit_mm` and the
    # doctor say what is missing. The extras bring whole environments to empty machines.
    install_requires=['rich', 'safetensors'],
    extras_require={**EXTRAS, 'all': ALL, 'lite': LITE},
    classifiers=[
        'Development Status :: 4 - Beta',
        'Intended Audience :: Science/Research',
        'Programming Language :: Python :: 3',
        'Topic :: Scientific/Engineering :: Artificial Intelligence',
    ],
    keywords='xcit, vision transformer, backbone, object detection, segmentation, openmmlab',
    cmdclass={'build_py': BuildWithMim},
    zip_safe=False,
)
