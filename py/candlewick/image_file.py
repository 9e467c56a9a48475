"""Picture files -> pixels, in CPython (the browser decodes them in the page). Needs Pillow."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def read_image(path: str | Path) -> np.ndarray:
    """A picture file -> (height, width, 3) uint8: turned upright (EXIF, once), first frame, transparency on white.

    Raises ValueError in words for what is not a picture or is cut short.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    from candlewick.image import to_rgb

    path = Path(path)
    try:
        with Image.open(path) as picture:
            upright = ImageOps.exif_transpose(picture)
            upright.load()
    except UnidentifiedImageError as error:
        head = path.read_bytes()[:256].lstrip().lower()
        drawing = head.startswith((b"<svg", b"<?xml"))
        what = "an SVG drawing; save it as PNG first" if drawing else "not a picture that can be read"
        raise ValueError(f"{path.name}: {what}. Readable are JPEG, PNG, WebP, GIF, BMP and TIFF") from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        if isinstance(error, FileNotFoundError | IsADirectoryError | PermissionError):
            raise
        raise ValueError(f"{path.name}: the picture cannot be read ({error}); it is damaged or cut short") from error
    if upright.mode in ("I;16", "I;16B", "I;16L", "I"):
        return to_rgb(np.clip(np.asarray(upright), 0, 65535).astype(np.uint16))
    if upright.mode not in ("L", "LA", "RGB", "RGBA"):
        clear = upright.mode in ("PA", "La", "RGBa") or "transparency" in upright.info
        upright = upright.convert("RGBA" if clear else "RGB")
    elif "transparency" in upright.info:
        upright = upright.convert("RGBA")
    return to_rgb(np.asarray(upright))
