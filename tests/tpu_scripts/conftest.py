import pytest
from pod_cloud import Cloud


@pytest.fixture
def cloud(tmp_path):
    cloud = Cloud(tmp_path)
    yield cloud
    cloud.stop_all()
