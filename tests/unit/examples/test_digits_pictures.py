"""The callback on the page is that of the script that is run in tests/jobs/test_trackers.py."""

from __future__ import annotations

from launchers import ROOT


def test_the_page_has_the_callback_of_the_example() -> None:
    script = (ROOT / "examples" / "digits_pictures.py").read_text()
    _, _, after = script.partition("class Pictures")
    callback = "class Pictures" + after.partition("\n\n\ndef main")[0]
    assert callback in (ROOT / "docs" / "seeing.md").read_text()
