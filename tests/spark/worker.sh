#!/bin/sh
# Spark's PYTHONPATH names its own archives, whose modules each worker compiles again: 1.8 s of processor time instead of
# 0.6 s (pyspark 4.3.0). Spark gives a worker of a stream 10 s to connect, and no setting changes that
# (PythonWorkerFactory), so on a busy machine it fails. Without the variable the installed package is imported.
unset PYTHONPATH
exec "$TXSTORE_WORKER_PYTHON" "$@"
