"""What a step costs beside the peers: every contender in processes of its own, in turns, in one
run.

    OMP_NUM_THREADS=1 python -m benchmarks.peers step

``coordinator.py`` starts the contenders and hands out the turns, ``turns.py`` is their side of it,
``work.py`` says what all of them do, ``tables.py`` who stands in which table, ``judge.py`` whether
to believe a run, and ``contenders/`` holds one file for each kind.
"""
