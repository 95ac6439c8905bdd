"""The transaction report by Spark: a row for each transaction of a log of any size, read run by run.

`fold` is the outcome rule as DataFrame operations, `ledger` the Parquet files that each run extends. The statistics and
the page are those of `txstore.report`. The job that connects them is spark/transaction_report.py.
"""
