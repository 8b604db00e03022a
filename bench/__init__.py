"""Benches. `python -m bench.run` runs them all; `python -m bench.chain` runs one.

A bench is a module with

    TITLE       one line above its table
    UNIT        (name, units a second): what the table shows
    CONTENDERS  names out of bench/contender.py, in the order of the columns
    TARGETS     {case: {contender: least ratio}} that `neuron` is meant to reach against that contender; "cpu" stands
                for the better of the plain and the tuned CPU; may be empty
    ROUNDS      how often each contender is measured
    cases()     names of the cases, the rows of the table
    prepare(case, contender) -> round, where round(index) measures once and returns seconds

`prepare` runs in a process of its own for each case and contender, with the contender's environment, so no contender
finds what another one left behind. The rounds of all contenders are interleaved, and the table shows medians.
"""
