"""Examples: programs to read and to run. A test runs each of them. They need only txstore and the standard library."""
