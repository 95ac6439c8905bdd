"""The transaction report: a Parquet row for each transaction, suspicious ones, and an HTML page.

`writing` makes it of a store, without Spark; `summary` the statistics of rows in Arrow batches, also for the Spark job;
`page` the HTML file; `last_run` what the next run compares itself with. Needs pyarrow and Jinja2: the extra `report`.
"""
