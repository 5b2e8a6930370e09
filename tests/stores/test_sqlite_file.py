"""What can happen to a file: missing, foreign, damaged, deleted, replaced, full (C8). Typed errors, nothing claimed."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from agent_hedge.errors import ConfigurationError, StoreUnavailable
from agent_hedge.stores.sql import Database, migrate, sql_stores
from agent_hedge.stores.sql import sqlite as files
from agent_hedge.stores.sql.claims import SqlClaims
from agent_hedge.stores.sql.clock import HostClock, boot_id
from agent_hedge.testing.suites.claims import a_claim

pytestmark = pytest.mark.anyio


def path_of(url: str) -> Path:
    return Path(url.removeprefix("sqlite:///"))


def names_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


async def test_a_fresh_file_is_created_and_migrated_by_itself(tmp_path: Path) -> None:
    stores = sql_stores(f"sqlite:///{tmp_path}/new.db")
    assert (await stores.claims.claim(a_claim(), lease=60)).attempt_id == "a1"
    await stores.close()
    assert names_in(tmp_path) == ["new.db"]


async def test_processes_that_create_the_same_file_at_once_share_it(tmp_path: Path) -> None:
    stores = [sql_stores(f"sqlite:///{tmp_path}/new.db") for _ in range(6)]
    rows = await asyncio.gather(*(s.claims.claim(a_claim("k", f"a{n}"), lease=60) for n, s in enumerate(stores)))
    assert len({row.attempt_id for row in rows}) == 1
    assert len({s.database.uuid for s in stores}) == 1
    for s in stores:
        await s.close()


async def test_r20_only_a_missing_file_is_created(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="agent-hedge db upgrade"):
        await sql_stores(f"sqlite:///{tmp_path}/no.db", create=False).open()
    with pytest.raises(ConfigurationError, match="does not exist"):
        await sql_stores(f"sqlite:///{tmp_path}/no/where.db").open()
    (tmp_path / "empty.db").touch()
    with pytest.raises(ConfigurationError, match="agent-hedge db upgrade --store sqlite:///"):
        await sql_stores(f"sqlite:///{tmp_path}/empty.db").open()
    (tmp_path / "letter.txt").write_text("Dear database, " * 100)
    with pytest.raises(ConfigurationError, match="not an SQLite database"):
        await sql_stores(f"sqlite:///{tmp_path}/letter.txt").open()


async def test_r20_another_applications_file_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "app.db")) as other:
        other.execute("CREATE TABLE runs (id INTEGER)")
        other.commit()
    with pytest.raises(ConfigurationError, match="no agent_hedge tables"):
        await sql_stores(f"sqlite:///{tmp_path}/app.db").open()
    with pytest.raises(ConfigurationError, match="another owner named runs"):
        migrate.upgrade(f"sqlite:///{tmp_path}/app.db")


async def test_a_file_that_cannot_be_used_now_is_not_called_damaged(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reads "restore it from a backup" may do so, and lose claims."""
    monkeypatch.setattr(files, "BUSY_S", 0.01)
    stores = sql_stores(sqlite_url)
    with closing(sqlite3.connect(path_of(sqlite_url))) as other:
        other.execute("PRAGMA locking_mode=EXCLUSIVE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreUnavailable, match=r"cannot be used \(SQLITE_BUSY\)"):
            await stores.claims.claim(a_claim(), lease=60)
    assert (await stores.claims.claim(a_claim(), lease=60)).attempt_id == "a1", "it needs no restart"
    await stores.close()


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root may read and write everything")
@pytest.mark.parametrize("forbidden", ["folder", "file", "both"])
def test_what_may_not_be_read_or_written_is_said_in_one_line(sqlite_url: str, forbidden: str) -> None:
    path = path_of(sqlite_url)
    if forbidden == "folder":
        path.unlink()
    folder_mode, file_mode = {"folder": (0o555, 0), "file": (0o755, 0o000), "both": (0o555, 0o444)}[forbidden]
    if path.exists():
        path.chmod(file_mode)
    path.parent.chmod(folder_mode)
    as_anybody = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    program = (
        "import asyncio, sys\n"
        "from agent_hedge.errors import StoreUnavailable\n"
        "from agent_hedge.stores.sql import sql_stores\n"
        "from agent_hedge.testing.suites.claims import a_claim\n"
        "async def main():\n"
        "    await sql_stores(sys.argv[1]).claims.claim(a_claim(), lease=60)\n"
        "try:\n"
        "    asyncio.run(main())\n"
        "except StoreUnavailable as error:\n"
        "    print(error)\n"
    )
    try:
        ran = subprocess.run(
            [*as_anybody, sys.executable, "-c", program, sqlite_url], capture_output=True, text=True, check=False
        )
    finally:
        path.parent.chmod(0o755)
    assert ran.stderr == ""
    assert "cannot be used" in ran.stdout
    assert "damaged" not in ran.stdout
    assert len(ran.stdout.splitlines()) == 1


async def test_r20_a_directory_is_no_database(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is a directory"):
        await sql_stores(f"sqlite:///{tmp_path}").open()


def test_r20_an_upgrade_that_fails_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot migrate"):
        migrate.upgrade(f"sqlite:///{tmp_path}/new.db", revision="9999")
    with pytest.raises(StoreUnavailable, match="cannot be used"):
        migrate.upgrade(f"sqlite:///{tmp_path}/{'x' * 250}.db")
    assert names_in(tmp_path) == []
    migrate.upgrade(f"sqlite:///{tmp_path}/new.db", revision="0001")
    assert names_in(tmp_path) == ["new.db"]


async def test_a_damaged_page_is_seen_at_the_start(sqlite_url: str) -> None:
    path = path_of(sqlite_url)
    stores = sql_stores(sqlite_url)
    for n in range(200):
        await stores.claims.claim(a_claim(f"k{n}", f"a{n}"), lease=60)
    await stores.close()
    data = bytearray(path.read_bytes())
    for page in range(6, min(20, len(data) // 4096)):
        data[page * 4096 : page * 4096 + 2000] = b"\xa5" * 2000
    path.write_bytes(data)
    damaged = sql_stores(sqlite_url)
    with pytest.raises(StoreUnavailable, match="damaged"):
        await damaged.claims.claim(a_claim("new"), lease=60)


@pytest.mark.parametrize("replaced", [False, True])
async def test_r11_no_claim_is_made_in_a_file_that_is_gone(
    sqlite_url: str, sqlite_template: Path, replaced: bool
) -> None:
    stores = sql_stores(sqlite_url)
    await stores.claims.claim(a_claim("one"), lease=60)
    path_of(sqlite_url).unlink()
    if replaced:
        shutil.copy(sqlite_template, path_of(sqlite_url))
    with pytest.raises(StoreUnavailable, match="deleted or replaced"):
        await stores.claims.claim(a_claim("one", "a2"), lease=60)
    await stores.close()


async def test_r11_a_full_disk_claims_nothing(sqlite_url: str) -> None:
    stores = sql_stores(sqlite_url)
    await stores.open()
    async with stores.database.engine.connect() as connection:
        pages = (await connection.execute(text("PRAGMA page_count"))).scalar_one()
        await connection.execute(text(f"PRAGMA max_page_count={pages + 1}"))
    claimed = 0

    async def fill() -> None:
        nonlocal claimed
        while claimed < 2000:
            await stores.claims.claim(a_claim(f"k{claimed}", f"a{claimed}", note="x" * 500), lease=60)
            claimed += 1

    with pytest.raises(StoreUnavailable, match="SQLITE_FULL"):
        await fill()
    assert await stores.claims.get(a_claim(f"k{claimed}").effect_key) is None
    assert len(await stores.claims.recent(5000)) == claimed
    await stores.close()
    with closing(sqlite3.connect(path_of(sqlite_url))) as check:
        assert check.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def test_claims_are_written_through(sqlite_url: str) -> None:
    stores = sql_stores(sqlite_url)
    await stores.open()
    async with stores.database.engine.connect() as connection:
        assert (await connection.execute(text("PRAGMA synchronous"))).scalar_one() == 2
        assert (await connection.execute(text("PRAGMA journal_mode"))).scalar_one() == "wal"
    await stores.close()


class Host:
    """A host whose clocks are ours."""

    def __init__(self) -> None:
        self.mono, self.wall, self.boot = 1000.0, 1e9, "boot-1"

    def clock(self) -> HostClock:
        return HostClock(monotonic=lambda: self.mono, epoch=lambda: self.wall, boot=self.boot)


async def test_r11_leases_follow_the_monotonic_clock_not_the_wall(sqlite_url: str) -> None:
    host = Host()
    claims = SqlClaims(Database(sqlite_url, clock=host.clock()))
    mine = await claims.claim(a_claim(), lease=30)
    host.wall += 3600
    assert await claims.mark_in_doubt(mine.effect_key) is None
    host.mono += 29
    seen = await claims.get(mine.effect_key)
    assert seen is not None
    assert (seen.lease_left, seen.age) == (1.0, 29.0)
    host.mono += 1
    assert await claims.mark_in_doubt(mine.effect_key) is not None
    await claims._db.close()


async def test_r11_an_owner_of_another_boot_is_dead(sqlite_url: str) -> None:
    host = Host()
    before = SqlClaims(Database(sqlite_url, clock=host.clock()))
    await before.claim(a_claim(), lease=1e6)
    await before._db.close()
    host.mono, host.wall, host.boot = 5.0, host.wall + 120, "boot-2"
    after = SqlClaims(Database(sqlite_url, clock=host.clock()))
    seen = await after.get(a_claim().effect_key)
    assert seen is not None
    assert seen.lease_left < 0
    assert seen.age == 120.0
    taken = await after.take_over(a_claim(attempt="a2"), previous_attempt="a1", lease=30)
    assert (taken.attempt_id, taken.lease_left, taken.age) == ("a2", 30.0, 120.0)
    host.wall = 0.0
    host.boot = "boot-3"
    third = SqlClaims(Database(sqlite_url, clock=host.clock()))
    unknown = await third.get(a_claim().effect_key)
    assert unknown is not None
    assert unknown.age == float("inf")
    for claims in (after, third):
        await claims._db.close()


def test_the_boot_is_known() -> None:
    assert boot_id() == boot_id() != ""
