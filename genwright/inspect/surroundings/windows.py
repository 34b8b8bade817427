"""Windows that a script would open: what they would have shown is recorded, and nothing waits for a person."""

import contextlib
import functools
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from genwright.inspect.analysis.unattended import opens_windows
from genwright.inspect.media.samples import sample_folder
from genwright.inspect.surroundings.import_hooks import after_import

_FRAMES = 16  # shown before a key is pressed
_MOST_SHOWN = 100  # records of one kind of window
_KEYS = (27, ord("q"))  # what usually ends a loop over frames


class Windows:
    """Stands in for the functions that show windows; `record` is told the function, its arguments and a file."""

    def __init__(self, folder: Path, record: Callable[[str, list[Any], Path | None], None]) -> None:
        self._folder, self._record = folder, record
        self._count = itertools.count(1)
        self._shown: dict[str, int] = {}
        self._waits = 0

    def install(self) -> None:
        """Stand in wherever a library is imported."""
        for name, value in {"MPLBACKEND": "Agg", "SDL_VIDEODRIVER": "dummy", "SDL_AUDIODRIVER": "dummy"}.items():
            os.environ.setdefault(name, value)
        after_import(
            {
                "cv2": self._cv2,
                "matplotlib": lambda module: _draw_to_files(module, "use"),
                "matplotlib.pyplot": self._matplotlib,
                "PIL.Image": self._pil,
                "tkinter": self._tkinter,
                "open3d.visualization": self._open3d,
                "pygame.event": self._pygame,
                "webbrowser": self._webbrowser,
            }
        )

    def show(self, name: str, values: list[Any], save: Callable[[str], Any] | None = None) -> None:
        """Record one showing; `save` writes the picture to a path."""
        self._shown[name] = self._shown.get(name, 0) + 1
        if self._shown[name] > _MOST_SHOWN:
            return
        path: Path | None = None
        # A picture that cannot be written is told without its file.
        with contextlib.suppress(Exception):
            if save is not None:
                self._folder.mkdir(exist_ok=True)
                target = self._folder / f"{next(self._count):04d}.png"
                save(str(target))
                path = target if target.exists() else None
        self._record(name, values, path)

    def _key(self, delay: int = 0) -> int:
        """No key for some frames, then those that usually end a loop; a wait without end gets one at once."""
        self._waits += 1
        if delay > 0 and self._waits <= _FRAMES:
            return -1
        return _KEYS[self._waits % len(_KEYS)]

    def _cv2(self, module: Any) -> None:
        module.imshow = lambda name, image: self.show("cv2.imshow", [name, image], lambda p: module.imwrite(p, image))
        module.waitKey = module.waitKeyEx = self._key
        module.getWindowProperty = lambda *_: 1.0 if self._waits <= _FRAMES else 0.0
        for name in ("namedWindow", "resizeWindow", "moveWindow", "setMouseCallback", "setWindowTitle"):
            setattr(module, name, lambda *_, **__: None)
        module.destroyAllWindows = module.destroyWindow = lambda *_: None
        if hasattr(module, "VideoCapture") and not hasattr(module.VideoCapture, "camera"):  # cv2 imports itself twice
            module.VideoCapture = self._capture(module.VideoCapture)

    def _capture(self, original: Any) -> Any:
        """Give cameras, which are opened by their numbers, the sample video again and again; files stay as they are."""
        shown = self.show

        class Capture:
            camera = ""  # the video that stands in for one

            def __init__(self, *source: Any, **options: Any) -> None:
                self._held = original()
                if source or options:
                    self.open(*source, **options)

            def __getattr__(self, name: str) -> Any:
                return getattr(self._held, name)

            def open(self, *source: Any, **options: Any) -> Any:
                number = source[0] if source else options.get("index")
                self.camera = str(sample_folder() / "videos" / "test_video.avi") if isinstance(number, int) else ""
                if not self.camera:
                    return self._held.open(*source, **options)
                shown("cv2.VideoCapture", [number, self.camera])
                return self._held.open(self.camera)

            def read(self, *image: Any) -> Any:
                done, frame = self._held.read(*image)
                if not done and self.camera:
                    self._held.open(self.camera)
                    done, frame = self._held.read(*image)
                return done, frame

        return Capture

    def _matplotlib(self, module: Any) -> None:
        def show(*args: Any, **kwargs: Any) -> None:
            for number in module.get_fignums():
                figure = module.figure(number)
                titles = [axes.get_title() for axes in figure.axes]
                self.show("matplotlib.pyplot.show", [number, titles], figure.savefig)
            module.close("all")

        _draw_to_files(module, "switch_backend")
        module.show = show
        module.pause = lambda *_: None

    def _pil(self, module: Any) -> None:
        module.Image.show = lambda image, title=None: self.show("PIL.Image.Image.show", [title, image], image.save)

    def _tkinter(self, module: Any) -> None:
        module.Misc.mainloop = lambda root, n=0: self.show("tkinter.mainloop", [root.winfo_toplevel().title()])
        module.mainloop = lambda n=0: self.show("tkinter.mainloop", [])

    def _open3d(self, module: Any) -> None:
        for name in ("draw_geometries", "draw"):
            full = f"open3d.visualization.{name}"
            setattr(module, name, lambda shapes=None, *_, full=full, **__: self.show(full, [shapes]))

    def _pygame(self, module: Any) -> None:
        """The window is a dummy of SDL; after some rounds of events it is closed."""
        original = module.get

        def get(*args: Any, **kwargs: Any) -> list[Any]:
            self._waits += 1
            events = list(original(*args, **kwargs))
            if self._waits <= _FRAMES:
                return events
            self.show("pygame.event.get", ["closed"])
            return [*events, module.Event(256)]  # pygame.QUIT

        module.get = get

    def _webbrowser(self, module: Any) -> None:
        def shown(url: str, *args: Any, **kwargs: Any) -> bool:
            self.show("webbrowser.open", [url])
            return True

        module.open = module.open_new = module.open_new_tab = shown


def _draw_to_files(module: Any, name: str) -> None:
    """Let a function that chooses matplotlib's backend choose Agg where the script wants windows."""
    original = getattr(module, name)

    @functools.wraps(original)
    def choose(*args: Any, **kwargs: Any) -> None:
        def instead(value: Any) -> Any:
            return "Agg" if opens_windows(value) else value

        original(*map(instead, args), **{k: instead(v) for k, v in kwargs.items()})

    setattr(module, name, choose)
