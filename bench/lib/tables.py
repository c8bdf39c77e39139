"""Numbers and tables in Markdown."""

import statistics


def table(rows, left=1):
    """A table whose first row is the head; the first `left` columns are aligned to the left, the others to the right."""
    head, *body = rows
    rule = ["---"] * left + ["--:"] * (len(head) - left)
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *body])


def median_and_range(values, form):
    """The median, and the extremes of several values: `2.1 (1.9 … 2.4)`."""
    shown = form(statistics.median(values))
    return f"{shown} ({form(min(values))} … {form(max(values))})" if len(values) > 1 else shown


def ratio(values, form=lambda value: f"{value:.2f}"):
    """The median in bold, with the extremes: `**0.87** (0.80 … 0.90)`."""
    return f"**{form(statistics.median(values))}** ({form(min(values))} … {form(max(values))})"


def thousands(value):
    return f"{value:,.0f}"


def millis(microseconds):
    return f"{microseconds / 1000:,.0f} ms"
