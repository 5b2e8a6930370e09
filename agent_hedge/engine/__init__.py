"""Carries out a race's commands: tasks, one timer, and the reaping of losers, on asyncio and on trio."""
