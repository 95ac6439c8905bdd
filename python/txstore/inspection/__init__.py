"""Examines stores, also damaged ones, for the command line and other tools.

`opening` opens a store for one look or one change; `records` reads its log; `verify` compares records, queues and
transactions; `deep` checks each file, even of a store that does not open, and `repair` repairs what it finds.
"""
