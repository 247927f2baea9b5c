from ..visualization.conftest import backbone, classifier, image  # noqa: F401  fixtures
