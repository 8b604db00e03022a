"""Benches. `python -m bench.run` runs them all; `python -m bench.chain` runs one.

A bench is a module with

    TITLE       one line above its table
    UNIT        (name, units a second): what the table shows
    CONTENDERS  names out of bench/contender.py, in the order of the columns
    TARGETS     {case: {contender: least ratio}} that `neuron` is meant to reach against that contender; "cpu" stands
                for the best form of the CPU; may be empty
    LIMITS      {case: most} that `neuron` may take, in seconds; may be missing
    COMPARISON  what a ratio is, "times as fast as" where it is missing
    ROUNDS      how often each contender is measured
    cases()     names of the cases, the rows of the table
    prepare(case, contender) -> round, where round(index) measures once and returns seconds, or {part: seconds} where
                each part is a row of its own; round.first_seconds may tell how long the first call took

`prepare` runs in a process of its own for each case and contender, with the contender's environment, so no contender
finds what another one left behind. The rounds of all contenders are interleaved, and the table shows medians.
"""
