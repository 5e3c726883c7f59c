"""Names beside the points of a plot, where they cover nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.transforms import Bbox

# Where a name may stand, seen from its point, in points of 1/72 inch. Near places come first.
DIRECTIONS = [(1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1)]
REACHES = (9, 14, 20, 28, 38, 50)
OFFSETS = [(reach * dx, reach * dy) for reach in REACHES for dx, dy in DIRECTIONS]


@dataclass(frozen=True)
class Page:
    """What is on the picture, in pixels.

    Attributes:
        frame: where names must stay.
        centres: the points by name.
        taken: boxes that names should not cover.
        scale: pixels in 1/72 inch.
    """

    frame: Bbox
    centres: dict[str, Any]
    taken: list[Bbox]
    scale: float

    def box(self, name: str, size: Bbox, offset: tuple[int, int]) -> Bbox:
        """Return what a text of this size covers at this offset from its point."""
        corner = [
            centre + self.scale * shift - length * (0 if shift > 0 else 1 if shift < 0 else 0.5)
            for centre, shift, length in zip(self.centres[name], offset, (size.width, size.height), strict=True)
        ]
        return Bbox.from_bounds(*corner, size.width, size.height)

    def cost(self, name: str, box: Bbox) -> float:
        """Return how bad a place is: it leaves the frame, covers something, or is nearer to another point."""
        outside = box.width * box.height - _overlap(box, self.frame)
        covered = sum(_overlap(box, other) for other in self.taken)
        gap = _gap(box, self.centres[name])
        nearer = sum(_gap(box, centre) < 1.3 * gap for other, centre in self.centres.items() if other != name)
        return 4 * outside + 2 * covered + 150 * nearer

    def crowd(self, name: str) -> int:
        """Return how many points are near: crowded ones choose first, they have the fewest free places."""
        return sum(bool(np.abs(self.centres[name] - other).sum() < 100 * self.scale) for other in self.centres.values())


def label(
    axes: Axes, points: dict[str, tuple[float, float]], lines: list[Bbox], styles: dict[str, dict[str, Any]]
) -> None:
    """Write the name of each point beside it.

    Args:
        axes: already drawn, with final limits.
        points: `(x, y)` by name.
        lines: other things not to cover, in the units of the axes.
        styles: text properties by name.
    """
    figure = axes.figure
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # places are final now
    renderer = FigureCanvasAgg(figure).get_renderer()
    scale = figure.dpi / 72
    centres = {name: axes.transData.transform(where) for name, where in points.items()}
    taken = [Bbox.from_bounds(*(centre - 6 * scale), 12 * scale, 12 * scale) for centre in centres.values()]
    taken += [line.transformed(axes.transData).padded(4) for line in lines]
    page = Page(axes.get_window_extent(renderer), centres, taken, scale)
    for name in sorted(points, key=page.crowd, reverse=True):
        probe = axes.text(0, 0, name, **styles[name])
        size = probe.get_window_extent(renderer)
        probe.remove()
        boxes = {offset: page.box(name, size, offset) for offset in OFFSETS}
        costs = {offset: page.cost(name, box) for offset, box in boxes.items()}
        offset = min(costs, key=costs.__getitem__)  # the first of the best
        _write(axes, name, points[name], offset, styles[name])
        taken.append(boxes[offset].padded(2))


def _write(axes: Axes, name: str, point: tuple[float, float], offset: tuple[int, int], style: dict[str, Any]) -> None:
    dx, dy = offset
    leader = {"arrowstyle": "-", "color": style["color"], "linewidth": 0.7, "alpha": 0.7, "shrinkA": 0, "shrinkB": 4}
    axes.annotate(
        name,
        point,
        offset,
        textcoords="offset points",
        ha="left" if dx > 0 else "right" if dx < 0 else "center",
        va="bottom" if dy > 0 else "top" if dy < 0 else "center",
        arrowprops=leader if max(abs(dx), abs(dy)) > REACHES[0] else None,
        **style,
    )


def _gap(box: Bbox, place: Any) -> float:
    """Return the distance from a box to a place."""
    x, y = place
    return float(np.hypot(max(box.x0 - x, 0, x - box.x1), max(box.y0 - y, 0, y - box.y1)))


def _overlap(a: Bbox, b: Bbox) -> float:
    common = Bbox.intersection(a, b)
    return float(common.width * common.height) if common is not None else 0.0
