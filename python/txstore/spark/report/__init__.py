"""The report of transactions: one row for each, what is suspicious, and a page to look at.

`fold` is the outcome rule as DataFrame operations, `ledger` the Parquet files that a run continues, `summary` the
figures, `page` one HTML file. The job that wires them: spark/transaction_report.py.
"""
