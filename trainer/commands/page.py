"""A page of runs, in a single HTML file that needs no network, because plotly is in the file."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from string import Template

from ..errors import usage_error
from ..text import is_headline, printable
from .curves import gaps_of
from .finished_runs import Run

# The colors of Okabe and Ito, which color-blind people tell apart, without the palest.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#222222", "#56b4e9", "#e69f00")
_NOT_DRAWN = {"loss", "step", "epoch", "samples", "seconds", "eta_seconds", "skipped_steps"}

_PAGE = Template("""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline';
  img-src data: blob:">
<title>samecurve: runs beside each other</title>
<style>
  body { margin: 0 auto; max-width: 1600px; padding: 16px; color: #222; background: #fff;
    font: 13px/1.6 system-ui, sans-serif }
  pre { font: 12px/1.6 ui-monospace, monospace; background: #f6f7f9; border-radius: 6px;
    margin: 0; padding: 12px 16px; overflow-x: auto }
  @media (min-width: 1350px) {
    body { display: grid; grid-template-columns: minmax(0, 1fr) 620px; gap: 0 16px }
    aside { order: 1; align-self: start; position: sticky; top: 16px }
    pre { max-height: calc(100vh - 180px) }
  }
</style>
<aside>
<pre>$text</pre>
<p>Click a run in the legend to hide the run, double-click to see that run alone. Drag to zoom.
A run that coincides with an earlier run shows that run's color in the gaps of its dashes. A line
that ends and begins again had a value that was not finite. The axis of differences has no place
for 0.</p>
</aside>
$figure
</html>
""")


def write_page(file: Path, text: str, runs: Sequence[Run]) -> None:
    """Write the page of runs, of which one has logged a step at least, below a text."""
    try:
        from plotly.subplots import make_subplots
    except ModuleNotFoundError:
        rule = "needs plotly: pip install -c constraints.txt -e '.[page]'"
        raise usage_error("", str(file), rule) from None

    runs = [run for run in runs if run.curve("loss")]
    logged = {key for run in runs for row in run.rows for key in row} - _NOT_DRAWN
    keys = ["loss", "loss", *sorted(filter(is_headline, logged))]
    titles = [escape(key, quote=False) for key in keys]
    titles[1] += ": relative difference to the first run"

    height = 240 * len(keys)
    figure = make_subplots(
        len(keys), shared_xaxes="all", subplot_titles=titles, vertical_spacing=60 / height
    )
    for number, run in enumerate(runs):
        for row, key in enumerate(keys, 1):
            curve = gaps_of(run, runs[0], key) if row == 2 else run.curve(key)
            if curve:
                figure.add_scatter(
                    x=[*curve],
                    y=[*curve.values()],
                    row=row,
                    col=1,
                    name=escape(printable(run.name), quote=False),
                    legendgroup=number,
                    showlegend=row == 1,
                    marker_size=4,
                    line_color=_COLORS[number % len(_COLORS)],
                    line_dash=f"9px,{4 * number}px",
                )

    figure.update_layout(
        template="simple_white",
        height=height,
        hovermode="x unified",
        legend_orientation="h",
        legend_yanchor="bottom",
        legend_y=1 + 30 / height,
        margin_l=0,
        margin_r=30,
        margin_t=60,
        modebar_orientation="v",
    )
    figure.update_annotations(x=0, xanchor="left", font_size=14)
    figure.update_xaxes(showticklabels=True)
    figure.update_yaxes(row=2, type="log", range=[-9, 0], exponentformat="power")
    # Otherwise plotly has a button that sends the curves to its makers.
    drawn = figure.to_html({"showSendToCloud": False}, full_html=False)
    file.write_text(_PAGE.substitute(text=escape(text), figure=drawn), encoding="utf-8")
