"""The web console: pages on a store's topics, groups, transactions and messages, and buttons for operators.

In:     administrative calls, on an open store or on the server that has it; accounts.
Out:    HTML over HTTP, rendered here; no script.
Always: nothing is imported before a console starts, and no page loads anything from another machine. Without a
        permission it changes nothing.

`operator` makes the calls, `viewers` tells who asks and what they may do, `web` turns requests into calls of pages and
errors into pages, `listener` serves it.
"""
