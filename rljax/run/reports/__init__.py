"""Looking at runs: pages and the terminal. All but ``records`` read files only and do not import JAX.

``runs``             Work directories: finds them, and reads the files of each: ``find``, ``read``, ``Run``.

One run
``report``           The page of a run, its command and its server: ``page``, ``write``, ``serve``.
``facts``            Phases, costs, warnings, commands and what ran, on the page.
``curves``           Curves by phase and held-out accuracy, on the page.
``completions``      Completions with colored tokens, on the page.
``turns``            Conversations in records of rollouts: who wrote what, and what a turn was paid.
``evaluations``      Held-out accuracy, and statistics of episodes, as tables: ``accuracy``, ``by_turns``.
``records``          What a run writes to ``rollouts.jsonl``: ``rollouts``.
``show_rollouts``    Rollouts in the terminal: ``show``.
``show_metrics``     Metrics in the terminal.

``comparison``       Comparison of runs: a room of its own.

Any page
``pages``            What every page and every table in the terminal is made of, whatever it shows.
"""
