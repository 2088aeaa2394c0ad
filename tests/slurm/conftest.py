"""One local cluster for all tests. Tests that can run at the same time as others do so (`together`), because a requeued
job waits most of its time."""
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from cluster import CannotRunHere, Cluster, Shop, e2e  # noqa: E402

pytest_configure = e2e.pytest_configure  # names the mark `thorough`


@pytest.hookimpl(tryfirst=True)  # before pytest chooses tests by their marks
def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.thorough)


AT_ONCE = 5
scenarios = {}


def stop_on_request(number, frame):
    raise KeyboardInterrupt  # the cluster is stopped then


signal.signal(signal.SIGTERM, stop_on_request)


def together(scenario):
    """Marks a test. The bodies of marked tests start in the order of the file. At most AT_ONCE of them run at a time."""
    def test(running):
        running[scenario.__name__].result()
    test.__name__ = scenario.__name__
    test.__doc__ = scenario.__doc__
    scenarios[scenario.__name__] = scenario
    return test


@pytest.fixture(scope="session")
def cluster():
    for program in e2e.PROGRAM, e2e.CONVERTER:
        assert program.exists(), f"{program} is missing: make all"
    try:
        started = Cluster()
    except CannotRunHere as reason:
        pytest.skip(str(reason))
    yield started
    started.stop()


@pytest.fixture(scope="session")
def names(tmp_path_factory, cluster):
    return e2e.make_names(tmp_path_factory.mktemp("names") / "names", 400)


@pytest.fixture(scope="session")
def whole(tmp_path_factory, cluster, names):
    """The names experiment without any interruption, started with mpirun -n 4 and no Slurm."""
    shop = Shop(cluster, tmp_path_factory.mktemp("whole") / "shop", names)
    done = cluster.run(e2e.LAUNCHER, 4, e2e.PROGRAM, "train", e2e.ROOT / "configs" / "names.yaml", *shop.keys("run"))
    assert done.returncode == 0, done.stdout + done.stderr
    return shop.folder / "run"


@pytest.fixture(scope="session")
def running(request, tmp_path_factory, cluster, names, whole):
    folder = tmp_path_factory.mktemp("together")
    chosen = [item.originalname for item in request.session.items if item.originalname in scenarios]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {name: pool.submit(scenarios[name], Shop(cluster, folder / name, names), whole) for name in chosen}


@pytest.fixture
def shop(tmp_path, cluster, names):
    return Shop(cluster, tmp_path / "shop", names)


@pytest.fixture
def alone(running):
    for scenario in running.values():
        scenario.exception()  # waits for its end
