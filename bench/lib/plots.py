"""Draws the plots of bench/growth: `plots.py DIRECTORY` reads figures.json there and writes an SVG for each of its kinds beside it.

Colours are legible on light and on dark pages, and nothing is drawn behind.
"""

import io
import json
import pathlib
import re
import statistics
import sys

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt

GREY = "#8b949e"
STYLE = {"mcp-resume": ("#3b82f6", "o"), "nginx": ("#e08a1e", "s")}
# Kind: what is on the horizontal axis, and each plot: its title, the figure, whether it is logarithmic.
PLOTS = {
    "streams": ("open streams", [
        ("memory of a stream, KiB", "memory_kib", False), ("CPU of an event, µs", "event_cpu_us", False),
        ("CPU of a resume, µs", "resume_cpu_us", False), ("resume: to the first byte, ms", "resume_ms", False)]),
    "log": ("events in the stream", [
        ("CPU of one more event, µs", "append_cpu_us", False), ("CPU of a resume at the end, µs", "resume_cpu_us", False),
        ("resume: to the first byte, ms", "resume_ms", False), ("CPU of a replayed event, µs", "replay_cpu_us", False)]),
    "payload": ("bytes of payload", [
        ("CPU of an event, µs", "event_cpu_us", True), ("CPU of a byte, ns", "byte_cpu_ns", True),
        ("latency, p50, µs", "latency_us", True)]),
}

plt.rcParams.update({
    "svg.hashsalt": "mcp-resume", "svg.fonttype": "none", "font.family": "sans-serif", "font.size": 9, "text.color": GREY,
    "axes.labelcolor": GREY, "axes.edgecolor": GREY, "xtick.color": GREY, "ytick.color": GREY, "axes.titlesize": 9,
    "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
})


def short(value, _):
    """A number of few letters: 100, 10k, 1M."""
    for letter, unit in (("M", 1e6), ("k", 1e3)):
        if value >= unit:
            return f"{value / unit:g}{letter}"
    return f"{value:g}"


def draw(points, axis, plots, to):
    figure, axes = plt.subplots(1, len(plots), figsize=(2.7 * len(plots), 2.5), layout="constrained")
    for at, (title, name, is_logarithmic) in zip(axes, plots):
        for path, (colour, marker) in STYLE.items():
            found = [(int(point), paths[path][name]) for point, paths in points.items() if name in paths.get(path, {})]
            if not found:
                continue
            x, rounds = zip(*found)
            y = [statistics.median(values) for values in rounds]
            spread = [[m - min(v) for m, v in zip(y, rounds)], [max(v) - m for m, v in zip(y, rounds)]]
            at.errorbar(x, y, yerr=spread, color=colour, marker=marker, markersize=4, linewidth=1.4, elinewidth=0.8, label=path)
        at.set_title(title)
        at.set_xlabel(axis)
        at.set_xscale("log")
        at.xaxis.set_major_formatter(short)
        at.grid(True, color=GREY, alpha=0.25, linewidth=0.6)
        if is_logarithmic:
            at.set_yscale("log")
            at.yaxis.set_major_formatter(short)
        else:
            # From zero: what is flat looks flat, and what is not does not look worse than it is.
            at.set_ylim(0, at.get_ylim()[1] * 1.15)
        at.minorticks_off()
        if len(at.get_legend_handles_labels()[1]) > 1:
            at.legend(fontsize=8)
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    plt.close(figure)
    # Hundredths of a point are enough, and half the size.
    to.write_text(re.sub(r"(\.\d\d)\d+", r"\1", drawn.getvalue()))


def main():
    directory = pathlib.Path(sys.argv[1])
    found = json.loads((directory / "figures.json").read_text())["found"]
    for kind, points in found.items():
        draw(points, *PLOTS[kind], directory / f"{kind}.svg")


if __name__ == "__main__":
    main()
