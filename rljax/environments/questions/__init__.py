"""Questions on the host: a task over the rows of files, of the user or of a published data set.

================  ===================================================================================
``own.py``        the constructors: ``jsonl``, ``parquet``, ``hugging_face``, ``array_record``, ``tfds``
``published.py``  published sets: ``gsm8k``, ``math``, ``amc``, ``aime``, ``dapo_math``, ``deepscaler``
``programs.py``   programs judged by tests: ``code``
``gym.py``        ``gym``: problems of reasoning-gym's generators, with its scorers
``recipe.py``     how rows become questions: ``Recipe``; recipes of data sets are values of it
``task.py``       ``Questions``, the task: tokens, splits, targets and columns of its rows
``images.py``     pictures of rows, checked and resized
``columns.py``    a column or a format of columns
``splits.py``     held-out rows by a hash of the prompt, or by a file
================  ===================================================================================
"""
