from ..visualization.conftest import backbone, image  # noqa: F401  fixtures
