"""What tasks on images share, whether the images are modelled or labelled."""

from __future__ import annotations

from dataclasses import dataclass

from chainrule.config import DataConfig, ImageForm, RunConfig
from chainrule.data.image_files import is_images, read_images
from chainrule.data.images import ImageCorpus, encode
from chainrule.errors import ConfigError
from chainrule.tasks.base import ModelT_co, Run, Task


@dataclass(frozen=True, kw_only=True, repr=False)
class PixelRun(Run[ModelT_co]):
    """A run on images of one size and a known number of levels."""

    @property
    def form(self) -> ImageForm:
        """Size, channels and levels of the images."""
        assert self.config.data.image is not None
        return self.config.data.image

    def corpus(self, data: str) -> ImageCorpus:
        """The images of a data spec, quantised to the levels of this run."""
        return encode(read_images(data, self.config.data.shape), self.form, data)


class PixelTask(Task):
    """A task whose data are images, which are recognised whatever the family."""

    @classmethod
    def recognises(cls, data: str) -> bool:
        return is_images(data)

    @classmethod
    def stored(cls, data: DataConfig) -> bool:
        return data.image is not None


def require_images(config: RunConfig, does: str, folder: str) -> None:
    """Raise ConfigError if the training data are no images."""
    if not is_images(config.data.train):
        raise ConfigError(
            f"{config.family} {does}, but {config.data.train!r} has none; give .npz, idx, {folder}, or builtin:digits"
        )
