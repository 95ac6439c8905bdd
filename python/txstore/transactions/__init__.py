"""The transactions of a store: their checks, their ends, and their histories.

`decision` is the rule that tells what to do with a pending transaction; `plan` adds which producers are asked; `check`
asks one in a thread of `pool`, and `answer` is what it said; `rounds` does so for all that are due. `history`
keeps the checks that were sent; `transactions` lists and ends transactions; `pending` and `trace` describe one.
"""
