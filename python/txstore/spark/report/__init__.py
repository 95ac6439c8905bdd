"""The transaction report: a row for each transaction, suspicious ones, and an HTML page.

`fold` is the outcome rule as DataFrame operations, `ledger` the Parquet files that each run extends, `summary` the
statistics, `page` the HTML file. The job that connects them is spark/transaction_report.py.
"""
