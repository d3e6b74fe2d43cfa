"""The watch over the ranks of a job: one that is gone, stopped or stuck is named, and the job ends.

Read ``judge.py`` first: one pure function that decides who holds up a job, and what it must know.
The other modules find that out, and act on it:

- A thread of each rank (``watchdog.py``) writes twice a second what its main thread is doing
  (``own_row.py``, ``waits.py``) to a board in the job's store, which all ranks read (``board.py``).
- A small process beside each rank (``observer.py``, asked by ``observation.py``) sees whether the
  rank works, is stopped or has ended. The rank cannot say so itself.
- The threads of ranks 0 and 1 put rows and answers together (``evidence.py``) and judge. Every
  rank notices that another one of its machine has ended (``identity.py``), and that the store no
  longer answers.
- Whoever finds a fault first prints which rank has it and what every rank was doing
  (``report.py``, ``crash.py``). Then all ranks end, and what is stopped is killed.
"""
