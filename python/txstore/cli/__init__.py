"""The command line, `txstore NOUN VERB PATH`: a store looked at and looked after by hand.

In: arguments. Out: text or JSON on stdout, progress and errors on stderr, an exit code that means something. Always: a
command does what it says and nothing beside. Not here: anything that a program could not do through the API as well.
"""
