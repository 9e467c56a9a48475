"""Twenty prompts for each of two pictures, in pixels of the picture: what make.py and the parity test ask."""

from __future__ import annotations

IMAGES = ("truck.jpg", "dog.jpg")


def prompts(width: int, height: int) -> list[dict]:
    """points [[x, y], ...] with labels (1 in, 0 out), box or None, and whether the answer before is the mask to refine."""
    w, h = width - 1, height - 1

    def at(*places: tuple[float, float, int], box=None, refine=False) -> dict:
        points = [[x * w, y * h] for x, y, _ in places]
        corners = [box[0] * w, box[1] * h, box[2] * w, box[3] * h] if box else None
        return {"points": points, "labels": [label for _, _, label in places], "box": corners, "refine": refine}

    return [
        at((0.5, 0.5, 1)),
        at((0.28, 0.62, 1)),
        at((0.71, 0.64, 1)),
        at((0.5, 0.25, 1)),
        at((0.05, 0.95, 1)),
        at((0.0, 0.0, 1)),
        at((1.0, 1.0, 1)),
        at((0.33, 0.5, 1), (0.6, 0.5, 1)),
        at((0.33, 0.5, 1), (0.6, 0.5, 0)),
        at((0.3, 0.3, 1), (0.5, 0.6, 1), (0.7, 0.3, 0)),
        at((0.4, 0.4, 1), refine=True),
        at((0.4, 0.4, 1), (0.45, 0.55, 1), refine=True),
        at(box=(0.1, 0.2, 0.9, 0.9)),
        at(box=(0.3, 0.3, 0.6, 0.7)),
        at(box=(0.02, 0.02, 0.3, 0.4)),
        at((0.5, 0.5, 1), box=(0.1, 0.2, 0.9, 0.9)),
        at((0.5, 0.8, 0), box=(0.1, 0.2, 0.9, 0.9)),
        at(box=(0.1, 0.2, 0.9, 0.9), refine=True),
        at((0.2, 0.2, 0), (0.8, 0.8, 0)),
        at((0.25, 0.4, 1), (0.5, 0.45, 1), (0.7, 0.5, 1), (0.1, 0.1, 0), (0.9, 0.1, 0)),
    ]
