"""The page in a real browser: what is seen, by mouse and by keys, and that nothing is asked of anybody else.

Needs Chromium with its driver and selenium; without them every test here is skipped and says so.
"""

import importlib.util
import json
import os
import shutil
from urllib.parse import urlsplit

import pytest
from fleet_table import JAVA, at, ended, lease, note, shard
from ui_page import Page, until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
MISSING = [
    what
    for what, is_there in (
        ("chromium (apt-get install chromium)", CHROMIUM),
        ("chromedriver (apt-get install chromium-driver)", DRIVER),
        ("selenium (pip install -e '.[dev]')", importlib.util.find_spec("selenium")),
    )
    if not is_there
]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"NO BROWSER HERE: missing {', '.join(MISSING)}")

EVIL = [
    "<script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "\x1b]0;owned\x07",
    "{{7*7}}${7*7}",
    "' onmouseover='document.title=1",
]
SIZES = {"desk": (1280, 720), "phone": (390, 844)}


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in (
        "--headless=new",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        f"--user-data-dir={tmp_path_factory.mktemp('chromium')}",
    ):
        options.add_argument(argument)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    try:
        driver.set_page_load_timeout(60)
        yield driver
    finally:
        driver.quit()


class Tab:
    """One look at the page, from a browser that has never been there."""

    def __init__(self, driver, page, *, size="desk", dark=False):
        self.driver, self.page = driver, page
        driver.get("about:blank")
        # Cookies do not tell ports apart, and each page of these tests has another.
        driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
        for kind in ("browser", "performance"):
            driver.get_log(kind)
        width, height = SIZES[size]
        driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == "phone"},
        )
        driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]},
        )

    def open(self, link=None):
        self.driver.get(link or self.page.server.link)
        if link is None:
            # What has loaded by now is the page that takes the token. Its script has yet to ask for a session and
            # to put the fleet's page in its place: a look at that page's elements in between finds none of them.
            self.wait("document.querySelector('#application') !== null", "the fleet's page")
        return self

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def wait(self, script, what):
        return until(lambda: self.run(f"return {script}"), bool, what)

    def drawn(self, rows):
        self.wait(f"document.querySelectorAll('#lease-table tbody tr').length === {rows}", f"{rows} leases")
        return self

    def keys(self, *texts):
        from selenium.webdriver import ActionChains

        actions = ActionChains(self.driver)
        for text in texts:
            actions.send_keys(text)
        actions.perform()
        return self

    def text(self, selector):
        return self.run("return document.querySelector(arguments[0])?.textContent", selector)

    def complaints(self):
        return [entry for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]

    def asked(self):
        """Every address the browser sent something to."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [
            one["params"]["request"]["url"]
            for one in messages
            if one["method"] == "Network.requestWillBeSent"
        ]


def fleet(table):
    table.put(
        ended(0, 4, 5),
        *[
            lease(number, owner, at(number), metadata=note(owner))
            for number, owner in ((1, "py-1"), (2, "py-2"))
        ],
        lease(3, JAVA, at(3)),
        lease(4, "py-1", parents=(shard(0),), metadata=note("py-1")),
        lease(5, None, parents=(shard(0),)),
        lease(6, None, parents=(shard(4),)),
    )


@pytest.fixture
def tab(chromium, page, live_table):
    fleet(live_table)
    return Tab(chromium, page)


def test_the_page_comes_up_without_a_complaint_and_asks_nobody_else(tab, page):
    tab.open().drawn(7)
    tab.wait("document.querySelector('#panel-lag .uplot canvas') !== null", "the chart of the lag")
    tab.wait("document.querySelector('#tile-lag').textContent === '1.5s'", "the largest lag")
    tab.keys("t", "t", "d", "d", "?")
    assert tab.complaints() == []
    asked = tab.asked()
    assert len(asked) > 10
    assert {urlsplit(address).netloc for address in asked if not address.startswith("about:")} == {page.host}


def test_a_fleet_of_3x_has_a_panel_of_its_own_and_any_other_has_none(tab, live_table):
    tab.open().drawn(7)
    assert tab.run("return document.querySelector('#fleet').hidden")
    live_table.lead(JAVA)
    live_table.report(JAVA, sts={"C": [12.4]}, opr={"C": [100]})
    live_table.put(lease(2, "py-1", at(2), checkpoint_owner="py-2", metadata=note("py-2"), throughput="64.5"))
    tab.wait("!document.querySelector('#fleet').hidden", "the panel")
    tab.wait("document.querySelectorAll('#fleet-table tbody tr').length === 3", "its workers")
    assert tab.text("#fleet-note").startswith(f"CLIENT_VERSION_3X · leader {JAVA}, lock unchanged for")
    java, first, second = tab.run(
        "return [...document.querySelectorAll('#fleet-table tbody tr')].map((row) => [...row.cells].map((one) => one.textContent))"
    )
    assert java[:3] == [f"{JAVA}leader", "member", "1"]
    assert java[5] == "CPU 12 %"
    assert [*first[:2], first[4], first[6]] == ["py-1", "no report", "never", "reports no metrics"]
    assert second[:4] == ["py-2", "no report", "1", "64.5"]
    owner = "[...document.querySelectorAll('#lease-table tbody tr')].find((row) => row.textContent.startsWith('002')).cells[2].textContent"
    tab.wait(f"{owner} === 'py-2pykcl→py-1'", "the hand-over")
    assert tab.complaints() == []


def test_the_token_leaves_the_address_and_scripts_cannot_read_the_cookie(tab, page):
    tab.open().drawn(7)
    assert tab.driver.current_url == f"{page.server.url}/"
    assert tab.run("return document.cookie") == ""
    (cookie,) = tab.driver.get_cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert not any(page.server.token in address.partition("#")[0] for address in tab.asked())


def test_without_the_token_there_is_a_form_and_with_it_the_page(tab, page):
    tab.open(page.server.url)
    assert tab.text("h1") == "pykcl"
    tab.keys("wrong\n")
    tab.wait("document.querySelector('#problem').textContent.includes('not the token')", "the refusal")
    tab.run("document.querySelector('#token').value = ''")
    tab.keys(f"{page.server.token}\n")
    tab.drawn(7)


def test_hostile_names_are_text_and_nothing_else(chromium, live_table):
    live_table.put(*[lease(number, evil) for number, evil in enumerate(EVIL)])
    for evil in EVIL:
        live_table.put_item(
            leaseKey={"S": evil},
            leaseCounter={"N": "1"},
            leaseOwner={"S": evil},
            checkpoint={"S": "TRIM_HORIZON"},
            checkpointSubSequenceNumber={"N": "0"},
            ownerSwitchesSinceCheckpoint={"N": "0"},
        )
    with Page(live_table) as page:
        tab = Tab(chromium, page).open().drawn(10)
        shown = tab.run(
            "return [...document.querySelectorAll('#lease-table .link')].map((one) => one.textContent)"
        )
        assert EVIL[0] in shown
        assert "\\x1b]0;owned\\x07" in shown
        tab.keys("t")
        for number in range(10):
            tab.run("document.querySelectorAll('#lease-table .link')[arguments[0]].click()", number)
            tab.run("document.querySelector('#detail').close()")
        for number in range(len(EVIL)):
            live_table.put(live_table.row(number).with_(owner="next", counter=20))
        tab.wait("document.querySelectorAll('.event').length >= 5", "the events")
        assert tab.driver.title == "orders-app · pykcl"
        assert tab.run("return document.querySelectorAll('script').length") == 3
        assert tab.run("return document.querySelectorAll('main img, dialog img').length") == 0
        assert tab.complaints() == []


def test_the_policy_stops_what_is_put_into_the_page(tab):
    tab.open().drawn(7)
    tab.run(
        "const one = document.createElement('script'); try { one.textContent = 'document.title=\"owned\"'; document.body.append(one); } catch { return; }"
    )
    tab.run(
        "document.body.insertAdjacentElement('beforeend', Object.assign(document.createElement('img'), {src: 'http://127.0.0.1:9/x.png'}))"
    )
    assert "Trusted" in str(
        tab.run(
            "try { document.body.innerHTML = '<b>x</b>'; return 'done'; } catch (error) { return String(error); }"
        )
    )
    assert tab.driver.title == "orders-app · pykcl"
    tab.wait("true", "a moment")
    assert any("Content Security Policy" in entry["message"] for entry in tab.driver.get_log("browser"))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_fits_and_nothing_overlaps(chromium, page, live_table, size, dark):
    fleet(live_table)
    tab = Tab(chromium, page, size=size, dark=dark).open().drawn(7)
    tab.wait("document.querySelector('#panel-lag .uplot canvas') !== null", "the chart of the lag")
    assert tab.run("return document.documentElement.scrollWidth <= innerWidth")
    boxes = tab.run(
        "return ['.tiles', '.owners', '#panel-lag', '#panel-rate', '#panel-lineage', '#panel-events', '#leases'].map((one) => { const box = document.querySelector(one).getBoundingClientRect(); return [one, box.left, box.top, box.right, box.bottom]; })"
    )
    for number, (name, left, top, right, bottom) in enumerate(boxes):
        assert right - left > 100, name
        assert bottom - top > 20, name
        for other, at_left, at_top, at_right, at_bottom in boxes[number + 1 :]:
            assert right <= at_left or at_right <= left or bottom <= at_top or at_bottom <= top, (name, other)
    cut = tab.run(
        "return [...document.querySelectorAll('.tile .big, .panel h2, .tools button')].filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.textContent)"
    )
    assert cut == []
    ground = tab.run("return getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, ground[4:-1].split(", "))) < 150) == dark
    if size == "desk":
        assert tab.run(
            "return document.querySelector('#panel-events').getBoundingClientRect().bottom <= innerHeight"
        )


@pytest.mark.parametrize("panel", ["panel-lag", "panel-lineage"])
def test_charts_are_drawn_in_the_colours_of_the_owners(tab, page, panel):
    # Lines that lie on one another would hide all but one.
    page.lags.behind = {shard(number): 10.0 * number for number in range(7)}
    tab.open().drawn(7)
    tab.wait(f"document.querySelector('#{panel} canvas') !== null", panel)
    colours = """
        const canvas = document.querySelector(`#${arguments[0]} canvas`);
        const found = new Set();
        const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
        for (let at = 0; at < data.length; at += 4) if (data[at + 3] === 255) found.add(`rgb(${data[at]}, ${data[at + 1]}, ${data[at + 2]})`);
        const owners = [...document.querySelectorAll('#owners .mark')].map((one) => getComputedStyle(one).color);
        return owners.length > 2 && owners.filter((one) => !found.has(one)).length === 0;
    """
    until(lambda: tab.run(colours, panel), bool, "every owner's colour")


def test_lines_of_lag_have_no_colour_but_those_of_owners(tab, page):
    page.lags.behind = {shard(number): 10.0 * number for number in range(7)}
    tab.open().drawn(7)
    tab.wait("document.querySelector('#panel-lag canvas') !== null", "the chart of the lag")
    tab.wait("document.querySelector('#tile-lag').textContent.endsWith('s')", "a lag")
    # By hue: where a line crosses one of the grid, its edge is a mixture of both.
    hues = """
        const hue = (r, g, b) => {
            const [most, least] = [Math.max(r, g, b), Math.min(r, g, b)];
            if (most - least < 60) return null;
            const turn = most === r ? (g - b) / (most - least) : most === g ? 2 + (b - r) / (most - least) : 4 + (r - g) / (most - least);
            return (turn * 60 + 360) % 360;
        };
        const canvas = document.querySelector('#panel-lag canvas');
        const counts = new Map();
        const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
        for (let at = 0; at < data.length; at += 4) {
            const found = data[at + 3] < 255 ? null : hue(data[at], data[at + 1], data[at + 2]);
            if (found !== null) counts.set(Math.round(found), (counts.get(Math.round(found)) ?? 0) + 1);
        }
        const owners = [...document.querySelectorAll('.mark')].map((one) => hue(...getComputedStyle(one).color.match(/\\d+/g).map(Number)));
        const near = (one) => owners.some((owner) => owner !== null && Math.abs(owner - one) <= 5);
        const drawn = [...counts].filter(([, many]) => many >= 20).map(([one]) => one);
        return [drawn.filter(near).length, drawn.filter((one) => !near(one))];
    """
    # So long that the lines have more of their colour than the marks of their owners.
    page.browser().state(lambda told: min(map(len, told["lag"].values()), default=0) >= 6)
    until(lambda: tab.run(hues)[0], lambda many: many >= 2, "lines of several owners")
    assert tab.run(hues)[1] == []


def test_every_chart_has_a_table_twin_that_says_the_same(tab, live_table):
    tab.open().drawn(7)
    tab.wait("document.querySelector('#tile-lag').textContent === '1.5s'", "the largest lag")
    tab.keys("t")
    tab.wait(
        "document.querySelectorAll('#panel-lag table tbody tr').length === 5",
        "the lag of five leases that can be read",
    )
    assert "1.5s" in tab.text("#panel-lag table")
    assert "waits" not in tab.text("#panel-lag table")
    assert tab.run("return document.querySelectorAll('#panel-lineage table tbody tr').length") == 7
    assert "ENDED" in tab.text("#panel-lineage table")
    assert (
        tab.run(
            "return document.querySelectorAll('#panel-rate table, #panel-rate .lines .empty-state').length"
        )
        == 1
    )
    live_table.put(live_table.row(5).with_(owner="py-9", counter=9))
    tab.wait(
        "document.querySelector('#panel-lineage table').textContent.includes('py-9')",
        "the new owner in the table",
    )
    tab.keys("t")
    tab.wait("document.querySelector('#panel-lag table').closest('.lines').hidden", "the chart again")


def test_all_of_it_can_be_done_by_keys(tab):
    from selenium.webdriver.common.keys import Keys

    tab.open().drawn(7)
    tab.wait("document.querySelector('#panel-lag .uplot canvas') !== null", "the chart of the lag")
    tab.wait("document.querySelector('#tile-lag').textContent === '1.5s'", "the largest lag")
    tab.keys("1", Keys.END)
    tab.wait("document.querySelector('#spoken').textContent.includes('1.5s behind')", "the lag, spoken")
    tab.keys("3", Keys.ARROW_DOWN, Keys.ENTER)
    tab.wait("document.querySelector('#detail').open", "the lease's dialog")
    assert "shardId-000000000000" in tab.text("#detail")
    tab.keys(Keys.ESCAPE)
    tab.wait("!document.querySelector('#detail').open", "the dialog to close")
    tab.keys("/", "py-1")
    tab.drawn(2)
    tab.keys(Keys.ESCAPE)
    tab.drawn(7)
    tab.keys("?")
    tab.wait("document.querySelector('#keys').open", "the help")
    tab.keys(Keys.ESCAPE)
    tab.wait("!document.querySelector('#keys').open", "the help to close")
    tab.keys("d")
    tab.wait("document.documentElement.dataset.theme === 'dark'", "the dark theme")
    tab.keys("d", "p")
    tab.wait("document.querySelector('#live-text').textContent === 'paused'", "the pause")


def test_a_key_right_behind_a_dialog_counts_although_the_focus_is_in_there_until_the_next_frame(tab):
    tab.open().drawn(7)
    inside, paused = tab.run("""
        document.querySelector('#help').click();
        const dialog = document.querySelector('#keys');
        dialog.querySelector('button').focus();
        dialog.close();
        const focused = document.activeElement;
        focused.dispatchEvent(new KeyboardEvent('keydown', { key: 'p', bubbles: true }));
        return [dialog.contains(focused), document.querySelector('#pause').getAttribute('aria-pressed')];
    """)
    assert (inside, paused) == (True, "true")


def test_a_lease_opened_right_behind_another_one_goes_on_telling_what_is_new(tab, live_table):
    tab.open().drawn(7)
    # A dialog tells that it was closed a moment later.
    tab.run("""
        const [one, other] = document.querySelectorAll('#lease-table .link');
        one.click();
        document.querySelector('#detail').close();
        other.click();
    """)
    assert "shardId-000000000001" in tab.text("#detail")
    live_table.put(live_table.row(1).with_(owner="py-9", counter=20))
    tab.wait("document.querySelector('#detail').textContent.includes('py-9')", "the new owner in the dialog")


def test_whatever_takes_the_focus_has_a_name_and_shows_it(tab):
    from selenium.webdriver.common.keys import Keys

    tab.open().drawn(7)
    tab.wait("document.querySelector('#panel-lag .uplot canvas') !== null", "the chart of the lag")
    seen = []
    for _ in range(40):
        tab.keys(Keys.TAB)
        name, outline = tab.run("""
            const one = document.activeElement;
            const name = one.getAttribute('aria-label') || one.textContent.trim() || one.labels?.[0]?.textContent || '';
            return [one === document.body ? null : name, getComputedStyle(one).outlineStyle];
        """)
        if name is None:
            break
        assert name != ""
        assert outline != "none", name
        seen.append(name)
    assert any("Lag per shard" in name for name in seen)
    assert any("Lineage" in name for name in seen)


def test_an_empty_table_says_what_is_missing(chromium, live_table):
    with Page(live_table) as page:
        tab = Tab(chromium, page).open()
        tab.wait("document.querySelector('#application').textContent === 'orders-app'", "the first words")
        for panel, words in (
            ("lag", "No leases yet"),
            ("rate", "No workers yet"),
            ("lineage", "No shards yet"),
            ("events", "Nothing has happened yet"),
        ):
            tab.wait(
                f"document.querySelector('#panel-{panel} .empty-state:not([hidden])')?.textContent.includes('{words}')",
                words,
            )
        assert "no rows" in tab.text("#lease-table")
        assert tab.complaints() == []


def test_who_loses_the_server_is_told(chromium, live_table):
    fleet(live_table)
    with Page(live_table) as page:
        tab = Tab(chromium, page).open().drawn(7)
    tab.wait("document.querySelector('#live-text').textContent === 'connection lost'", "the loss")
    assert tab.run("return document.querySelectorAll('#lease-table tbody tr').length") == 7


def test_a_thousand_shards_are_shown_in_pages_and_their_lag_in_forty_lines(chromium, live_table):
    live_table.put(*[lease(number, f"w{number % 20}", at(number)) for number in range(1000)])
    with Page(live_table, every=1.0) as page:
        tab = Tab(chromium, page).open().drawn(50)
        assert tab.text("#leases-note") == "1000"
        assert "1 to 50 of 1000" in tab.text("#lease-table")
        assert tab.run("return document.querySelectorAll('*').length") < 2500
        tab.run(
            "document.querySelector('#filter').value = 'w7'; document.querySelector('#filter').dispatchEvent(new Event('input'))"
        )
        assert tab.text("#leases-note") == "50 of 1000"
