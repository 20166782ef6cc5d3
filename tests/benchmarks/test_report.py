"""Reports in one file."""

import base64
import re
from html.parser import HTMLParser

import pytest

from benchmarks.report import HtmlReport, ReportChart, ReportTable

from ..bench.pictures import EXTERNAL


class Balance(HTMLParser):
    """Notes elements that are not closed in their order."""

    def __init__(self):
        super().__init__()
        self.open, self.wrong = [], []

    def handle_starttag(self, tag, attrs):
        if tag not in {"img", "meta"}:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


@pytest.fixture
def report():
    return HtmlReport(
        title="A <report>",
        lead="5 > 4 & all is well.",
        facts={"cores": "2", "by": 'a "name"'},
        tables=[
            ReportTable(
                "Numbers",
                ["name", "what", "value"],
                [["<b>one</b>", "-", "1.5"], ["two", "of it", "-"]],
                "in seconds",
            ),
            ReportTable("Nothing", ["never seen"], []),
        ],
        charts=[ReportChart("A picture", b"\x89PNG rest"), ReportChart("How <many>?", b"<svg/>", "2 & no more.")],
        terms={"P50": "The median."},
    )


def test_it_is_one_well_formed_file(report):
    html = report.html()
    check = Balance()
    check.feed(html)
    assert html.startswith("<!doctype html>")
    assert (check.open, check.wrong) == ([], [])


def test_nothing_is_fetched(report):
    html = re.sub(r'src="data:image/[^"]*"', "", report.html())
    assert [mark for mark in EXTERNAL if mark in html] == []
    assert "src=" not in html
    assert "href=" not in html


def test_a_picture_is_inside(report):
    data = re.search(r'<img alt="A picture" src="data:image/png;base64,([^"]+)">', report.html()).group(1)
    assert base64.b64decode(data) == b"\x89PNG rest"


def test_a_chart_has_its_question_as_heading_and_its_answer_below(report):
    pattern = r"<figure><h2>How &lt;many&gt;\?</h2><img (.*?)><figcaption>2 &amp; no more.</figcaption>"
    chart = re.search(pattern, report.html())
    assert (
        base64.b64decode(re.search(r'src="data:image/svg\+xml;base64,([^"]+)"', chart.group(1)).group(1)) == b"<svg/>"
    )


def test_words_are_explained(report):
    assert "<dt>P50</dt><dd>The median.</dd>" in report.html()


def test_a_wide_table_can_be_scrolled_with_the_keyboard(report):
    assert '<div class="wide" role="region" aria-label="Numbers" tabindex="0"><table>' in report.html()


def test_text_stays_text(report):
    html = report.html()
    assert "<h1>A &lt;report&gt;</h1>" in html
    assert "5 &gt; 4 &amp; all is well." in html
    assert "&lt;b&gt;one&lt;/b&gt;" in html
    assert "a &quot;name&quot;" in html


def test_words_are_set_left_and_numbers_right(report):
    assert '<th scope="row">two</th><td class="text">of it</td><td>-</td>' in report.html()
    assert "<td>1.5</td>" in report.html()


def test_an_empty_table_is_left_out(report):
    assert "never seen" not in report.html()


def test_little_is_enough():
    assert "How it was measured" not in HtmlReport("Title", "Lead").html()
