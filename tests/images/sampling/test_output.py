import resource

import numpy as np
import pytest

from genwright.errors import UserError
from genwright.images.sampling import output
from genwright.images.sampling.pipeline import ImageBatch, SampleRun
from genwright.images.sampling.sampler_settings import SamplerSettings


def ignore(done, total):
    pass


def test_a_stopped_run_goes_on(tiny, tmp_path):
    settings = SamplerSettings(sampler="onestep")
    folder = output.SampleFolder(tmp_path / "out")
    folder.open({"seed": 7})
    run = SampleRun(tiny, settings, 11, seed=7)
    calls = []

    def stopping(first, count):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(first)
        return run(first, count)

    with pytest.raises(KeyboardInterrupt):
        folder.collect(stopping, 11, 3, 0, 1, ignore)
    again = output.SampleFolder(tmp_path / "out")
    again.open({"seed": 7})
    assert again.done() == set(range(6))
    # Another batch size serves as well: only what is missing is sampled again.
    assert again.collect(run, 11, 2, 0, 1, ignore) == 5
    path = again.finish(*again.merge(11), png=True)
    expected = tiny.sample(11, seed=7, sampler="onestep")
    with np.load(path) as file:
        assert path.name == "samples_11x16x16x3.npz" and file.files == ["arr_0", "arr_1"]
        assert np.array_equal(file["arr_0"], expected.array) and np.array_equal(file["arr_1"], expected.labels)
    names = {entry.name for entry in path.parent.iterdir()}
    assert names == {path.name, "run.json", "grid.png", *(f"{i:06d}.png" for i in range(11))}


def test_ranks_share_the_batches(tiny, tmp_path):
    folder = output.SampleFolder(tmp_path)
    folder.open({})
    run = SampleRun(tiny, SamplerSettings(sampler="onestep"), 10, seed=7)
    made = [folder.collect(run, 10, 3, rank, 2, ignore) for rank in (0, 1)]
    assert made == [6, 4]
    assert np.array_equal(folder.merge(10)[0], tiny.sample(10, seed=7, sampler="onestep").array)


def test_another_run_is_not_overwritten(tmp_path):
    output.SampleFolder(tmp_path).open({"seed": 7})
    with pytest.raises(UserError, match="holds samples of another run, whose seed is 7 and not 8"):
        output.SampleFolder(tmp_path).open({"seed": 8})
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(UserError, match="damaged"):
        output.SampleFolder(tmp_path).settings()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is a file"):
        output.SampleFolder(tmp_path / "file")


def test_samples_without_labels_have_one_array(tmp_path):
    folder = output.SampleFolder(tmp_path)
    folder.open({})
    folder.add(0, ImageBatch(np.zeros((2, 4, 4, 3), np.uint8), None, 0))
    with np.load(folder.finish(*folder.merge(2), png=False)) as file:
        assert file.files == ["arr_0"]


def test_grid_puts_images_in_rows():
    images = np.arange(5, dtype=np.uint8)[:, None, None, None] * np.ones((1, 128, 129, 3), np.uint8) + 1
    canvas = output.grid(images)
    assert canvas.shape == (256, 387, 3)
    assert canvas[::128, ::129, 0].tolist() == [[1, 2, 3], [4, 5, 0]]


def test_small_images_are_enlarged_in_a_grid():
    images = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
    canvas = output.grid(images)
    assert canvas.shape == (256, 256, 3)
    assert np.array_equal(canvas[130::4, 3:128:4], images[2])


def test_runs_get_folders_of_their_own(tmp_path):
    parent = tmp_path / "new" / "samples"
    folders = [output.SampleFolder.fresh(parent).folder.name for _ in range(3)]
    assert folders == ["0001", "0002", "0003"]
    (parent / "0007").mkdir()
    (parent / "best").mkdir()
    assert output.SampleFolder.fresh(parent).folder == parent / "0008"
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is a file"):
        output.SampleFolder.fresh(tmp_path / "file")


def test_a_damaged_part_is_sampled_again(tiny, tmp_path):
    run = SampleRun(tiny, SamplerSettings(sampler="onestep"), 9, seed=7)
    folder = output.SampleFolder(tmp_path)
    folder.open({})
    folder.collect(run, 9, 3, 0, 1, ignore)
    parts = sorted(folder.parts.iterdir())
    parts[0].write_bytes(parts[0].read_bytes()[:-100])
    parts[1].write_bytes(b"")
    # Another batch size: the new parts have other names.
    assert folder.collect(run, 9, 2, 0, 1, ignore) == 6
    assert np.array_equal(folder.merge(9)[0], tiny.sample(9, seed=7, sampler="onestep").array)


def test_a_full_disk_is_one_sentence_and_loses_nothing(tiny, tmp_path):
    run = SampleRun(tiny, SamplerSettings(sampler="onestep"), 4, seed=7)
    folder = output.SampleFolder(tmp_path)
    folder.open({})
    folder.collect(run, 4, 2, 0, 1, ignore)
    images, labels = folder.merge(4)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))  # as a full disk, but only for this process
    try:
        with pytest.raises(UserError, match="cannot be written: File too large"):
            folder.finish(images, labels, png=False)
        with pytest.raises(UserError, match="cannot be written: File too large"):
            folder.add(4, ImageBatch(images, labels, 7))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert folder.done() == {0, 1, 2, 3} and not list(tmp_path.rglob("*.tmp"))
    assert folder.finish(images, labels, png=False).is_file()
