"""Examples: programs to read and to run, each of them run by a test.

In: nothing but txstore and Python's own library. Out: lines that tell what happened. Not here: anything to import.
"""
