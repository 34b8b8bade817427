"""Windows are recorded with what they would have shown, and loops over frames end."""

from pathlib import Path

import pytest
from fixture_cases import Run, run

HEAD = "from Inspection.core.executor import Executor\nexe = Executor('demo', 'simulation')\nexe.unattended()\n"


def shown(source: str, folder: Path, **modules: str) -> Run:
    for name, text in modules.items():
        (folder / f"{name}.py").write_text(text)
    (folder / "script.py").write_text(HEAD + source)
    done = run([str(folder / "script.py")], folder / "run")
    assert done.code == 0, done.errors
    return done


def test_figures(tmp_path: Path) -> None:
    done = shown("import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.title('Rise')\nplt.show()\n", tmp_path)
    (record,) = done.records
    assert record.event == "window" and record.arguments[1] == ["Rise"]
    assert record.files[0]["bytes"] > 1000 and record.files[0]["path"].endswith("0001.png")


@pytest.mark.parametrize(
    "choice",
    [
        "matplotlib.use('TkAgg')",
        "matplotlib.rcParams['backend'] = 'QtAgg'",
        "import matplotlib.pyplot\nmatplotlib.use(backend='TkAgg', force=True)",
        "import matplotlib.pyplot\nmatplotlib.pyplot.switch_backend('gtk3agg')",
    ],
)
def test_a_backend_that_opens_windows_becomes_agg(choice: str, tmp_path: Path) -> None:
    draw = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()\nprint(plt.get_backend().lower())\n"
    done = shown(f"import matplotlib\n{choice}\n{draw}", tmp_path)
    assert done.output == "agg\n" and [r.event for r in done.records] == ["window"]


def test_a_backend_that_draws_to_files_stays(tmp_path: Path) -> None:
    use = "import matplotlib\nmatplotlib.use('svg')\nimport matplotlib.pyplot as plt\n"
    assert shown(f"{use}plt.figure()\nprint(plt.get_backend().lower())\n", tmp_path).output == "svg\n"


def test_pictures(tmp_path: Path) -> None:
    done = shown("from PIL import Image\nImage.new('RGB', (8, 4)).show(title='Red')\n", tmp_path)
    (record,) = done.records
    assert record.interface == "PIL.Image.Image.show" and record.files[0]["written"]


CV2 = """
def imshow(*a): raise SystemExit("no display")
waitKey = waitKeyEx = namedWindow = destroyAllWindows = imshow
def imwrite(path, image): open(path, "w").write(str(image))
"""
FRAMES = """
import cv2
cv2.namedWindow("w")
frames = 0
while True:
    frames += 1
    cv2.imshow("w", [frames])
    if cv2.waitKey(1) & 0xFF == ord("q"):
        break
cv2.destroyAllWindows()
print(frames, cv2.waitKey(0) in (27, ord("q")))
"""


def test_a_loop_over_frames_ends(tmp_path: Path) -> None:
    done = shown(FRAMES, tmp_path, cv2=CV2)
    frames, waited = done.output.split()
    assert 16 <= int(frames) <= 20 and waited == "True"
    assert len(done.records) == int(frames) and done.records[0].arguments[0] == "w"


CAMERA = """
class VideoCapture:
    def __init__(self): self.opened = []
    def open(self, *source):
        self.opened, self.left = [*self.opened, *source], 2
        return True
    def read(self):
        self.left -= 1
        return self.left >= 0, self.left
    def release(self): pass
"""
FILMED = """
import cv2
camera, film, none = cv2.VideoCapture(0), cv2.VideoCapture("film.mp4", 1900), cv2.VideoCapture()
print([camera.read()[0] for _ in range(7)], [film.read()[0] for _ in range(4)])
print(camera.opened[0].endswith("test_video.avi"), len(camera.opened), film.opened, none.opened, none.open(1))
print(isinstance(film, cv2.VideoCapture), camera.release())
"""


def test_a_camera_shows_the_sample_video_without_end(tmp_path: Path) -> None:
    done = shown(FILMED, tmp_path, cv2=CV2 + CAMERA)
    assert done.output.splitlines() == [
        f"{[True] * 7} {[True, True, False, False]}",
        "True 4 ['film.mp4', 1900] [] True",
        "True None",
    ]
    assert [r.arguments[0] for r in done.records] == [0, 1]


def test_a_browser(tmp_path: Path) -> None:
    done = shown("import webbrowser\nprint(webbrowser.open('http://localhost'))\n", tmp_path)
    assert done.output == "True\n" and done.records[0].arguments == ["http://localhost"]


def test_many_windows_leave_some_records(tmp_path: Path) -> None:
    done = shown("import webbrowser\nfor i in range(300):\n    webbrowser.open(str(i))\n", tmp_path)
    assert len(done.records) == 100
