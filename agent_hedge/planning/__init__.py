"""How hedges are allotted to the steps of a run: the table d*(k, s), the steps that are left, the price of a hedge.

Needs numpy (extra ``plan``); without it runs are hedged as `Quantile` would.
"""
