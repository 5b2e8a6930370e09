"""Other projects' suites and libraries, run against ours. Off by default: each file says what it needs."""
