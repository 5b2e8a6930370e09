"""The pure kernel: types, events, ports and the race. Synchronous, no I/O, standard library only.

The protocols that users may implement (`HedgePolicy`, `Observer`, ...) and the events they hear are public here.
"""
