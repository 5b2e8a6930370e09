"""Where rows live: in memory, or in SQLite and PostgreSQL (`agent_hedge.stores.sql`)."""
