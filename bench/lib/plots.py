"""Line charts in SVG, a row of small ones for each kind of measurement.

Colours are legible on light and on dark pages; the background is transparent.
"""

import math
import statistics
from xml.sax.saxutils import escape

GREY = "#8b949e"
SERIES = {"mcp-resume": "#3b82f6", "nginx": "#e08a1e"}
# Of one chart: the whole cell, and the axes inside it.
WIDTH, HEIGHT = 200, 198
LEFT, RIGHT, TOP, BOTTOM = 38, 192, 26, 148


def row_of_charts(points, axis, charts):
    """The SVG of a row of charts.

    `points`: {x: {series: {figure: [value of each round]}}}. `charts`: (title, figure, is_logarithmic) of each; `axis` is the label of
    their logarithmic horizontal axis.
    """
    drawn = []
    for number, (title, figure, is_logarithmic) in enumerate(charts):
        series = {}
        for name in SERIES:
            rounds = [(float(x), values[name][figure]) for x, values in points.items() if figure in values.get(name, {})]
            if rounds:
                series[name] = rounds
        drawn += [f'<g transform="translate({number * WIDTH} 0)">', *chart(title, axis, series, is_logarithmic), "</g>"]
    head = (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH * len(charts)} {HEIGHT}" width="{WIDTH * len(charts)}" '
            f'font-family="sans-serif" font-size="9" fill="{GREY}" stroke="none">')
    return "\n".join([head, *drawn, "</svg>"]) + "\n"


def chart(title, axis, series, is_logarithmic):
    """The elements of one chart."""
    xs = [x for rounds in series.values() for x, _ in rounds]
    ys = [y for rounds in series.values() for _, values in rounds for y in values]
    x_scale, x_ticks = logarithmic(min(xs), max(xs), LEFT + 6, RIGHT - 6)
    # A flat cost looks flat on an axis that begins at zero.
    y_scale, y_ticks = (logarithmic if is_logarithmic else from_zero)(min(ys), max(ys), BOTTOM, TOP)
    parts = [text((LEFT + RIGHT) / 2, 14, title), text((LEFT + RIGHT) / 2, BOTTOM + 28, axis)]
    for x in x_ticks:
        parts += [line(x_scale(x), TOP, x_scale(x), BOTTOM, GREY, 0.3), text(x_scale(x), BOTTOM + 13, short(x))]
    for y in y_ticks:
        parts += [line(LEFT, y_scale(y), RIGHT, y_scale(y), GREY, 0.3), text(LEFT - 5, y_scale(y) + 3, short(y), "end")]
    for name, rounds in series.items():
        parts += curve([(x_scale(x), y_scale(statistics.median(v)), y_scale(min(v)), y_scale(max(v))) for x, v in rounds], SERIES[name])
    if len(series) > 1:
        parts += [text(LEFT + 42 + 72 * at, BOTTOM + 42, name, "middle", SERIES[name]) for at, name in enumerate(series)]
    return parts


def curve(points, colour):
    """Medians as dots on a line, extremes as bars."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _, _ in points)
    parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.4"/>']
    for x, y, low, high in points:
        parts += [line(x, low, x, high, colour, 1), f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.2" fill="{colour}"/>']
    return parts


def line(x1, y1, x2, y2, colour, opacity):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="0.7" opacity="{opacity}"/>'


def text(x, y, words, anchor="middle", colour=GREY):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{escape(words)}</text>'


def logarithmic(low, high, start, end):
    """A scale from numbers to coordinates, and its ticks: powers of ten."""
    low, high = math.log10(low), math.log10(high)
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    scale = lambda value: start + (math.log10(value) - low) / (high - low) * (end - start)
    return scale, [10.0 ** power for power in range(math.ceil(low - 1e-9), math.floor(high + 1e-9) + 1)]


def from_zero(_, high, start, end):
    """A linear scale that begins at zero, and its ticks: three to six round numbers."""
    step = 10 ** math.floor(math.log10(high)) / 2
    while high / step > 5:
        step *= 2
    scale = lambda value: start + value / (high * 1.1) * (end - start)
    return scale, [step * number for number in range(math.floor(high / step) + 1)]


def short(value):
    """A number in few characters: 100, 10k, 1M."""
    for letter, unit in (("M", 1e6), ("k", 1e3)):
        if value >= unit:
            return f"{value / unit:g}{letter}"
    return f"{value:g}"
