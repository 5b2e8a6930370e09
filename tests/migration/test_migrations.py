"""Migrations build what the metadata says, on both databases, up and down, with data, and many at once (C8)."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, MetaData, create_engine, insert, inspect, select, text

from agent_hedge.core.ports import Block
from agent_hedge.core.stores import ClaimState
from agent_hedge.errors import ConfigurationError, StoreUnavailable
from agent_hedge.stores.sql import migrate, sql_stores
from agent_hedge.stores.sql.schema import VERSION_TABLE, metadata, store_meta
from agent_hedge.testing.postgres import PostgresServer
from agent_hedge.testing.suites.claims import a_claim
from tests.conftest import HUNG_S


@contextmanager
def connected(url: str) -> Iterator[Connection]:
    engine = create_engine(url)
    with engine.connect() as connection:
        yield connection
    engine.dispose()


def shape(connection: Connection, schema: str | None = None) -> dict[str, Any]:
    """Everything the database knows of our tables."""
    found = inspect(connection)
    return {
        name: {
            "columns": [
                (column["name"], str(column["type"]), column["nullable"], str(column.get("autoincrement")))
                for column in found.get_columns(name, schema=schema)
            ],
            "key": found.get_pk_constraint(name, schema=schema),
            "indexes": sorted(
                (str(index["name"]), tuple(index["column_names"]), index["unique"])
                for index in found.get_indexes(name, schema=schema)
            ),
        }
        for name in sorted(found.get_table_names(schema=schema))
        if name != VERSION_TABLE
    }


def test_there_is_one_head() -> None:
    assert ScriptDirectory(str(migrate.scripts())).get_heads() == [migrate.head()]


def test_a_wheel_finds_its_own_migrations(tmp_path: Path) -> None:
    """Laid out as the build configuration lays a wheel out; an editable install finds those of the repository."""
    root = Path(__file__).parents[2]
    assert migrate.scripts() == root / "migrations"
    build = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    unused = shutil.ignore_patterns("__pycache__")
    for package in build["packages"]:
        shutil.copytree(root / package, tmp_path / "site" / package, ignore=unused)
    for source, target in build["force-include"].items():
        shutil.copytree(root / source, tmp_path / "site" / target, ignore=unused)
    program = (
        "from agent_hedge.stores.sql import migrate\n"
        f"print(migrate.upgrade('sqlite:///{tmp_path}/new.db').revision, migrate.scripts())"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout.split() == [migrate.head(), f"{tmp_path}/site/agent_hedge/stores/sql/migrations"], ran.stderr


def test_migrations_build_what_the_metadata_says(
    empty_url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    migrate.upgrade(empty_url)
    with connected(empty_url) as connection:
        context = MigrationContext.configure(
            connection, opts={"version_table": VERSION_TABLE, "compare_type": True, "target_metadata": metadata}
        )
        assert compare_metadata(context, metadata) == []
        migrated = shape(connection)
    schema = None
    other = f"sqlite:///{tmp_path}/created.db"
    if empty_url.startswith("postgresql"):
        other, schema = empty_url, "created"
    with connected(other) as connection:
        if schema:
            connection.execute(text("CREATE SCHEMA created"))
        copy = MetaData(naming_convention=metadata.naming_convention)
        for table in metadata.tables.values():
            table.to_metadata(copy, schema=schema)  # type: ignore[arg-type]
        copy.create_all(connection)
        assert shape(connection, schema) == migrated
        connection.rollback()


def test_up_down_up_with_data(empty_url: str) -> None:
    migrate.upgrade(empty_url)
    with connected(empty_url) as connection:
        filled = 0
        for table in metadata.sorted_tables:
            if table is store_meta:
                continue
            row = {
                column.name: b"x" if column.type.python_type is bytes else column.type.python_type(1)
                for column in table.columns
            }
            connection.execute(insert(table), [row])
            filled += 1
        connection.commit()
        assert filled == len(metadata.tables) - 1
    before = migrate.upgrade(empty_url)
    assert before.problems == []
    with connected(empty_url) as connection:
        assert connection.execute(select(text("count(*)")).select_from(metadata.tables["runs"])).scalar() == 1
    down = migrate.downgrade(empty_url, "base", force=True)
    assert down.revision is None
    with connected(empty_url) as connection:
        assert shape(connection) == {}
    up = migrate.upgrade(empty_url)
    assert (up.revision, up.problems) == (migrate.head(), [])
    assert up.uuid != before.uuid


def test_0002_keeps_the_runs_it_finds_and_a_release_at_0001_goes_on_working(empty_url: str) -> None:
    old = {
        "generation": 0, "deadline_epoch": 5.0, "extra_attempts": 3, "hedges_used": 1, "hedges_granted": 2,
        "recoveries_used": 0, "steps": 4, "state": "open", "sticky_target": "eu", "updated_at": 9.0,
    }  # fmt: skip
    put = text(f"INSERT INTO runs (run_key, {', '.join(old)}) VALUES (:run_key, :{', :'.join(old)})")

    def keys() -> set[str]:
        with connected(empty_url) as connection:
            return set(connection.execute(text("SELECT run_key FROM runs WHERE steps = 4")).scalars())

    assert migrate.upgrade(empty_url, revision="0001").problems == [
        f"the database is at revision 0001, this release needs {migrate.head()}; run: agent-hedge db upgrade"
    ]
    with connected(empty_url) as connection:
        connection.execute(put, {"run_key": "before", **old})
        connection.commit()
    migrate.upgrade(empty_url)
    with connected(empty_url) as connection:
        connection.execute(put, {"run_key": "after", **old})
        connection.commit()

    async def use() -> None:
        stores = sql_stores(empty_url)
        for key in ("before", "after"):
            row = await stores.runs.load(key)
            assert row is not None
            assert (row.steps, row.hedges_granted, row.sticky_target) == (4, 2, "eu")
            assert (row.tokens, row.tokens_used, row.cost, row.cost_granted) == (None, 0, None, 0.0)
            assert await stores.runs.grant(key, 0, Block(2, 7, 0.5)) == Block(1, 7, 0.5)
        await stores.close()

    asyncio.run(use())
    assert migrate.downgrade(empty_url, "0001").revision == "0001"
    assert keys() == {"before", "after"}
    assert migrate.upgrade(empty_url).problems == []
    assert keys() == {"before", "after"}


@pytest.mark.parametrize("to", ["base", "-2", "0001-1"])
def test_r11_claims_keep_their_table_however_the_way_down_is_written(empty_url: str, to: str) -> None:
    migrate.upgrade(empty_url)

    async def claim() -> None:
        stores = sql_stores(empty_url)
        await stores.claims.claim(a_claim("open", "a1"), lease=60)
        for name, state in (("done", ClaimState.DONE), ("failed", ClaimState.FAILED)):
            await stores.claims.claim(a_claim(name, name), lease=60)
            await stores.claims.settle(a_claim(name).effect_key, name, state)
        await stores.close()

    asyncio.run(claim())
    with pytest.raises(ConfigurationError, match=r"\(1 done, 1 running\).*twice.*--force"):
        migrate.downgrade(empty_url, to)
    status = migrate.check(empty_url)
    assert (status.revision, status.problems) == (migrate.head(), []), "nothing has changed"
    assert migrate.downgrade(empty_url, "0001").revision == "0001", "which drops no claim"
    migrate.upgrade(empty_url)
    assert migrate.downgrade(empty_url, to, force=True).revision is None


def test_r11_claims_of_what_never_happened_keep_nothing(empty_url: str) -> None:
    migrate.upgrade(empty_url)

    async def claim() -> None:
        stores = sql_stores(empty_url)
        await stores.claims.claim(a_claim("failed", "a1"), lease=60)
        await stores.claims.settle(a_claim("failed").effect_key, "a1", ClaimState.FAILED)
        await stores.close()

    asyncio.run(claim())
    assert migrate.downgrade(empty_url, "base").revision is None


def test_upgrading_twice_changes_nothing(empty_url: str) -> None:
    assert migrate.upgrade(empty_url) == migrate.upgrade(empty_url) == migrate.check(empty_url)


def test_r20_a_revision_nobody_knows_is_an_error(empty_url: str) -> None:
    migrate.upgrade(empty_url)
    for revision in ("9999", "no; drop table runs"):
        with pytest.raises(ConfigurationError, match="cannot migrate"):
            migrate.downgrade(empty_url, revision)
    assert migrate.check(empty_url).problems == []


def test_r20_tables_of_another_owner_are_left_alone(empty_url: str) -> None:
    with connected(empty_url) as connection:
        connection.execute(text("CREATE TABLE steps (id INTEGER)"))
        connection.commit()
    with pytest.raises(ConfigurationError, match="another owner named steps"):
        migrate.upgrade(empty_url)
    assert migrate.check(empty_url).problems == ["no agent_hedge tables"]


def test_an_unmigrated_database_is_refused_with_the_command_to_run(server: PostgresServer) -> None:
    stores = sql_stores(server.url(), schema="nowhere")
    with pytest.raises(ConfigurationError, match=r"run: agent-hedge db upgrade --store postgresql\S+ --schema nowhere"):
        asyncio.run(stores.open())


def test_a_schema_of_its_own(server: PostgresServer) -> None:
    url = server.url("asyncpg")
    status = migrate.upgrade(url, schema="ops")
    assert (status.revision, status.problems) == (migrate.head(), [])
    assert migrate.check(url).revision is None

    async def use() -> None:
        for driver in ("asyncpg", "psycopg"):
            stores = sql_stores(server.url(driver), schema="ops")
            assert (await stores.claims.claim(a_claim(driver, driver), lease=60)).attempt_id == driver
            assert len(await stores.claims.of_thread("thread")) >= 1
            await stores.close()

    asyncio.run(use())
    migrate.downgrade(url, "base", schema="ops", force=True)


@pytest.mark.parametrize("ways", [["head"], ["0001", "0001:head"]], ids=["at once", "release by release"])
def test_the_upgrade_as_sql_builds_the_same(empty_url: str, ways: list[str]) -> None:
    with connected(empty_url) as connection:
        for way in ways:
            for statement in migrate.upgrade_sql(empty_url, revision=way).split(";\n"):
                if statement.strip() and statement.strip() not in ("BEGIN", "COMMIT"):
                    connection.exec_driver_sql(statement.replace("%", "%%") if "postgresql" in empty_url else statement)
        connection.commit()
    status = migrate.check(empty_url)
    assert (status.revision, status.problems) == (migrate.head(), [])
    assert len(status.uuid) == 36


def test_adjacent_releases_share_the_tables(empty_url: str) -> None:
    migrate.upgrade(empty_url)

    def newer(oldest: str) -> None:
        with connected(empty_url) as connection:
            connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '0999'"))
            connection.execute(text(f"UPDATE store_meta SET text = '{oldest}' WHERE name = 'oldest_code'"))
            connection.commit()

    async def opened() -> None:
        stores = sql_stores(empty_url)
        await stores.open()
        await stores.close()

    newer(migrate.head())
    asyncio.run(opened())
    newer("0998")
    with pytest.raises(ConfigurationError, match="newer than this release"):
        asyncio.run(opened())


def test_concurrent_upgrades(empty_url: str) -> None:
    """Four processes at once, ten times over: no failure, one ledger."""
    program = (
        "import sys\n"
        "from agent_hedge.stores.sql import migrate, sqlite\n"
        f"sqlite.BUSY_S = {HUNG_S}\n"
        "for line in sys.stdin:\n"
        "    try:\n"
        "        print(migrate.upgrade(line.strip()).uuid, flush=True)\n"
        "    except Exception as error:\n"
        "        print('failed', repr(error), flush=True)\n"
    )
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        for _ in range(4)
    ]
    migrate.upgrade(empty_url)
    try:
        for turn in range(10):
            url = empty_url.replace("store.db", f"store{turn}.db")
            if url.startswith("postgresql"):
                migrate.downgrade(url, "base")
            for worker in workers:
                assert worker.stdin
                worker.stdin.write(url + "\n")
            said = {worker.stdout.readline().strip() for worker in workers if worker.stdout}
            assert len(said) == 1, said
            assert "failed" not in said.pop()
    finally:
        for worker in workers:
            assert worker.stdin
            worker.stdin.close()
            worker.wait(HUNG_S)
            assert worker.stdout
            worker.stdout.close()


def test_concurrent_upgrades_of_an_existing_empty_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    (tmp_path / "store.db").touch()

    async def four() -> set[str]:
        return {
            status.uuid for status in await asyncio.gather(*(asyncio.to_thread(migrate.upgrade, url) for _ in range(4)))
        }

    assert len(asyncio.run(four())) == 1


def test_a_damaged_file_is_not_migrated(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    migrate.upgrade(f"sqlite:///{path}")
    data = bytearray(path.read_bytes())
    data[4096:12288] = b"\xa5" * 8192
    path.write_bytes(data)
    with pytest.raises(StoreUnavailable, match="damaged"):
        migrate.upgrade(f"sqlite:///{path}")


def test_the_least_role_can_do_everything_at_run_time(server: PostgresServer) -> None:
    migrate.upgrade(server.url(), schema="least")
    with connected(server.url()) as connection:
        connection.execute(text("DROP ROLE IF EXISTS worker"))
        connection.execute(text("CREATE ROLE worker LOGIN"))
        for statement in migrate.grants("worker", schema="least").splitlines():
            connection.execute(text(statement))
        connection.commit()
    url = server.url().replace("postgres@", "worker@")

    async def use() -> None:
        from agent_hedge.core.step import Effect
        from agent_hedge.core.stores import EffectRow, RunRow, Switch

        stores = sql_stores(url, schema="least")
        await stores.claims.claim(a_claim(), lease=60)
        await stores.claims.fence(1.0)
        await stores.claims.prune(0.0)
        row = EffectRow(namespace="", name="t", effect=Effect.ONCE, source="code")
        await stores.effects.write([row], by="worker")
        await stores.effects.withdraw("", "t", "code", by="worker")
        await stores.runs.save(RunRow(run_key="r", extra_attempts=2))
        assert await stores.runs.grant("r", 0, Block(2)) == Block(2)
        await stores.runs.prune(0.0)
        await stores.steps.add_steps([{"step_id": "s", "run_key": "r", "started_at": 1.0}])
        await stores.steps.add_attempts([{"attempt_id": "a", "step_id": "s", "started_at": 1.0}])
        await stores.steps.prune(2.0)
        await stores.slices.put("w", [("k", 1, b"")])
        await stores.slices.prune(2)
        await stores.switches.set(Switch(scope_kind="fleet", scope="", mode="on"))
        await stores.close()

    asyncio.run(use())
    with pytest.raises(StoreUnavailable, match="42501"):
        migrate.downgrade(url, "base", schema="least", force=True)
    with pytest.raises(ConfigurationError):
        migrate.grants("worker; drop role postgres")


@pytest.mark.anyio
async def test_migrating_from_inside_a_loop(tmp_path: Path, anyio_backend: str) -> None:
    assert migrate.upgrade(f"sqlite:///{tmp_path}/a.db").problems == []
