"""Looking at runs: pages and the terminal. All but ``records`` read files only and do not import JAX.

``runs``             Work directories: finds them, and reads the files of each: ``find``, ``read``, ``Run``.

One run
``report``           The page of a run, and its command: ``page``, ``write``.
``live``             The server of ``report --live``.
``facts``            Phases, costs, warnings, commands and what ran, on the page.
``curves``           Curves by phase and held-out accuracy, on the page.
``completions``      Completions with colored tokens, on the page.
``turns``            Conversations in records of rollouts: who wrote what, and what a turn was paid.
``episodes``         Statistics of episodes as tables: ``table``, ``section``.
``records``          What a run writes to ``rollouts.jsonl``: ``rollouts``.
``show_rollouts``    Rollouts in the terminal: ``show``.
``show_metrics``     Metrics in the terminal.

Comparison of runs
``compare``          The command, and the function of the same name.
``comparison``       Its result, shown as text, as a page or in a notebook: ``Comparison``.
``arms``             Runs grouped by the fields that are compared, and the checks that they may be averaged: ``group``.
``quantities``       What is compared: pass@k, final metrics, time and tokens: ``measure``.
``writing``          Numbers and intervals as text.
``bands``            Figures: arms and their runs, pass@k, curves with bands.
``comparison_text``  The tables on a terminal.
``comparison_page``  The page.

Any page
``html``             The skeleton of a page: ``page``, ``table``, ``folded``, ``tag``, ``escape``.
``pictures``         Figures as inline SVG: ``picture``, ``gallery``.
"""
