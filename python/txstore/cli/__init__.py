"""The command line, `txstore NOUN VERB PATH`: inspects and operates a store by hand.

In:     arguments.
Out:    text or JSON on stdout, progress and errors on stderr, an exit code.
Always: a command does what it says and nothing else.
Not here: anything that a program could not also do through the API.
"""
