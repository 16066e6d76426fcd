"""Games: checkpoints play a person or each other, and are rated. Only their commands and evaluations of games use this.

``play``           A person plays a seat of a world against a checkpoint: ``Policy``, ``Person``, ``run``.
``tournament``     Checkpoints play each other inside the compiled program: ``tournament``, ``player``.
``matches``        Episodes of a world on the host, one turn at a time: ``Episode``.
``elo``            Ratings of players from results of games: ``ratings``, ``fit``.
``nashconv``       Exact NashConv in Kuhn poker, and the strategy of a language policy: ``nashconv``, ``strategy``.
"""
