"""How Spark starts its Python workers in the tests.

Out:    variables of the environment, for a driver.
Always: the workers are of the interpreter that runs the tests; otherwise Spark starts whatever python3 is on the path.
"""

import sys
from pathlib import Path


def environment() -> dict[str, str]:
    """The variables that a driver needs before it starts Spark."""
    return {
        "PYSPARK_PYTHON": str(Path(__file__).with_name("worker.sh")),
        "TXSTORE_WORKER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
